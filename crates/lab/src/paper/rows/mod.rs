//! The rows' plans, by what they run.

pub(crate) mod anticache;
pub(crate) mod databases;
pub(crate) mod filebench;
pub(crate) mod hinfs;
pub(crate) mod journal;
pub(crate) mod maps;
pub(crate) mod predict;
pub(crate) mod predictor_cost;
pub(crate) mod random;
pub(crate) mod regret;
pub(crate) mod tiering;
pub(crate) mod ycsb;

use terrace_bench::comparison::plan::{Must, Plan, Scale};
use terrace_bench::site::subject::{Peer, Tuning};
use terrace_bench::workload::load::{Kind, Load};

/// PM by data, for data and metadata with PM use below every threshold.
pub(super) const ALL: f64 = 2.0;

/// The subjects of a row: Terrace with these shares of PM, through FUSE and in process; Terrace that never
/// migrates with all data in PM (`pm-only`, in place of NOVA); the peers of the publications.
pub(super) fn subjects(plan: &mut Plan, scale: &Scale, shares: &[(f64, &str)], cache_bytes: u64) {
    let tuning = Tuning { cache_bytes: Some(cache_bytes), ..Tuning::default() };
    let fixed = Tuning { policy: Some("static"), ..tuning.clone() };
    for (peer, name) in [(Peer::Terrace, "terrace"), (Peer::Local, "local")] {
        for (share, text) in shares {
            let label = format!("{name} {text}");
            plan.subjects.push(scale.subject(label, peer, *share, tuning.clone()));
        }
        plan.subjects.push(scale.subject(format!("{name} pm-only"), peer, ALL, fixed.clone()));
    }
    peers(plan, scale, shares.first().map_or(0.03, |(share, _)| *share));
}

/// The peers of the publications and their successors of today, with tmpfs as the ceiling of the kernel's
/// path. Peers use PM of `share` of the data as journal or log.
pub(super) fn peers(plan: &mut Plan, scale: &Scale, share: f64) {
    let all = [
        Peer::Ext4,
        Peer::Ext4Dj,
        Peer::XfsMl,
        Peer::Ext4Pm,
        Peer::XfsPm,
        Peer::Btrfs,
        Peer::Mergerfs,
        Peer::Tmpfs,
    ];
    for peer in all {
        plan.subjects.push(scale.subject(peer.name(), peer, share, Tuning::default()));
    }
}

/// Longest time of a load that is bounded by bytes: enough for a slow device.
pub(super) const PATIENCE_NS: u64 = 60_000_000_000;

/// The bandwidth of the bare device, written from begin to end.
pub(super) fn whole_device(scale: &Scale) -> Load {
    let kind = Kind::Whole { bytes: scale.dataset_bytes, write: true };
    Load { limit_ns: PATIENCE_NS, ..scale.load(kind, 2) }
}

/// The same claim about Terrace through FUSE and about Terrace in process.
pub(super) fn both(plan: &mut Plan, text: &str, ours: &str, theirs: &str, must: Must) {
    for name in ["terrace", "local"] {
        plan.claim(text, &format!("{name} {ours}"), &format!("{name} {theirs}"), must);
    }
}
