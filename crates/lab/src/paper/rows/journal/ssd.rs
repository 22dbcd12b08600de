//! Rows journal-ssd and journal-flush-time: emulated SSDs.

use super::{on, plan, small, subject};
use terrace_bench::comparison::plan::{Cell, Metric, Must, Plan, Scale, Work};
use terrace_bench::site::programs::Program;
use terrace_bench::site::subject::{Journal, JournalPlace, Peer, Tuning};
use terrace_bench::workload::load::Kind;
use terrace_bench::workload::personality::Personality;

/// Data of these rows.
const DATA_BYTES: u64 = 128 << 20;
/// Tier 0 by the data of row journal-ssd.
const HALF: f64 = 0.5;
/// Files of all workloads, and space of the devices, by the data.
const DEVICE_SHARE: u64 = 8;

/// Row journal-ssd.
pub(crate) fn before_a_disk(scale: &Scale) -> Plan {
    let scale = &small(scale, DATA_BYTES);
    let mut plan = plan(Metric::OperationsPerS, "workload");
    plan.class = Some("disk");
    let on_ssd = Journal { class: Some("ssd"), ..Journal::default() };
    let tuning = Tuning { journal: Some(on_ssd), ..Tuning::default() };
    for (peer, tuning) in
        [(Peer::Terrace, tuning.clone()), (Peer::Ext4Dj, tuning), (Peer::Ext4, Tuning::default())]
    {
        let mut found = scale.subject(peer.name(), peer, HALF, tuning);
        found.device_bytes = found.device_bytes.max(scale.dataset_bytes * DEVICE_SHARE);
        plan.subjects.push(found);
    }
    let (inserts, rows) = match scale.quick {
        true => (20, 100),
        false => ((scale.limit_ns / 1_000_000).max(100), scale.dataset_bytes / 3300),
    };
    let varmail = scale.personality(Personality::Varmail, false);
    let works = [
        ("append", Work::Load(scale.load(Kind::AppendSync { bytes: 4096 }, 1))),
        ("varmail", Work::Load(scale.load(varmail, 1))),
        ("SQLite DELETE", Work::Program(Program::Sqlite { journal: "DELETE", inserts, rows })),
        ("SQLite WAL", Work::Program(Program::Sqlite { journal: "WAL", inserts, rows })),
    ];
    for (number, (at, work)) in works.into_iter().enumerate() {
        for (subject, found) in plan.subjects.iter().enumerate() {
            let (series, at, work) = (found.label.clone(), at.to_string(), work.clone());
            plan.cells.push(Cell { subject, series, x: number as f64, at, work });
        }
    }
    plan.claim("× ext4 with its journal on the SSD", "terrace", "ext4-dj", Must::AtLeast(1.3));
    plan.claim("× ext4 on the disk alone", "terrace", "ext4", Must::Shown);
    plan.notes.push(
        "The journal of Terrace, and that of ext4 with data=journal (`ext4-dj`), lie on an emulated SSD, the data below on an \
         emulated disk. Tier 0 has half of the data set's size, the journal of ext4 is as long as the log. ext4 flushes both devices for an \
         fsync, and a flush of the emulated disk takes the time of a write even when nothing waits there."
            .into(),
    );
    plan
}

/// Row journal-flush-time.
pub(crate) fn slow_flushes(scale: &Scale) -> Plan {
    let scale = &small(scale, DATA_BYTES);
    let mut plan = plan(Metric::OperationsPerS, "operation");
    plan.class = Some("ssd+1000");
    plan.also = vec![("median", Metric::MedianLatencyNs), ("flushes", Metric::FlushesPerOperation)];
    let peers = [Peer::Terrace, Peer::Ext4];
    for peer in peers {
        plan.subjects.push(subject(scale, peer.name(), peer, on(JournalPlace::Loop)));
    }
    for (place, load) in super::fsync::operations(scale) {
        for (number, peer) in peers.iter().enumerate() {
            plan.cell(number, peer.name(), place, load.clone());
        }
    }
    plan.claim("a flush decides", "terrace", "ext4", Must::AtLeast(1.0));
    plan.notes.push("On an emulated SSD whose flush takes 1 ms.".into());
    plan
}
