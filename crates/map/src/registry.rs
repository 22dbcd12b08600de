//! The registry of file maps. A new map is a file with its row, a line of [`MAPS`] and of [`row_of`].
//!
//! Invariant: the rows are those of the format's kinds, in the order of their numbers.

use crate::map_row::MapRow;
use crate::{clustered, cuckoo, extent, hashfs, radix_tree};
use terrace_format::map_kind::MapKind;

/// All file maps, by number. The first one is the map of a new pool without another choice.
pub const MAPS: &[MapRow] =
    &[radix_tree::ROW, extent::ROW, cuckoo::ROW, hashfs::ROW, hashfs::GROUPS_ROW, clustered::ROW];

const _: () = assert!(MAPS.len() == MapKind::ALL.len(), "the format knows as many file maps");

/// The row of a kind of file map.
pub fn row_of(kind: MapKind) -> &'static MapRow {
    match kind {
        MapKind::Radix => &radix_tree::ROW,
        MapKind::Extent => &extent::ROW,
        MapKind::Cuckoo => &cuckoo::ROW,
        MapKind::HashfsLinear => &hashfs::ROW,
        MapKind::Hashfs => &hashfs::GROUPS_ROW,
        MapKind::Clustered => &clustered::ROW,
    }
}

/// The name of a file map by the superblock's number; `None` for an unknown number.
pub fn name_of(id: u8) -> Option<&'static str> {
    MapKind::from_id(id).map(|kind| row_of(kind).name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_has_a_row_for_each_kind() {
        assert!(MAPS.iter().map(|row| row.kind).eq(MapKind::ALL.iter().copied()));
        assert!(MapKind::ALL.iter().all(|kind| row_of(*kind).kind == *kind));
        assert!(
            MAPS.iter().all(|row| row.name == row.kind.name()),
            "the names of maps and of their features"
        );
        assert_eq!(name_of(0), None);
    }
}
