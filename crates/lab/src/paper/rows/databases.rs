//! Rows tpfs-14 (LevelDB), tpfs-15, -16, zig-7 (RocksDB), zig-8 (SQLite) and zig-9 (PostgreSQL): programs,
//! through the kernel.

use super::{ALL, peers};
use terrace_bench::comparison::plan::{Cell, Metric, Must, Plan, Scale, Work};
use terrace_bench::site::programs::Program;
use terrace_bench::site::subject::{Peer, Tuning};

/// PM by data: 2 of 32 GB in the publications.
const LITTLE_PM_PER_DATA: f64 = 0.06;

fn base(scale: &Scale, axis: &'static str) -> Plan {
    let cache = scale.dataset_bytes / 2;
    let mut plan = Plan::new(Metric::OperationsPerS, axis, cache);
    let tuning = Tuning { cache_bytes: Some(cache), ..Tuning::default() };
    let fixed = Tuning { policy: Some("static"), ..tuning.clone() };
    plan.subjects.push(scale.subject("terrace 6%", Peer::Terrace, LITTLE_PM_PER_DATA, tuning.clone()));
    plan.subjects.push(scale.subject("terrace 200%", Peer::Terrace, ALL, tuning));
    plan.subjects.push(scale.subject("terrace pm-only", Peer::Terrace, ALL, fixed));
    peers(&mut plan, scale, LITTLE_PM_PER_DATA);
    plan
}

fn programs(plan: &mut Plan, all: Vec<(String, Program)>) {
    for (number, (at, program)) in all.into_iter().enumerate() {
        for (subject, found) in plan.subjects.iter().enumerate() {
            let (series, work) = (found.label.clone(), Work::Program(program.clone()));
            plan.cells.push(Cell { subject, series, x: number as f64, at: at.clone(), work });
        }
    }
}

fn rocksdb(scale: &Scale, benchmarks: &[&'static str]) -> Plan {
    let mut plan = base(scale, "benchmark");
    let all_keys = if scale.quick { 1000 } else { scale.dataset_bytes / 1016 };
    let seconds = (scale.limit_ns / 1_000_000_000).max(1);
    let all = benchmarks.iter().map(|benchmark| {
        // With one thread this takes minutes on peers that journal each insert, so a quarter of the keys is
        // inserted: the data is still four times PM.
        let keys = if *benchmark == "filluniquerandom" { all_keys / 4 } else { all_keys };
        // The benchmark of unique keys always runs one thread.
        let threads = if *benchmark == "filluniquerandom" { 1 } else { 8 };
        // The fill must be complete, or the read benchmarks have little data.
        let seconds = if benchmark.starts_with("fill") { 600 } else { seconds };
        (benchmark.to_string(), Program::RocksDb { benchmark, keys, threads, seconds })
    });
    programs(&mut plan, all.collect());
    plan.notes.push(
        "Synchronous, values of 1,000 bytes; memtable and log in proportion to the data; filluniquerandom inserts a quarter \
         of it."
            .into(),
    );
    plan
}

fn at(plan: &mut Plan, text: &str, theirs: &str, at: &str, must: Must) {
    plan.claim_at(text, "terrace 6%", theirs, at, must);
}

pub(crate) fn rocksdb_writes(scale: &Scale) -> Plan {
    let mut plan = rocksdb(scale, &["fillseq", "filluniquerandom"]);
    at(&mut plan, "published 7.4 times", "ext4-dj", "fillseq", Must::Shown);
    at(&mut plan, "published 8.2 times", "xfs-ml", "fillseq", Must::Shown);
    at(&mut plan, "near PM only", "terrace pm-only", "fillseq", Must::AtLeast(0.9));
    at(&mut plan, "published 4.8 times", "ext4-dj", "filluniquerandom", Must::Shown);
    at(&mut plan, "published 5.8 times", "xfs-ml", "filluniquerandom", Must::Shown);
    plan
}

pub(crate) fn rocksdb_reads(scale: &Scale) -> Plan {
    let mut plan = rocksdb(scale, &["fillseq", "readseq", "readrandom"]);
    at(
        &mut plan,
        "of PM-rich: published 85 % on Optane, 30 % on SATA",
        "terrace 200%",
        "readseq",
        Must::Shown,
    );
    at(&mut plan, "of PM-rich: published 68 % and 31 %", "terrace 200%", "readrandom", Must::Shown);
    plan
}

pub(crate) fn ziggurat_rocksdb(scale: &Scale) -> Plan {
    let mut plan = rocksdb(scale, &["fillseq", "readseq", "filluniquerandom"]);
    at(&mut plan, "published up to 38.9 times", "ext4-dj", "fillseq", Must::Shown);
    at(&mut plan, "the device alone below ext4", "ext4", "fillseq", Must::Shown);
    at(&mut plan, "published up to 46.5 times", "xfs-ml", "fillseq", Must::Shown);
    at(&mut plan, "published 8.6 times", "ext4-dj", "filluniquerandom", Must::Shown);
    at(&mut plan, "published 13.2 times", "xfs-ml", "filluniquerandom", Must::Shown);
    at(&mut plan, "published +43 %", "ext4-dj", "readseq", Must::Shown);
    plan
}

/// The publication has 16 GB and one thread.
pub(crate) fn leveldb(scale: &Scale) -> Plan {
    let mut plan = base(scale, "benchmark");
    let keys = if scale.quick { 1000 } else { scale.dataset_bytes / 1016 };
    let milliseconds = scale.limit_ns / 1_000_000;
    let all = ["fillseq", "readrandom", "readhot"]
        .map(|benchmark| (benchmark.to_string(), Program::LevelDb { benchmark, keys, milliseconds }));
    programs(&mut plan, all.into());
    for peer in ["ext4-dj", "xfs-ml", "terrace pm-only"] {
        for benchmark in ["readrandom", "readhot"] {
            at(&mut plan, "published: the least latency", peer, benchmark, Must::AtLeast(1.0));
        }
    }
    plan.notes.push("Values of 1,000 bytes, asynchronous; LevelDB through its Python binding.".into());
    plan
}

pub(crate) fn sqlite(scale: &Scale) -> Plan {
    let mut plan = base(scale, "journal mode");
    let rows = if scale.quick { 100 } else { scale.dataset_bytes / 3 / 1100 };
    // About the time of a figure at 10,000 inserts a second.
    let inserts = if scale.quick { 20 } else { (scale.limit_ns / 100_000).max(100) };
    let modes = ["DELETE", "PERSIST", "WAL"];
    let all = modes.map(|journal| (journal.to_string(), Program::Sqlite { journal, inserts, rows }));
    programs(&mut plan, all.into());
    plan.claim("published 1.4 to 5.6 times", "terrace 6%", "ext4-dj", Must::AtLeast(1.4));
    plan.claim("published 1.4 to 5.6 times", "terrace 6%", "xfs-ml", Must::AtLeast(1.4));
    plan.claim("near PM only", "terrace 6%", "terrace pm-only", Must::AtLeast(0.9));
    plan.notes.push("sqlite3's own shell; its start is in the time of an insert.".to_string());
    plan
}

/// The publication has 20 GB of data and 2 GB of PM.
pub(crate) fn postgres(scale: &Scale) -> Plan {
    let mut plan = base(scale, "transactions");
    // A unit of the scale has 16 MiB of tables and indexes; log and templates bring it to 24 MiB.
    let size = (scale.dataset_bytes / (24 << 20)).max(1);
    let seconds = (scale.limit_ns / 1_000_000_000).max(1);
    programs(&mut plan, vec![("TPC-B".to_string(), Program::Postgres { scale: size, seconds })]);
    plan.claim("not slower: published +1 % and +19 %", "terrace 6%", "ext4-dj", Must::AtLeast(1.0));
    plan.claim("not slower: published +1 % and +19 %", "terrace 6%", "xfs-ml", Must::AtLeast(1.0));
    plan
}
