//! Placement: where data belongs. A policy is a pure function of what was observed: no I/O, no clock,
//! no lock, so that recorded traces can be replayed through it (design 7, style.md).
//!
//! Each policy is one file and one row of [`POLICIES`]. The predictors ([`synchronicity`], [`write_size`],
//! [`read_frequency`]), what a clean copy is worth ([`density`]), the first one's [`prior`], [`temperature`], the two
//! [`threshold`]s and the marks of [`spill`] are modules of their own; [`decision`] joins them.
//! Whoever calls them keeps their state. docs/placement.md says what each does and what is different from the
//! publications.
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

pub use decision::Idle;
pub use parameters::Parameters;
pub use policies::{Ablation, POLICIES, PolicyRow, make, name_of};

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
    /// Bytes read from PM and written to it, in a decayed window: what equation (1) of [TPFS] divides.
    pub pm_read_bytes: u64,
    /// See [`Self::pm_read_bytes`].
    pub pm_written_bytes: u64,
}

/// Which blocks go down first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VictimOrder {
    /// Those read and written longest ago, whatever file they are of.
    LeastRecentlyUsed,
    /// The files written longest ago; of a file written lately what is older than its average.
    WriteColdFiles,
    /// The same by the last use: what is read does not go down before what nobody touches.
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
    /// How many blocks to demote now, the least recently used first.
    fn blocks_to_demote(&self, seen: &Observation) -> u64;
    /// Whether a cold block that was read for the `touches`-th time comes into PM.
    fn promotes(&self, touches: u32) -> bool;
    /// PM use in percent above which it demotes; `None` when it never does.
    fn threshold_percent(&self, seen: &Observation) -> Option<u8>;
    /// Which blocks it demotes first.
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
