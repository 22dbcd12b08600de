//! The kinds of runs, and what a run counts.

use std::ops::AddAssign;
use terrace_engine::{MetadataMoves, PolicyKind};
use terrace_placement::{Home, Parameters};

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
    /// Writes may have DRAM as their home. Else every write goes to PM, and is durable when it returns.
    pub dram: bool,
    /// The time at which metadata pages are demoted.
    pub metadata: MetadataMoves,
    /// Most operations work on names, and names are long, so that the catalog has many leaves.
    pub many_names: bool,
    /// The operations that the run prefers otherwise.
    pub mix: Mix,
    /// Bits of the hash of names: few bits make names collide.
    pub hash_bits: u32,
    /// PM use above which `anticache` demotes blocks. The threshold of the other policies follows the reads
    /// and writes.
    pub threshold_percent: u8,
    /// File blocks that the run tries not to exceed.
    pub most_blocks: u64,
    /// The approximate largest number of files.
    pub files: usize,
    /// The approximate largest number of directories.
    pub directories: usize,
    /// Different names in use.
    pub names: usize,
    /// ENOSPC is expected.
    pub fills: bool,
    /// Reads keep relative access times. Never with loss of power amid operations: the access time left by an
    /// interrupted read is unknown.
    pub relatime: bool,
    /// A PM medium on which only `persist` makes durable.
    pub persist_only: bool,
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

impl Config {
    /// The atomic write size of the tiny lanes (C13).
    pub fn atomic_blocks(&self) -> u64 {
        56
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
        self.dram && self.device_blocks > 0
    }
}

/// Predictors that judge after few writes, so that the few writes of a run are steered to every home.
const SOON: Parameters = Parameters {
    sync_blocks: 16,
    large_after: 1,
    large_min: 16 << 10,
    large_pm_percent: 0,
    ..Parameters::PUBLISHED
};

/// The default pool under test, with the default policy.
pub const BASE: Config = Config {
    name: "atomic",
    device_blocks: 5120,
    more_devices: &[],
    by_hand: false,
    parameters: SOON,
    data_ordered: false,
    data_checksums: false,
    policy: PolicyKind::PREDICTIVE,
    promote_first_touch: false,
    home: None,
    dram: false,
    metadata: MetadataMoves::WhenScarce,
    many_names: false,
    mix: Mix::All,
    hash_bits: 55,
    threshold_percent: 60,
    most_blocks: 1800,
    files: 50,
    directories: 12,
    names: 30,
    fills: false,
    relatime: true,
    persist_only: false,
    power_fails: false,
    faults: false,
    pm_faults: false,
    flips: false,
    images: 0,
};

/// Power fails anywhere; images are judged after each loss of power.
const POWER: Config = Config { name: "power", power_fails: true, relatime: false, images: 6, ..BASE };

/// Writes without O_SYNC wait in DRAM. Access times are off, because a crash would lose them.
pub const DRAM: Config =
    Config { name: "dram", home: Some(Home::Block), dram: true, relatime: false, ..BASE };

/// Bits flip and lines are lost in PM, in copies of the media at each remount and each loss of power. The
/// pool is small, because each copy is read whole.
const FLIPS: Config = Config {
    name: "flips",
    flips: true,
    images: 0,
    most_blocks: 300,
    files: 12,
    directories: 4,
    names: 12,
    ..POWER
};

/// Power fails anywhere, while writes wait in DRAM.
const POWER_DRAM: Config = Config { name: "power-dram", home: Some(Home::Block), dram: true, ..POWER };

/// The predictors decide which writes wait in DRAM.
const PREDICTIVE: Config = Config { name: "power-predictive", dram: true, mix: Mix::Streams, ..POWER };

/// A block has several write-backs under way at once.
const REWRITES: Config = Config {
    name: "power-rewrites",
    mix: Mix::Rewrites,
    device_blocks: 513,
    most_blocks: 100,
    files: 2,
    directories: 2,
    names: 2,
    ..POWER_DRAM
};

/// Several descriptors of each file, and write-backs that fail.
const DESCRIPTORS: Config = Config {
    name: "faults-descriptors",
    mix: Mix::Descriptors,
    faults: true,
    device_blocks: 513,
    most_blocks: 100,
    files: 4,
    directories: 2,
    names: 4,
    metadata: MetadataMoves::Never,
    ..DRAM
};

/// Metadata pages are demoted after a moment without use.
const METADATA: Config = Config {
    name: "power-metadata",
    metadata: MetadataMoves::Always,
    many_names: true,
    // An inode page whose inodes have PM blocks is not demoted, so data has to leave a nearly empty PM. Only
    // this policy demotes it.
    policy: PolicyKind::ANTICACHE,
    threshold_percent: 10,
    most_blocks: 200,
    files: 250,
    directories: 5,
    names: 300,
    ..POWER
};

/// Names whose hashes collide.
const COLLISIONS: Config = Config {
    name: "power-collisions",
    hash_bits: 2,
    most_blocks: 100,
    files: 60,
    directories: 4,
    names: 60,
    ..POWER
};

/// Two tiers of two devices each below PM.
const TIERS: Config = Config {
    name: "tiers",
    device_blocks: 1025,
    more_devices: &[(1, 769), (2, 1025), (2, 1537)],
    by_hand: true,
    ..BASE
};

/// Power fails anywhere, with two lower tiers of two devices each.
const POWER_TIERS: Config =
    Config { name: "power-tiers", power_fails: true, relatime: false, images: 6, ..TIERS };

/// The same kind, while writes wait in DRAM.
const TIERS_DRAM: Config =
    Config { name: "power-tiers-dram", home: Some(Home::Block), dram: true, ..POWER_TIERS };

/// A first tier so small that it is nearly full most of the time, and spills to the second.
const SPILL: Config = Config {
    name: "power-spill",
    device_blocks: 129,
    more_devices: &[(1, 65), (2, 1025), (2, 1537)],
    ..POWER_TIERS
};

/// The kinds of runs, which a long run takes in turn.
pub const CONFIGS: [Config; 46] = [
    POWER,
    Config { name: "power-checksums", data_checksums: true, ..POWER },
    Config { name: "power-dram-checksums", data_checksums: true, ..POWER_DRAM },
    // Two short kinds.
    REWRITES,
    DESCRIPTORS,
    Config { name: "power-anticache", policy: PolicyKind::ANTICACHE, ..POWER },
    // Only `sync_to` and a shortage of PM cause demotions.
    Config { name: "power-static", policy: PolicyKind::STATIC, ..POWER },
    Config { name: "faults-anticache-dram", policy: PolicyKind::ANTICACHE, faults: true, ..DRAM },
    Config { name: "power-ordered", data_ordered: true, promote_first_touch: true, ..POWER },
    Config { name: "power-no-tier", device_blocks: 0, most_blocks: 180, files: 30, names: 20, ..POWER },
    Config { name: "power-full", device_blocks: 512, most_blocks: 860, files: 60, fills: true, ..POWER },
    Config { name: "power-persist", persist_only: true, ..POWER },
    Config { name: "power-small", most_blocks: 300, files: 8, directories: 4, names: 8, ..POWER },
    // A lying flush loses metadata pages on a device; here all metadata stays in PM.
    Config { name: "faults", faults: true, relatime: false, metadata: MetadataMoves::Never, ..BASE },
    Config { name: "faults-power", faults: true, metadata: MetadataMoves::Never, ..POWER },
    FLIPS,
    Config { name: "flips-checksums", data_checksums: true, ..FLIPS },
    Config { name: "faults-pm", pm_faults: true, relatime: false, ..BASE },
    Config { name: "brim", device_blocks: 0, most_blocks: 10_000, files: 40, fills: true, ..BASE },
    DRAM,
    POWER_DRAM,
    Config { name: "power-dram-ordered", data_ordered: true, promote_first_touch: true, ..POWER_DRAM },
    Config { name: "power-dram-small", most_blocks: 300, files: 8, directories: 4, names: 8, ..POWER_DRAM },
    Config { name: "faults-dram", faults: true, ..DRAM },
    Config { name: "full-dram", device_blocks: 512, most_blocks: 860, files: 60, fills: true, ..POWER_DRAM },
    // DRAM is the home only of writes for which PM has no room.
    Config { name: "power-brim", device_blocks: 512, most_blocks: 860, fills: true, dram: true, ..POWER },
    PREDICTIVE,
    // Large writes stay in PM while it has room, as they do by default.
    Config {
        name: "power-predictive-room",
        parameters: Parameters { large_pm_percent: Parameters::PUBLISHED.large_pm_percent, ..SOON },
        ..PREDICTIVE
    },
    Config { name: "faults-predictive", faults: true, ..PREDICTIVE },
    Config { name: "faults-write-only", policy: PolicyKind::WRITE_ONLY, faults: true, ..PREDICTIVE },
    METADATA,
    Config { name: "power-metadata-dram", home: Some(Home::Block), dram: true, ..METADATA },
    // Names, and files that are written through DRAM, with more data than PM holds.
    Config {
        name: "power-metadata-predictive",
        policy: PolicyKind::PREDICTIVE,
        dram: true,
        mix: Mix::Streams,
        most_blocks: 900,
        ..METADATA
    },
    Config { name: "faults-metadata", faults: true, power_fails: false, ..METADATA },
    Config { name: "faults-power-metadata", faults: true, ..METADATA },
    Config {
        name: "full-metadata",
        device_blocks: 512,
        most_blocks: 700,
        threshold_percent: 60,
        fills: true,
        ..METADATA
    },
    TIERS,
    POWER_TIERS,
    TIERS_DRAM,
    Config { name: "tiers-predictive", dram: true, mix: Mix::Streams, ..POWER_TIERS },
    Config { name: "faults-tiers", faults: true, relatime: false, ..TIERS },
    Config { name: "faults-tiers-dram", faults: true, ..TIERS_DRAM },
    Config {
        name: "full-tiers",
        device_blocks: 129,
        more_devices: &[(1, 161), (2, 129), (2, 129)],
        most_blocks: 860,
        fills: true,
        ..TIERS_DRAM
    },
    SPILL,
    Config { name: "faults-spill-dram", home: Some(Home::Block), dram: true, faults: true, ..SPILL },
    COLLISIONS,
];

/// The work of a run, in numbers.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    /// Operations done.
    pub operations: u64,
    /// Operations on the content of files.
    pub file_operations: u64,
    /// File operations with a cold or shadowed block in their range.
    pub met_cold: u64,
    /// Operations done in the middle of another operation or of background work.
    pub amid: u64,
    /// Operations that got ENOSPC.
    pub no_space: u64,
    /// Operations that got "would block".
    pub would_block: u64,
    /// Operations that got EIO while a device misbehaved.
    pub errors: u64,
    /// Faults injected.
    pub faults: u64,
    /// Damages done to copies of PM, and damages that a refused mount or an error reported.
    pub flips: u64,
    pub flips_told: u64,
    /// Orderly remounts.
    pub remounts: u64,
    /// Crashes; then the crashes inside an operation, inside background work, inside recovery.
    pub crashes: u64,
    pub crashes_amid_operation: u64,
    pub crashes_amid_background: u64,
    pub crashes_amid_recovery: u64,
    /// Images with different hashes that were recovered, checked and compared.
    pub states: u64,
    pub demoted_bytes: u64,
    /// Demoted bytes that were written in place, over cold copies.
    pub in_place_bytes: u64,
    pub promoted_bytes: u64,
    pub clean_evicted_bytes: u64,
    pub skipped_bytes: u64,
    /// Metadata pages demoted, and fetched.
    pub lowered: u64,
    pub fetched: u64,
    /// Files with dirty pages when power failed, taken over as the mount showed them.
    pub taken_over: u64,
    /// Bytes relocated.
    pub moved_below_bytes: u64,
    /// Bytes relocated by a spill.
    pub spilled_bytes: u64,
    /// Spills that failed, or moved nothing.
    pub spill_failures: u64,
    /// Requested movements that succeeded, and requested movements that failed.
    pub hand_done: u64,
    pub hand_failed: u64,
    /// Failures of write-back reported to a descriptor whose own fsync met no fault.
    pub told: u64,
    /// Bytes that the predictors steered to a lower tier, through DRAM.
    pub steered_bytes: u64,
    /// Bytes that left PM for a lower tier and DRAM because they were read much.
    pub to_dram_bytes: u64,
    /// Partial shadows, summed over the checked pools.
    pub partial: u64,
    /// Blocks with a checksum of their data, summed over the checks.
    pub data_checksums: u64,
    /// Files read whole in the middle of a truncation.
    pub amid_intents: u64,
    /// Moments at which leaks were judged.
    pub judged: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.operations += other.operations;
        self.file_operations += other.file_operations;
        self.met_cold += other.met_cold;
        self.amid += other.amid;
        self.no_space += other.no_space;
        self.would_block += other.would_block;
        self.errors += other.errors;
        self.faults += other.faults;
        self.flips += other.flips;
        self.flips_told += other.flips_told;
        self.remounts += other.remounts;
        self.crashes += other.crashes;
        self.crashes_amid_operation += other.crashes_amid_operation;
        self.crashes_amid_background += other.crashes_amid_background;
        self.crashes_amid_recovery += other.crashes_amid_recovery;
        self.states += other.states;
        self.demoted_bytes += other.demoted_bytes;
        self.in_place_bytes += other.in_place_bytes;
        self.promoted_bytes += other.promoted_bytes;
        self.clean_evicted_bytes += other.clean_evicted_bytes;
        self.skipped_bytes += other.skipped_bytes;
        self.lowered += other.lowered;
        self.fetched += other.fetched;
        self.taken_over += other.taken_over;
        self.moved_below_bytes += other.moved_below_bytes;
        self.spilled_bytes += other.spilled_bytes;
        self.spill_failures += other.spill_failures;
        self.hand_done += other.hand_done;
        self.hand_failed += other.hand_failed;
        self.told += other.told;
        self.steered_bytes += other.steered_bytes;
        self.to_dram_bytes += other.to_dram_bytes;
        self.partial += other.partial;
        self.data_checksums += other.data_checksums;
        self.amid_intents += other.amid_intents;
        self.judged += other.judged;
    }
}
