//! The parameters of a kind of run: its pool, its tree, its trouble.

use terrace_engine::{MAPS, MetadataMoves, PolicyKind};
use terrace_format::BLOCK_SIZE;
use terrace_format::map_kind::MapKind;
use terrace_placement::{Home, Parameters};
use terrace_reference::CrashRules;

/// The operations that a run prefers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// No preference.
    All,
    /// Streams: writes continue the last write, so that the predictors find them large.
    Streams,
    /// The first blocks of few files are written and synced again and again, also in the middle of their
    /// write-back.
    Rewrites,
    /// Few files are opened again and again, written, and synced through each descriptor.
    Descriptors,
}

/// The tree that a run keeps.
#[derive(Debug, Clone, Copy)]
pub struct Tree {
    /// File blocks that the run tries not to exceed.
    pub most_blocks: u64,
    /// The approximate largest number of files.
    pub files: usize,
    /// The approximate largest number of directories.
    pub directories: usize,
    /// Different names in use.
    pub names: usize,
    /// Most operations work on names, and names are long, so that the catalog has many leaves.
    pub many_names: bool,
    /// ENOSPC is expected.
    pub fills: bool,
}

/// The trouble of a run.
#[derive(Debug, Clone, Copy)]
pub struct Trouble {
    /// Power fails in the middle of operations.
    pub power_fails: bool,
    /// The lower tier has faults.
    pub faults: bool,
    /// PM has faults.
    pub pm_faults: bool,
    /// Copies of PM are damaged between mounts.
    pub flips: bool,
    /// Different images judged after each loss of power, beside the image with which the run continues.
    pub images: u64,
}

impl Trouble {
    /// No trouble.
    pub const NONE: Trouble =
        Trouble { power_fails: false, faults: false, pm_faults: false, flips: false, images: 0 };
    /// Power fails anywhere; images are judged after each loss of power.
    pub const POWER: Trouble = Trouble { power_fails: true, images: 6, ..Trouble::NONE };
    /// The lower tier has faults.
    pub const FAULTS: Trouble = Trouble { faults: true, ..Trouble::NONE };
    /// Power fails anywhere, and the lower tier has faults.
    pub const POWER_AND_FAULTS: Trouble = Trouble { faults: true, ..Trouble::POWER };
}

/// The writes that wait in DRAM. Others go to PM, and are durable when they return.
#[derive(Debug, Clone, Copy)]
pub struct Buffer {
    /// Writes whose home is a lower tier wait.
    pub below: bool,
    /// Writes whose home is PM wait.
    pub lazy: bool,
    /// Writes that the model calls eager wait, too.
    pub always: bool,
    /// Most bytes. Small, so that writers have to make room.
    pub bytes: u64,
}

impl Buffer {
    /// No write waits.
    pub const NONE: Buffer = Buffer { below: false, lazy: false, always: false, bytes: 256 << 10 };
    /// Writes whose home is a lower tier wait.
    pub const BELOW: Buffer = Buffer { below: true, ..Buffer::NONE };
    /// Writes whose home is PM wait.
    pub const LAZY: Buffer = Buffer { lazy: true, ..Buffer::NONE };
    /// Writes whose home is PM wait, whatever the model says.
    pub const ALWAYS: Buffer = Buffer { always: true, ..Buffer::LAZY };
    /// All writes wait.
    pub const ALL: Buffer = Buffer { below: true, ..Buffer::LAZY };
}

/// Kinds of tier 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tier0 {
    /// PM on which each fence makes durable.
    #[default]
    Fences,
    /// PM on which only `persist` makes durable.
    PersistOnly,
    /// DRAM with a journal on a device: only `persist` makes durable.
    Journaled,
}

impl Tier0 {
    /// PM in one of its two modes.
    pub fn of_mode(persist_only: bool) -> Tier0 {
        if persist_only { Tier0::PersistOnly } else { Tier0::Fences }
    }

    /// Whether only `persist` makes durable.
    pub fn persist_only(self) -> bool {
        self != Tier0::Fences
    }
}

/// The parameters of a kind of run.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// For messages and command lines.
    pub name: &'static str,
    /// Blocks of the first device, of tier 1; 0: no lower tier.
    pub device_blocks: u64,
    /// Further devices: tier and blocks.
    pub more_devices: &'static [(u8, u64)],
    /// Users request movements and tier pins, and read files again and again.
    pub by_hand: bool,
    /// Parameters of the predictors.
    pub parameters: Parameters,
    /// data=ordered.
    pub data_ordered: bool,
    /// Blocks of data in PM have checksums.
    pub data_checksums: bool,
    /// The policy.
    pub policy: PolicyKind,
    /// The mount option `promote_first_touch`.
    pub promote_first_touch: bool,
    /// The home of writes without O_SYNC, instead of the policy's choice.
    pub home: Option<Home>,
    /// The writes that wait in DRAM.
    pub buffer: Buffer,
    /// The time at which metadata pages are demoted.
    pub metadata: MetadataMoves,
    /// The operations that the run prefers otherwise.
    pub mix: Mix,
    /// Bits of the hash of names: few bits make names collide.
    pub hash_bits: u32,
    /// PM use above which `anticache` demotes blocks. The threshold of the other policies follows the reads
    /// and writes.
    pub threshold_percent: u8,
    /// Reads keep relative access times. Never with loss of power amid operations: the access time left by an
    /// interrupted read is unknown.
    pub relatime: bool,
    /// The tree that the run keeps.
    pub tree: Tree,
    /// The trouble of the run.
    pub trouble: Trouble,
    /// The kind of tier 0.
    pub tier0: Tier0,
    /// The file map of the pool; see [`Config::file_map`].
    pub map: MapKind,
}

impl Config {
    /// The file map of the pool: that of the kind of run, or the map with the name in the variable TERRACE_MAP.
    pub fn file_map(&self) -> MapKind {
        match std::env::var("TERRACE_MAP") {
            Ok(name) => MAPS.iter().find(|row| row.name == name).map_or(self.map, |row| row.kind),
            Err(_) => self.map,
        }
    }

    /// Whether only `persist` makes durable.
    pub fn persist_only(&self) -> bool {
        self.tier0.persist_only()
    }

    /// The atomic write size of the tiny lanes (C13).
    pub fn atomic_blocks(&self) -> u64 {
        match self.file_map() {
            MapKind::Radix => 56,
            MapKind::HashfsLinear | MapKind::Hashfs => 74,
            MapKind::Extent => 45,
            MapKind::Cuckoo => 43,
            MapKind::Clustered => 61,
        }
    }

    /// Blocks of a write that begin to wait in DRAM together. A write over lazy and eager blocks is cut between them.
    pub fn waiting_blocks(&self) -> u64 {
        if self.buffer.lazy { 1 } else { (self.buffer.bytes / BLOCK_SIZE / 2).max(1) }
    }

    /// The properties of the pool on which the states after a crash depend.
    pub fn crash_rules(&self) -> CrashRules {
        CrashRules { atomic_blocks: self.atomic_blocks(), ordered: self.data_ordered }
    }

    /// Whether metadata pages may lie on a lower tier.
    pub fn has_metadata_below(&self) -> bool {
        self.device_blocks > 0 && self.metadata != MetadataMoves::Never
    }

    /// The devices of the lower tiers: tier and blocks.
    pub fn devices(&self) -> Vec<(u8, u64)> {
        let first = (self.device_blocks > 0).then_some((1, self.device_blocks));
        first.into_iter().chain(self.more_devices.iter().copied()).collect()
    }

    /// The lowest tier.
    pub fn lowest_tier(&self) -> u8 {
        self.devices().iter().map(|(tier, _)| *tier).max().unwrap_or(0)
    }

    /// Whether the policy moves blocks that are read much between PM and DRAM.
    pub fn follows_reads(&self) -> bool {
        self.policy == PolicyKind::PREDICTIVE && self.device_blocks > 0
    }

    /// Whether writes without O_SYNC may wait in DRAM until they are written back.
    pub fn buffers(&self) -> bool {
        self.buffer.below && self.device_blocks > 0 || self.buffer.lazy
    }
}
