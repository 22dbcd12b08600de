//! The rows' plans, by what they run.

pub(crate) mod anticache;
pub(crate) mod databases;
pub(crate) mod filebench;
pub(crate) mod predict;
pub(crate) mod predictor_cost;
pub(crate) mod random;
pub(crate) mod regret;
pub(crate) mod tiering;

use terrace_bench::comparison::plan::{Must, Plan, Scale};
use terrace_bench::site::peer::{Peer, Tuning};
use terrace_bench::workload::load::{Kind, Load};

/// PM for everything: data, metadata and room below every threshold.
pub(super) const ALL: f64 = 2.0;

/// Terrace with these shares of PM through FUSE and in process, Terrace that never migrates with all data in PM
/// (`pm-only`: stands for NOVA), and the peers of the publications.
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

/// The peers of the publications, and those that are used instead today, with tmpfs as the ceiling of the kernel's path;
/// `share` of the data is what they have of PM as journal or log.
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

/// Longest time of a load that is bounded by bytes: what a slow device needs for them.
pub(super) const PATIENCE_NS: u64 = 60_000_000_000;

/// The device alone, written from end to end: what its bandwidth is.
pub(super) fn whole_device(scale: &Scale) -> Load {
    let kind = Kind::Whole { bytes: scale.dataset_bytes, write: true };
    Load { limit_ns: PATIENCE_NS, ..scale.load(kind, 2) }
}

/// Claims of one kind about Terrace through FUSE and in process.
pub(super) fn both(plan: &mut Plan, text: &str, ours: &str, theirs: &str, must: Must) {
    for name in ["terrace", "local"] {
        plan.claim(text, &format!("{name} {ours}"), &format!("{name} {theirs}"), must);
    }
}
