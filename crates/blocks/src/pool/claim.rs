//! Claims: blocks promised to one operation, and the reserve that each purpose leaves.
//!
//! Invariants:
//! 1. A claimed block is used, and no other claim has it.
//! 2. A claim leaves the blocks of the reserve that its purpose may not take (P1).
//! 3. Claimed blocks that were not taken go back when the claim is dropped.
//! 4. A block promised to a page in DRAM is free until it is claimed for the page, and no other claim takes it.

use super::{BlockPool, Space};
use crate::bits::Run;
use crate::descriptor::State;
use smallvec::SmallVec;
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_wal::{NoSpace, Result};

/// Blocks of the longest run that a claim searches for; longer ones are taken where they are met.
const MAX_SEARCHED_RUN_BLOCKS: u64 = 32;

/// The purpose of a claim. It decides the share of the reserve that the claim may take (design P1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// File data and new metadata of user operations: leaves the whole reserve.
    User,
    /// An overwrite on a full pool: in time it gives the old block back. Leaves half of the reserve for
    /// removal and an eighth for demotion.
    Overwrite,
    /// Demotion: leaves half of the reserve for removal.
    Demotion,
    /// Fetches of metadata pages, for a reader or for removal: leaves the half for removal and a part of
    /// demotion's share, so that demotion can make room for them.
    Fetch,
    /// Unlink, truncate, punch, intents: may take everything.
    Reclaim,
}

/// The use of a claimed block: a placement may choose the block by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Content of a file's block.
    File {
        /// The file.
        ino: Ino,
        /// The block of the file.
        block: FileBlock,
    },
    /// A page of metadata.
    Page,
}

/// Blocks promised to one operation. A block that was not given an owner goes back when it is dropped.
#[must_use]
pub struct Claim<'a> {
    pool: &'a BlockPool,
    /// Chosen by the claim, the lowest free runs: ascending within each run; `take` hands them out in this order.
    blocks: SmallVec<[PmBlock; 4]>,
    next: usize,
    /// Blocks that are chosen when they are taken, by their use: where file blocks have homes.
    promised: usize,
    /// Promises to pages that ended with this claim. They begin again when the claim is given back.
    pub(super) of_pages: u64,
}

impl<'a> Claim<'a> {
    /// Takes the blocks of another claim over.
    pub fn join(&mut self, mut other: Claim<'a>) {
        let rest = other.blocks.drain(other.next..);
        self.blocks.extend(rest);
        self.promised += std::mem::take(&mut other.promised);
        self.of_pages += std::mem::take(&mut other.of_pages);
    }

    /// Promises to pages that ended with this claim.
    pub fn ended_promises(&self) -> u64 {
        self.of_pages
    }

    /// Begins the ended promises again, although the taken blocks stay taken: a record that failed on its way stopped the log,
    /// and the pages stay dirty.
    pub fn renew_promises(&mut self) {
        let of_pages = std::mem::take(&mut self.of_pages);
        let mut space = self.pool.space.lock();
        (space.promised, space.of_pages) = (space.promised + of_pages, space.of_pages + of_pages);
        self.pool.tell_free(&space);
    }

    /// A claimed block for a use; the transaction of the caller gives it this owner. `None` when all promised blocks are
    /// taken.
    pub fn take(&mut self, target: Target) -> Option<PmBlock> {
        if self.promised > 0 {
            self.promised -= 1;
            let chosen = self.pool.choose(target)?;
            self.blocks.insert(self.next, chosen);
        }
        let block = self.blocks.get(self.next).copied()?;
        debug_assert_eq!(self.pool.descriptor(block).state(), State::Used, "claimed PM block {block}");
        self.next += 1;
        Some(block)
    }
    /// Marks the chosen blocks as used; without the allocator's lock.
    #[inline]
    pub(super) fn mark_used(&self) {
        self.blocks.iter().for_each(|block| self.pool.use_claimed(*block));
    }
    /// Blocks not yet taken.
    pub fn left(&self) -> usize {
        self.blocks.len() - self.next + self.promised
    }
    /// Gives taken blocks back as well, and promises that ended with it begin again: call when the transaction that would
    /// have owned the blocks was not committed.
    pub fn give_back_all(mut self) {
        let of_pages = std::mem::take(&mut self.of_pages);
        if of_pages > 0 {
            let mut space = self.pool.space.lock();
            self.give_rest_back(&mut space, 0);
            (space.promised, space.of_pages) = (space.promised + of_pages, space.of_pages + of_pages);
            self.pool.tell_free(&space);
        } else {
            self.next = 0;
        }
    }

    /// Gives the blocks from the `next`-th on back.
    fn give_rest_back(&mut self, space: &mut Space, next: usize) {
        space.promised -= std::mem::take(&mut self.promised) as u64;
        self.pool.tell_free(space);
        for block in self.blocks.drain(next..) {
            let state = self.pool.descriptor(block).state();
            debug_assert_eq!(state, State::Used, "PM block {block} of a claim is given back");
            // Only damage changes a claimed block, by a second pointer to it: such a block stays out of use.
            if state == State::Used {
                self.pool.put_free(space, block);
            }
        }
        self.next = next;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.blocks.len() > self.next || self.promised > 0 {
            let mut space = self.pool.space.lock();
            self.give_rest_back(&mut space, self.next);
        }
    }
}

impl BlockPool {
    fn kept(&self, purpose: Purpose) -> u64 {
        match purpose {
            _ if wrong::opens_reserve_to_all() => 0,
            Purpose::User => self.reserve,
            Purpose::Overwrite => self.reserve / 8 * 5,
            Purpose::Fetch => self.reserve / 4 * 3,
            Purpose::Demotion => self.reserve / 2,
            Purpose::Reclaim => 0,
        }
    }

    /// Blocks of the reserve that a purpose may take.
    pub fn share(&self, purpose: Purpose) -> u64 {
        self.reserve - self.kept(purpose).min(self.reserve)
    }

    /// Whether one block could be claimed for a user's operation; scans and drains as [`Self::claim`] does.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub fn probe(&self) -> Result<()> {
        if self.free_hint() > self.reserve {
            return Ok(());
        }
        self.claim(1, Purpose::User).map(drop)
    }

    /// Takes `count` blocks, in as few runs as is cheap. Scans more of the table and empties the
    /// quarantine when short; a caller that holds no lock then asks for a checkpoint and tries again.
    ///
    /// # Errors
    /// `NoSpace::Pm` when fewer are free for this purpose; the medium's while scanning.
    pub fn claim(&self, count: usize, purpose: Purpose) -> Result<Claim<'_>> {
        if count == 0 {
            return Ok(Claim { pool: self, blocks: SmallVec::new(), next: 0, promised: 0, of_pages: 0 });
        }
        let mut space = self.space.lock();
        self.find_free(&mut space, count as u64, purpose)?;
        let claim = self.take_free(&mut space, count)?;
        let left = space.free.count();
        // A claim that is dropped takes the lock, also after a failed assert.
        drop(space);
        claim.mark_used();
        assert!(
            left >= self.kept(purpose),
            "a claim for {purpose:?} leaves {left} blocks of the reserve (P1)"
        );
        Ok(claim)
    }

    /// Finds `count` free blocks that nobody is promised, beside the reserve of a purpose.
    #[inline]
    pub(super) fn find_free(&self, space: &mut Space, count: u64, purpose: Purpose) -> Result<()> {
        let lacks = |space: &Space| space.free.count() < space.promised + count + self.kept(purpose);
        while lacks(space) {
            self.drain(space);
            if !lacks(space) {
                break;
            }
            if !self.scan_region(space)? {
                return Err(NoSpace::Pm.into());
            }
        }
        Ok(())
    }

    /// A claim of `count` blocks, which are free and promised to nobody. Where it has chosen blocks the caller marks them
    /// as used, without the lock.
    #[inline(always)]
    pub(super) fn take_free(&self, space: &mut Space, count: usize) -> Result<Claim<'_>> {
        let mut blocks = SmallVec::with_capacity(count);
        if self.hashed.as_ref().is_some_and(|hashed| hashed.is_placing) {
            space.promised += count as u64;
            self.tell_free(space);
            return Ok(Claim { pool: self, blocks, next: 0, promised: count, of_pages: 0 });
        }
        while blocks.len() < count {
            let left = (count - blocks.len()) as u64;
            let run = if left == 1 {
                space.free.take_lowest().map(|bit| Run::new(bit, 1))
            } else {
                space.free.take_run(left, left.min(MAX_SEARCHED_RUN_BLOCKS))
            };
            let Some(run) = run else {
                blocks.iter().for_each(|block| self.put_free(space, *block));
                return Err(NoSpace::Pm.into());
            };
            blocks.extend((run.start..run.end()).map(PmBlock));
            self.tell_free(space);
        }
        assert_eq!(blocks.len(), count, "a claim has as many blocks as were asked for");
        Ok(Claim { pool: self, blocks, next: 0, promised: 0, of_pages: 0 })
    }

    pub(super) fn use_claimed(&self, block: PmBlock) {
        let descriptor = self.descriptor(block);
        let state = descriptor.state();
        debug_assert_eq!(state, State::Free, "PM block {block} is claimed");
        descriptor.set_state(State::Used);
        descriptor.clear_flags();
        descriptor.set_version(self.new_version());
    }
}

/// The branches of planted mistakes.
mod wrong {
    use terrace_runtime::planted::{Mistake, planted};

    /// Every purpose may take the whole reserve.
    pub(super) fn opens_reserve_to_all() -> bool {
        planted(Mistake::ReserveOpenToAll)
    }
}
