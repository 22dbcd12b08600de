//! Rows tpfs-predict and tpfs-predict-n: how often the synchronicity predictor is right, from the confusion
//! matrix of `terrace status`, on one mix whose parts run at the same time: varmail, SQLite, RocksDB, git
//! clone, bulk copies. Bytes of the files made before the mix do not count: they are older than the age limit
//! of dirty pages when the mix begins, so their fate is in the matrix of that moment, which is subtracted.

use serde_json::{Value, json};
use terrace_bench::comparison::plan::{Cell, Metric, Plan, Scale, Status, Work};
use terrace_bench::site::programs::Program;
use terrace_bench::site::subject::{Peer, Tuning};
use terrace_bench::workload::load::Kind;
use terrace_bench::workload::personality::Personality;

/// Longer than the age limit of dirty pages (30 s).
const PAUSE_S: u64 = 31;
/// Bounds of the bytes that a part writes in a round, so no part dominates the mix.
const MOST_KEYS: u64 = 100_000;
const MOST_ROWS: u64 = 20_000;
const MOST_FILES: u64 = 10_000;
const COPIES: u64 = 8;

/// Adds the mix on a subject. Programs that the machine lacks are left out, with a note.
fn add(plan: &mut Plan, scale: &Scale, subject: usize, at: &str) {
    let third = Scale { dataset_bytes: scale.dataset_bytes / 3, ..*scale };
    let least = |full: u64, most: u64, quick: u64| if scale.quick { quick } else { full.min(most) };
    let keys = least(third.dataset_bytes / 1016, MOST_KEYS, 1000);
    let rows = least(third.dataset_bytes / 1100, MOST_ROWS, 100);
    let inserts = if scale.quick { 20 } else { 2000 };
    let files = least(third.dataset_bytes / (16 << 10), MOST_FILES, 10);
    let mut copies = scale.load(Kind::Bulk { file_bytes: (third.dataset_bytes / 16).max(1 << 20) }, 1);
    copies.operations = copies.operations.min(COPIES);
    let varmail = scale.load(third.personality(Personality::Varmail, false), 1);
    let programs = [
        Program::Sqlite { journal: "WAL", inserts, rows },
        Program::Sqlite { journal: "DELETE", inserts, rows },
        Program::GitClone { files },
        Program::RocksDb { benchmark: "fillseq", keys, threads: 1, seconds: 60 },
    ];
    let mut parts = vec![];
    for program in programs {
        match program.available() {
            Ok(()) => parts.push(Work::Program(program)),
            Err(error) => plan.notes.push(format!("Not in the mix: {error}.")),
        }
    }
    // Programs come first: they prepare their data while the loads have not begun.
    parts.extend([Work::Load(varmail), Work::Load(copies)]);
    let series = plan.subjects[subject].label.clone();
    let x = subject as f64;
    plan.cells.push(Cell { subject, series, x, at: at.to_string(), work: Work::Together(parts) });
}

fn base(scale: &Scale, axis: &'static str) -> Plan {
    let mut plan = Plan::new(Metric::Seconds, axis, scale.dataset_bytes / 2);
    plan.pause_s = if scale.quick { 0 } else { PAUSE_S };
    plan
}

pub(crate) fn mix(scale: &Scale) -> Plan {
    let mut plan = base(scale, "mix");
    plan.subjects.push(scale.subject("terrace 6%", Peer::Terrace, 0.06, Tuning::default()));
    add(&mut plan, scale, 0, "all at once");
    plan.conclude = Some(recall);
    plan
}

/// Thresholds in blocks; TPFS varies them from 4 KiB to 1 GiB.
const THRESHOLDS: [(u32, &str); 6] =
    [(1, "4K"), (16, "64K"), (256, "1M"), (1024, "4M"), (16_384, "64M"), (262_144, "1G")];

pub(crate) fn thresholds(scale: &Scale) -> Plan {
    let mut plan = base(scale, "threshold");
    for (number, (blocks, name)) in THRESHOLDS.into_iter().enumerate() {
        let tuning = Tuning { sync_blocks: Some(blocks), ..Tuning::default() };
        plan.subjects.push(scale.subject(format!("terrace {name}"), Peer::Terrace, 0.06, tuning));
        add(&mut plan, scale, number, name);
    }
    plan.notes.dedup();
    plan.conclude = Some(by_threshold);
    plan
}

/// A share of bytes; null if there are no bytes.
fn share(right: u64, all: u64) -> Value {
    if all == 0 { Value::Null } else { json!(right as f64 / all as f64) }
}

/// Recall of both classes, weighted by bytes: of the predictor, of the predictor without directory histories,
/// and of the two constant predictions. Bytes of unknown fate do not count.
fn recall(before: &Status, after: &Status) -> Vec<(String, Value)> {
    let Some(found) = after.keys().find_map(|label| Matrix::between(before, after, label)) else {
        return vec![("recall".into(), Value::from("status shows no confusion matrix"))];
    };
    let (synced, unsynced) = (found.synced(), found.unsynced());
    let alone = found.without_relatives();
    let mut all: Vec<(String, Value)> = Vec::new();
    for (name, matrix) in [("", &found), ("without relatives, ", &alone)] {
        all.push((format!("{name}recall of synced bytes"), share(matrix.right_sync(), synced)));
        all.push((format!("{name}recall of unsynced bytes"), share(matrix.right_async(), unsynced)));
        let right = matrix.right_sync() + matrix.right_async();
        all.push((format!("{name}right of all bytes"), share(right, synced + unsynced)));
    }
    // Constant predictions: right about every byte of one class, wrong about every byte of the other.
    for (name, says_sync) in [("always-sync", true), ("always-async", false)] {
        let matrix = found.always(says_sync);
        all.push((format!("{name}, recall of synced bytes"), share(matrix.right_sync(), synced)));
        all.push((format!("{name}, recall of unsynced bytes"), share(matrix.right_async(), unsynced)));
        let right = matrix.right_sync() + matrix.right_async();
        all.push((format!("{name}, right of all bytes"), share(right, synced + unsynced)));
    }
    all.push(("synced bytes".into(), synced.into()));
    all.push(("unsynced bytes".into(), unsynced.into()));
    all
}

fn by_threshold(before: &Status, after: &Status) -> Vec<(String, Value)> {
    let of = |label: &String| {
        let found = Matrix::between(before, after, label)?;
        let alone = found.without_relatives();
        let all = found.synced() + found.unsynced();
        let right = |matrix: &Matrix| share(matrix.right_sync() + matrix.right_async(), all);
        let value = json!({
            "recall of synced bytes": share(found.right_sync(), found.synced()),
            "recall of unsynced bytes": share(found.right_async(), found.unsynced()),
            "right of all bytes": right(&found),
            "without relatives, right of all bytes": right(&alone),
            "synced share": share(found.synced(), all),
        });
        Some((label.clone(), value))
    };
    let mut all: Vec<(String, Value)> = after.keys().filter_map(of).collect();
    if let Some(claim) = over_thresholds(&all) {
        all.push(("whatever the threshold".to_string(), claim));
    }
    all
}

/// "99 % right, at worst 98.2 %", whatever the threshold [TPFS 6.6].
const AT_WORST: f64 = 0.982;

/// The claim about all thresholds; `None` when a threshold is missing.
fn over_thresholds(all: &[(String, Value)]) -> Option<Value> {
    let worst = |of: &str| -> Option<(&str, f64)> {
        let right = THRESHOLDS.iter().map(|(_, name)| {
            let label = format!("terrace {name}");
            let value = all.iter().find(|(found, _)| *found == label).map(|(_, value)| &value[of])?;
            Some((*name, value.as_f64()?))
        });
        right.collect::<Option<Vec<_>>>()?.into_iter().min_by(|a, b| a.1.total_cmp(&b.1))
    };
    let (at, right) = worst("right of all bytes")?;
    let (at_alone, alone) = worst("without relatives, right of all bytes")?;
    Some(json!({
        "at worst": right,
        "where": at,
        "without relatives, at worst": alone,
        "without relatives, where": at_alone,
        "must": format!("≥ {AT_WORST}"),
        "held": right >= AT_WORST,
    }))
}

/// Written bytes by prediction and by fate: synced or not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Matrix {
    /// Predicted synchronous by the file history, or without a history: bytes that were synced, bytes that
    /// were not.
    sync: [u64; 2],
    asynchronous: [u64; 2],
    /// Predicted by directory histories.
    expected_sync: [u64; 2],
    expected_async: [u64; 2],
}

impl Matrix {
    fn of(confusion: &Value) -> Option<Matrix> {
        let row = |name: &str| {
            let bytes = |column: &str| confusion[name][column].as_u64();
            Some([bytes("synced_bytes")?, bytes("unsynced_bytes")?])
        };
        let (known, unjudged) = (row("synchronous")?, row("unjudged")?);
        Some(Matrix {
            sync: [known[0] + unjudged[0], known[1] + unjudged[1]],
            asynchronous: row("asynchronous")?,
            expected_sync: row("expected_synchronous")?,
            expected_async: row("expected_asynchronous")?,
        })
    }

    /// The growth of a subject's matrix.
    fn between(before: &Status, after: &Status, label: &str) -> Option<Matrix> {
        let of = |status: &Status| Matrix::of(&status.get(label)?["placement"]["confusion"]);
        let (old, new) = (of(before).unwrap_or_default(), of(after)?);
        let less = |new: [u64; 2], old: [u64; 2]| [0, 1].map(|at| new[at].saturating_sub(old[at]));
        Some(Matrix {
            sync: less(new.sync, old.sync),
            asynchronous: less(new.asynchronous, old.asynchronous),
            expected_sync: less(new.expected_sync, old.expected_sync),
            expected_async: less(new.expected_async, old.expected_async),
        })
    }

    /// The predictor of the publications: a file without a history is synchronous.
    fn without_relatives(&self) -> Matrix {
        let sum = |at: usize| self.expected_sync[at] + self.expected_async[at];
        Matrix { expected_sync: [sum(0), sum(1)], expected_async: [0, 0], ..self.clone() }
    }

    /// The matrix of a constant prediction for the same bytes.
    fn always(&self, synchronous: bool) -> Matrix {
        let all = [self.synced(), self.unsynced()];
        match synchronous {
            true => Matrix { sync: all, ..Matrix::default() },
            false => Matrix { asynchronous: all, ..Matrix::default() },
        }
    }

    fn rows(&self, at: usize) -> u64 {
        self.sync[at] + self.asynchronous[at] + self.expected_sync[at] + self.expected_async[at]
    }
    fn synced(&self) -> u64 {
        self.rows(0)
    }
    fn unsynced(&self) -> u64 {
        self.rows(1)
    }
    fn right_sync(&self) -> u64 {
        self.sync[0] + self.expected_sync[0]
    }
    fn right_async(&self) -> u64 {
        self.asynchronous[1] + self.expected_async[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(rows: [(u64, u64); 5]) -> Status {
        let row = |at: usize| json!({ "synced_bytes": rows[at].0, "unsynced_bytes": rows[at].1 });
        let confusion = json!({
            "synchronous": row(0),
            "asynchronous": row(1),
            "expected_synchronous": row(2),
            "expected_asynchronous": row(3),
            "unjudged": row(4),
        });
        Status::from([("terrace".to_string(), json!({ "placement": { "confusion": confusion } }))])
    }

    #[test]
    fn recall_is_weighted_by_bytes_of_the_mix_alone() {
        let before = status([(0, 0), (0, 500), (0, 0), (0, 0), (7, 900)]);
        let after = status([(80, 5), (5, 700), (10, 5), (5, 100), (7, 910)]);
        let found = recall(&before, &after);
        let value = |name: &str| found.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        assert_eq!(value("recall of synced bytes"), Some(json!(0.9)));
        assert_eq!(value("recall of unsynced bytes"), Some(json!(300.0 / 320.0)));
        assert_eq!(value("without relatives, recall of synced bytes"), Some(json!(0.95)));
        assert_eq!(value("without relatives, recall of unsynced bytes"), Some(json!(200.0 / 320.0)));
        assert_eq!(value("always-async, right of all bytes"), Some(json!(320.0 / 420.0)));
        assert_eq!(value("always-sync, right of all bytes"), Some(json!(100.0 / 420.0)));
        for (name, synced, unsynced) in [("always-sync", 1.0, 0.0), ("always-async", 0.0, 1.0)] {
            assert_eq!(value(&format!("{name}, recall of synced bytes")), Some(json!(synced)));
            assert_eq!(value(&format!("{name}, recall of unsynced bytes")), Some(json!(unsynced)));
        }
        let none = Status::from([("terrace".to_string(), json!({ "placement": null }))]);
        assert_eq!(recall(&none, &none).len(), 1);
        let by_one = by_threshold(&before, &after);
        assert_eq!(by_one[0].1["recall of synced bytes"], json!(0.9));
        assert_eq!(by_one.len(), 1, "no claim without the other thresholds");
    }

    #[test]
    fn the_worst_threshold_decides_the_verdict() {
        let all = |worst: f64| -> Vec<(String, Value)> {
            let rights =
                [("4K", 0.99), ("64K", worst), ("1M", 0.99), ("4M", 0.995), ("64M", 0.99), ("1G", 0.984)];
            let line = |right: f64| json!({ "right of all bytes": right, "without relatives, right of all bytes": 1.0 - right });
            rights.map(|(name, right)| (format!("terrace {name}"), line(right))).into()
        };
        let judged = |worst: f64| over_thresholds(&all(worst)).unwrap();
        assert_eq!((&judged(0.983)["held"], &judged(0.97)["held"]), (&json!(true), &json!(false)));
        assert_eq!((&judged(0.97)["at worst"], &judged(0.97)["where"]), (&json!(0.97), &json!("64K")));
        assert_eq!(
            (&judged(0.99)["where"], &judged(0.99)["without relatives, where"]),
            (&json!("1G"), &json!("4M"))
        );
        assert!(over_thresholds(&all(0.99)[1..]).is_none());
    }
}
