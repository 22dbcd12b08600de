//! `terrace sync`

use crate::args::Sync;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use terrace_daemon::control::{Located, Request, locate};
use terrace_daemon::failure::{Failure, Outcome, plain};
use terrace_daemon::mounts;
use terrace_daemon::output::{self, OUTPUT_VERSION, human};
use terrace_format::BLOCK_SIZE;

pub fn run(args: &Sync) -> Outcome<u8> {
    let daemon = match locate(&args.dir)? {
        Located::Mounted(daemon) => daemon,
        Located::Dead => {
            return Err(Failure::at(&args.dir, "the daemon was killed; unmount and mount it again"));
        }
        Located::NotMounted => return Err(Failure::at(&args.dir, "not a mounted pool")),
    };
    // Without a tier the sync covers the whole mount, which any of its files may name, as for sync(1). The
    // pool's own path is a file too.
    if args.to.is_some()
        && mounts::look(&args.dir)?.1.is_some_and(|mount| mount.is_ours())
        && args.dir.is_file()
    {
        let text = "not a directory: this moves what the whole pool holds; for a file use 'terrace migrate FILE --to TIER'";
        return Err(Failure::at(&args.dir, text));
    }
    let at = |failure: Failure| Failure::at(&args.dir, failure.text);
    if args.dry_run {
        let plan = daemon.ask(&Request::SyncPlan { tier: args.to.clone() }, |_| {}).map_err(at)?;
        show_plan(args, &plan);
        return Ok(0);
    }
    // A pool's own path stands for a path in its mount.
    let place = mounts::within(&args.dir)?.ok_or_else(|| {
        let what = "mounted where it cannot be seen from here; name the directory of its mount";
        Failure::at(&args.dir, what)
    })?;
    mounts::write_kernel_pages(&place).map_err(|error| {
        Failure::at(&args.dir, format!("pages of shared mappings cannot be written: {}", plain(&error)))
    })?;
    let request = match &args.to {
        Some(tier) => Request::SyncTo { tier: tier.clone() },
        None => Request::Sync,
    };
    let bar = bar();
    let result = daemon.ask(&request, |left| show(&bar, left));
    bar.finish_and_clear();
    let written = result.map_err(at)?["written_meanwhile_bytes"].as_u64().unwrap_or(0);
    if written > 0 {
        let text = "in blocks that were written meanwhile stay in the fast tier, with what these held before";
        output::print(format!("{}: {} {text}", args.dir.display(), human(written)));
    }
    Ok(0)
}

fn show_plan(args: &Sync, plan: &Value) {
    let none = Vec::new();
    let pair = |tier: &Value| (tier[0].as_u64().unwrap_or(0), tier[1].as_u64().unwrap_or(0));
    let tiers: Vec<(u64, u64)> = plan["tiers"].as_array().unwrap_or(&none).iter().map(pair).collect();
    let moves: u64 = tiers.iter().map(|(_, bytes)| bytes).sum();
    if args.json {
        let tiers: Vec<Value> = tiers.iter().map(|(id, bytes)| json!({ "id": id, "bytes": bytes })).collect();
        return output::print_json(&json!({
            "output_version": OUTPUT_VERSION, "path": output::path_text(&args.dir), "action": "sync", "dry_run": true,
            "tier": plan["tier"], "tiers": tiers, "move_bytes": moves, "dirty_bytes": plan["dirty_bytes"],
        }));
    }
    let dirty = human(plan["dirty_bytes"].as_u64().unwrap_or(0));
    let parts = tiers.iter().filter(|(_, bytes)| *bytes > 0);
    let parts: Vec<String> =
        parts.map(|(tier, bytes)| format!("{} from tier {tier}", human(*bytes))).collect();
    let parts = if parts.is_empty() { "nothing".to_string() } else { parts.join(", ") };
    let line = match plan["tier"].as_u64() {
        Some(tier) if tier > 0 => {
            format!("would move to tier {tier} or below: {parts}; would write back first: {dirty} from DRAM")
        }
        _ => format!("would write back: {dirty} from DRAM"),
    };
    output::print(format!("{}: {line}", args.dir.display()));
}

/// A bar for terminals; elsewhere indicatif draws nothing.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let template = "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn show(bar: &ProgressBar, left_blocks: u64) {
    let left = left_blocks * BLOCK_SIZE;
    // New writes are not waited for, but a later count of bytes left may still exceed the first.
    let length = bar.length().unwrap_or(0).max(bar.position() + left);
    bar.set_length(length);
    bar.set_position(length - left);
}
