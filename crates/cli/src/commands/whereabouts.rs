//! `terrace where`
//!
//! A directory is shown with the sums of all regular files below it, each counted once even if it has several
//! names.

use crate::args::Where;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_daemon::control::{Daemon, Located, Request, locate};
use terrace_daemon::failure::{Failure, Outcome, plain, status};
use terrace_daemon::output::{self, OUTPUT_VERSION, human};

/// How often the progress of a walk is drawn.
const TICK: Duration = Duration::from_millis(100);

pub fn run(args: &Where) -> Outcome<u8> {
    let mut found = Vec::new();
    let mut exit = 0;
    let mut complain = |failure: Failure| {
        output::warn(&failure.text);
        exit = status::FAILED;
    };
    for path in &args.paths {
        match report(path, &mut complain) {
            Ok(value) => found.push(value),
            Err(failure) => complain(failure),
        }
    }
    if args.json {
        output::print_json(&found);
    } else {
        found.iter().for_each(show);
    }
    Ok(exit)
}

/// The report on a path, for `--json`.
fn report(path: &Path, complain: &mut impl FnMut(Failure)) -> Outcome<Value> {
    let daemon = match locate(path)? {
        Located::Mounted(daemon) if daemon.contact.pid != 0 => daemon,
        _ => return Err(Failure::at(path, "not in a mounted pool")),
    };
    let attributes = fs::metadata(path).map_err(|error| Failure::at(path, plain(&error)))?;
    let found = ask(&daemon, path, attributes.ino())?;
    let mut sums = Sums::default();
    // Tiers without a byte of the file are listed too.
    let ids = found["tiers"].as_array().into_iter().flatten().filter_map(|tier| tier[0].as_u64());
    sums.tiers.extend(ids.map(|id| (id, 0)));
    if attributes.is_dir() {
        sums.walk(&daemon, path, &attributes, complain);
    } else {
        sums.add(&found);
    }
    let tiers: Vec<Value> =
        sums.tiers.iter().map(|(id, bytes)| json!({ "id": id, "bytes": bytes })).collect();
    let eager_share = (sums.judged > 0).then(|| sums.eager as f64 / sums.judged as f64);
    // null: the policy has no such predictor, no block is in PM, or no sync has judged a block.
    let mut value = json!({
        "output_version": OUTPUT_VERSION, "path": output::path_text(path), "inode": attributes.ino(),
        "size_bytes": sums.size, "tiers": tiers, "dram_bytes": sums.dram,
        "clean_bytes": sums.clean, "dirty_bytes": sums.dirty, "judged_blocks": sums.judged,
        "eager_blocks": sums.eager, "eager_share": eager_share, "sync_predicted": found["sync_predicted"],
        "large_predicted": found["large_predicted"], "read_dominated": found["read_dominated"],
        "average_mtime": found["average_mtime"], "average_rtime": found["average_rtime"],
        "temperature": found["temperature"], "pinned": !found["pinned_tier"].is_null(),
        "pinned_tier": found["pinned_tier"],
    });
    if attributes.is_dir() {
        value["files"] = sums.files.into();
        value["directories"] = sums.directories.into();
    }
    Ok(value)
}

fn ask(daemon: &Daemon, path: &Path, ino: u64) -> Outcome<Value> {
    let answer = daemon.ask(&Request::Where { ino }, |_| {});
    answer.map_err(|failure| Failure::at(path, failure.text))
}

/// Bytes of files, added up.
#[derive(Default)]
struct Sums {
    size: u64,
    tiers: BTreeMap<u64, u64>,
    dram: u64,
    clean: u64,
    dirty: u64,
    judged: u64,
    eager: u64,
    files: u64,
    directories: u64,
}

impl Sums {
    fn add(&mut self, found: &Value) {
        let bytes = |name: &str| found[name].as_u64().unwrap_or(0);
        self.size += bytes("size_bytes");
        self.dram += bytes("dram_bytes");
        self.clean += bytes("clean_bytes");
        self.dirty += bytes("dirty_bytes");
        self.judged += bytes("judged_blocks");
        self.eager += bytes("eager_blocks");
        for tier in found["tiers"].as_array().into_iter().flatten() {
            *self.tiers.entry(tier[0].as_u64().unwrap_or(0)).or_default() += tier[1].as_u64().unwrap_or(0);
        }
    }

    /// Adds up all regular files below a directory. Links are not followed, and other file systems are left
    /// out.
    fn walk(&mut self, daemon: &Daemon, top: &Path, about: &Metadata, complain: &mut impl FnMut(Failure)) {
        let progress = progress();
        let (mut waiting, mut linked) = (vec![top.to_path_buf()], HashSet::new());
        while let Some(directory) = waiting.pop() {
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) if is_gone(&error) && directory != top => continue,
                Err(error) => {
                    complain(Failure::at(&directory, plain(&error)));
                    continue;
                }
            };
            self.directories += u64::from(directory != top);
            for path in entries.flatten().map(|entry| entry.path()) {
                match self.visit(daemon, &path, about.dev(), &mut linked) {
                    Ok(below) => waiting.extend(below),
                    Err(failure) => complain(failure),
                }
                progress.set_position(self.files);
            }
        }
        progress.finish_and_clear();
    }

    /// Adds a file; a directory is given back. A file that was removed meanwhile is skipped.
    fn visit(
        &mut self,
        daemon: &Daemon,
        path: &Path,
        device: u64,
        linked: &mut HashSet<u64>,
    ) -> Outcome<Option<PathBuf>> {
        let about = match fs::symlink_metadata(path) {
            Ok(about) => about,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(Failure::at(path, plain(&error))),
        };
        if about.dev() != device {
            return Ok(None);
        }
        if about.is_dir() {
            return Ok(Some(path.to_path_buf()));
        }
        let is_new = about.nlink() < 2 || linked.insert(about.ino());
        if about.is_file() && is_new {
            match ask(daemon, path, about.ino()) {
                Ok(found) => {
                    self.files += 1;
                    self.add(&found);
                }
                Err(_) if fs::symlink_metadata(path).is_err_and(|error| is_gone(&error)) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(None)
    }
}

fn is_gone(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound
}

/// Counts files on a terminal; their number is not known before the walk.
fn progress() -> ProgressBar {
    let progress = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} {pos} files, {per_sec}");
    progress.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    progress.enable_steady_tick(TICK);
    progress
}

fn show(found: &Value) {
    let size = human(found["size_bytes"].as_u64().unwrap_or(0));
    let mut parts = vec![format!("{}: {size}", found["path"].as_str().unwrap_or(""))];
    if let Some(files) = found["files"].as_u64() {
        parts.push(format!("in {}", output::count(files, "file", "files")));
    }
    for tier in found["tiers"].as_array().unwrap_or(&Vec::new()) {
        let name = match tier["id"].as_u64() {
            Some(0) => "PM".to_string(),
            id => format!("tier {}", id.unwrap_or(0)),
        };
        parts.push(format!("{name} {}", human(tier["bytes"].as_u64().unwrap_or(0))));
    }
    parts.push(format!("copies in DRAM {}", human(found["dram_bytes"].as_u64().unwrap_or(0))));
    // Dirty pages: lost if the machine loses power.
    if let Some(dirty) = found["dirty_bytes"].as_u64().filter(|bytes| *bytes > 0) {
        parts.push(format!("only in DRAM {}", human(dirty)));
    }
    if let Some(share) = found["eager_share"].as_f64() {
        parts.push(format!("eager {:.0} % of {} blocks", share * 100.0, found["judged_blocks"]));
    }
    parts.extend(found["temperature"].as_str().map(str::to_string));
    // Without the predictor the policy gives neither word.
    let says = [
        ("sync_predicted", "synchronous", "asynchronous"),
        ("large_predicted", "large", "not large"),
        ("read_dominated", "read-dominated", "not read-dominated"),
    ];
    let word = |(name, yes, no): &(&str, &str, &str)| {
        found[*name].as_bool().map(|said| if said { yes.to_string() } else { no.to_string() })
    };
    parts.extend(says.iter().filter_map(word));
    if let Some(tier) = found["pinned_tier"].as_u64() {
        parts.push(format!("pinned to tier {tier}"));
    }
    output::print(parts.join("  "));
}
