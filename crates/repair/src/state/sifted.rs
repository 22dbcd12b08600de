//! Cells of the catalog by kind, while the repair decides about them.

use super::maps::FileMap;
use std::collections::BTreeMap;
use terrace_format::FileBlock;
use terrace_format::keys::ColdExtent;

/// Cells by kind. Cells that stay are already in `kept`.
#[derive(Default)]
pub(crate) struct Sifted {
    pub kept: BTreeMap<Vec<u8>, Vec<u8>>,
    /// (directory, cookie, value).
    pub dentries: Vec<(u32, u64, Vec<u8>)>,
    /// By inode, in key order.
    pub extents: BTreeMap<u32, Vec<ColdExtent>>,
    /// By (chunk, device).
    pub chunks: BTreeMap<(u64, u8), Vec<u8>>,
    /// Intents by inode: (first, end).
    pub intents: BTreeMap<u32, Vec<(u64, u64)>>,
    /// Inodes with keys that need a flag.
    pub flags: BTreeMap<u32, u32>,
}

/// Blocks of a file that are mapped in PM or below, each once.
pub(crate) fn mapped(maps: &BTreeMap<u32, FileMap>, ino: u32, sifted: &Sifted) -> u64 {
    let empty = BTreeMap::new();
    let map = maps.get(&ino).map_or(&empty, |map| &map.entries);
    let extents = sifted.extents.get(&ino).map_or(&[][..], Vec::as_slice);
    let cold = extents.iter().map(|extent| {
        let shadows = map.range(extent.first.0..extent.end().0).count() as u64;
        u64::from(extent.length) - shadows
    });
    map.len() as u64 + cold.sum::<u64>()
}

/// Takes file blocks `from..to` out of the extents of a file.
pub(crate) fn cut(extents: &mut Vec<ColdExtent>, from: u64, to: u64) {
    let rest = std::mem::take(extents).into_iter().flat_map(|extent| {
        let before = extent.slice(FileBlock(0), FileBlock(from));
        let behind = extent.slice(FileBlock(to), FileBlock(u64::MAX));
        before.into_iter().chain(behind)
    });
    *extents = rest.collect();
}
