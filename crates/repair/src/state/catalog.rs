//! The catalog as found: the trees of its shards, and all cells.

use std::collections::BTreeMap;

/// Key and value of a catalog cell.
pub(crate) type Cell = (Vec<u8>, Vec<u8>);

/// The tree of a shard, as the walk found it.
#[derive(Default)]
pub(crate) struct Shard {
    pub pages: Vec<u64>,
    /// Cells in the order of the walk.
    pub found: Vec<Cell>,
    pub broken: bool,
    /// The block table says of a page that it is free, or does not say its owner.
    pub doubtful: bool,
    /// Whether the walk follows pointers to such pages.
    pub trusting: bool,
}

/// All shards.
#[derive(Default)]
pub(crate) struct Catalog {
    pub shards: Vec<Shard>,
    pub cells: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Cells or pages of the catalog are gone.
    pub cells_lost: bool,
}

/// Target, type and name of a directory entry.
pub(crate) fn split_dentry(value: &[u8]) -> Option<(u32, u32, &[u8])> {
    let ([i0, i1, i2, i3, kind], name) = value.split_first_chunk::<5>()?;
    Some((u32::from_le_bytes([*i0, *i1, *i2, *i3]), u32::from(*kind), name))
}
