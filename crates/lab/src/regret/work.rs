//! The state of the background work: the movement under way, waiting promotions, and the growth of PM use.

use std::collections::VecDeque;

/// Time between two questions to the policy while no movement is under way.
pub(super) const POLL_NS: u64 = 10_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// The time of arrivals for which the policy wants free blocks.
const AHEAD_NS: u64 = 100_000_000;

/// A movement under way.
#[derive(Debug)]
pub(super) struct Group {
    pub left_ns: u64,
    pub kind: Kind,
    /// Blocks, and their versions at the beginning of the movement.
    pub blocks: Vec<(u32, u32)>,
}

/// The kind of a movement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Demote,
    WriteBack,
    /// A promotion into DRAM of blocks in PM.
    ToDram,
    /// A promotion of cold blocks into PM.
    ToPm,
}

/// The background work.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub group: Option<Group>,
    pub next_poll_ns: u64,
    /// Dirty pages are written back until their number is low.
    pub draining: bool,
    /// Touched blocks that wait for a promotion, with their versions.
    pub promotions: VecDeque<(u32, u32)>,
    /// The positions (file, block) of the scans for read-dominated files, for DRAM and for PM.
    pub cursors: [(usize, usize); 2],
    pub pace: Pace,
}

impl Work {
    /// Drops all movements, under way and waiting.
    pub fn stop(&mut self) {
        let (next_poll_ns, draining) = (self.next_poll_ns, self.draining);
        *self = Work { next_poll_ns, draining, ..Work::default() };
    }
}

/// The growth of PM use.
#[derive(Debug, Default)]
pub(super) struct Pace {
    last_ns: u64,
    in_pm: u64,
    /// Negative while more blocks are removed than arrive.
    blocks_per_s: i64,
    /// Blocks that left PM since the last observation, and blocks promoted since then. Promotions do not
    /// count as growth: they stop when PM gets short.
    pub left: u64,
    pub promoted: u64,
}

impl Pace {
    /// Blocks that will arrive in the time for which the policy wants free blocks; `in_pm` are in use now.
    pub fn arriving(&mut self, now_ns: u64, in_pm: u64) -> u64 {
        let passed = now_ns - self.last_ns;
        if passed >= POLL_NS / 2 {
            let (now, before) = (in_pm + self.left, self.in_pm + self.promoted);
            let rate = (i128::from(now) - i128::from(before)) * i128::from(SECOND_NS) / i128::from(passed);
            let blocks_per_s =
                i64::try_from((3 * i128::from(self.blocks_per_s) + rate) / 4).unwrap_or_default();
            *self = Pace { last_ns: now_ns, in_pm, blocks_per_s, left: 0, promoted: 0 };
        }
        self.blocks_per_s.max(0) as u64 * AHEAD_NS / SECOND_NS
    }
}
