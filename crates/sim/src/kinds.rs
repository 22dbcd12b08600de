//! The kinds of runs: a row for each.

use crate::config::{Buffer, Config, Mix, Tier0, Tree, Trouble};
use terrace_engine::{MetadataMoves, PolicyKind};
use terrace_format::BLOCK_SIZE;
use terrace_format::map_kind::MapKind;
use terrace_placement::{Home, Parameters};

/// Predictors that judge after few writes, so that the few writes of a run are steered to every home.
const SOON: Parameters = Parameters {
    sync_blocks: 16,
    large_after: 1,
    large_min: 16 << 10,
    large_pm_percent: Some(0),
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
    buffer: Buffer::NONE,
    metadata: MetadataMoves::WhenScarce,
    mix: Mix::All,
    hash_bits: 55,
    threshold_percent: 60,
    tree: Tree { most_blocks: 1800, files: 50, directories: 12, names: 30, many_names: false, fills: false },
    trouble: Trouble::NONE,
    relatime: true,
    tier0: Tier0::Fences,
    map: MapKind::Radix,
};

/// A tree of few files: the operations of a run often hit the same file.
const FEW: Tree = Tree { most_blocks: 300, files: 8, directories: 4, names: 8, ..BASE.tree };

/// A tree that fills a pool with a lower tier of 2 MiB.
const FULL: Tree = Tree { most_blocks: 860, files: 60, fills: true, ..BASE.tree };

/// Power fails anywhere; images are judged after each loss of power.
const POWER: Config = Config { name: "power", trouble: Trouble::POWER, relatime: false, ..BASE };

/// Power fails anywhere; tier 0 has a journal.
const JOURNALED: Config = Config { name: "power-journaled", tier0: Tier0::Journaled, ..POWER };

/// Writes without O_SYNC wait in DRAM. Access times are off, because a crash would lose them.
pub const DRAM: Config =
    Config { name: "dram", home: Some(Home::Block), buffer: Buffer::BELOW, relatime: false, ..BASE };

/// Bits flip and lines are lost in PM, in copies of the media at each remount and each loss of power. The
/// pool is small, because each copy is read whole.
const FLIPS: Config = Config {
    name: "flips",
    trouble: Trouble { flips: true, images: 0, ..Trouble::POWER },
    tree: Tree { most_blocks: 300, files: 12, directories: 4, names: 12, ..BASE.tree },
    ..POWER
};

/// Power fails anywhere, while writes wait in DRAM.
const POWER_DRAM: Config =
    Config { name: "power-dram", home: Some(Home::Block), buffer: Buffer::BELOW, ..POWER };

/// The predictors decide which writes wait in DRAM.
const PREDICTIVE: Config =
    Config { name: "power-predictive", buffer: Buffer::BELOW, mix: Mix::Streams, ..POWER };

/// Writes wait in DRAM for write-back into PM.
const LAZY: Config = Config { name: "lazy", buffer: Buffer::LAZY, relatime: false, ..BASE };

/// Power fails anywhere, while writes wait in DRAM for PM.
const POWER_LAZY: Config = Config { name: "power-lazy", buffer: Buffer::LAZY, ..POWER };

/// A block has several write-backs under way at once.
const REWRITES: Config = Config {
    name: "power-rewrites",
    mix: Mix::Rewrites,
    device_blocks: 513,
    tree: Tree { most_blocks: 100, files: 2, directories: 2, names: 2, ..BASE.tree },
    ..POWER_DRAM
};

/// Several descriptors of each file, and write-backs that fail.
const DESCRIPTORS: Config = Config {
    name: "faults-descriptors",
    mix: Mix::Descriptors,
    trouble: Trouble::FAULTS,
    device_blocks: 513,
    tree: Tree { most_blocks: 100, files: 4, directories: 2, names: 4, ..BASE.tree },
    metadata: MetadataMoves::Never,
    ..DRAM
};

/// Metadata pages are demoted after a moment without use.
const METADATA: Config = Config {
    name: "power-metadata",
    metadata: MetadataMoves::Always,
    // An inode page whose inodes have PM blocks is not demoted, so data has to leave a nearly empty PM. Only
    // this policy demotes it.
    policy: PolicyKind::ANTICACHE,
    threshold_percent: 10,
    tree: Tree { most_blocks: 200, files: 250, directories: 5, names: 300, many_names: true, fills: false },
    ..POWER
};

/// Names whose hashes collide.
const COLLISIONS: Config = Config {
    name: "power-collisions",
    hash_bits: 2,
    tree: Tree { most_blocks: 100, files: 60, directories: 4, names: 60, ..BASE.tree },
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
const POWER_TIERS: Config = Config { name: "power-tiers", trouble: Trouble::POWER, relatime: false, ..TIERS };

/// The same kind, while writes wait in DRAM.
const TIERS_DRAM: Config =
    Config { name: "power-tiers-dram", home: Some(Home::Block), buffer: Buffer::BELOW, ..POWER_TIERS };

/// A first tier so small that it is nearly full most of the time, and spills to the second.
const SPILL: Config = Config {
    name: "power-spill",
    device_blocks: 129,
    more_devices: &[(1, 65), (2, 1025), (2, 1537)],
    ..POWER_TIERS
};

/// The kinds of runs, which a long run takes in turn.
pub const CONFIGS: &[Config] = &[
    POWER,
    Config { name: "power-checksums", data_checksums: true, ..POWER },
    Config { name: "power-dram-checksums", data_checksums: true, ..POWER_DRAM },
    // Two short kinds.
    REWRITES,
    DESCRIPTORS,
    Config { name: "power-anticache", policy: PolicyKind::ANTICACHE, ..POWER },
    // Only `sync_to` and a shortage of PM cause demotions.
    Config { name: "power-static", policy: PolicyKind::STATIC, ..POWER },
    Config { name: "faults-anticache-dram", policy: PolicyKind::ANTICACHE, trouble: Trouble::FAULTS, ..DRAM },
    Config { name: "power-ordered", data_ordered: true, promote_first_touch: true, ..POWER },
    Config {
        name: "power-no-tier",
        device_blocks: 0,
        tree: Tree { most_blocks: 180, files: 30, names: 20, ..BASE.tree },
        ..POWER
    },
    Config { name: "power-full", device_blocks: 512, tree: FULL, ..POWER },
    Config { name: "power-persist", tier0: Tier0::PersistOnly, ..POWER },
    JOURNALED,
    Config { name: "power-journaled-dram", home: Some(Home::Block), buffer: Buffer::BELOW, ..JOURNALED },
    Config { name: "power-journaled-lazy", buffer: Buffer::LAZY, ..JOURNALED },
    // Without users' movements: a tier pin of a tree is many transactions, of which such PM may keep any prefix.
    Config { name: "power-journaled-tiers", tier0: Tier0::Journaled, by_hand: false, ..POWER_TIERS },
    Config { name: "power-journaled-full", device_blocks: 512, tree: FULL, ..JOURNALED },
    Config { name: "power-journaled-metadata", tier0: Tier0::Journaled, ..METADATA },
    Config { name: "power-small", tree: FEW, ..POWER },
    // A lying flush loses metadata pages on a device; here all metadata stays in PM.
    Config {
        name: "faults",
        trouble: Trouble::FAULTS,
        relatime: false,
        metadata: MetadataMoves::Never,
        ..BASE
    },
    Config {
        name: "faults-power",
        trouble: Trouble::POWER_AND_FAULTS,
        metadata: MetadataMoves::Never,
        ..POWER
    },
    FLIPS,
    Config { name: "flips-checksums", data_checksums: true, ..FLIPS },
    Config {
        name: "faults-pm",
        trouble: Trouble { pm_faults: true, ..Trouble::NONE },
        relatime: false,
        ..BASE
    },
    Config {
        name: "brim",
        device_blocks: 0,
        tree: Tree { most_blocks: 10_000, files: 40, fills: true, ..BASE.tree },
        ..BASE
    },
    DRAM,
    POWER_DRAM,
    Config { name: "power-dram-ordered", data_ordered: true, promote_first_touch: true, ..POWER_DRAM },
    Config { name: "power-dram-small", tree: FEW, ..POWER_DRAM },
    Config { name: "faults-dram", trouble: Trouble::FAULTS, ..DRAM },
    Config { name: "full-dram", device_blocks: 512, tree: FULL, ..POWER_DRAM },
    // DRAM is the home only of writes for which PM has no room.
    Config {
        name: "power-brim",
        device_blocks: 512,
        tree: Tree { most_blocks: 860, fills: true, ..BASE.tree },
        buffer: Buffer::BELOW,
        ..POWER
    },
    PREDICTIVE,
    // Large writes stay in PM while it has room, as they do by default.
    Config {
        name: "power-predictive-room",
        parameters: Parameters { large_pm_percent: Some(50), ..SOON },
        ..PREDICTIVE
    },
    Config { name: "faults-predictive", trouble: Trouble::POWER_AND_FAULTS, ..PREDICTIVE },
    Config {
        name: "faults-write-only",
        policy: PolicyKind::WRITE_ONLY,
        trouble: Trouble::POWER_AND_FAULTS,
        ..PREDICTIVE
    },
    METADATA,
    Config { name: "power-metadata-dram", home: Some(Home::Block), buffer: Buffer::BELOW, ..METADATA },
    // Names, and files that are written through DRAM, with more data than PM holds.
    Config {
        name: "power-metadata-predictive",
        policy: PolicyKind::PREDICTIVE,
        buffer: Buffer::BELOW,
        mix: Mix::Streams,
        tree: Tree { most_blocks: 900, ..METADATA.tree },
        ..METADATA
    },
    Config {
        name: "faults-metadata",
        trouble: Trouble { power_fails: false, ..Trouble::POWER_AND_FAULTS },
        ..METADATA
    },
    Config { name: "faults-power-metadata", trouble: Trouble::POWER_AND_FAULTS, ..METADATA },
    Config {
        name: "full-metadata",
        device_blocks: 512,
        tree: Tree { most_blocks: 700, fills: true, ..METADATA.tree },
        threshold_percent: 60,
        ..METADATA
    },
    TIERS,
    POWER_TIERS,
    TIERS_DRAM,
    Config { name: "tiers-predictive", buffer: Buffer::BELOW, mix: Mix::Streams, ..POWER_TIERS },
    Config { name: "faults-tiers", trouble: Trouble::FAULTS, relatime: false, ..TIERS },
    Config { name: "faults-tiers-dram", trouble: Trouble::POWER_AND_FAULTS, ..TIERS_DRAM },
    Config {
        name: "full-tiers",
        device_blocks: 129,
        more_devices: &[(1, 161), (2, 129), (2, 129)],
        tree: Tree { most_blocks: 860, fills: true, ..BASE.tree },
        ..TIERS_DRAM
    },
    Config { name: "extent", map: MapKind::Extent, ..POWER },
    Config { name: "extent-dram", map: MapKind::Extent, ..POWER_DRAM },
    Config { name: "extent-full", map: MapKind::Extent, device_blocks: 512, tree: FULL, ..POWER },
    Config { name: "extent-faults", map: MapKind::Extent, trouble: Trouble::POWER_AND_FAULTS, ..PREDICTIVE },
    Config { name: "cuckoo", map: MapKind::Cuckoo, ..POWER },
    Config { name: "cuckoo-dram", map: MapKind::Cuckoo, ..POWER_DRAM },
    Config { name: "cuckoo-full", map: MapKind::Cuckoo, device_blocks: 512, tree: FULL, ..POWER },
    Config { name: "cuckoo-faults", map: MapKind::Cuckoo, trouble: Trouble::POWER_AND_FAULTS, ..PREDICTIVE },
    Config { name: "hashfs-linear", map: MapKind::HashfsLinear, ..POWER },
    Config { name: "hashfs-linear-dram", map: MapKind::HashfsLinear, ..POWER_DRAM },
    Config {
        name: "hashfs-linear-full",
        map: MapKind::HashfsLinear,
        device_blocks: 512,
        tree: FULL,
        ..POWER
    },
    Config {
        name: "hashfs-linear-faults",
        map: MapKind::HashfsLinear,
        trouble: Trouble::POWER_AND_FAULTS,
        ..PREDICTIVE
    },
    Config { name: "hashfs", map: MapKind::Hashfs, ..POWER },
    Config { name: "hashfs-dram", map: MapKind::Hashfs, ..POWER_DRAM },
    Config { name: "hashfs-full", map: MapKind::Hashfs, device_blocks: 512, tree: FULL, ..POWER },
    Config { name: "hashfs-faults", map: MapKind::Hashfs, trouble: Trouble::POWER_AND_FAULTS, ..PREDICTIVE },
    Config { name: "clustered", map: MapKind::Clustered, ..POWER },
    Config { name: "clustered-dram", map: MapKind::Clustered, ..POWER_DRAM },
    Config { name: "clustered-full", map: MapKind::Clustered, device_blocks: 512, tree: FULL, ..POWER },
    Config {
        name: "clustered-faults",
        map: MapKind::Clustered,
        trouble: Trouble::POWER_AND_FAULTS,
        ..PREDICTIVE
    },
    LAZY,
    POWER_LAZY,
    Config {
        name: "power-lazy-small",
        buffer: Buffer { bytes: 2 * BLOCK_SIZE, ..Buffer::ALWAYS },
        ..POWER_LAZY
    },
    Config { name: "power-lazy-ordered", data_ordered: true, buffer: Buffer::ALWAYS, ..POWER_LAZY },
    Config { name: "power-lazy-checksums", data_checksums: true, buffer: Buffer::ALWAYS, ..POWER_LAZY },
    Config { name: "power-lazy-full", device_blocks: 512, tree: FULL, ..POWER_LAZY },
    Config {
        name: "power-lazy-no-tier",
        device_blocks: 0,
        buffer: Buffer::ALWAYS,
        tree: Tree { most_blocks: 180, files: 30, names: 20, ..BASE.tree },
        ..POWER_LAZY
    },
    Config { name: "tiers-lazy", buffer: Buffer::ALL, mix: Mix::Streams, ..POWER_TIERS },
    Config { name: "faults-lazy", trouble: Trouble::POWER_AND_FAULTS, ..POWER_LAZY },
    Config { name: "faults-pm-lazy", trouble: Trouble { pm_faults: true, ..Trouble::NONE }, ..LAZY },
    SPILL,
    Config {
        name: "faults-spill-dram",
        home: Some(Home::Block),
        buffer: Buffer::BELOW,
        trouble: Trouble::POWER_AND_FAULTS,
        ..SPILL
    },
    COLLISIONS,
];
