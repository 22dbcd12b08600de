//! Kinds of file maps: the number in the superblock, and the feature bit that goes with it.

use crate::version::{
    CLUSTERED_MAP, CUCKOO_MAP, EXTENT_MAP, HASHFS_LINEAR_MAP, HASHFS_MAP, INCOMPATIBLE, RADIX_MAP,
};

/// A kind of file map. A pool has one kind; mkfs chooses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum MapKind {
    /// A radix tree per file.
    #[default]
    Radix = 1,
    /// A B-tree of extents per file.
    Extent = 2,
    /// A cuckoo table of all files.
    Cuckoo = 3,
    /// The block table as hash table of all files, with linear probing.
    HashfsLinear = 4,
    /// As [`MapKind::HashfsLinear`], with homes in groups of 16 slots.
    Hashfs = 5,
    /// A table of all files with a line for 16 blocks.
    Clustered = 6,
}

impl MapKind {
    /// All kinds, by their numbers.
    pub const ALL: &[MapKind] =
        &[Self::Radix, Self::Extent, Self::Cuckoo, Self::HashfsLinear, Self::Hashfs, Self::Clustered];

    /// The number in the superblock.
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// The kind with a number; `None` for an unknown number.
    pub fn from_id(id: u8) -> Option<MapKind> {
        MapKind::ALL.iter().copied().find(|kind| kind.id() == id)
    }

    /// The incompatible feature of pools with this map.
    pub const fn feature(self) -> u64 {
        match self {
            MapKind::Radix => RADIX_MAP,
            MapKind::Extent => EXTENT_MAP,
            MapKind::Cuckoo => CUCKOO_MAP,
            MapKind::HashfsLinear => HASHFS_LINEAR_MAP,
            MapKind::Hashfs => HASHFS_MAP,
            MapKind::Clustered => CLUSTERED_MAP,
        }
    }

    /// The name in options and reports: that of its feature without "-map".
    pub fn name(self) -> &'static str {
        let row = INCOMPATIBLE.iter().find(|row| row.bit == self.feature());
        row.map_or("", |row| row.name.trim_end_matches("-map"))
    }

    /// Whether the owners of blocks are the map: the place of a block is chosen by its home.
    pub const fn is_table(self) -> bool {
        matches!(self, MapKind::HashfsLinear | MapKind::Hashfs)
    }

    /// Whether all files share one table: no file has words or pages of a map, and memory knows the blocks of files.
    pub const fn is_shared(self) -> bool {
        matches!(self, MapKind::Cuckoo | MapKind::Clustered) || self.is_table()
    }

    /// Whether a word of the roots bounds the distances of blocks or lines from their homes.
    pub const fn has_reach(self) -> bool {
        matches!(self, MapKind::Clustered) || self.is_table()
    }

    /// Whether the first blocks of a file lie in its slot, whatever maps the others.
    pub const fn has_direct_blocks(self) -> bool {
        matches!(self, MapKind::Radix | MapKind::Clustered)
    }

    /// The features of all kinds: a pool has one of them.
    pub fn features() -> u64 {
        MapKind::ALL.iter().fold(0, |bits, kind| bits | kind.feature())
    }
}

const _: () = {
    let (mut number, mut kinds) = (0, MapKind::ALL);
    while let [kind, rest @ ..] = kinds {
        assert!(kind.id() > number, "kinds stand in the order of their numbers");
        assert!(kind.feature().is_power_of_two(), "a kind has one feature");
        (number, kinds) = (kind.id(), rest);
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_and_each_feature_is_a_different_bit() {
        assert!(MapKind::ALL.is_sorted_by_key(|kind| kind.id()));
        assert_eq!(MapKind::features().count_ones() as usize, MapKind::ALL.len());
        assert_eq!((MapKind::from_id(1), MapKind::from_id(0)), (Some(MapKind::Radix), None));
    }
}
