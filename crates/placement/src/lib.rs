//! Placement: where data belongs. A policy is a pure function of what was observed: no I/O, no clock,
//! no lock, so that recorded traces can be replayed through it (design 7).
//!
//! A policy is a file in `policies` and a row of [`POLICIES`]. Modules of their own are the predictors
//! ([`synchronicity`], [`write_size`], [`read_frequency`]), the directory history of the first predictor
//! ([`prior`]), the worth of a clean copy ([`density`]), [`temperature`], the two [`threshold`]s and the
//! marks of [`spill`]; [`decision`] joins the predictors. The callers keep the state. docs/placement.md
//! describes each module and its differences from the publications.
#![forbid(unsafe_code)]

pub mod decision;
pub mod density;
pub mod parameters;
pub mod policies;
pub mod prior;
pub mod read_frequency;
pub mod spill;
pub mod synchronicity;
pub mod temperature;
pub mod threshold;
pub mod write_size;

pub use parameters::Parameters;
pub use policies::{
    Ablation, POLICIES, PolicyKind, PolicyRow, Threshold, make, name_of, names, threshold_of,
};
pub use threshold::Idle;

/// Where a write goes first (design 5): a write has one home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// Persistent memory: durable when the call returns.
    Pm,
    /// A block tier, through dirty pages in DRAM: durable at the next fsync or write-back.
    Block,
}

/// The state of tier 0 as a policy sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Observation {
    /// PM blocks that can be handed out at all.
    pub total_blocks: u64,
    /// Of them free or waiting for the checkpoint.
    pub free_blocks: u64,
    /// Growth of PM use, in blocks, until a group that begins now has been demoted, if writers go on at this
    /// rate.
    pub arriving_blocks: u64,
    /// Bytes read from PM, in a decayed window: the dividend of equation (1) of [TPFS]; the bytes written to
    /// PM are its divisor.
    pub pm_read_bytes: u64,
    /// See [`Self::pm_read_bytes`].
    pub pm_written_bytes: u64,
}

/// The order in which blocks are demoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VictimOrder {
    /// The blocks whose last use, read or write, is longest ago, without regard to files.
    LeastRecentlyUsed,
    /// The files written longest ago; of a file written lately, the blocks older than its average.
    WriteColdFiles,
    /// As `WriteColdFiles`, but by the last use: blocks that are read are not demoted before untouched
    /// blocks.
    ColdFiles,
}

impl VictimOrder {
    /// The tick by which a block is judged that was last written and read then.
    pub fn tick(self, written: u32, read: u32) -> u32 {
        match self {
            VictimOrder::WriteColdFiles => written,
            VictimOrder::LeastRecentlyUsed | VictimOrder::ColdFiles => written.max(read),
        }
    }
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
    /// The number of blocks to demote now.
    fn blocks_to_demote(&self, seen: &Observation) -> u64;
    /// Whether a cold block that was read for the `touches`-th time is promoted.
    fn promotes(&self, touches: u32) -> bool;
    /// PM use in percent above which it demotes; `None` when it never does.
    fn threshold_percent(&self, seen: &Observation) -> Option<u8>;
    /// The order of victims.
    fn victims(&self) -> VictimOrder {
        VictimOrder::LeastRecentlyUsed
    }
    /// Whether predictors choose the home of writes (design 5).
    fn steers_writes(&self) -> bool {
        false
    }
    /// Whether read-dominated files move between PM and DRAM as equation (2) of [TPFS] says.
    fn follows_reads(&self) -> bool {
        false
    }
}
