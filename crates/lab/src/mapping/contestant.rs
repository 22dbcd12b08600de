//! The maps under test: those of the registry, and maps of the laboratory alone.

use super::level_hash::LevelHash;
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
    /// Whether nodes of the map are in a page cache.
    pub(crate) is_page_cached: bool,
}

/// The maps of the registry.
pub(crate) fn registered() -> impl Iterator<Item = Contestant> {
    MAPS.iter().map(|row| Contestant {
        name: row.name,
        kind: row.kind,
        make: row.make,
        is_page_cached: false,
    })
}

/// The name of the extent tree, whose nodes are read in place.
pub(crate) const IN_PLACE_EXTENTS: &str = "extent";
/// The name of the baseline of the publication.
pub(crate) const PAGE_CACHED: &str = "extent in a page cache";
/// The name of level hashing.
pub(crate) const LEVEL_HASH: &str = "level hashing";

/// The extent tree in a page cache: the baseline of the publication.
pub(crate) fn page_cached() -> Option<Contestant> {
    let extent = registered().find(|map| map.name == IN_PLACE_EXTENTS)?;
    Some(Contestant { name: PAGE_CACHED, is_page_cached: true, ..extent })
}

/// Level hashing, in a pool of the default kind.
pub(crate) fn level_hash() -> Contestant {
    Contestant { name: LEVEL_HASH, kind: MapKind::default(), make: LevelHash::make, is_page_cached: false }
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
