//! `terrace status`: the answer of a daemon, or what the superblock of an unmounted pool tells.

mod cells;
mod dram;
mod parameters;

use crate::args::Status;
use cells::{size, text};
use serde_json::{Value, json};
use std::path::Path;
use terrace_daemon::control::{self, Located, Request, locate};
use terrace_daemon::failure::{Failure, Outcome, status};
use terrace_daemon::mounts::{self, Mount};
use terrace_daemon::output::{self, OUTPUT_VERSION, human};
use terrace_daemon::{places, pool};
use terrace_engine::{class_name, map_name, speed_status};
use terrace_format::BLOCK_SIZE;
use terrace_format::superblock::Superblock;
use terrace_media::speed::Speed;

/// Ended movements that are shown.
const ENDED_MOVES: usize = 3;

pub fn run(args: &Status) -> Outcome<u8> {
    let located = locate(&args.path).map_err(|failure| pool::explain(&args.path, failure))?;
    let mut found = match located {
        Located::Mounted(daemon) => {
            let mut found = daemon.ask(&Request::Status, |_| {})?;
            add_mounts(&mut found)?;
            found
        }
        Located::Dead => {
            return Err(Failure::at(&args.path, "the daemon was killed; unmount and mount it again"));
        }
        Located::NotMounted => {
            let superblock = pool::peek(&args.path)?;
            unmounted(&pool::canonical(&args.path)?, &superblock)
        }
    };
    let degraded = is_degraded(&found);
    if let Some(found) = found.as_object_mut() {
        found.insert("output_version".to_string(), json!(OUTPUT_VERSION));
        found.insert("degraded".to_string(), json!(degraded));
    }
    if args.json {
        output::print_json(&found);
    } else {
        show(&found, args.verbose);
    }
    Ok(if degraded { status::FAILED } else { 0 })
}

/// Adds whether this mount namespace has mounts of the daemon, and whether all of them are read-only.
fn add_mounts(found: &mut Value) -> Outcome<()> {
    let number = found["connection"].as_u64();
    let serves = |mount: &Mount| mount.connection().map(|connection| connection.number().into()) == number;
    let here: Vec<Mount> =
        mounts::all()?.into_iter().filter(|mount| mount.is_ours() && serves(mount)).collect();
    found["mounted_here"] = (number.is_none() || !here.is_empty()).into();
    // The first mount point may be unmounted while the pool is still mounted at another directory.
    let places: Vec<Value> = here.iter().map(|mount| output::path_text(&mount.mountpoint).into()).collect();
    if let Some(first) = places.first().filter(|_| !places.contains(&found["mountpoint"])) {
        found["mountpoint"] = first.clone();
    }
    // After `mount -o remount,ro` the daemon could still write, but the kernel refuses all changes.
    if number.is_some() && !here.is_empty() && here.iter().all(Mount::is_read_only) {
        found["read_only"] = true.into();
    }
    Ok(())
}

/// A device that is not healthy makes the pool degraded.
fn is_degraded(found: &Value) -> bool {
    let healthy = |device: &Value| device["health"].as_str().is_none_or(|health| health == "ok");
    let devices = |tier: &Value| tier["devices"].as_array().is_none_or(|devices| devices.iter().all(healthy));
    found["healthy"] == false || !found["tiers"].as_array().is_none_or(|tiers| tiers.iter().all(devices))
}

/// The status of an unmounted pool, from its superblock.
fn unmounted(pool: &Path, superblock: &Superblock) -> Value {
    // Only blocks behind the fixed area count, as in the status of a mounted pool.
    let geometry = superblock.geometry();
    let size = (geometry.block_count() - geometry.first_pool_block().0) * BLOCK_SIZE;
    let reason = pool::trouble_of_pm(pool, superblock);
    let health = if reason.is_some() { "resized" } else { "ok" };
    let mut tiers = vec![json!({
        "id": 0, "kind": pool::kind_of_tier0(pool), "promise": null, "capacity_bytes": size, "used_bytes": null,
        "devices": [{
            "path": output::path_text(pool), "capacity_bytes": size, "used_bytes": null, "health": health,
            "reason": reason,
        }],
    })];
    for (index, row) in superblock.device_rows().iter().enumerate() {
        let (health, reason) = pool::trouble_of_tier(pool, superblock, index)
            .map_or(("ok", None), |(health, reason)| (health, Some(reason)));
        let size = row.blocks.get().saturating_sub(1) * BLOCK_SIZE;
        let path = output::path_text(&places::locate(pool, superblock, row));
        let device = json!({
            "path": path, "capacity_bytes": size, "used_bytes": null, "health": health, "reason": reason,
            "class": class_name(row), "speed": speed_status(row),
        });
        match tiers.iter_mut().find(|tier| tier["id"] == row.tier) {
            Some(tier) => {
                tier["capacity_bytes"] = json!(tier["capacity_bytes"].as_u64().unwrap_or(0) + size);
                if let Some(devices) = tier["devices"].as_array_mut() {
                    devices.push(device);
                }
            }
            None => tiers.push(json!({
                "id": row.tier, "kind": class_name(row), "promise": null, "capacity_bytes": size,
                "used_bytes": null, "devices": [device],
            })),
        }
    }
    tiers.sort_by_key(|tier| tier["id"].as_u64());
    json!({
        "pool": output::path_text(pool), "uuid": pool::uuid_text(superblock),
        "state_directory": control::state::directory_of(&pool::uuid_text(superblock)).map(|path| output::path_text(&path)),
        "label": pool::label(superblock), "mounted": false,
        "clean": pool::is_clean(pool, superblock), "warnings": pool::warnings(pool), "tiers": tiers,
        "map": map_name(superblock.map),
        "policy": terrace_engine::policy_name(superblock.policy),
        "data_mode": if superblock.data_mode == 2 { "ordered" } else { "atomic" },
    })
}

/// A device with its health, and why it is not healthy.
fn device_text(device: &Value) -> String {
    let reason = device["reason"].as_str().map(|reason| format!(" ({reason})")).unwrap_or_default();
    format!("{} [{}]{reason}", text(&device["path"]), text(&device["health"]))
}

fn show(found: &Value, verbose: bool) {
    let mounted = match found["mountpoint"].as_str() {
        Some(dir) => {
            let how = if found["read_only"] == true { " read-only" } else { "" };
            let place = if found["mounted_here"] == false { " in another mount namespace" } else { "" };
            let rings = &found["rings"];
            let way = match rings["entries"].as_u64() {
                Some(entries) => {
                    format!(", requests by io_uring: {entries} entries, {} away", text(&rings["away"]))
                }
                None => String::new(),
            };
            format!("mounted{how} at {dir}{place} (daemon {}{way})", text(&found["pid"]))
        }
        None if found["clean"] == true => "not mounted, clean".to_string(),
        None => "not mounted, not clean: the next mount recovers it".to_string(),
    };
    output::print(format!("pool {}  {mounted}", text(&found["pool"])));
    let label = found["label"].as_str().filter(|label| !label.is_empty());
    output::print(format!("uuid {}  label {}", text(&found["uuid"]), label.unwrap_or("-")));
    let line = |cells: [&str; 6]| {
        let [id, kind, promise, capacity, used, rest] = cells;
        output::print(format!("{id:<5} {kind:<5} {promise:<14} {capacity:>10} {used:>10}  {rest}"));
    };
    line(["tier", "kind", "promise", "capacity", "used", "devices"]);
    for tier in found["tiers"].as_array().unwrap_or(&Vec::new()) {
        let devices = tier["devices"].as_array();
        let devices: Vec<String> =
            devices.map(|list| list.iter().map(device_text).collect()).unwrap_or_default();
        let (capacity, used) = (size(&tier["capacity_bytes"]), size(&tier["used_bytes"]));
        let (id, kind, promise) = (text(&tier["id"]), text(&tier["kind"]), text(&tier["promise"]));
        line([&id, &kind, &promise, &capacity, &used, &devices.join(", ")]);
    }
    show_speeds(found);
    let words = [("map", &found["map"]), ("policy", &found["policy"]), ("data", &found["data_mode"])];
    let mut parts: Vec<String> =
        words.iter().map(|(name, value)| format!("{name} {}", text(value))).collect();
    let table = &found["table"];
    if let Some(load) = table["load_percent"].as_f64() {
        let figures = [
            ("longest distance", "longest_distance"),
            ("reach", "reach"),
            ("far searches", "far_searches"),
            ("entries in the stash", "stash_entries"),
            ("moves", "moves"),
        ];
        let told = figures.iter().filter(|(_, field)| !table[*field].is_null());
        let told: String = told.map(|(name, field)| format!(", {name} {}", text(&table[*field]))).collect();
        parts.insert(1, format!("(load {load:.0} %{told})"));
    }
    if !found["threshold"].is_null() {
        parts.push(format!("threshold {} %", text(&found["threshold"])));
    }
    output::print(parts.join("  "));
    for warning in found["warnings"].as_array().unwrap_or(&Vec::new()) {
        output::print(format!("warning: {}", text(warning)));
    }
    show_live(found, verbose);
}

/// The known speeds of devices, and the emulations.
fn show_speeds(found: &Value) {
    let none = Vec::new();
    for tier in found["tiers"].as_array().unwrap_or(&none) {
        for device in tier["devices"].as_array().unwrap_or(&none) {
            let figure = |name: &str| device["speed"][name].as_u64();
            let (
                Some(read_latency_ns),
                Some(write_latency_ns),
                Some(read_bytes_per_s),
                Some(write_bytes_per_s),
            ) = (
                figure("read_latency_ns"),
                figure("write_latency_ns"),
                figure("read_bytes_per_s"),
                figure("write_bytes_per_s"),
            )
            else {
                continue;
            };
            let speed = Speed { read_latency_ns, write_latency_ns, read_bytes_per_s, write_bytes_per_s };
            output::print(format!("{}: {}, {speed}", text(&device["path"]), text(&device["class"])));
        }
    }
    for emulated in found["emulated"].as_array().unwrap_or(&none) {
        output::print(format!("emulated {}", text(emulated)));
    }
}

/// The progress of requested movements, and the outcome of the last ended ones.
fn show_moves(moves: &Value) {
    let none = Vec::new();
    let moves = moves.as_array().unwrap_or(&none);
    let has_ended = |one: &&Value| one["state"] == "done" || one["state"] == "failed";
    let ended = moves.iter().filter(has_ended).count();
    let (mut skipped, most_skipped) = (0, ended.saturating_sub(ENDED_MOVES));
    for one in moves {
        if has_ended(&one) && skipped < most_skipped {
            skipped += 1;
            continue;
        }
        let tier = one["tier"].as_u64().map(|tier| format!(" to tier {tier}")).unwrap_or_default();
        let (done, total) = (size(&one["done_bytes"]), size(&one["total_bytes"]));
        let reason = one["reason"].as_str().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let (id, action, state) = (text(&one["id"]), text(&one["action"]), text(&one["state"]));
        let path = one["path"].as_str().map(|path| format!(" {path}")).unwrap_or_default();
        output::print(format!("move {id}: {action}{path}{tier}: {state}{reason}, {done} of {total}"));
    }
}

/// The bytes that spills have relocated from nearly full tiers, and the reason if a spill waits.
fn show_spilling(migration: &Value) {
    let reason = migration["spill_reason"].as_str();
    if reason.is_some() || migration["spilled_bytes"].as_u64().is_some_and(|bytes| bytes > 0) {
        let waits = reason.map(|reason| format!("  waits ({reason})")).unwrap_or_default();
        output::print(format!("spilled from nearly full tiers {}{waits}", size(&migration["spilled_bytes"])));
    }
}

/// The part of a status that only a mounted pool has; with `verbose` also predictors, thresholds and limits.
fn show_live(found: &Value, verbose: bool) {
    let migration = &found["migration"];
    if !migration.is_null() {
        let reason = migration["reason"].as_str().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let (down, up) = (size(&migration["demoted_bytes"]), size(&migration["promoted_bytes"]));
        let state = text(&migration["state"]);
        output::print(format!(
            "migration {state}{reason}; since the mount {down} moved to lower tiers, {up} to the fast tier"
        ));
        if verbose && migration["in_place_bytes"].as_u64().is_some_and(|bytes| bytes > 0) {
            output::print(format!("of it over old copies {}", size(&migration["in_place_bytes"])));
        }
        show_spilling(migration);
    }
    let below = found["metadata"]["below_bytes"].as_u64().unwrap_or(0);
    if below > 0 {
        let pages = |name: &str| text(&found["metadata"][name]);
        output::print(format!(
            "metadata below PM {}: without their devices the names and attributes there are lost  pages down {}  up {}",
            human(below),
            pages("lowered_pages"),
            pages("fetched_pages")
        ));
    }
    show_moves(&found["moves"]);
    if verbose {
        parameters::show(found);
    }
    for panics in found["panics"].as_array().into_iter().flatten() {
        let (step, count) = (text(&panics["step"]), text(&panics["count"]));
        output::print(format!(
            "background: {step} panicked {count} times and started again; the log says where"
        ));
    }
    let recovery = &found["recovery"];
    if !recovery.is_null() {
        let (time, records) = (text(&recovery["duration_seconds"]), text(&recovery["records_replayed"]));
        let clean = if recovery["clean"] == true { "after a clean unmount" } else { "after a crash" };
        output::print(format!("mounted {clean}: {time} s, {records} records replayed"));
    }
    dram::show(found, verbose);
    dram::show_journal(&found["log"]["journal"], verbose);
}
