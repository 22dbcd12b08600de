//! The common part of migrate, pin and unpin: asks the daemon for a requested movement and follows its
//! report.
//!
//! The daemon moves by itself; a command that waits asks for the report again and again. So Ctrl-C ends the
//! wait and not the movement.

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use terrace_daemon::control::{Daemon, Located, Request, locate};
use terrace_daemon::failure::{Failure, Outcome, plain, status};
use terrace_daemon::mounts;
use terrace_daemon::output::{self, OUTPUT_VERSION, human};
use terrace_runtime::{Clock, SystemClock};

/// Pause between two looks at a report.
const LOOK: Duration = Duration::from_millis(50);

/// The movement that the command line asks for.
pub struct Asked<'a> {
    pub path: &'a Path,
    /// migrate, pin, unpin.
    pub action: &'static str,
    pub tier: Option<&'a str>,
    pub wait: bool,
    pub dry_run: bool,
    pub json: bool,
}

pub fn run(asked: &Asked<'_>) -> Outcome<u8> {
    let path = asked.path;
    let daemon = match locate(path)? {
        Located::Mounted(daemon) if daemon.contact.pid != 0 => daemon,
        Located::Dead => return Err(Failure::at(path, "the daemon was killed; unmount and mount it again")),
        _ => return Err(Failure::at(path, "not in a mounted pool")),
    };
    let attributes = std::fs::metadata(path).map_err(|error| Failure::at(path, plain(&error)))?;
    let request = Request::Move {
        ino: attributes.ino(),
        action: asked.action.to_string(),
        tier: asked.tier.map(str::to_string),
        dry_run: asked.dry_run,
        path: mounts::absolute(path).ok().map(|path| output::path_text(&path)),
    };
    let at = |failure: Failure| Failure::at(path, failure.text);
    let answer = daemon.ask(&request, |_| {}).map_err(at)?;
    if asked.dry_run {
        show_plan(asked, &answer);
        // The exit status that the movement itself would give.
        return Ok(if answer["refused"].is_null() { 0 } else { status::FAILED });
    }
    let Some(id) = answer.as_u64() else {
        return Err(Failure::at(path, "daemon: an answer of another version"));
    };
    let report = follow(asked, &daemon, id).map_err(at)?;
    show(asked, &report);
    let failed = report["state"] == "failed";
    if failed {
        output::warn(format!("{}: {}{}", path.display(), text(&report["reason"]), left(&report)));
    }
    Ok(if failed { status::FAILED } else { 0 })
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn bytes(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or(0)
}

fn look(daemon: &Daemon, id: u64) -> Outcome<Value> {
    daemon.ask(&Request::Moved { id }, |_| {})
}

/// Waits for the end of a move; a bar on a terminal. Without `wait`, only until a pin is set.
fn follow(asked: &Asked<'_>, daemon: &Daemon, id: u64) -> Outcome<Value> {
    let clock = SystemClock::default();
    let bar = ProgressBar::new(0);
    let template = "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta} {msg}";
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    loop {
        let report = look(daemon, id)?;
        let enough = match text(&report["state"]) {
            "done" | "failed" => true,
            "moving" => !asked.wait,
            // A pin can fail until it is set, so the command waits for that.
            _ => !asked.wait && asked.action != "pin",
        };
        if enough {
            bar.finish_and_clear();
            return Ok(report);
        }
        bar.set_length(bytes(&report, "total_bytes"));
        bar.set_position(bytes(&report, "done_bytes"));
        bar.set_message(text(&report["reason"]).to_string());
        clock.sleep(LOOK);
    }
}

fn tier_name(report: &Value) -> String {
    report["tier"].as_u64().map(|tier| format!(" to tier {tier}")).unwrap_or_default()
}

/// The bytes that did not move, as the end of a line.
fn left(report: &Value) -> String {
    match bytes(report, "left_bytes") {
        0 => String::new(),
        left => format!("; {} did not move", human(left)),
    }
}

fn pinned(report: &Value) -> String {
    match bytes(report, "pinned_files") {
        0 => String::new(),
        1 => "; 1 file pinned to another tier stays".to_string(),
        files => format!("; {files} files pinned to another tier stay"),
    }
}

fn found(report: &Value) -> String {
    output::count(bytes(report, "files"), "file or directory", "files and directories")
}

fn show(asked: &Asked<'_>, report: &Value) {
    if asked.json {
        let mut report = report.clone();
        report["output_version"] = json!(OUTPUT_VERSION);
        report["path"] = json!(output::path_text(asked.path));
        return output::print_json(&report);
    }
    let files = found(report);
    let moved = format!("{} moved{}", human(bytes(report, "done_bytes")), tier_name(report));
    let moved = match (asked.action, report["tier"].as_u64()) {
        ("pin", Some(tier)) => format!("{files} pinned to tier {tier}; {moved}"),
        // The report does not tell the number of files that had a pin before.
        ("unpin", _) => format!("{files} without a pin now"),
        _ => moved,
    };
    let pinned_first = match asked.action {
        "pin" => format!("{files} pinned; what is elsewhere "),
        _ => String::new(),
    };
    let line = match text(&report["state"]) {
        "failed" => return,
        "done" => match report["reason"].as_str() {
            Some(reason) => format!("{moved}{}: {reason}{}", left(report), pinned(report)),
            None => format!("{moved}{}", pinned(report)),
        },
        _ => format!(
            "{pinned_first}goes{} in the background (move {}); 'terrace status' shows how far it is",
            tier_name(report),
            report["id"]
        ),
    };
    output::print(format!("{}: {line}", asked.path.display()));
}

fn show_plan(asked: &Asked<'_>, plan: &Value) {
    let tiers: Vec<(u64, u64)> = plan["tiers"]
        .as_array()
        .map(|tiers| {
            let pair = |tier: &Value| (tier[0].as_u64().unwrap_or(0), tier[1].as_u64().unwrap_or(0));
            tiers.iter().map(pair).collect()
        })
        .unwrap_or_default();
    if asked.json {
        let tiers: Vec<Value> = tiers.iter().map(|(id, bytes)| json!({ "id": id, "bytes": bytes })).collect();
        return output::print_json(&json!({
            "output_version": OUTPUT_VERSION, "path": output::path_text(asked.path), "action": asked.action,
            "dry_run": true, "tier": plan["tier"], "files": plan["files"],
            "pinned_files": plan["pinned_files"], "tiers": tiers, "move_bytes": plan["move_bytes"],
            "refused": plan["refused"],
        }));
    }
    let to = plan["tier"].as_u64();
    let parts = tiers.iter().filter(|(tier, bytes)| Some(*tier) != to && *bytes > 0);
    let parts: Vec<String> =
        parts.map(|(tier, bytes)| format!("{} from tier {tier}", human(*bytes))).collect();
    let parts = if parts.is_empty() { "nothing".to_string() } else { parts.join(", ") };
    let files = found(plan);
    if let Some(refused) = plan["refused"].as_str() {
        return output::print(format!("{}: would be refused: {refused}", asked.path.display()));
    }
    if asked.action == "unpin" {
        return output::print(format!("{}: {files}", asked.path.display()));
    }
    let line = format!("{files}; would move{}: {parts}{}", tier_name(plan), pinned(plan));
    output::print(format!("{}: {line}", asked.path.display()));
}
