//! Counts the bytes of a file on each tier, in bounded pieces: the work of a movement before it, and the rest
//! after it.

use crate::migration::Migration;
use std::ops::ControlFlow;
use terrace_catalog::cold_map;
use terrace_format::inode::flag;
use terrace_format::{BLOCK_SIZE, FileBlock};
use terrace_store::attempt::with_pages::with_pages;
use terrace_store::error::FsResult;
use terrace_store::inode::slot::{for_each_mapped, next_mapped};
use terrace_store::lookup::cold_extents::cold_extents;
use terrace_store::lookup::intents::intents_of;
use terrace_store::moving::file_id::{FileId, load_file};
use terrace_store::moving::relocation_group::tier_of;
use terrace_store::types::inode::Inode;
use terrace_store::types::{BlockRange, Wait};

/// File blocks counted in a piece.
const PIECE: u64 = 1 << 18;

/// Bytes by the tier of their newest copy; the index is the tier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey(pub Vec<u64>);

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

/// Adds the bytes of a file from `from` on. Gives the block to go on at; `None` at the end of the file, or
/// when the file is gone. Unwritten blocks count only in PM.
///
/// # Errors
/// EIO when the maps cannot be read.
pub(crate) fn survey(
    migration: &Migration,
    file: FileId,
    from: FileBlock,
    survey: &mut Survey,
) -> FsResult<Option<FileBlock>> {
    with_pages(&migration.store, Wait::Allowed, || survey_in_pm(migration, file, from, survey))
}

/// As [`survey`]; `PageBelow`, with no byte added, when the leaf of the cold extents lies on a lower tier.
fn survey_in_pm(
    migration: &Migration,
    file: FileId,
    from: FileBlock,
    survey: &mut Survey,
) -> FsResult<Option<FileBlock>> {
    let _guard = migration.store.inodes.locks().read(file.ino);
    let Some(inode) = load_file(&migration.store, file)? else { return Ok(None) };
    let end = FileBlock(inode.size().div_ceil(BLOCK_SIZE));
    let range = BlockRange::new(from, end.min(from.plus(PIECE)));
    if range.is_empty() {
        return Ok(None);
    }
    let intents = intents_of(&migration.store, &inode)?;
    let visible = |block: FileBlock| !intents.iter().any(|r| r.first <= block && block < r.end);
    let mapped = count_mapped(migration, &inode, range, visible)?;
    let extents = match inode.slot.has(flag::HAS_COLD) {
        true => cold_extents(&migration.store, file.ino, range)?,
        false => Vec::new(),
    };
    let next = match range.end < end {
        true => next_held(migration, &inode, BlockRange::new(range.end, end))?,
        false => None,
    };
    survey.add(0, mapped);
    for extent in extents.iter().filter(|extent| !extent.unwritten) {
        let Some(tier) = tier_of(&migration.store, extent.device) else { continue };
        let Some(part) = extent.slice(range.first, range.end) else { continue };
        let part = BlockRange::new(part.first, part.end());
        let there = (part.first.0..part.end.0).filter(|block| visible(FileBlock(*block))).count();
        survey.add(tier.0, there as u64 - count_mapped(migration, &inode, part, visible)?);
    }
    Ok(next)
}

/// The first block of a range that PM or a lower tier holds, because most of a file may be a hole.
fn next_held(migration: &Migration, inode: &Inode, range: BlockRange) -> FsResult<Option<FileBlock>> {
    let mapped = next_mapped(&migration.store, inode, range.first, range.end)?.map(|(block, _)| block);
    let until = mapped.unwrap_or(range.end);
    let mut below = None;
    if inode.slot.has(flag::HAS_COLD) {
        let shard = migration
            .store
            .persistent
            .catalog()
            .read(migration.store.persistent.catalog().shard_of(inode.ino.0));
        cold_map::scan(shard.reader(), inode.ino, range.first, until, |extent| {
            below = Some(extent.first.max(range.first));
            ControlFlow::Break(())
        })?;
    }
    Ok(below.or(mapped))
}

/// Blocks of a range that PM holds.
fn count_mapped(
    migration: &Migration,
    inode: &Inode,
    range: BlockRange,
    visible: impl Fn(FileBlock) -> bool,
) -> FsResult<u64> {
    let mut count = 0;
    for_each_mapped(&migration.store, inode, range, |block, _| count += u64::from(visible(block)))?;
    Ok(count)
}
