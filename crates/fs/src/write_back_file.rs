//! Write-back of whole files, for fsync, sync and unmount: what was dirty when it was asked for, then the size.

#[cfg(test)]
mod tests;

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::migration::demoting;
use crate::op::Op;
use crate::slot::log_slot;
use crate::types::Wait;
use crate::write::Staged;
use std::collections::BTreeSet;
use std::time::Duration;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_runtime::interleave;
use terrace_wal::Error;

/// Rounds in which nothing could be installed before others' copies are not waited for any more.
const MOST_IDLE: u32 = 50;
/// And before PM takes the pages. One without others under way counts as so many.
const MOST_TRIES: u32 = 8;
/// How long others are waited for at once.
const WAIT: Duration = Duration::from_millis(10);

impl Fs {
    /// Raises the durable size over what is on media already; nothing else of the file was dirty before it.
    pub(crate) fn raise_durable(&self, ino: Ino, wait: Wait) -> FsResult<()> {
        let mut op = Op { wait, ..demoting() };
        self.run(&mut op, self.large_record(), |reservation, op| {
            let claim = self.blocks.claim(1 + op.extra, op.purpose)?;
            let _guard = self.locks.write(ino);
            let inode = match self.load(ino) {
                Err(FsError::Stale) => return Ok(()),
                inode => inode?,
            };
            let Some(pending) = inode.pending else { return Ok(()) };
            let durable = inode.durable_size();
            let first = self.cache.next_dirty(ino, FileBlock(durable / BLOCK_SIZE), FileBlock(u64::MAX));
            let size =
                first.map_or(pending.size, |block| pending.size.min(block.0 * BLOCK_SIZE)).max(durable);
            if size == durable && pending.mtime_ns.is_none() {
                self.settle(&inode, &inode.slot, pending.size, 0);
                return Ok(());
            }
            let mut staged = Staged::new(self, Some(claim), true);
            self.stage_raised(op, &inode, size, &mut staged)?;
            let mut slot = inode.slot;
            slot.size = size.into();
            slot.blocks = slot.blocks.get().saturating_add_signed(staged.blocks_delta).into();
            inode.log_pending_times(&mut slot);
            log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
            staged.commit(reservation)?;
            self.settle(&inode, &slot, pending.size, 0);
            Ok(())
        })
    }

    /// Blocks of a file from which a group is taken that is to hold `block`: behind the durable end those before it go
    /// first.
    pub(crate) fn blocks_with(&self, ino: Ino, block: FileBlock) -> FsResult<Vec<FileBlock>> {
        let _guard = self.locks.read(ino);
        let durable_block = match self.load(ino) {
            Err(FsError::Stale | FsError::Engine(Error::PageBelow(_))) => return Ok(Vec::new()),
            inode => FileBlock(inode?.durable_size() / BLOCK_SIZE),
        };
        let end = FileBlock(u64::MAX);
        let from = match self.cache.next_dirty(ino, durable_block, block) {
            Some(first) if block > durable_block => first,
            _ => block,
        };
        Ok(self.cache.dirty_blocks(ino, from, end, self.group_blocks as usize))
    }

    /// Makes everything durable that a file holds at this moment, its size included. What is written meanwhile may go
    /// with it or not; it never has to, so this ends however fast somebody appends.
    pub(crate) fn write_back_file(&self, ino: Ino) -> FsResult<()> {
        let (size, mut left) = {
            let _guard = self.locks.read(ino);
            let inode = match self.load(ino) {
                Err(FsError::Stale | FsError::Engine(Error::PageBelow(_))) => return Ok(()),
                inode => inode?,
            };
            let Some(pending) = inode.pending else { return Ok(()) };
            let all = self.cache.dirty_blocks(ino, FileBlock(0), FileBlock(u64::MAX), usize::MAX);
            (pending.size, all.into_iter().collect::<BTreeSet<FileBlock>>())
        };
        let mut idle = 0;
        while !left.is_empty() {
            let blocks: Vec<FileBlock> = left.iter().copied().collect();
            let written = self.write_back_blocks(ino, &blocks, idle > MOST_IDLE || interleave::active());
            if matches!(written, Err(FsError::Engine(Error::NoSpace(_)))) {
                // What was promised is free and waits for readers of its old content: PM takes it (I9).
                self.keep_in_pm(ino, Wait::Allowed)?;
                break;
            }
            let written = written?;
            written.blocks.iter().for_each(|block| {
                left.remove(block);
            });
            left.retain(|block| self.is_dirty(ino, *block));
            idle = match (written.blocks.is_empty(), written.others) {
                (false, _) => 0,
                (true, 0) => idle + MOST_TRIES,
                (true, _) => idle + 1,
            };
            if idle > MOST_IDLE + MOST_TRIES {
                // Others keep cutting or filling what has to go before: PM takes it (I9).
                self.keep_in_pm(ino, Wait::Allowed)?;
                break;
            }
            if written.others > 0 && written.blocks.is_empty() {
                self.write_back.wait_round(WAIT);
            } else if written.blocks.is_empty() {
                left.extend(self.first_behind_end(ino)?);
            }
        }
        self.raise_to(ino, size)
    }

    /// Raises the durable size to `size`, or to what the file has left of it; nothing that was dirty when `size` was
    /// looked at is dirty still. What others dirty meanwhile behind the durable end stops it there and goes into PM: each
    /// round gets past what was dirty when it began.
    fn raise_to(&self, ino: Ino, size: u64) -> FsResult<()> {
        if self.short_of(ino, size)?.is_some() {
            self.raise_durable(ino, Wait::Allowed)?;
        }
        let end = FileBlock(size.div_ceil(BLOCK_SIZE));
        while let Some(durable) = self.short_of(ino, size)? {
            let behind = self.cache.dirty_blocks(ino, FileBlock(durable / BLOCK_SIZE), end, usize::MAX);
            self.absorb(ino, &behind, Wait::Allowed)?;
            interleave::point("raise:absorbed");
            self.raise_durable(ino, Wait::Allowed)?;
        }
        Ok(())
    }

    fn is_dirty(&self, ino: Ino, block: FileBlock) -> bool {
        self.cache.next_dirty(ino, block, block.plus(1)).is_some()
    }

    /// The first dirty block behind the durable end: nothing behind it can go before it.
    fn first_behind_end(&self, ino: Ino) -> FsResult<Option<FileBlock>> {
        let _guard = self.locks.read(ino);
        match self.load(ino) {
            Err(FsError::Stale | FsError::Engine(Error::PageBelow(_))) => Ok(None),
            inode => {
                let from = FileBlock(inode?.durable_size() / BLOCK_SIZE);
                Ok(self.cache.next_dirty(ino, from, FileBlock(u64::MAX)))
            }
        }
    }

    /// The durable size, while some of the first `size` bytes are behind it.
    fn short_of(&self, ino: Ino, size: u64) -> FsResult<Option<u64>> {
        let _guard = self.locks.read(ino);
        let inode = match self.load(ino) {
            Err(FsError::Stale | FsError::Engine(Error::PageBelow(_))) => return Ok(None),
            inode => inode?,
        };
        let durable = inode.durable_size();
        Ok(inode.pending.filter(|pending| durable < pending.size.min(size)).map(|_| durable))
    }

    /// Puts the dirty pages of a file into PM, in the order of its blocks: for what no lower tier takes.
    pub(crate) fn keep_in_pm(&self, ino: Ino, wait: Wait) -> FsResult<()> {
        self.absorb(ino, &self.cache.dirty_blocks(ino, FileBlock(0), FileBlock(u64::MAX), usize::MAX), wait)?;
        self.raise_durable(ino, wait)
    }
}
