//! `terrace where`

use crate::args::Where;
use crate::control::{Located, Request, locate};
use crate::failure::{Failure, Outcome, plain, status};
use crate::output::{self, OUTPUT_VERSION, human};
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub fn run(args: &Where) -> Outcome<u8> {
    let mut found = Vec::new();
    let mut exit = 0;
    for path in &args.paths {
        match ask(path) {
            Ok(value) => found.push(value),
            Err(failure) => {
                output::warn(&failure.text);
                exit = status::FAILED;
            }
        }
    }
    if args.json {
        output::print_json(&found);
    } else {
        found.iter().for_each(show);
    }
    Ok(exit)
}

fn ask(path: &Path) -> Outcome<Value> {
    let attributes = std::fs::metadata(path).map_err(|error| Failure::at(path, plain(&error)))?;
    let daemon = match locate(path)? {
        Located::Mounted(daemon) if daemon.contact.pid != 0 => daemon,
        _ => return Err(Failure::at(path, "not in a mounted pool")),
    };
    let found = daemon
        .ask(&Request::Where { ino: attributes.ino() }, |_| {})
        .map_err(|failure| Failure::at(path, failure.text))?;
    let tiers: Vec<Value> = found["tiers"]
        .as_array()
        .map(|tiers| tiers.iter().map(|tier| json!({ "id": tier[0], "bytes": tier[1] })).collect())
        .unwrap_or_default();
    // null: the policy has no such predictor, or no block is in PM.
    Ok(json!({
        "output_version": OUTPUT_VERSION, "path": output::path_text(path), "inode": attributes.ino(),
        "size_bytes": found["size_bytes"], "tiers": tiers, "dram_bytes": found["dram_bytes"],
        "clean_bytes": found["clean_bytes"], "dirty_bytes": found["dirty_bytes"], "sync_predicted": found["sync_predicted"],
        "large_predicted": found["large_predicted"], "read_dominated": found["read_dominated"],
        "average_mtime": found["average_mtime"], "average_rtime": found["average_rtime"],
        "temperature": found["temperature"], "pinned": !found["pinned_tier"].is_null(),
        "pinned_tier": found["pinned_tier"],
    }))
}

fn show(found: &Value) {
    let size = human(found["size_bytes"].as_u64().unwrap_or(0));
    let mut parts = vec![format!("{}: {size}", found["path"].as_str().unwrap_or(""))];
    for tier in found["tiers"].as_array().unwrap_or(&Vec::new()) {
        let name = match tier["id"].as_u64() {
            Some(0) => "PM".to_string(),
            id => format!("tier {}", id.unwrap_or(0)),
        };
        parts.push(format!("{name} {}", human(tier["bytes"].as_u64().unwrap_or(0))));
    }
    parts.push(format!("DRAM {}", human(found["dram_bytes"].as_u64().unwrap_or(0))));
    // Written, and lost with the machine.
    if let Some(dirty) = found["dirty_bytes"].as_u64().filter(|bytes| *bytes > 0) {
        parts.push(format!("only in DRAM {}", human(dirty)));
    }
    parts.extend(found["temperature"].as_str().map(str::to_string));
    // A policy without the predictor says neither.
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
