//! Rows journal-tail and journal-burst: the longest waits for a sync.

use super::{on, plan, small, subject};
use crate::paper::rows::PATIENCE_NS;
use terrace_bench::comparison::plan::{Metric, Must, Plan, Scale, Sum};
use terrace_bench::site::subject::{Journal, JournalPlace, Peer, Tuning};
use terrace_bench::workload::burst::Arrivals;
use terrace_bench::workload::load::{Kind, Load};
use terrace_bench::workload::synced::SyncedFlow;

/// Data of row journal-tail.
const DATA_BYTES: u64 = 256 << 20;

/// Row journal-tail.
pub(crate) fn beside_a_stream(scale: &Scale) -> Plan {
    let scale = &small(scale, DATA_BYTES);
    let mut plan = plan(Metric::P99LatencyNs, "operation");
    plan.also = vec![
        ("median", Metric::MedianLatencyNs),
        ("longest", Metric::MaxLatencyNs),
        ("rate", Metric::OperationsPerS),
    ];
    for peer in [Peer::Terrace, Peer::Local, Peer::Ext4, Peer::Xfs] {
        plan.subjects.push(subject(scale, peer.name(), peer, on(JournalPlace::Loop)));
    }
    for number in 0..plan.subjects.len() {
        let (label, is_ours) = (plan.subjects[number].label.clone(), plan.subjects[number].peer.is_terrace());
        let [alone, beside] = ["alone", "beside a stream"].map(|words| format!("{label} {words}"));
        for (streams, series) in [(false, &alone), (true, &beside)] {
            let flow = SyncedFlow::Overwrite { file_bytes: scale.dataset_bytes / 4, streams };
            let threads = 1 + u64::from(streams);
            let load = scale.load(Kind::Synced { flow, files: threads }, threads);
            plan.cell(number, series, (0.0, "overwrite + fsync"), load);
        }
        let must = if is_ours { Must::AtMost(5.0) } else { Must::Shown };
        plan.claim("a stream does not hold up a sync", &beside, &alone, must);
    }
    plan.notes.push(
        "One thread overwrites 4 KiB and syncs; beside it another writes a file of a quarter of the data by 1 MiB, again and again, \
         without a sync."
            .into(),
    );
    plan
}

/// Tier 0 by the data: the burst is four times as large.
const LITTLE_SHARE: f64 = 0.125;
const CAPACITY: &str = "capacity";
const HALF: &str = "half";

/// Row journal-burst.
pub(crate) fn burst(scale: &Scale) -> Plan {
    const THREADS: u64 = 4;
    let scale = &small(scale, 512 << 20);
    let mut plan = plan(Metric::MedianLatencyNs, "arrivals");
    plan.class = Some("disk");
    plan.also = vec![
        ("p99.9", Metric::P999LatencyNs),
        ("longest", Metric::MaxLatencyNs),
        ("without space", Metric::Failures),
        ("rate", Metric::OperationsPerS),
    ];
    let journal = Journal { class: Some("host"), ..Journal::default() };
    let journaled = Tuning { journal: Some(journal), ..Tuning::default() };
    for (label, tuning) in [("terrace", journaled.clone()), ("terrace in memory", Tuning::default())] {
        plan.subjects.push(scale.subject(label, Peer::Terrace, LITTLE_SHARE, tuning));
    }
    plan.subjects.push(scale.subject("raw", Peer::Raw, LITTLE_SHARE, journaled));
    let bytes = scale.pm(LITTLE_SHARE) * 4;
    for (x, at, arrivals) in [(0.0, CAPACITY, Arrivals::Closed), (1.0, HALF, Arrivals::PercentOfCapacity(50))]
    {
        for number in 0..2 {
            let label = plan.subjects[number].label.clone();
            let load = Load { limit_ns: PATIENCE_NS, ..scale.load(Kind::Burst { bytes, arrivals }, THREADS) };
            plan.cell(number, label, (x, at), load);
        }
    }
    let flow = SyncedFlow::Sequential { io_bytes: 8192, file_bytes: scale.dataset_bytes / 2 };
    plan.cell(2, "raw", (1.0, HALF), scale.load(Kind::Synced { flow, files: 1 }, 1));
    for of in ["p99.9", "longest"] {
        let series = format!("bound of {of}");
        let memory = (1.5, format!("terrace in memory {of}"));
        plan.sums.push(Sum { series: series.clone(), of: vec![memory, (4.0, "raw".into())] });
        let text = "1.5 times memory, and four durable writes";
        plan.claim_at(text, &format!("terrace {of}"), &series, HALF, Must::AtMost(1.0));
    }
    plan.claim("no ENOSPC", "terrace without space", "", Must::Never(0.0));
    plan.notes.push(format!(
        "{THREADS} logs, four times tier 0 in all; open loop at half of what the same burst reached as fast as it goes. Tier 1 is an \
         emulated disk; the journal, and the durable writes of `raw`, lie on the disk of this machine. `terrace in memory` has no \
         journal."
    ));
    plan
}
