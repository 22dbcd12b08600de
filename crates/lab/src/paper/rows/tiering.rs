//! Rows beyond the publications: burst, scan, cold-small, demoted-read, rich.

use super::PATIENCE_NS;
use serde_json::Value;
use terrace_bench::comparison::plan::{Metric, Must, Plan, Scale, Status};
use terrace_bench::site::subject::{Peer, Tuning};
use terrace_bench::workload::burst::Arrivals;
use terrace_bench::workload::cold::TURNS;
use terrace_bench::workload::load::{Kind, Load};
use terrace_bench::workload::personality::Personality;
use terrace_bench::workload::worker::Sync;

const BOTH: [(Peer, &str); 2] = [(Peer::Terrace, "terrace"), (Peer::Local, "local")];
/// PM by data of these rows: the least that Terrace needs at the default data size.
const LITTLE_PM_PER_DATA: f64 = 0.06;
fn until_done(scale: &Scale, kind: Kind, threads: u64) -> Load {
    Load { limit_ns: PATIENCE_NS, ..scale.load(kind, threads) }
}

/// A closed loop measures the capacity; then an open loop runs at half the capacity.
pub(crate) fn burst(scale: &Scale) -> Plan {
    const THREADS: u64 = 4;
    let mut plan = Plan::new(Metric::MedianLatencyNs, "arrivals", scale.dataset_bytes / 2);
    plan.class = Some("sata");
    plan.also = vec![
        ("p99.9", Metric::P999LatencyNs),
        ("longest", Metric::MaxLatencyNs),
        ("p99.9 by its limit", Metric::TailByLimit),
        ("without space", Metric::Failures),
        ("rate", Metric::OperationsPerS),
    ];
    let tuning = Tuning { cache_bytes: Some(scale.dataset_bytes / 8), ..Tuning::default() };
    for (peer, name) in BOTH {
        plan.subjects.push(scale.subject(format!("{name} 6%"), peer, LITTLE_PM_PER_DATA, tuning.clone()));
        let series = |words: &str| format!("{name} 6% {words}");
        plan.limit("p99.9 ≤ max(20 medians, 2 ms)", &series("p99.9 by its limit"), Must::AtMost(1.0));
        plan.limit("none above 500 ms", &series("longest"), Must::Never(500e6));
        plan.limit("no ENOSPC", &series("without space"), Must::Never(0.0));
    }
    for peer in [Peer::Ext4Dj, Peer::XfsMl] {
        plan.subjects.push(scale.subject(peer.name(), peer, LITTLE_PM_PER_DATA, Tuning::default()));
    }
    for claim in plan.claims.iter_mut() {
        claim.at = Some("half".to_string());
    }
    let bytes = scale.pm(LITTLE_PM_PER_DATA) * 4;
    for (x, at, arrivals) in
        [(0.0, "capacity", Arrivals::Closed), (1.0, "half", Arrivals::PercentOfCapacity(50))]
    {
        for subject in 0..plan.subjects.len() {
            let label = plan.subjects[subject].label.clone();
            let load = until_done(scale, Kind::Burst { bytes, arrivals }, THREADS);
            plan.cell(subject, label, (x, at), load);
        }
    }
    plan.notes.push(format!(
        "{THREADS} logs; the capacity is that of the same burst as fast as it goes, in the same round; latencies \
         count from the time for which a write was due."
    ));
    plan
}

/// Single synchronous writes with PM for 3 % of the data, and the bare device with writes of 1 MiB.
pub(crate) fn sync_write(scale: &Scale) -> Plan {
    const THREADS: u64 = 4;
    const SHARE: f64 = 0.03;
    let mut plan = Plan::new(Metric::OperationsPerS, "locality", scale.dataset_bytes / 2);
    plan.class = Some("sata");
    plan.also = vec![
        ("device", Metric::DeviceBytesPerS),
        ("amplification", Metric::Amplification),
        ("bytes", Metric::BytesPerS),
    ];
    let tuning = Tuning { cache_bytes: Some(scale.dataset_bytes / 8), ..Tuning::default() };
    for (peer, name) in BOTH {
        plan.subjects.push(scale.subject(format!("{name} 3%"), peer, SHARE, tuning.clone()));
        let ours = format!("{name} 3%");
        for theirs in ["ext4-dj", "xfs-ml"] {
            plan.claim("never below data journalling and external log", &ours, theirs, Must::AtLeast(1.0));
        }
        plan.claim(
            "of the device's bandwidth",
            &format!("{ours} device"),
            "device bytes",
            Must::AtLeast(0.85),
        );
        plan.limit("written per byte demoted", &format!("{ours} amplification"), Must::AtMost(1.1));
    }
    for peer in [Peer::Ext4Dj, Peer::XfsMl, Peer::Device] {
        plan.subjects.push(scale.subject(peer.name(), peer, SHARE, Tuning::default()));
    }
    for (number, (theta, at)) in [(1.04, "90/10"), (0.0, "50/50")].into_iter().enumerate() {
        for subject in 0..plan.subjects.len() {
            let (label, peer) = (plan.subjects[subject].label.clone(), plan.subjects[subject].peer);
            let file_bytes = scale.dataset_bytes / THREADS;
            let load = match peer {
                Peer::Device => super::whole_device(scale),
                _ => {
                    let (write, sync, io_bytes, single) = (true, Sync::Flag, 4096, None);
                    let files = THREADS;
                    let kind = Kind::Random { write, sync, files, file_bytes, io_bytes, theta, single };
                    scale.load(kind, THREADS)
                }
            };
            plan.cell(subject, label, (number as f64, at), load);
        }
    }
    plan
}

/// The same commits, first alone, then beside the scan.
pub(crate) fn scan(scale: &Scale) -> Plan {
    const COMMITTING: u64 = 1;
    let mut plan = Plan::new(Metric::P99LatencyNs, "operation", scale.dataset_bytes / 8);
    plan.class = Some("sata");
    plan.also = vec![("median", Metric::MedianLatencyNs), ("rate", Metric::OperationsPerS)];
    let tuning = Tuning { cache_bytes: Some(scale.dataset_bytes / 8), ..Tuning::default() };
    for (peer, name) in BOTH {
        plan.subjects.push(scale.subject(format!("{name} 6%"), peer, LITTLE_PM_PER_DATA, tuning.clone()));
    }
    for peer in [Peer::Ext4, Peer::Ext4Dj, Peer::XfsMl] {
        plan.subjects.push(scale.subject(peer.name(), peer, LITTLE_PM_PER_DATA, Tuning::default()));
    }
    let cold_bytes = if scale.quick { 4 << 20 } else { scale.pm(LITTLE_PM_PER_DATA) * 10 };
    for subject in 0..plan.subjects.len() {
        let label = plan.subjects[subject].label.clone();
        let [alone, beside] = ["alone", "beside a scan"].map(|words| format!("{label} {words}"));
        for (scan, series) in [(false, &alone), (true, &beside)] {
            let kind = Kind::Commits { cold_bytes, scan };
            let load = scale.load(kind, COMMITTING + u64::from(scan));
            plan.cell(subject, series, (0.0, "commit"), load);
        }
        let ours = matches!(plan.subjects[subject].peer, Peer::Terrace | Peer::Local);
        let must = if ours { Must::NotAbove } else { Must::Shown };
        plan.claim("a commit's p99 does not change", &beside, &alone, must);
    }
    plan.notes.push(
        "On one core the scan takes time from the commits, on any file system: the peers' ratios are beside."
            .to_string(),
    );
    plan
}

/// Small writes to cold files and to files in PM, and to cold files with `no_partial_shadows`.
pub(crate) fn small(scale: &Scale) -> Plan {
    let mut plan = Plan::new(Metric::MedianLatencyNs, "write", 64 << 20);
    plan.class = Some("disk");
    plan.also = vec![("p99", Metric::P99LatencyNs)];
    let sized = Scale { dataset_bytes: 128 << 20, ..*scale };
    // No read-ahead: neighbours of the read block would be in DRAM for the next write.
    let tuning = Tuning { cache_bytes: Some(1 << 20), prefetch_bytes: Some(0), ..Tuning::default() };
    let first = Tuning { no_partial_shadows: true, ..tuning.clone() };
    for (peer, name) in BOTH {
        plan.subjects.push(sized.subject(name, peer, 1.0, tuning.clone()));
        let (ours, theirs) = (format!("{name} cold"), format!("{name} in PM"));
        plan.claim("cold is at most 3 times PM", &ours, &theirs, Must::AtMost(3.0));
    }
    plan.subjects.push(sized.subject("local read-first", Peer::Local, 1.0, first));
    for peer in [Peer::Ext4, Peer::Ext4Dj] {
        plan.subjects.push(sized.subject(peer.name(), peer, 0.5, Tuning::default()));
    }
    plan.claim("reading first, as the originals do", "local read-first cold", "local cold", Must::Shown);
    plan.claim("beside ext4", "ext4 cold", "terrace cold", Must::Shown);
    plan.claim("beside ext4-dj", "ext4-dj cold", "terrace cold", Must::Shown);
    for (number, (append, at)) in [(false, "overwrite"), (true, "append")].into_iter().enumerate() {
        for cold in [true, false] {
            for subject in 0..plan.subjects.len() {
                let found = &plan.subjects[subject];
                // Peers and `no_partial_shadows` subjects measure the cold column only.
                if !cold
                    && (found.tuning.no_partial_shadows || !matches!(found.peer, Peer::Terrace | Peer::Local))
                {
                    continue;
                }
                let series = format!("{} {}", found.label, if cold { "cold" } else { "in PM" });
                let load = until_done(scale, Kind::Small { append, cold }, 1);
                let load = Load { operations: load.operations.min(TURNS), ..load };
                plan.cell(subject, series, (number as f64, at), load);
            }
        }
    }
    plan
}

/// Reads of a demoted file, and of the bare device.
pub(crate) fn demoted_read(scale: &Scale) -> Plan {
    let bytes = if scale.quick { 4 << 20 } else { 1 << 30 };
    // A sixteenth of the file, so a round reads few pages that the previous round left in DRAM.
    const CACHE_BYTES: u64 = 64 << 20;
    let mut plan = Plan::new(Metric::BytesPerS, "file", CACHE_BYTES);
    plan.class = Some("sata");
    let sized = Scale { dataset_bytes: bytes, ..*scale };
    let tuning = Tuning { cache_bytes: Some(CACHE_BYTES), ..Tuning::default() };
    for (peer, name) in BOTH {
        plan.subjects.push(sized.subject(format!("{name} 6%"), peer, LITTLE_PM_PER_DATA, tuning.clone()));
        plan.claim("of the device's bandwidth", &format!("{name} 6%"), "device", Must::AtLeast(0.8));
    }
    for peer in [Peer::Ext4, Peer::XfsMl, Peer::Device] {
        plan.subjects.push(sized.subject(peer.name(), peer, LITTLE_PM_PER_DATA, Tuning::default()));
    }
    plan.claim("ext4 beside", "ext4", "device", Must::Shown);
    for subject in 0..plan.subjects.len() {
        let found = &plan.subjects[subject];
        // The device has two requests at a time, so its latency does not count.
        let threads = if found.peer == Peer::Device { 2 } else { 1 };
        let label = found.label.clone();
        plan.cell(
            subject,
            label,
            (0.0, "1 GiB"),
            until_done(scale, Kind::Whole { bytes, write: false }, threads),
        );
    }
    plan
}

/// PM by data where PM is plenty.
const RICH_PM_PER_DATA: f64 = 8.0;

/// The cost of the predictors in PM so large that predictions gain nothing.
pub(crate) fn rich(scale: &Scale) -> Plan {
    let mut plan = Plan::new(Metric::NsPerOperation, "personality", 64 << 20);
    // Little more data than the processor's caches hold: the time goes into operations. PM is so large that
    // the policy never expects a shortage, even from the pace of the writes that make the files.
    let sized = Scale { dataset_bytes: scale.dataset_bytes.min(128 << 20), ..*scale };
    for (label, policy) in [("local predictive", "predictive"), ("local static", "static")] {
        let tuning = Tuning { policy: Some(policy), ..Tuning::default() };
        plan.subjects.push(sized.subject(label, Peer::Local, RICH_PM_PER_DATA, tuning));
    }
    let all = [Personality::Fileserver, Personality::Webserver, Personality::Webproxy, Personality::Varmail];
    // Three file sets at a time: webserver uses the set of fileserver.
    let third = Scale { dataset_bytes: sized.dataset_bytes / 3, ..sized };
    for (number, which) in all.into_iter().enumerate() {
        plan.point(scale, number as f64, which.name(), &third.personality(which, false), 1);
    }
    plan.claim("predictors and temperature", "local predictive", "local static", Must::MoreByAtMost(40.0));
    plan.claim("the same as a ratio", "local predictive", "local static", Must::Shown);
    plan.conclude = Some(counters);
    plan
}

/// Counters that prove that the predictors ran.
fn counters(_: &Status, after: &Status) -> Vec<(String, Value)> {
    let found = after.get("local predictive").map(|status| status["placement"].clone());
    vec![("counters of the predictors".to_string(), found.unwrap_or_default())]
}
