//! Rows journal-*: tier 0 in DRAM with a journal on the disk, beside file systems on the same disk.
//!
//! Every subject has a file of the disk that was written whole, and a loop device with direct I/O over it. The kernel counts the
//! requests of each loop device apart. Where a row compares with one durable write, Terrace and the write have the file itself.

pub(crate) mod fsync;
pub(crate) mod mounting;
pub(crate) mod programs;
pub(crate) mod ssd;
pub(crate) mod stalled;
pub(crate) mod tail;

use terrace_bench::comparison::plan::{Metric, Plan, Scale};
use terrace_bench::site::subject::Peer;
use terrace_bench::site::subject::{Journal, JournalPlace, Subject, Tuning};

/// Tier 0 by the data: all of the data and the metadata lie there.
const MEMORY_SHARE: f64 = super::ALL;

/// A journaled pool, or with [`Peer::Raw`] the device of a journal.
fn on(place: JournalPlace) -> Tuning {
    Tuning { journal: Some(Journal { place, ..Journal::default() }), ..Tuning::default() }
}

/// A subject with a tier 0 for all data, or of the size of such a device.
fn subject(scale: &Scale, label: &str, peer: Peer, tuning: Tuning) -> Subject {
    scale.subject(label, peer, MEMORY_SHARE, tuning)
}

/// A plan over files that were written whole.
fn plan(metric: Metric, axis: &'static str) -> Plan {
    Plan { writes_whole: true, ..Plan::new(metric, axis, 0) }
}

/// The same row with less data: the files of all subjects are written whole.
fn small(scale: &Scale, most_bytes: u64) -> Scale {
    Scale { dataset_bytes: scale.dataset_bytes.min(most_bytes), ..*scale }
}
