//! Row tpfs-predict: how often the synchronicity predictor is right, from the confusion matrix of `terrace status`, on
//! one mix whose parts take turns: varmail, SQLite, RocksDB, git clone, bulk copies.

use super::filebench;
use crate::paper::plan::{Cell, Metric, Plan, Scale, Work};
use crate::site::peer::{Peer, Tuning};
use crate::site::programs::Program;
use crate::workload::load::Kind;
use crate::workload::personality::Personality;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Programs that are not here are left out of the mix, with a note.
pub(crate) fn mix(scale: &Scale) -> Plan {
    let mut plan = Plan::new(Metric::OperationsPerS, "part of the mix", scale.dataset_bytes / 2);
    let third = Scale { dataset_bytes: scale.dataset_bytes / 3, ..*scale };
    let keys = if scale.quick { 1000 } else { third.dataset_bytes / 1016 };
    let rows = if scale.quick { 100 } else { third.dataset_bytes / 1100 };
    let inserts = if scale.quick { 20 } else { 2000 };
    let load = |kind: Kind| Work::Load(scale.load(kind, 1));
    let parts = [
        ("varmail", load(filebench::kind(&third, Personality::Varmail, false))),
        ("bulk copy", load(Kind::Bulk { file_bytes: (third.dataset_bytes / 8).max(1 << 20) })),
        ("sqlite WAL", Work::Program(Program::Sqlite { journal: "WAL", inserts, rows })),
        ("sqlite DELETE", Work::Program(Program::Sqlite { journal: "DELETE", inserts, rows })),
        ("RocksDB", Work::Program(Program::RocksDb { benchmark: "fillseq", keys, threads: 1, seconds: 60 })),
        ("git clone", Work::Program(Program::GitClone { files: if scale.quick { 10 } else { 2000 } })),
    ];
    plan.subjects.push(scale.subject("terrace 6%", Peer::Terrace, 0.06, Tuning::default()));
    for (number, (name, work)) in parts.into_iter().enumerate() {
        if let Work::Program(program) = &work
            && let Err(error) = program.available()
        {
            plan.notes.push(format!("Not in the mix: {name}: {error}."));
            continue;
        }
        let series = "terrace 6%".to_string();
        plan.cells.push(Cell { subject: 0, series, x: number as f64, at: name.to_string(), work });
    }
    plan.conclude = Some(recall);
    plan
}

/// Recall of both classes, weighted by bytes, of the predictor and of the two that need none. Bytes whose fate is not
/// known yet do not count. What was not judged is treated as synchronous.
fn recall(status: &BTreeMap<String, Value>) -> Vec<(String, Value)> {
    let confusion = |status: &Value| Matrix::of(&status["placement"]["confusion"]);
    let Some(found) = status.values().find_map(confusion) else {
        return vec![("recall".into(), Value::from("status shows no confusion matrix"))];
    };
    let share = |right: u64, all: u64| if all == 0 { Value::Null } else { json!(right as f64 / all as f64) };
    let synced = found.right_sync + found.wrong_async;
    let unsynced = found.right_async + found.wrong_sync;
    vec![
        ("recall of synced bytes".into(), share(found.right_sync, synced)),
        ("recall of unsynced bytes".into(), share(found.right_async, unsynced)),
        ("right of all bytes".into(), share(found.right_sync + found.right_async, synced + unsynced)),
        ("always-sync, right of all bytes".into(), share(synced, synced + unsynced)),
        ("always-async, right of all bytes".into(), share(unsynced, synced + unsynced)),
    ]
}

/// Bytes by what was said of them and whether that was right.
#[derive(Debug, PartialEq, Eq)]
struct Matrix {
    right_sync: u64,
    wrong_sync: u64,
    right_async: u64,
    wrong_async: u64,
}

impl Matrix {
    fn of(confusion: &Value) -> Option<Matrix> {
        let bytes = |row: &str, column: &str| confusion[row][column].as_u64();
        Some(Matrix {
            right_sync: bytes("synchronous", "synced_bytes")? + bytes("unjudged", "synced_bytes")?,
            wrong_sync: bytes("synchronous", "unsynced_bytes")? + bytes("unjudged", "unsynced_bytes")?,
            right_async: bytes("asynchronous", "unsynced_bytes")?,
            wrong_async: bytes("asynchronous", "synced_bytes")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recall_is_weighted_by_bytes() {
        let row = |synced: u64, unsynced: u64| json!({ "synced_bytes": synced, "unsynced_bytes": unsynced });
        let confusion =
            json!({ "synchronous": row(90, 5), "asynchronous": row(10, 300), "unjudged": row(0, 15) });
        let status = json!({ "placement": { "confusion": confusion } });
        let found = recall(&BTreeMap::from([("terrace".to_string(), status)]));
        assert_eq!(found[0].1, json!(0.9));
        assert_eq!(found[1].1, json!(300.0 / 320.0));
        let none = recall(&BTreeMap::from([("terrace".to_string(), json!({ "placement": null }))]));
        assert_eq!(none.len(), 1);
    }
}
