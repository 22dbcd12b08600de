//! The kinds of medium errors, and the counts of runs.

use std::ops::AddAssign;
use terrace_media::block::Operation;
use terrace_media::pm::Access;

/// A kind of error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A range of PM cannot be read, once.
    PmRead,
    /// A range of PM cannot be stored to, once.
    PmStore,
    /// A range of PM cannot be read any more.
    PmReadForGood,
    /// A range of PM cannot be stored to any more.
    PmStoreForGood,
    /// The device fails once in this operation, with this errno.
    Once(Operation, i32),
    /// The device fails in every such operation after a moment.
    ForGood(Operation),
    /// Blocks of the device wear out: after a moment such operations fail on them.
    Worn(Operation),
    /// The device is gone after an operation, and comes back.
    Gone(Operation),
    /// The device stalls in an operation, and later goes on.
    Stalls(Operation),
    /// Flushes succeed without making writes durable; then power fails.
    Lies,
}

/// All kinds.
pub const KINDS: [Kind; 20] = [
    Kind::PmRead,
    Kind::PmStore,
    Kind::PmReadForGood,
    Kind::PmStoreForGood,
    Kind::Once(Operation::Read, libc::EIO),
    Kind::Once(Operation::Write, libc::EIO),
    Kind::Once(Operation::Write, libc::ENOSPC),
    Kind::Once(Operation::Flush, libc::EIO),
    Kind::ForGood(Operation::Read),
    Kind::ForGood(Operation::Write),
    Kind::ForGood(Operation::Flush),
    Kind::Worn(Operation::Read),
    Kind::Worn(Operation::Write),
    Kind::Gone(Operation::Read),
    Kind::Gone(Operation::Write),
    Kind::Gone(Operation::Flush),
    Kind::Stalls(Operation::Read),
    Kind::Stalls(Operation::Write),
    Kind::Stalls(Operation::Flush),
    Kind::Lies,
];

impl Kind {
    pub(super) fn is_of_pm(self) -> bool {
        self.access().is_some()
    }

    /// The accesses of PM that fail.
    pub(super) fn access(self) -> Option<Access> {
        match self {
            Kind::PmRead | Kind::PmReadForGood => Some(Access::Reads),
            Kind::PmStore | Kind::PmStoreForGood => Some(Access::Stores),
            _ => None,
        }
    }
}

/// Counts of runs and of their results.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tried {
    /// Runs in which an access met the error.
    pub struck: u64,
    /// Runs in which the operation failed.
    pub failed: u64,
    /// Runs after which the pool took no change until the next mount.
    pub stopped: u64,
    /// Operations on data in PM in the middle of a stalled operation of the device.
    pub amid_stall: u64,
    /// Reads that met damage, after a lying flush.
    pub damaged: u64,
    /// Failed fsyncs of data that waited in DRAM.
    pub not_durable: u64,
}

impl AddAssign for Tried {
    fn add_assign(&mut self, other: Tried) {
        self.struck += other.struck;
        self.failed += other.failed;
        self.stopped += other.stopped;
        self.amid_stall += other.amid_stall;
        self.damaged += other.damaged;
        self.not_durable += other.not_durable;
    }
}
