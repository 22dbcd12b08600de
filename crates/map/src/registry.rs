//! The registry of file maps. A new map is a file with its row, and a line of [`MAPS`].
//!
//! Invariant: the ids are those of the superblock, from 1 on without a gap.

use crate::map_row::MapRow;
use crate::radix_tree;
use terrace_format::superblock::MAP_IDS;

/// All file maps, by id. The first one is the map of a new pool without another choice.
pub const MAPS: &[MapRow] = &[radix_tree::ROW];

// The superblock takes the ids from 1 on.
const _: () = assert!(MAPS.len() == MAP_IDS as usize, "the format knows as many file maps");

/// The row of a file map by the superblock's number; `None` for an unknown number.
pub fn row_of(id: u8) -> Option<&'static MapRow> {
    MAPS.iter().find(|row| row.id == id)
}

/// The name of a file map by the superblock's number; `None` for an unknown number.
pub fn name_of(id: u8) -> Option<&'static str> {
    row_of(id).map(|row| row.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_ascend_from_1_without_a_gap() {
        assert!(MAPS.iter().map(|row| row.id).eq(1..=MAP_IDS));
        assert_eq!(name_of(MAP_IDS + 1), None);
    }
}
