//! The state that an operation keeps over its attempts.

use crate::error::FsError;
use crate::operation::fetched::Fetched;
use crate::operation::page_pins::PagePins;
use crate::types::Wait;
use terrace_blocks::Purpose;
use terrace_format::geometry::MIN_LANE_SIZE;
use terrace_wal::Error;

/// The state that an operation keeps over its attempts.
pub struct Op {
    /// Whether the operation may wait.
    pub wait: Wait,
    /// The share of PM that it may claim.
    pub purpose: Purpose,
    /// Cold blocks that were fetched for the operation.
    pub fetched: Fetched,
    /// Metadata pages that were fetched for the operation, with their page pins.
    pub pages: PagePins,
    /// PM blocks to claim beyond the usual number.
    pub extra_blocks: usize,
    /// How often its pieces were halved because a record would have been too large.
    pub piece_halvings: u32,
    /// [`terrace_blocks::BlockPool::freed_so_far`] when the operation last failed to find PM space.
    pub freed_seen: u64,
    /// [`terrace_blocks::BlockPool::left_quarantine_so_far`] when all searches for PM space last failed.
    pub left_quarantine_seen: u64,
    /// The number of failed searches for PM space.
    pub failed_space_searches: u32,
    /// Searches that found promises to give back, and waits for promises, each as many searches.
    pub settled_promises: u32,
    /// [`terrace_blocks::Promises::ended_so_far`] when the operation last failed to find PM space.
    pub ended_promises_seen: u64,
    /// Damage that was met in the search for space: the reason when none is found.
    pub damage: Option<Error>,
    /// Bytes that the present attempt served from copies of lower tiers in DRAM.
    pub dram_bytes: u64,
    /// Record room that an attempt was found to need, if that exceeds the usual reservation.
    pub record: usize,
    /// It changes nothing, and takes metadata from copies in DRAM where PM has no room for it.
    pub only_reads: bool,
    /// It may turn out to write only what has its blocks already ([`Purpose::Overwrite`]).
    pub may_overwrite: bool,
    /// Why it found no space, before it tried whether it does.
    pub refused: Option<FsError>,
    /// Its caller asks again after [`FsError::Unfinished`].
    pub in_turns: bool,
    /// The operation writes pages back: it moves no group, and may wait for groups that others move.
    pub writes_back: bool,
}

impl Op {
    /// An operation of a user.
    #[inline]
    pub fn new(wait: Wait) -> Op {
        Op {
            wait,
            purpose: Purpose::User,
            fetched: Fetched::default(),
            pages: PagePins::default(),
            extra_blocks: 0,
            piece_halvings: 0,
            freed_seen: 0,
            left_quarantine_seen: 0,
            failed_space_searches: 0,
            settled_promises: 0,
            ended_promises_seen: 0,
            damage: None,
            dram_bytes: 0,
            record: 0,
            only_reads: false,
            may_overwrite: false,
            refused: None,
            in_turns: false,
            writes_back: false,
        }
    }
    /// An operation that changes nothing, and so never lacks space (P1).
    #[inline]
    pub fn reading(wait: Wait) -> Op {
        Op { only_reads: true, ..Op::new(wait) }
    }
    /// An operation that gives space back and may therefore use the reserve.
    #[inline]
    pub fn reclaiming(wait: Wait) -> Op {
        Op { purpose: Purpose::Reclaim, ..Op::new(wait) }
    }
    /// The same, of a turn of a long request.
    pub fn in_turns(self) -> Op {
        Op { in_turns: true, ..self }
    }
}

/// Record room for an operation on names or a few blocks.
pub const SMALL_RECORD: usize = 2048;

const _: () = assert!(SMALL_RECORD as u64 <= MIN_LANE_SIZE / 4, "it fits into the smallest lane (T7)");
