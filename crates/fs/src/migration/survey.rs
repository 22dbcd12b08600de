//! How many bytes of a file lie on which tier, in bounded pieces: what a move has to do, and what it has left.

use super::between::FileId;
use crate::errno::FsResult;
use crate::fs::Fs;
use crate::slot::Inode;
use crate::types::{BlockRange, Wait};
use std::ops::ControlFlow;
use terrace_catalog::cold_map;
use terrace_format::inode::flag;
use terrace_format::{BLOCK_SIZE, FileBlock};

/// File blocks looked at in one piece.
const PIECE: u64 = 1 << 18;

/// Bytes whose newest copy is on each tier; the index is the tier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Survey(pub Vec<u64>);

impl Survey {
    fn add(&mut self, tier: u8, blocks: u64) {
        let index = usize::from(tier);
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        if let Some(bytes) = self.0.get_mut(index) {
            *bytes += blocks * BLOCK_SIZE;
        }
    }

    /// Bytes that are not on `tier`.
    pub fn elsewhere(&self, tier: u8) -> u64 {
        let others = self.0.iter().enumerate().filter(|(found, _)| *found != usize::from(tier));
        others.map(|(_, bytes)| bytes).sum()
    }
}

impl Fs {
    /// Adds what lies where of a file from `from` on. Gives where to go on; `None` at the end of the file, or when it
    /// is gone. Blocks that were never written count only while they take room in PM.
    ///
    /// # Errors
    /// EIO when the maps cannot be read.
    pub(super) fn survey(
        &self,
        file: FileId,
        from: FileBlock,
        survey: &mut Survey,
    ) -> FsResult<Option<FileBlock>> {
        self.with_pages(Wait::Allowed, || self.survey_in_pm(file, from, survey))
    }

    /// As [`Self::survey`]; `PageBelow`, with nothing added, where extents lie below themselves.
    fn survey_in_pm(
        &self,
        file: FileId,
        from: FileBlock,
        survey: &mut Survey,
    ) -> FsResult<Option<FileBlock>> {
        let _guard = self.locks.read(file.ino);
        let Some(inode) = self.load_file(file)? else { return Ok(None) };
        let end = FileBlock(inode.size().div_ceil(BLOCK_SIZE));
        let range = BlockRange::new(from, end.min(from.plus(PIECE)));
        if range.is_empty() {
            return Ok(None);
        }
        let intents = self.intents_of(&inode)?;
        let visible = |block: FileBlock| !intents.iter().any(|r| r.first <= block && block < r.end);
        let mapped = self.count_mapped(&inode, range, visible)?;
        let extents = match inode.slot.has(flag::HAS_COLD) {
            true => self.cold_extents(file.ino, range)?,
            false => Vec::new(),
        };
        let next = match range.end < end {
            true => self.next_held(&inode, BlockRange::new(range.end, end))?,
            false => None,
        };
        survey.add(0, mapped);
        for extent in extents.iter().filter(|extent| !extent.unwritten) {
            let Some(tier) = self.tier_of(extent.device) else { continue };
            let Some(part) = extent.slice(range.first, range.end) else { continue };
            let part = BlockRange::new(part.first, part.end());
            let there = (part.first.0..part.end.0).filter(|block| visible(FileBlock(*block))).count();
            survey.add(tier.0, there as u64 - self.count_mapped(&inode, part, visible)?);
        }
        Ok(next)
    }

    /// The first block of a range that PM or a lower tier holds: a file may be mostly hole.
    fn next_held(&self, inode: &Inode, range: BlockRange) -> FsResult<Option<FileBlock>> {
        let mapped = self.next_mapped(inode, range.first, range.end)?.map(|(block, _)| block);
        let until = mapped.unwrap_or(range.end);
        let mut below = None;
        if inode.slot.has(flag::HAS_COLD) {
            let shard = self.catalog.read(self.catalog.shard_of(inode.ino.0));
            cold_map::scan(shard.reader(), inode.ino, range.first, until, |extent| {
                below = Some(extent.first.max(range.first));
                ControlFlow::Break(())
            })?;
        }
        Ok(below.or(mapped))
    }

    /// Blocks of a range that PM holds.
    fn count_mapped(
        &self,
        inode: &Inode,
        range: BlockRange,
        visible: impl Fn(FileBlock) -> bool,
    ) -> FsResult<u64> {
        let (mut count, mut at) = (0, range.first);
        while let Some((block, _)) = self.next_mapped(inode, at, range.end)? {
            count += u64::from(visible(block));
            at = block.plus(1);
        }
        Ok(count)
    }
}
