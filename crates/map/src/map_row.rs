//! The row of a file map in the registry: a file map defines its own.

use crate::file_map::FileMap;
use std::sync::Arc;
use terrace_blocks::BlockPool;
use terrace_format::map_kind::MapKind;
use terrace_wal::Result;

/// A file map that a pool may have.
pub struct MapRow {
    /// The kind, by which superblocks name it.
    pub kind: MapKind,
    /// Its name in options and status.
    pub name: &'static str,
    /// The structure, as a sentence for the user.
    pub sentence: &'static str,
    /// Makes the map of a mounted pool. Errors are the medium's, and `Corrupt`.
    pub make: fn(&Arc<BlockPool>) -> Result<Box<dyn FileMap>>,
}
