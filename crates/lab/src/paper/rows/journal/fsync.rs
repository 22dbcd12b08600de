//! Rows journal-fsync-in-process, journal-fsync, journal-flushes and journal-written: single operations that end with a sync.

use super::{on, plan, small, subject};
use terrace_bench::comparison::plan::{Metric, Must, Plan, Scale, Sum};
use terrace_bench::site::subject::{JournalPlace, Peer, Tuning};
use terrace_bench::workload::load::{Kind, Load};
use terrace_bench::workload::personality::Personality;
use terrace_bench::workload::synced::SyncedFlow;
use terrace_bench::workload::worker::Sync;

const ONE: (f64, &str) = (0.0, "overwrite, 1 thread");
const SIXTEEN: (f64, &str) = (1.0, "overwrite, 16 threads");
const UNSYNCED: (f64, &str) = (2.0, "overwrite, no sync");
const APPEND: (f64, &str) = (2.0, "append");
const SHORT_LIVED: (f64, &str) = (3.0, "create, write, unlink");
const VARMAIL: (f64, &str) = (2.0, "varmail, 1 thread");
/// Data of these rows.
const DATA_BYTES: u64 = 128 << 20;
/// Bytes that all threads overwrite.
const OVERWRITTEN_BYTES: u64 = 32 << 20;
/// Bytes of a commit of an overwritten block: header, 4 KiB and record, in whole blocks.
const COMMIT_BYTES: u64 = 8192;
/// Overwrites without a sync in a round: 8 MiB, an eighth of the ring, so that no store waits for a commit.
const UNSYNCED_WRITES: u64 = 2048;
/// Terrace with its journal in a file, as the durable writes have it.
const ON_A_FILE: &str = "terrace on a file";
/// The counts beside each time.
const COUNTS: [(&str, Metric); 3] = [
    ("flushes", Metric::FlushesPerOperation),
    ("requests", Metric::RequestsPerOperation),
    ("written", Metric::WrittenPerByte),
];

/// Overwrites of 4 KiB at random places of a file for each thread.
fn overwrites(scale: &Scale, threads: u64, sync: Sync) -> Load {
    let kind = Kind::Random {
        write: true,
        sync,
        files: threads,
        file_bytes: OVERWRITTEN_BYTES.min(scale.dataset_bytes / 2) / threads,
        io_bytes: 4096,
        theta: 0.0,
        single: None,
    };
    scale.load(kind, threads)
}

/// The same on the file of the null server.
fn null_overwrites(scale: &Scale) -> Load {
    let mut load = overwrites(scale, 1, Sync::Fsync);
    if let Kind::Random { file_bytes, single, .. } = &mut load.kind {
        (*file_bytes, *single) = (terrace_bench::null_server::FILE_BYTES, Some("file".into()));
    }
    load
}

fn flow(scale: &Scale, flow: SyncedFlow, threads: u64) -> Load {
    scale.load(Kind::Synced { flow, files: threads }, threads)
}

/// Durable writes of the bytes of a commit, one behind the other, as a log is written.
fn durable_writes(scale: &Scale) -> Load {
    let file_bytes = scale.dataset_bytes / 2;
    flow(scale, SyncedFlow::Sequential { io_bytes: COMMIT_BYTES, file_bytes }, 1)
}

/// Row journal-fsync-in-process.
pub(crate) fn in_process(scale: &Scale) -> Plan {
    let scale = &small(scale, DATA_BYTES);
    let mut plan = plan(Metric::NsPerOperation, "operation");
    plan.also = vec![
        ("rate", Metric::OperationsPerS),
        ("median", Metric::MedianLatencyNs),
        ("p99", Metric::P99LatencyNs),
    ];
    plan.also.extend(COUNTS);
    for (label, peer, tuning) in [
        ("local", Peer::Local, on(JournalPlace::File)),
        ("raw", Peer::Raw, on(JournalPlace::File)),
        ("local in memory", Peer::Local, Tuning::default()),
    ] {
        plan.subjects.push(subject(scale, label, peer, tuning));
    }
    let unsynced = overwrites(scale, 1, Sync::Never);
    let unsynced = Load { operations: unsynced.operations.min(UNSYNCED_WRITES), ..unsynced };
    plan.cell(0, "local", ONE, overwrites(scale, 1, Sync::Fsync));
    plan.cell(1, "raw", ONE, durable_writes(scale));
    plan.cell(0, "local", SIXTEEN, overwrites(scale, 16, Sync::Fsync));
    plan.cell(0, "local", UNSYNCED, unsynced.clone());
    plan.cell(2, "local in memory", UNSYNCED, unsynced);
    plan.claim_at("a commit is one durable write", "local", "raw", ONE.1, Must::AtMost(1.1));
    plan.between("threads share commits", "local rate", (ONE.1, SIXTEEN.1), Must::AtLeast(6.0));
    let (ours, theirs) = ("local median", "local in memory median");
    plan.claim_at("an entry of the ring", ours, theirs, UNSYNCED.1, Must::MoreByAtMost(350.0));
    plan.notes.push(format!(
        "In this process. `raw` writes {COMMIT_BYTES} bytes with O_DIRECT and RWF_DSYNC to a file like that of the journal, \
         written whole before. `local in memory` has no journal. Without a sync: {UNSYNCED_WRITES} overwrites in a round, after \
         a sync. Flushes, requests and bytes are those of the disk of the machine, other programs' too."
    ));
    plan
}

/// Row journal-fsync.
pub(crate) fn through_fuse(scale: &Scale) -> Plan {
    let scale = &small(scale, DATA_BYTES);
    let mut plan = plan(Metric::OperationsPerS, "operation");
    plan.also = vec![
        ("ns", Metric::NsPerOperation),
        ("median", Metric::MedianLatencyNs),
        ("p99", Metric::P99LatencyNs),
    ];
    plan.also.extend(COUNTS);
    let all = [Peer::Terrace, Peer::Ext4, Peer::Xfs, Peer::Btrfs, Peer::Ext4Journal, Peer::Raw, Peer::Null];
    for peer in all {
        let place = if peer == Peer::Raw { JournalPlace::File } else { JournalPlace::Loop };
        plan.subjects.push(subject(scale, peer.name(), peer, on(place)));
    }
    plan.subjects.push(subject(scale, ON_A_FILE, Peer::Terrace, on(JournalPlace::File)));
    for (place, load) in operations(scale) {
        for (number, peer) in all.iter().enumerate() {
            let load = match peer {
                Peer::Raw if place == ONE => durable_writes(scale),
                Peer::Null if place == ONE => null_overwrites(scale),
                Peer::Raw | Peer::Null => continue,
                _ => load.clone(),
            };
            plan.cell(number, peer.name(), place, load);
        }
        if place == ONE {
            plan.cell(all.len(), ON_A_FILE, place, load);
        }
    }
    let series = "raw + null ns".to_string();
    let of = vec![(1.0, "raw ns".to_string()), (1.0, "null ns".to_string())];
    plan.sums.push(Sum { series: series.clone(), of });
    let ours = format!("{ON_A_FILE} ns");
    plan.claim_at("a durable write and a round trip", &ours, &series, ONE.1, Must::AtMost(1.15));
    for ((_, at), least) in [(ONE, 1.0), (SIXTEEN, 1.5), (APPEND, 1.3), (SHORT_LIVED, 2.0)] {
        plan.claim_at("× ext4", "terrace", "ext4", at, Must::AtLeast(least));
    }
    for peer in ["xfs", "btrfs", "ext4-journal"] {
        plan.claim("beside", "terrace", peer, Must::Shown);
    }
    plan.notes.push(format!(
        "On loop devices with direct I/O over files of the disk, written whole before; counts are those of the loop devices. \
         `raw` writes {COMMIT_BYTES} bytes with O_DIRECT and RWF_DSYNC to such a file, one write behind the other, and `{ON_A_FILE}` \
         has its journal in such a file; their counts are those of the disk, other programs' too."
    ));
    plan
}

/// The operations of row journal-fsync.
pub(super) fn operations(scale: &Scale) -> [((f64, &'static str), Load); 4] {
    [
        (ONE, overwrites(scale, 1, Sync::Fsync)),
        (SIXTEEN, overwrites(scale, 16, Sync::Fsync)),
        (APPEND, scale.load(Kind::AppendSync { bytes: 4096 }, 1)),
        (SHORT_LIVED, flow(scale, SyncedFlow::CreateAndRemove, 1)),
    ]
}

/// Subjects on loop devices, whose requests are counted apart.
fn counted(scale: &Scale, metric: Metric, peers: &[Peer]) -> Plan {
    let mut plan = plan(metric, "operation");
    for peer in peers {
        plan.subjects.push(subject(scale, peer.name(), *peer, on(JournalPlace::Loop)));
    }
    for (place, load) in
        [(ONE, overwrites(scale, 1, Sync::Fsync)), (SIXTEEN, overwrites(scale, 16, Sync::Fsync))]
    {
        for (number, peer) in peers.iter().enumerate() {
            plan.cell(number, peer.name(), place, load.clone());
        }
    }
    plan
}

/// Row journal-flushes.
pub(crate) fn flushes(scale: &Scale) -> Plan {
    let peers = [Peer::Terrace, Peer::Local, Peer::Ext4, Peer::Xfs];
    let mut plan = counted(&small(scale, DATA_BYTES), Metric::FlushesPerOperation, &peers);
    plan.also = vec![("requests", Metric::RequestsPerOperation), ("rate", Metric::OperationsPerS)];
    for ours in ["terrace", "local"] {
        plan.claim_at("one flush for each fsync", ours, "", ONE.1, Must::Within(1.05));
        plan.claim_at("threads share flushes", ours, "", SIXTEEN.1, Must::AtMost(0.25));
    }
    for beside in ["ext4", "xfs"] {
        plan.limit("beside", beside, Must::Shown);
    }
    plan.notes.push("Flush requests of the loop devices, by the kernel's counters.".into());
    plan
}

/// Row journal-written.
pub(crate) fn written(scale: &Scale) -> Plan {
    let scale = &small(&Scale { limit_ns: scale.limit_ns * 3, ..*scale }, DATA_BYTES / 2);
    let peers = [Peer::Terrace, Peer::Local, Peer::Ext4, Peer::Ext4Journal];
    let mut plan = counted(scale, Metric::WrittenPerByte, &peers);
    plan.also = vec![("rate", Metric::OperationsPerS), ("requests", Metric::RequestsPerOperation)];
    let varmail = scale.load(scale.personality(Personality::Varmail, false), 1);
    for (number, peer) in peers.iter().enumerate() {
        plan.cell(number, peer.name(), VARMAIL, varmail.clone());
    }
    for ours in ["terrace", "local"] {
        plan.claim_at("log and home", ours, "", ONE.1, Must::AtMost(2.5));
        plan.claim_at("threads share batches", ours, "", SIXTEEN.1, Must::AtMost(1.5));
        plan.claim_at("varmail", ours, "", VARMAIL.1, Must::Shown);
    }
    for beside in ["ext4", "ext4-journal"] {
        plan.limit("beside", beside, Must::Shown);
    }
    plan.notes.push(
        "Each figure takes three times --seconds. Bytes of the loop devices by the kernel's counters, home rounds included, divided by \
         the bytes that the load wrote and synced. Home rounds begin with a quarter of the log."
            .into(),
    );
    plan
}
