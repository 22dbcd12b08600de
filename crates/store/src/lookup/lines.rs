//! Lines of a partial shadow that PM holds.

use crate::error::FsResult;
use crate::store::Store;
use terrace_format::{FileBlock, Ino, LineMask, PmBlock};
use terrace_map::Mapping;

/// A partial block that is read.
pub struct Shadow {
    /// The file block.
    pub block: FileBlock,
    /// How far the reader goes on: read together if the lower tier has to be.
    pub until: FileBlock,
    /// The PM block with the valid lines.
    pub pm: PmBlock,
    /// The lines that PM holds.
    pub lines: LineMask,
}

/// The lines that a mapped block holds. The caller holds the inode's lock.
///
/// # Errors
/// EIO, also where the block table gives the block to another.
#[inline]
pub fn lines_of(store: &Store, ino: Ino, block: FileBlock, mapping: Mapping) -> FsResult<LineMask> {
    if mapping.unwritten {
        return Ok(LineMask::FULL);
    }
    Ok(store.persistent.blocks().lines(mapping.block, ino, block)?)
}

/// Copies lines of a PM block over the same bytes of `content`, a whole block.
pub(crate) fn read_lines(store: &Store, pm: PmBlock, lines: LineMask, content: &mut [u8]) -> FsResult<()> {
    for run in lines.runs() {
        let at = pm.offset().plus(run.start as u64);
        store.persistent.pm().read(at, content.get_mut(run).unwrap_or(&mut []))?;
    }
    Ok(())
}
