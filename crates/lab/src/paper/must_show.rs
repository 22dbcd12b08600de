//! `terrace bench paper --must-show`: the rows that prove the project's claims, one after the other, each in
//! its own process, and a table of their verdicts.
//!
//! The results of each entry have a directory. An entry with results is not run again, so an interrupted run
//! can be continued.

use serde_json::Value;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use terrace_bench::comparison::options::Options;
use terrace_bench::failure::{Outcome, say};
use terrace_bench::stats::short;

/// A line of the table.
pub(super) struct Entry {
    /// Stable: part of the name of the results' directory.
    pub name: &'static str,
    /// The required result, for readers of the table.
    pub must: &'static str,
    pub row: &'static str,
    /// Options of the row.
    pub args: &'static [&'static str],
    /// The claims of the row that the line shows, by the beginnings of their texts; empty: all claims.
    pub claims: &'static [&'static str],
}

impl Entry {
    /// Whether the line shows a claim.
    fn is_about(&self, claim: &str) -> bool {
        self.claims.is_empty() || self.claims.iter().any(|begin| claim.starts_with(begin))
    }

    const fn only(self, claims: &'static [&'static str]) -> Entry {
        Entry { claims, ..self }
    }
}

const fn entry(
    name: &'static str,
    must: &'static str,
    row: &'static str,
    args: &'static [&'static str],
) -> Entry {
    Entry { name, must, row, args, claims: &[] }
}

#[rustfmt::skip]
pub(super) const ENTRIES: [Entry; 31] = [
    entry("varmail-sata", "varmail, PM 3 %, SATA: ≥ 3.9 × EXT4-DJ and XFS-ML", "tpfs-13",
        &["--class", "sata", "--dataset", "1G", "--peers", "terrace,local,ext4-dj,xfs-ml"])
        .only(&["a little PM: published"]),
    entry("mails-sata", "the same, where the data is mails of 32 KiB", "mails",
        &["--class", "sata", "--dataset", "1G", "--peers", "terrace,local,ext4-dj,xfs-ml"])
        .only(&["a little PM: published"]),
    // FUSE and in process are two entries: with devices in memory both at once would not fit.
    entry("varmail-optane", "varmail, PM 3 %, Optane: within 10 % of all data in PM", "tpfs-13", OPTANE_FUSE).only(AS_IN_PM),
    entry("varmail-optane-local", "the same, in process", "tpfs-13", OPTANE_LOCAL).only(AS_IN_PM),
    entry("mails-optane", "the same, where the data is mails of 32 KiB", "mails", OPTANE_FUSE).only(AS_IN_PM),
    entry("mails-optane-local", "the same, in process", "mails", OPTANE_LOCAL).only(AS_IN_PM),
    entry("sync-write-sata", "synchronous 4 KiB random writes, PM 3 %: never below EXT4-DJ, ≥ 85 % of the device, amplification ≤ 1.1",
        "sync-write", &["--class", "sata", "--dataset", "1G"]),
    entry("sync-write-nvme", "the same on NVMe", "sync-write", &["--class", "nvme", "--device-memory", "--dataset", "1G"]),
    entry("rocksdb-sata", "RocksDB fillseq, synchronous, PM 6 %: within 10 % of all-PM", "tpfs-15",
        &["--class", "sata", "--peers", "terrace,ext4-dj,xfs-ml"]).only(ROCKSDB),
    entry("rich", "PM-rich predictive against static: ≤ 40 ns per operation", "rich", &[]),
    entry("reads-line", "read-dominated files promoted to DRAM, +6 to +29 %, PM by the flushed line", "dram-reads",
        &["--device-memory", "--emulate-pm", "line"]),
    entry("reads-run", "the same, PM by the contiguous run", "dram-reads", &["--device-memory", "--emulate-pm", "run"]),
    entry("cold-small", "512 bytes to cold files on a disk: ≤ 3 × the same in PM", "cold-small", &[]),
    entry("burst-sata", "burst of 4 × PM at half the capacity: p99.9, longest, no ENOSPC", "burst", &["--class", "sata"]),
    entry("burst-disk", "the same on a disk", "burst", &["--class", "disk", "--peers", "terrace,local"]),
    entry("recall", "synchronicity predictor: recall ≥ 95 % on both classes", "tpfs-predict",
        &["--class", "sata", "--peers", "terrace"]),
    entry("demoted-read", "a demoted 1 GiB file: ≥ 0.8 of the device's bandwidth", "demoted-read", &["--class", "sata"]),
    entry("scan", "commits beside a scan of 10 × PM: p99 unchanged", "scan", &["--class", "sata"]),
    entry("rocksdb-nvme", "the same on NVMe", "tpfs-15",
        &["--class", "nvme", "--device-memory", "--peers", "terrace,ext4-dj,xfs-ml"]).only(ROCKSDB),
    entry("regret", "predictive: ≥ 0.8 of the offline optimum on average, each predictor worth its place", "regret", &[]),
    entry("journal-in-process", "journal, in process: fsync ≤ 1.1 durable writes, 16 threads ≥ 6 × 1, unsynced ≤ 0.35 µs above memory",
        "journal-fsync-in-process", &[]),
    entry("journal-fsync", "journal, through the mount: fsync ≤ 1.15 (durable write + round trip); × ext4 ≥ 1.0, 1.5, 1.3, 2.0",
        "journal-fsync", &[]),
    entry("journal-flushes", "flushes for each fsync: 1 with 1 thread, ≤ 0.25 with 16", "journal-flushes", &[]),
    entry("journal-programs", "varmail, SQLite, RocksDB, pgbench × ext4 and XFS: ≥ 1.8, 1.3; 1.5, 1.0; 1.2; 1.0", "journal-programs", &[]),
    entry("journal-tail", "fsync p99 beside a writer that streams: ≤ 5 × alone", "journal-tail", &[]),
    entry("journal-burst", "burst of 4 × tier 0 over a disk: p99.9, longest ≤ 1.5 × memory + 4 durable writes, no ENOSPC", "journal-burst", &[]),
    entry("journal-written", "written for each byte synced: ≤ 2.5 with 1 thread, ≤ 1.5 with 16", "journal-written", &[]),
    entry("journal-mount", "mount after a loss of power: ≤ 1.3 × the read + 200 ms", "journal-mount", &["--dataset", "8G"]),
    entry("journal-stalled", "a stalled tier 1, a stalled journal: ≤ 1.05 × unstalled", "journal-stalled", &[]),
    entry("journal-ssd", "journal on an SSD before a disk: ≥ 1.3 × ext4 data=journal", "journal-ssd", &[]),
    entry("journal-flush-time", "a flush takes 1 ms: ≥ 1.0 × ext4 each", "journal-flush-time", &[]),
];

const OPTANE_FUSE: &[&str] =
    &["--class", "optane", "--device-memory", "--dataset", "1G", "--peers", "terrace"];
const OPTANE_LOCAL: &[&str] =
    &["--class", "optane", "--device-memory", "--dataset", "1G", "--peers", "local"];
const AS_IN_PM: &[&str] = &["on Optane as with all data in PM"];

/// The claims about fillseq; the row also has claims about random keys.
const ROCKSDB: &[&str] = &["near PM only", "published 7.4", "published 8.2"];

/// The two placements of each entry: all threads on one core, and no ties to cores.
const PLACES: [(&str, &str); 2] = [("one-core", "one core"), ("unpinned", "unpinned")];

/// The directory of an entry's results.
fn place(options: &Options, entry: &Entry, core: &str) -> PathBuf {
    options.output.directory.join("must-show").join(format!("{}-{core}", entry.name))
}

/// Runs the entries without results, then prints the table.
///
/// # Errors
/// When a name is unknown, or an entry failed; the other entries have been run.
pub(super) fn run(options: &Options) -> Outcome<()> {
    let wanted = |entry: &Entry| options.must_show.only.as_deref().is_none_or(|only| entry.name == only);
    if !ENTRIES.iter().any(wanted) {
        let names: Vec<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
        return Err(format!("--only: one of {}", names.join(", ")).into());
    }
    let (mut failed, mut ran) = (Vec::new(), 0);
    for entry in ENTRIES.iter().filter(|entry| wanted(entry)) {
        for (core, _) in PLACES {
            let out = place(options, entry, core);
            let there = out.join(format!("{}.json", entry.row)).exists();
            if there && !options.must_show.again || ran >= options.must_show.limit {
                continue;
            }
            ran += 1;
            eprintln!("{}, {core}: {}", entry.name, entry.must);
            if let Err(error) = run_entry(options, entry, core, &out) {
                eprintln!("{}, {core}: {error}", entry.name);
                failed.push(format!("{} ({core})", entry.name));
            }
        }
    }
    say(table(options, wanted))?;
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("failed: {}", failed.join(", ")).into()),
    }
}

/// Runs the row in a process with its own threads, cgroup and mount namespace. The process is waited for
/// without a limit: its own waits are bounded.
fn run_entry(options: &Options, entry: &Entry, core: &str, out: &Path) -> Outcome<()> {
    fs::create_dir_all(out)?;
    let mut words: Vec<OsString> = terrace_bench::process::own_words();
    words.extend(["paper".into(), entry.row.into()]);
    words.extend(entry.args.iter().map(OsString::from));
    words.extend(["--rounds".into(), options.rounds.to_string().into()]);
    words.extend(["--seconds".into(), options.seconds.to_string().into()]);
    words.extend(["--out".into(), out.into(), "--dir".into(), options.site.dir.clone().into()]);
    words.extend(["--terrace".into(), options.site.terrace.clone().into(), "--json".into()]);
    words.extend(options.quick.then(|| "--quick".into()));
    words.extend((core == "one-core").then(|| "--one-core".into()));
    let log = fs::File::create(out.join("log"))?;
    let status = Command::new(std::env::current_exe()?)
        .args(words)
        .stdout(fs::File::create("/dev/null")?)
        .stderr(log)
        .status()?;
    match status.success() {
        true => Ok(()),
        false => {
            let text = fs::read_to_string(out.join("log")).unwrap_or_default();
            Err(format!("{status}: {}", text.trim().lines().last().unwrap_or("no message")).into())
        }
    }
}

/// The table of all results, in the form of docs/evaluation.md.
fn table(options: &Options, wanted: impl Fn(&Entry) -> bool) -> String {
    let mut text = String::from(
        "| must show | where | claim | of | at | here | 95 % | must | |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for entry in ENTRIES.iter().filter(|entry| wanted(entry)) {
        for (core, words) in PLACES {
            let path = place(options, entry, core).join(format!("{}.json", entry.row));
            let found = fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str(&text).ok());
            let Some(found): Option<Value> = found else {
                let _ = writeln!(text, "| {} | {words} | not measured | | | | | | |", entry.must);
                continue;
            };
            lines(&mut text, entry, words, &found);
        }
    }
    text
}

fn lines(text: &mut String, entry: &Entry, core: &str, found: &Value) {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or("").to_string();
    let quick = if found["quick"] == true { " (quick: means nothing)" } else { "" };
    let head = format!("| {} | {core}, {}{quick}", entry.must, word(&found["class"]));
    for verdict in list(&found["verdicts"]).iter().filter(|verdict| entry.is_about(&word(&verdict["text"]))) {
        let of = match verdict["theirs"].as_str() {
            None | Some("") => word(&verdict["ours"]),
            Some(theirs) => format!("{} ÷ {theirs}", word(&verdict["ours"])),
        };
        for place in list(&verdict["places"]) {
            let number = |name: &str| short(place["ratio"][name].as_f64());
            let held = match place["held"].as_bool() {
                Some(true) => "held",
                Some(false) => "**not held**",
                None if verdict["must"] == "shown" => "",
                None => "undecided",
            };
            let (claim, at, must) = (word(&verdict["text"]), word(&place["at"]), word(&verdict["must"]));
            let (mean, low, high) = (number("mean"), number("low"), number("high"));
            let _ = writeln!(
                text,
                "{head} | {claim} | {of} | {at} | {mean} | {low} to {high} | {must} | {held} |"
            );
        }
    }
    for pair in list(&found["derived"]) {
        let value = match &pair[1] {
            Value::Object(fields) if fields.values().any(|value| value.is_object() || value.is_array()) => {
                "in the results".to_string()
            }
            Value::Object(fields) => {
                let number = |value: &Value| value.as_f64().map(|value| short(Some(value)));
                let each = fields.iter().map(|(name, value)| {
                    format!("{name} {}", number(value).unwrap_or_else(|| value.to_string()))
                });
                each.collect::<Vec<_>>().join("; ")
            }
            Value::String(words) => words.clone(),
            value => value.to_string(),
        };
        let _ = writeln!(text, "{head} | {} | | | {value} | | shown | |", word(&pair[0]));
    }
    for missing in list(&found["not_measured"]) {
        let _ = writeln!(
            text,
            "{head} | not measured: {}: {} | | | | | | |",
            word(&missing["what"]),
            word(&missing["reason"])
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The row has claims for SATA and for Optane; each entry shows the claims of its own device class.
    #[test]
    fn an_entry_shows_its_claims_only() {
        let ratio = json!({ "mean": 4.5, "low": 4.0, "high": 5.0 });
        let verdict = |text: &str| {
            json!({ "text": text, "ours": "a", "theirs": "b", "must": "≥ 0.900",
                "places": [{ "at": "1", "ratio": ratio, "held": true }] })
        };
        let texts = ["a little PM: published 3.9 times", "on Optane as with all data in PM"];
        let found = json!({ "class": "sata", "verdicts": texts.map(verdict) });
        for (name, shown) in
            [("varmail-sata", [true, false]), ("varmail-optane", [false, true]), ("rich", [true; 2])]
        {
            let entry = ENTRIES.iter().find(|entry| entry.name == name).unwrap();
            let mut text = String::new();
            lines(&mut text, entry, "one core", &found);
            assert_eq!(texts.map(|claim| text.contains(claim)), shown, "{name}");
        }
    }

    #[test]
    fn results_become_lines() {
        let ratio = json!({ "mean": 4.5, "low": 4.0, "high": 5.0 });
        let verdict = json!({ "text": "faster", "ours": "a", "theirs": "b", "must": "≥ 3.900",
            "places": [{ "at": "1", "ratio": ratio, "held": true }] });
        let undecided = json!({ "text": "tail", "ours": "a", "theirs": "", "must": "≤ 1.000",
            "places": [{ "at": "1", "ratio": ratio, "held": null }] });
        let missing = json!({ "what": "xfs-ml", "reason": "no mkfs.xfs" });
        let derived = json!([["reads of a", { "bytes from DRAM": 7e6, "first decided": null }],
            ["counters", { "placement": { "many": 1 } }]]);
        let found = json!({ "class": "sata", "verdicts": [verdict, undecided], "not_measured": [missing],
            "derived": derived });
        let mut text = String::new();
        let all = entry("all", "all", "row", &[]);
        lines(&mut text, &all, "one core", &found);
        let expected = [
            "| faster | a ÷ b | 1 | 4.500 | 4.000 to 5.000 | ≥ 3.900 | held |",
            "| tail | a | 1 |",
            "| undecided |",
            "not measured: xfs-ml: no mkfs.xfs",
            "| reads of a | | | bytes from DRAM 7.00e6; first decided null |",
            "| counters | | | in the results |",
        ];
        for part in expected {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
