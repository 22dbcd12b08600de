//! TODO header of store/moving/candidate.rs

use crate::store::error::FsError;
use crate::store::store::Store;
use std::sync::Arc;
use terrace_catalog::DeviceRun;
use terrace_format::{FileBlock, Ino, LineMask, PmBlock};
use terrace_media::block::Buffer;
use terrace_runtime::planted::{Mistake, planted};

/// The content of a cold copy.
pub(crate) struct Below {
    pub buffer: Arc<Buffer>,
    pub index: usize,
}

impl Below {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.get(self.index).map_or(&[], |block| &block.0)
    }
}

/// A victim that was looked at under its inode's lock. Pinned until it was copied or is dropped.
pub(crate) struct Candidate<'a> {
    pub store: &'a Store,
    pub ino: Ino,
    pub generation: u32,
    pub block: FileBlock,
    pub pm: PmBlock,
    pub version: u64,
    /// The cold copy is still good: nothing need be written.
    pub clean: bool,
    /// Allocated and never written: only its place moves.
    pub unwritten: bool,
    /// The lines that the PM block holds; for the others [`super::complete`] reads the cold copy.
    pub lines: LineMask,
    pub below: Option<Below>,
    /// Bytes of it before the end of the file; behind them zeros are written.
    pub valid: usize,
    /// Why its content cannot be read. Such a block stays where it is.
    pub lost: Option<FsError>,
    /// The tier that its file is pinned to.
    pub kept_on: Option<u8>,
    pub pinned: bool,
}

impl Candidate<'_> {
    /// Lets the block be reused once it is freed: its content was copied.
    pub(crate) fn unpin(&mut self) {
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

/// A candidate with its place on a device and the checksum of what was written there.
pub(crate) struct Copied<'a> {
    pub candidate: Candidate<'a>,
    pub place: DeviceRun,
    pub crc: u32,
}

impl Candidate<'_> {
    /// Whether PM has all of it.
    pub(crate) fn is_whole(&self) -> bool {
        self.lines.is_full() && !self.unwritten
    }

    /// Whether it may be written over its cold copy: a partial shadow needs the lines that only the copy has, until they
    /// are durable elsewhere.
    pub(crate) fn may_overwrite(&self) -> bool {
        self.is_whole() || planted(Mistake::PartialInPlace) && !self.unwritten
    }

    /// Whether the next one follows it in the file and may go where it may.
    pub(crate) fn is_like_next(&self, next: &Candidate<'_>) -> bool {
        next.block == self.block.plus(1) && next.may_overwrite() == self.may_overwrite()
    }
}
