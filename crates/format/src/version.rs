//! The tables of format versions and of feature flags, with stable ids.

/// The version this program writes, and the only one it reads.
pub const FORMAT_VERSION: u32 = 1;

/// A row of the version table.
#[derive(Debug)]
pub struct VersionRow {
    /// Value of the superblock's version field.
    pub version: u32,
    /// The news of the version, as a sentence.
    pub sentence: &'static str,
}

/// All format versions.
pub const VERSIONS: &[VersionRow] = &[VersionRow {
    version: 1,
    sentence: "first version: lanes, block table, inode file, catalog, radix map, cold map, group summaries",
}];

/// A row of the feature table. An unknown incompatible feature refuses the mount, an unknown
/// read-only-compatible one refuses writing, an unknown compatible one is ignored.
#[derive(Debug)]
pub struct FeatureRow {
    /// Bit in the superblock's field.
    pub bit: u64,
    /// Short name.
    pub name: &'static str,
    /// The change of the format, as a sentence.
    pub sentence: &'static str,
}

/// Features that a reader must know (superblock `incompatible`).
pub const INCOMPATIBLE: &[FeatureRow] = &[
    FeatureRow {
        bit: RADIX_MAP,
        name: "radix-map",
        sentence: "PM-resident blocks are mapped by a radix tree per file",
    },
    FeatureRow {
        bit: REPAIRING,
        name: "repairing",
        sentence: "a repair was interrupted: its journal has to be applied before anything else",
    },
    FeatureRow {
        bit: PARTIAL_SHADOWS,
        name: "partial-shadows",
        sentence: "a block table entry may hold fewer than all lines; the others are those of the cold copy",
    },
    FeatureRow {
        bit: METADATA_BELOW,
        name: "metadata-below",
        sentence: "catalog leaves and inode pages may lie on lower tiers",
    },
    FeatureRow {
        bit: KEYED_SEALS,
        name: "keyed-seals",
        sentence: "metadata pages and group summaries on lower tiers are sealed with a secret of the superblock",
    },
    FeatureRow {
        bit: PAGE_CHECKSUMS,
        name: "page-checksums",
        sentence: "metadata pages in PM have checksums in an area behind the block table",
    },
    FeatureRow {
        bit: DATA_CHECKSUMS,
        name: "data-checksums",
        sentence: "a block table entry may hold the checksum of its block's data in place of the mask of lines",
    },
    FeatureRow {
        bit: EXTENT_MAP,
        name: "extent-map",
        sentence: "PM-resident blocks are mapped by a B-tree of extents per file",
    },
    FeatureRow {
        bit: CUCKOO_MAP,
        name: "cuckoo-map",
        sentence: "PM-resident blocks are mapped by a cuckoo table of all files, in an area before the pool of blocks",
    },
    FeatureRow {
        bit: HASHFS_LINEAR_MAP,
        name: "hashfs-linear-map",
        sentence: "the block table is the map of PM-resident blocks, a hash table with linear probing",
    },
    FeatureRow {
        bit: HASHFS_MAP,
        name: "hashfs-map",
        sentence: "the block table is the map of PM-resident blocks, a hash table of groups of 16 slots",
    },
    FeatureRow {
        bit: CLUSTERED_MAP,
        name: "clustered-map",
        sentence: "PM-resident blocks are mapped by a table with a line for 16 blocks of a file, in an area before the pool of blocks",
    },
];
/// Incompatible feature: the radix map.
pub const RADIX_MAP: u64 = 1;
/// Incompatible feature, set only while `check --repair` changes the pool.
pub const REPAIRING: u64 = 2;
/// Incompatible feature: PM blocks that hold some lines of a cold block. Set by mkfs.
pub const PARTIAL_SHADOWS: u64 = 4;
/// Incompatible feature: metadata pages on lower tiers. Set by mkfs.
pub const METADATA_BELOW: u64 = 8;
/// Incompatible feature: seals under the superblock's secret (docs/decisions/0022). Set by mkfs.
pub const KEYED_SEALS: u64 = 16;
/// Incompatible feature: checksums of metadata pages in PM. Set by mkfs; the area moves the first block of the pool.
pub const PAGE_CHECKSUMS: u64 = 32;
/// Incompatible feature: checksums of file data in PM (docs/decisions/0026). Set by mkfs when asked for.
pub const DATA_CHECKSUMS: u64 = 64;
/// Incompatible feature: the extent map, in place of the radix map. Set by mkfs when asked for.
pub const EXTENT_MAP: u64 = 128;
/// Incompatible feature: the cuckoo map, in place of the radix map. Set by mkfs when asked for; its area moves the first
/// block of the pool.
pub const CUCKOO_MAP: u64 = 256;
/// Incompatible feature: the block table as map, in place of the radix map. Set by mkfs when asked for.
pub const HASHFS_LINEAR_MAP: u64 = 512;
/// Incompatible feature: the block table as map with homes in groups. Set by mkfs when asked for.
pub const HASHFS_MAP: u64 = 1024;
/// Incompatible feature: the clustered map, in place of the radix map. Set by mkfs when asked for; its area moves the first
/// block of the pool.
pub const CLUSTERED_MAP: u64 = 2048;
/// Features that a writer must know (superblock `read_only_compatible`).
pub const READ_ONLY_COMPATIBLE: &[FeatureRow] = &[];
/// Features that may be ignored (superblock `compatible`).
pub const COMPATIBLE: &[FeatureRow] = &[FeatureRow {
    bit: DEVICE_SPEEDS,
    name: "device-speeds",
    sentence: "device rows say how fast the devices are",
}];
/// Compatible feature: device rows have a speed.
pub const DEVICE_SPEEDS: u64 = 1;

/// The bits of a table.
pub fn known(rows: &[FeatureRow]) -> u64 {
    rows.iter().fold(0, |bits, row| bits | row.bit)
}
