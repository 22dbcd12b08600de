//! A victim that was looked at, and its copy on a device.

use crate::change::new_extent::NewLocation;
use crate::error::FsError;
use crate::store::Store;
use std::sync::Arc;
use terrace_format::{FileBlock, Ino, LineMask, PmBlock};
use terrace_media::block::Buffer;
use terrace_runtime::planted::{Mistake, planted};

/// The content of a cold copy.
pub struct Below {
    /// The buffer that was read.
    pub buffer: Arc<Buffer>,
    /// The block's index in the buffer.
    pub index: usize,
}

impl Below {
    /// The content below.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(self.index).map_or(&[], |block| &block.0)
    }
}

/// A victim that was looked at under its inode's lock. Pinned until it was copied or is dropped.
pub struct Candidate<'a> {
    /// The store whose PM block is pinned.
    pub store: &'a Store,
    /// The file.
    pub ino: Ino,
    /// The generation of its inode.
    pub generation: u32,
    /// The file block.
    pub block: FileBlock,
    /// The PM block that holds it.
    pub pm: PmBlock,
    /// The version of the PM block when it was looked at (S6).
    pub version: u64,
    /// The cold copy is still good: nothing need be written.
    pub clean: bool,
    /// The block is unwritten: only its allocation moves.
    pub unwritten: bool,
    /// The lines that the PM block holds; for the others [`super::complete_partial`] reads the cold copy.
    pub lines: LineMask,
    /// The cold copy, read for the lines that PM lacks.
    pub below: Option<Below>,
    /// Bytes of it before the end of the file; behind them zeros are written.
    pub valid: usize,
    /// Why its content cannot be read. Such a block stays where it is.
    pub read_error: Option<FsError>,
    /// The tier that its file is pinned to.
    pub(crate) pinned_tier: Option<u8>,
    /// Whether the PM block is pinned.
    pub pinned: bool,
}

impl Candidate<'_> {
    /// Lets the block be reused once it is freed: its content was copied.
    pub fn unpin(&mut self) {
        if std::mem::take(&mut self.pinned) {
            self.store.persistent.blocks().descriptor(self.pm).unpin();
        }
    }
}

impl Drop for Candidate<'_> {
    fn drop(&mut self) {
        self.unpin();
    }
}

/// A candidate with its new location.
pub struct Copied<'a> {
    /// The block that was copied.
    pub candidate: Candidate<'a>,
    /// Its durable copy, or the device block of an unwritten block.
    pub location: NewLocation,
}

impl Candidate<'_> {
    /// Whether PM has all of it.
    pub(crate) fn is_whole(&self) -> bool {
        self.lines.is_full() && !self.unwritten
    }

    /// Whether it may be written over its cold copy: a partial shadow needs the lines that only the copy has, until they
    /// are durable elsewhere.
    pub fn may_overwrite(&self) -> bool {
        self.is_whole() || planted(Mistake::PartialInPlace) && !self.unwritten
    }

    /// Whether the next one follows it in the file and may go where it may.
    pub(crate) fn is_like_next(&self, next: &Candidate<'_>) -> bool {
        next.block == self.block.plus(1) && next.may_overwrite() == self.may_overwrite()
    }
}
