//! The maps under test: those of the registry, and maps of the laboratory alone.

use std::sync::Arc;
use terrace_blocks::BlockPool;
use terrace_format::map_kind::MapKind;
use terrace_map::{FileMap, MAPS};

/// Makes a map of a pool.
pub(crate) type Make = fn(&Arc<BlockPool>) -> terrace_wal::Result<Box<dyn FileMap>>;

/// A map under test.
#[derive(Clone, Copy)]
pub(crate) struct Contestant {
    /// Its name in figures.
    pub(crate) name: &'static str,
    /// The kind of pool that it lives in.
    pub(crate) kind: MapKind,
    pub(crate) make: Make,
}

/// The maps of the registry.
pub(crate) fn registered() -> impl Iterator<Item = Contestant> {
    MAPS.iter().map(|row| Contestant { name: row.name, kind: row.kind, make: row.make })
}

/// The map that others are compared with: the default of new pools.
pub(crate) fn reference() -> &'static str {
    MAPS[0].name
}

/// Names of the maps that are the block table.
pub(crate) fn tables() -> impl Iterator<Item = &'static str> {
    registered().filter(|map| map.kind.is_table()).map(|map| map.name)
}

/// Names of the maps that are not the block table.
pub(crate) fn others() -> impl Iterator<Item = &'static str> {
    registered().filter(|map| !map.kind.is_table()).map(|map| map.name)
}

/// The names of these that are registered.
pub(crate) fn present<'a>(names: &'a [&'static str]) -> impl Iterator<Item = &'static str> + 'a {
    names.iter().copied().filter(|name| registered().any(|map| map.name == *name))
}
