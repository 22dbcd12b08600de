//! Promises of free blocks to pages that wait in DRAM: write-back into PM never lacks space.
//!
//! Invariants:
//! 1. A promised block is free and known as free until it is claimed for a page.
//! 2. No claim takes a promised block, whatever its purpose (P1).
//! 3. A promise ends once: by a claim for the page, or when it is given back.

use super::{BlockPool, Claim, Purpose, Space};
use terrace_wal::Result;

/// Blocks that a pool has promised to pages.
pub struct Promises<'a>(&'a BlockPool);

impl BlockPool {
    /// Blocks promised to pages that wait in DRAM.
    pub fn promises(&self) -> Promises<'_> {
        Promises(self)
    }
}

impl<'a> Promises<'a> {
    /// The number of promised blocks.
    pub fn count(&self) -> u64 {
        self.0.space.lock().of_pages
    }

    /// Promises `count` blocks, as a claim of a user would get them now.
    ///
    /// # Errors
    /// As [`BlockPool::claim`].
    pub fn give(&self, count: usize) -> Result<()> {
        let mut space = self.0.space.lock();
        self.0.find_free(&mut space, count as u64, Purpose::User)?;
        space.promised += count as u64;
        space.of_pages += count as u64;
        self.0.tell_free(&space);
        Ok(())
    }

    /// Claims promised blocks for their pages; the promises begin again if the claim is given back.
    ///
    /// # Errors
    /// `NoSpace::Pm` when damage has hidden free blocks since; the promise stays.
    ///
    /// # Panics
    /// When fewer are promised.
    pub fn claim(&self, count: usize) -> Result<Claim<'a>> {
        let mut space = self.0.space.lock();
        self.end(&mut space, count as u64);
        let claim = self.0.take_free(&mut space, count);
        if claim.is_err() {
            space.promised += count as u64;
            space.of_pages += count as u64;
        }
        self.0.tell_free(&space);
        drop(space);
        let mut claim = claim?;
        claim.mark_used();
        claim.of_pages = count as u64;
        Ok(claim)
    }

    /// Ends the promise of pages that were dropped, or that got blocks another way.
    ///
    /// # Panics
    /// When fewer are promised.
    pub fn take_back(&self, count: usize) {
        let mut space = self.0.space.lock();
        self.end(&mut space, count as u64);
        space.promises_ended += count as u64;
        self.0.tell_free(&space);
    }

    /// Promises that ended without a block since the mount: an operation that found no free block sees by it whether some have
    /// ended since.
    pub fn ended_so_far(&self) -> u64 {
        self.0.space.lock().promises_ended
    }

    fn end(&self, space: &mut Space, count: u64) {
        let of_pages = space.of_pages;
        assert!(of_pages >= count, "{count} blocks of {of_pages} promised ones are given back (P1)");
        space.of_pages -= count;
        space.promised -= count;
    }
}
