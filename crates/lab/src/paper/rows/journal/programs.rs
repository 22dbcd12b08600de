//! Row journal-programs: varmail and databases through the mount, with tier 0 for all of the data.

use super::{on, plan, small, subject};
use terrace_bench::comparison::plan::{Cell, Metric, Must, Plan, Scale, Work};
use terrace_bench::site::programs::Program;
use terrace_bench::site::subject::{JournalPlace, Peer};
use terrace_bench::workload::personality::Personality;

/// Data of the row.
const DATA_BYTES: u64 = 256 << 20;
/// Devices have room for the files of all programs.
const DEVICE_SHARE: u64 = 8;

/// Each workload with the bound of its ratio to ext4 and to XFS.
fn works(scale: &Scale) -> Vec<(&'static str, Work, f64)> {
    let quick = scale.quick;
    let varmail = |threads| Work::Load(scale.load(scale.personality(Personality::Varmail, false), threads));
    let inserts = if quick { 20 } else { (scale.limit_ns / 500_000).max(100) };
    let rows = if quick { 100 } else { scale.dataset_bytes / 3300 };
    let sqlite = |journal| Work::Program(Program::Sqlite { journal, inserts, rows });
    let (keys, seconds) = if quick { (1000, 1) } else { (scale.dataset_bytes / 4 / 1016, 600) };
    let rocksdb = Program::RocksDb { benchmark: "fillseq", keys, threads: 8, seconds };
    let size = (scale.dataset_bytes * 2 / 3 / (16 << 20)).max(1);
    let postgres = Program::Postgres { scale: size, seconds: (scale.limit_ns / 1_000_000_000).max(1) };
    vec![
        ("varmail, 1 thread", varmail(1), 1.8),
        ("varmail, 16 threads", varmail(16), 1.3),
        ("SQLite DELETE", sqlite("DELETE"), 1.5),
        ("SQLite WAL", sqlite("WAL"), 1.0),
        ("RocksDB fillseq", Work::Program(rocksdb), 1.2),
        ("pgbench", Work::Program(postgres), 1.0),
    ]
}

/// Row journal-programs.
pub(crate) fn programs(scale: &Scale) -> Plan {
    let scale = &small(scale, DATA_BYTES);
    let mut plan = plan(Metric::OperationsPerS, "program");
    plan.also = vec![("flushes", Metric::Flushes), ("written", Metric::WrittenBytes)];
    for peer in [Peer::Terrace, Peer::Ext4, Peer::Xfs, Peer::Btrfs, Peer::Ext4Journal] {
        let mut found = subject(scale, peer.name(), peer, on(JournalPlace::Loop));
        found.device_bytes = found.device_bytes.max(scale.dataset_bytes * DEVICE_SHARE);
        plan.subjects.push(found);
    }
    for (number, (at, work, least)) in works(scale).into_iter().enumerate() {
        for (subject, found) in plan.subjects.iter().enumerate() {
            let (series, at, work) = (found.label.clone(), at.to_string(), work.clone());
            plan.cells.push(Cell { subject, series, x: number as f64, at, work });
        }
        for theirs in ["ext4", "xfs"] {
            plan.claim_at("on the same disk", "terrace", theirs, at, Must::AtLeast(least));
        }
    }
    for theirs in ["btrfs", "ext4-journal"] {
        plan.claim("beside", "terrace", theirs, Must::Shown);
    }
    plan.notes.push(
        "Tier 0 has room for all of the data, and the page cache of the peers is not limited. SQLite with synchronous=FULL; RocksDB \
         synchronous, 8 threads, a quarter of the data; pgbench with 4 clients, tables for two thirds of the data. Flushes and bytes are those of \
         a whole figure, with the preparation of its files."
            .into(),
    );
    plan
}
