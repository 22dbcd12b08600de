//! `terrace iostat`: the traffic of each tier, in the form of `zpool iostat`.
//!
//! The first report covers the time since the mount (left out with -y), each later one the interval before
//! it. Text shows rates per second; JSON the numbers of the interval, one object per line.

use crate::args::Iostat;
use serde_json::{Value, json};
use std::time::Duration;
use terrace_daemon::control::{Daemon, Located, Request, locate};
use terrace_daemon::failure::{Failure, Outcome};
use terrace_daemon::output::{self, OUTPUT_VERSION};
use terrace_runtime::{Clock, SystemClock};

/// Counters that only grow: a report shows the difference to its predecessor.
const SUMS: [&str; 8] =
    ["reads", "read_bytes", "read_ns", "writes", "write_bytes", "write_ns", "flushes", "flush_ns"];
/// Counters of bytes that migration has moved, and their column names.
const MOVED: [(&str, &str); 4] = [
    ("demoted_bytes", "demoted"),
    ("promoted_bytes", "promoted"),
    ("moved_below_bytes", "below"),
    ("spilled_bytes", "spilled"),
];

pub fn run(args: &Iostat) -> Outcome<u8> {
    let daemon = match locate(&args.dir)? {
        Located::Mounted(daemon) => daemon,
        Located::Dead => {
            return Err(Failure::at(&args.dir, "the daemon was killed; unmount and mount it again"));
        }
        Located::NotMounted => return Err(Failure::at(&args.dir, "not a mounted pool")),
    };
    let interval = args.interval.map(|seconds| check(seconds).map(Duration::from_secs_f64)).transpose()?;
    if args.since_now && interval.is_none() {
        return Err(Failure::new("-y leaves out the only report; give an INTERVAL"));
    }
    if args.count == Some(0) {
        return Err(Failure::new("COUNT: must be at least 1"));
    }
    let clock = SystemClock::default();
    let mut before = ask(&daemon, args)?;
    let mut left = args.count.unwrap_or(if interval.is_some() { u64::MAX } else { 1 });
    if !args.json && !args.script {
        header();
    }
    if !args.since_now {
        show(args, &before, None);
        left -= 1;
    }
    while let Some(interval) = interval.filter(|_| left > 0 && output::is_whole()) {
        clock.sleep(interval);
        let now = ask(&daemon, args)?;
        let skips_first = args.since_now && left == args.count.unwrap_or(u64::MAX);
        if !(args.json || args.script || skips_first) {
            output::print(RULE);
        }
        show(args, &now, Some(&before));
        before = now;
        left -= 1;
    }
    Ok(0)
}

fn check(seconds: f64) -> Outcome<f64> {
    match seconds.is_finite() && (0.01..=1e6).contains(&seconds) {
        true => Ok(seconds),
        false => Err(Failure::new("INTERVAL: must be between 0.01 and 1000000 seconds")),
    }
}

fn ask(daemon: &Daemon, args: &Iostat) -> Outcome<Value> {
    daemon.ask(&Request::Iostat, |_| {}).map_err(|failure| Failure::at(&args.dir, failure.text))
}

/// A number of a report, less that of the report before.
fn since(now: &Value, before: Option<&Value>, name: &str) -> u64 {
    let number = |value: &Value| value[name].as_u64().unwrap_or(0);
    number(now).saturating_sub(before.map_or(0, number))
}

/// Seconds that a report covers.
fn seconds(now: &Value, before: Option<&Value>) -> f64 {
    let begin = before.map_or(&now["mounted_at_ns"], |before| &before["at_ns"]);
    let passed = now["at_ns"].as_u64().unwrap_or(0).saturating_sub(begin.as_u64().unwrap_or(0));
    (passed as f64 / 1e9).max(1e-9)
}

/// The rows of a report: name, capacity and use, whether it is timed, sums, sums of the report before.
type Row<'a> = (String, Option<u64>, Option<u64>, bool, &'a Value, Option<&'a Value>);

fn rows<'a>(now: &'a Value, before: Option<&'a Value>) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for (index, tier) in now["tiers"].as_array().into_iter().flatten().enumerate() {
        let name = format!("{}-{}", tier["id"], tier["kind"].as_str().unwrap_or(""));
        let (capacity, used) = (tier["capacity_bytes"].as_u64(), tier["used_bytes"].as_u64());
        let before = before.map(|before| &before["tiers"][index]["sums"]);
        rows.push((name, capacity, used, tier["timed"] == true, &tier["sums"], before));
    }
    let used = now["dram_used_bytes"].as_u64();
    rows.push(("dram".to_string(), None, used, false, &now["dram"], before.map(|before| &before["dram"])));
    rows
}

fn show(args: &Iostat, now: &Value, before: Option<&Value>) {
    let seconds = seconds(now, before);
    if args.json {
        return show_json(now, before, seconds);
    }
    let rate = |number: u64| (number as f64 / seconds).round() as u64;
    let size = |number: u64| if args.exact { number.to_string() } else { short(number) };
    let latency = |timed: bool, ns: u64, count: u64| match (timed && count > 0, args.exact) {
        (false, _) => "-".to_string(),
        (true, true) => (ns / count).to_string(),
        (true, false) => short_time(ns / count),
    };
    let optional = |number: Option<u64>| number.map_or_else(|| "-".to_string(), size);
    let mut lines: Vec<[String; 9]> = Vec::new();
    for (name, capacity, used, timed, sums, old) in rows(now, before) {
        let [reads, read_bytes, read_ns, writes, write_bytes, write_ns, ..] =
            SUMS.map(|name| since(sums, old, name));
        let free = capacity.zip(used).map(|(capacity, used)| capacity.saturating_sub(used));
        let (reads_rate, writes_rate) = (size(rate(reads)), size(rate(writes)));
        lines.push([
            name,
            optional(used),
            optional(free),
            reads_rate,
            writes_rate,
            size(rate(read_bytes)),
            size(rate(write_bytes)),
            latency(timed, read_ns, reads),
            latency(timed, write_ns, writes),
        ]);
    }
    let none = || "-".to_string();
    for (field, name) in MOVED {
        let moved = size(rate(since(now, before, field)));
        lines.push([name.to_string(), none(), none(), none(), none(), none(), moved, none(), none()]);
    }
    for line in lines {
        if args.script {
            output::print_raw(line.join("\t"));
        } else {
            let [name, rest @ ..] = line;
            let cells: Vec<String> = rest.iter().map(|cell| format!("{cell:>6}")).collect();
            output::print(format!("{name:<10} {}", cells.join(" ")));
        }
    }
}

const RULE: &str = "---------- ------ ------ ------ ------ ------ ------ ------ ------";

fn header() {
    output::print("             capacity     operations     bandwidth       latency");
    output::print("tier        alloc   free   read  write   read  write   read  write");
    output::print(RULE);
}

fn show_json(now: &Value, before: Option<&Value>, seconds: f64) {
    let sums = |sums: &Value, old: Option<&Value>, timed: bool| {
        let [reads, read_bytes, read_ns, writes, write_bytes, write_ns, flushes, flush_ns] =
            SUMS.map(|name| since(sums, old, name));
        let mean = |ns: u64, count: u64| (timed && count > 0).then(|| ns as f64 / count as f64 / 1e9);
        json!({
            "reads": reads, "read_bytes": read_bytes, "read_latency_seconds": mean(read_ns, reads),
            "writes": writes, "write_bytes": write_bytes, "write_latency_seconds": mean(write_ns, writes),
            "flushes": flushes, "flush_latency_seconds": mean(flush_ns, flushes),
        })
    };
    let (mut tiers, mut dram) = (Vec::new(), Value::Null);
    for (index, (name, capacity, used, timed, now_sums, old)) in rows(now, before).into_iter().enumerate() {
        let mut row = sums(now_sums, old, timed);
        row["used_bytes"] = json!(used);
        if name == "dram" {
            dram = row;
            continue;
        }
        row["capacity_bytes"] = json!(capacity);
        row["id"] = now["tiers"][index]["id"].clone();
        row["kind"] = now["tiers"][index]["kind"].clone();
        tiers.push(row);
    }
    let moved = MOVED.map(|(name, _)| (name.to_string(), json!(since(now, before, name))));
    let report = json!({
        "output_version": OUTPUT_VERSION, "since_mount": before.is_none(), "interval_seconds": seconds,
        "tiers": tiers, "dram": dram, "migration": serde_json::Map::from_iter(moved),
    });
    output::print(report.to_string());
}

/// A number in at most five characters: "1.50G".
fn short(number: u64) -> String {
    const UNITS: [&str; 6] = ["", "K", "M", "G", "T", "P"];
    let (mut value, mut unit) = (number as f64, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{}", UNITS.get(unit).copied().unwrap_or(""))
}

/// A time in at most five characters: "1.2ms".
fn short_time(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => (ns as f64, "ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    if value < 9.95 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (number, text) in
            [(0, "0"), (999, "999"), (1000, "0.98K"), (1 << 20, "1.00M"), (50 << 20, "50.0M")]
        {
            assert_eq!(short(number), text);
        }
        assert_eq!(short(u64::MAX), "16384P");
        for (ns, text) in [(7, "7.0ns"), (31_400, "31us"), (1_240_000, "1.2ms"), (2_500_000_000, "2.5s")] {
            assert_eq!(short_time(ns), text);
        }
    }

    #[test]
    fn a_report_counts_from_the_previous_report() {
        let report = |at_ns: u64, reads: u64| json!({ "at_ns": at_ns, "mounted_at_ns": 0, "reads": reads });
        let (before, now) = (report(1_000_000_000, 5), report(3_000_000_000, 9));
        assert_eq!(since(&now, Some(&before), "reads"), 4);
        assert_eq!(since(&now, None, "reads"), 9);
        assert!((seconds(&now, Some(&before)) - 2.0).abs() < 1e-9);
        assert!((seconds(&now, None) - 3.0).abs() < 1e-9);
    }
}
