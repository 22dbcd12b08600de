//! Placement: where data belongs. A policy is a pure function of what was observed: no I/O, no clock,
//! no lock, so that recorded traces can be replayed through it (design 7, style.md).
//!
//! Each policy is one file and one row of [`POLICIES`].
#![forbid(unsafe_code)]

pub mod policies;

pub use policies::{POLICIES, PolicyRow, make};

/// Where a write goes first (design 5): a write has one home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// Persistent memory: durable when the call returns.
    Pm,
    /// A block tier, through dirty pages in DRAM: durable at the next fsync or write-back.
    Block,
}

/// What a policy sees of tier 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Observation {
    /// PM blocks that can be handed out at all.
    pub total_blocks: u64,
    /// Of them free or waiting for the checkpoint.
    pub free_blocks: u64,
    /// Blocks by which use will have grown when a group that begins now has been moved, if writers go on as they do.
    pub arriving_blocks: u64,
}

impl Observation {
    /// Blocks in use.
    pub fn used_blocks(&self) -> u64 {
        self.total_blocks.saturating_sub(self.free_blocks)
    }
}

/// Decides what moves between PM and the lower tiers.
pub trait Policy: Send + Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;
    /// How many blocks to demote now, the least recently used first.
    fn blocks_to_demote(&self, seen: &Observation) -> u64;
    /// Whether a cold block that was read for the `touches`-th time comes into PM.
    fn promotes(&self, touches: u32) -> bool;
    /// PM use in percent above which it demotes; `None` when it never does.
    fn threshold_percent(&self) -> Option<u8>;
}
