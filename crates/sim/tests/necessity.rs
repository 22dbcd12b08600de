//! Some history needs every ordering point: when the point is left out, or a `persist` is weakened to
//! `order`, the explorer finds a violation. A new fence or flush of the engine fails here until a history
//! passes it and needs it. Prints the tables of docs/crash-consistency.md.
//!
//! `TERRACE_MAP=name` gives all pools that file map: the points of other maps are then passed by no history.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, clippy::disallowed_methods)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use terrace_media::ordering::{Change, OrderingKind, OrderingPoint};
use terrace_runtime::sync::Mutex;
use terrace_sim::drivers::necessity::{History, changes, index, need, on_two_threads, points};

/// The crates of the engine.
const ENGINE: [&str; 10] =
    ["store", "fs", "migration", "engine", "wal", "catalog", "space", "map", "blocks", "cache"];
/// Functions whose points only planted mistakes pass, and `stamp` and `stamp_devices`, which the daemon calls before all else:
/// crates/engine/tests/content/devices.rs shows the need of their points. `median_of` measures, on a clock that moves.
/// `persist_waiting` needs a device without any other room, `load_some` a free before the bitmaps are loaded:
/// crates/engine/tests/content/persist_errors.rs. `take_over` and `when_durable` ask
/// whether a record is durable, and make it so on no medium of these histories. `persist_then` is the barrier of a descriptor, which
/// no history here has (crates/models/tests/journal.rs); `mark_moved` is of mkfs, with a crash test beside it.
const PLANTED: [(&str, &str); 12] = [
    ("engine/src/line_costs.rs", "median_of"),
    ("fs/src/sync.rs", "flush_devices"),
    ("fs/src/names/link.rs", "count_in_place"),
    ("store/src/moving/demote.rs", "write_late"),
    ("engine/src/mount.rs", "stamp"),
    ("engine/src/mount.rs", "stamp_devices"),
    ("space/src/chunk_space.rs", "persist_waiting"),
    ("space/src/chunk_space.rs", "take_over"),
    ("space/src/load.rs", "load_some"),
    ("fs/src/sync.rs", "when_durable"),
    ("fs/src/sync.rs", "persist_then"),
    ("engine/src/superblock.rs", "mark_moved"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn lines_of(file: &str) -> Vec<String> {
    fs::read_to_string(root().join(file)).unwrap().lines().map(str::to_string).collect()
}

/// The function around a line, and whether its callers are the points.
fn function_at(lines: &[String], line: usize) -> (String, bool) {
    for (index, text) in lines.iter().enumerate().take(line).rev() {
        let text = text.trim_start();
        let Some(at) = text.find("fn ").filter(|at| text[..*at].trim_start_matches("pub").len() < 9) else {
            continue;
        };
        let name = text[at + 3..].split(['(', '<']).next().unwrap();
        let tracked = lines[index.saturating_sub(3)..index].iter().any(|l| l.contains("track_caller"));
        return (name.to_string(), tracked);
    }
    panic!("no function around line {line}");
}

/// A name of a point by file and function, which change less often than lines, and its number in that
/// function.
fn name_of(point: &OrderingPoint, all: &BTreeSet<OrderingPoint>) -> String {
    let lines = lines_of(point.file);
    let (function, _) = function_at(&lines, point.line as usize);
    let same = |other: &&OrderingPoint| {
        other.file == point.file && function_at(&lines, other.line as usize).0 == function
    };
    let place = all.iter().filter(same).position(|other| other == point).unwrap();
    let number = if all.iter().filter(same).count() > 1 { format!(" {}", place + 1) } else { String::new() };
    let file = point.file.trim_start_matches("crates/");
    format!("`{file}`: {function}{number}")
}

fn kind(point: &OrderingPoint) -> &'static str {
    match point.kind {
        OrderingKind::Order => "order",
        OrderingKind::Persist => "persist",
        OrderingKind::Flush => "flush",
        OrderingKind::DurableWrite => "durable write",
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// Calls that order: the media's, and the engine's functions whose callers are the points.
fn ordering_calls(files: &[PathBuf]) -> Vec<String> {
    let mut calls = vec![".persist()".to_string(), ".order()".into(), ".flush(".into()];
    for path in files {
        let lines = lines_of(path.to_str().unwrap());
        for index in (0..lines.len()).filter(|index| lines[*index].contains("#[track_caller]")) {
            calls.push(format!(".{}(", function_at(&lines, index + 3).0));
        }
    }
    calls
}

/// Lines of the engine that order and that no history passes.
fn not_passed(all: &BTreeSet<OrderingPoint>) -> Vec<String> {
    let mut files = Vec::new();
    ENGINE.iter().for_each(|name| sources(&root().join("crates").join(name).join("src"), &mut files));
    let calls = ordering_calls(&files);
    let mut missed = Vec::new();
    for path in files {
        let file = path.strip_prefix(root()).unwrap().to_str().unwrap().to_string();
        let lines = lines_of(&file);
        for (index, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap();
            if line.contains("#[cfg(test)]") {
                break;
            }
            if !calls.iter().any(|call| code.contains(call)) {
                continue;
            }
            let (function, tracked) = function_at(&lines, index + 1);
            let planted = PLANTED.iter().any(|(f, name)| file.ends_with(f) && function == *name);
            let passed = all.iter().any(|point| point.file == file && point.line as usize == index + 1);
            if !tracked && !planted && !passed {
                missed.push(format!("{file}:{} ({function})", index + 1));
            }
        }
    }
    missed
}

/// Prints the points that single operations pass, and the number of passes.
fn print_operations(index: &[History], all: &BTreeSet<OrderingPoint>) {
    for history in index.iter().filter(|history| history.is_single()) {
        let points = history.points.iter().map(|(point, count)| format!("{} × {count}", name_of(point, all)));
        println!("{}: {}", history.name(), points.collect::<Vec<_>>().join(", "));
    }
}

fn row_of(point: &OrderingPoint, change: Change, all: &BTreeSet<OrderingPoint>) -> String {
    let how = if change == Change::Removed { "left out" } else { "only ordered" };
    format!("| {} | {} | {how} |", name_of(point, all), kind(point))
}

/// Rows of the document's table whose points no longer exist.
fn stale_rows(document: &str, all: &BTreeSet<OrderingPoint>) -> Vec<String> {
    let rows: Vec<String> = all
        .iter()
        .flat_map(|point| changes(*point).into_iter().map(|change| row_of(point, change, all)))
        .collect();
    let table = document.split("## Ordering points").nth(1).unwrap_or_default();
    let table =
        table.lines().take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with("| `"));
    let stale = table.filter(|line| !rows.iter().any(|row| line.starts_with(row)));
    stale.map(|line| format!("no such point: {line}")).collect()
}

/// Whether all pools have the map of TERRACE_MAP, so that points of other maps are not passed.
fn has_one_map() -> bool {
    std::env::var_os("TERRACE_MAP").is_some()
}

fn search(efforts: usize) {
    let index = index();
    let all = points(&index);
    let mut missed = not_passed(&all);
    missed.retain(|place| !(has_one_map() && place.starts_with("crates/map/src/")));
    assert!(missed.is_empty(), "no history passes: {}", missed.join(", "));
    print_operations(&index, &all);
    // `TERRACE_POINT=mkfs` searches only points whose name contains `mkfs`.
    let only = std::env::var("TERRACE_POINT").unwrap_or_default();
    let wanted = all.iter().filter(|point| name_of(point, &all).contains(&only));
    let wanted: Vec<(OrderingPoint, Change)> =
        wanted.flat_map(|point| changes(*point).into_iter().map(|change| (*point, change))).collect();
    assert!(!wanted.is_empty(), "no point is called so: {only}");
    if !only.is_empty() {
        for point in all.iter().filter(|point| name_of(point, &all).contains(&only)) {
            let passing: Vec<String> = index.iter().filter(|h| h.passes(point)).map(History::name).collect();
            println!("{point} is passed by: {}", passing.join("; "));
        }
    }
    let document = fs::read_to_string(root().join("docs/crash-consistency.md")).unwrap();
    let mut stale = stale_rows(&document, &all);
    stale.retain(|row| !(has_one_map() && row.contains("`map/src/")));
    let failed = Mutex::new(stale);
    let rows = Mutex::new(Vec::new());
    on_two_threads(wanted, |pools, (point, change)| {
        let row = row_of(&point, change, &all);
        match need(pools, &index, (point, change), efforts) {
            Some(need) => {
                println!("{point} {change:?}: {} tried, {} | {}", need.tried, need.states, need.what);
                rows.lock().push(format!("{row} {} | {} |", need.history, need.states));
            }
            None => {
                println!("{point} {change:?}: NOT NEEDED");
                failed.lock().push(format!("nothing needs {row}"));
            }
        }
        if !document.contains(&row) {
            failed.lock().push(format!("not in docs/crash-consistency.md: {row}"));
        }
    });
    let mut rows = rows.into_inner();
    rows.sort();
    println!("{}", rows.join("\n"));
    let failed = failed.into_inner();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The same histories show no violation in the unchanged engine.
#[test]
fn no_violation_is_found_in_the_unchanged_engine() {
    let (states, failed) = (Mutex::new(0), Mutex::new(Vec::new()));
    on_two_threads(index(), |pools, history| {
        let explored = pools.explore_unchanged(&history);
        *states.lock() += explored.states;
        failed.lock().extend(explored.violation.map(|what| format!("{}: {what}", history.name())));
    });
    println!("{} states", states.into_inner());
    let failed = failed.into_inner();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_ordering_point_is_needed() {
    search(2);
}

#[test]
#[ignore = "minutes when a point is not needed: looks harder"]
fn every_ordering_point_is_needed_looking_harder() {
    search(3);
}
