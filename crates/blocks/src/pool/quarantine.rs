//! Freed blocks, from the record that frees them until the checkpoint has passed it.
//!
//! Invariant: a block becomes free when the checkpoint has passed the freeing record and no I/O pin is left (T6, S7).

use super::{BlockPool, Space};
use crate::descriptor::State;
use terrace_format::table::Owner;
use terrace_format::{Lsn, PmBlock};
use terrace_runtime::planted::{Mistake, planted};
use terrace_wal::Tx;

impl BlockPool {
    /// Logs that a block becomes free and quarantines it. After the commit call [`Self::freed`]; if the
    /// transaction is given up instead, [`Self::keep`].
    pub fn release(&self, tx: &mut Tx, block: PmBlock) {
        self.quarantine(block);
        self.set_owner(tx, block, Owner::Free);
    }

    /// The volatile half of [`Self::release`].
    pub fn quarantine(&self, block: PmBlock) {
        self.quarantine_as(block, self.new_version());
    }

    /// As [`Self::quarantine`], for a block that the just claimed block `new` replaces. Both get the version
    /// of `new`, which no other block has had.
    #[inline]
    pub fn quarantine_for(&self, block: PmBlock, new: PmBlock) {
        debug_assert!(block != new, "PM block {block} replaces itself");
        self.quarantine_as(block, self.descriptor(new).version());
        self.keep_choice(block, new);
    }

    /// A block that replaces another one takes its choice between lazy and eager writes over.
    #[inline]
    pub fn keep_choice(&self, old: PmBlock, new: PmBlock) {
        if self.descriptor(old).is_eager() {
            self.descriptor(new).set_eager(true);
        }
    }

    fn quarantine_as(&self, block: PmBlock, version: u64) {
        let descriptor = self.descriptor(block);
        let unknown = descriptor.state() == State::Unknown;
        if unknown {
            // [`Self::keep`] makes it known without a look at its lines.
            descriptor.set_partial(true);
        }
        // The scan may meet the block at this moment.
        if !unknown || !self.learn(block, State::Quarantined) {
            descriptor.set_state(State::Quarantined);
        }
        descriptor.set_version(version);
    }

    /// Notes which record freed the blocks: they become free when the checkpoint has passed it.
    #[inline]
    pub fn freed(&self, lsn: Lsn, blocks: &[PmBlock]) {
        let is_quarantined = |block: &PmBlock| self.descriptor(*block).state() == State::Quarantined;
        debug_assert!(blocks.iter().all(is_quarantined), "{blocks:?} were freed without a quarantine");
        let mut space = self.space.lock();
        space.quarantine.extend(blocks.iter().map(|block| (lsn, *block)));
        if planted(Mistake::ForgottenWhenFreed) {
            blocks.iter().for_each(|block| self.wal.pm().forget(block.offset(), terrace_format::BLOCK_SIZE));
        }
        if planted(Mistake::ReuseBeforeCheckpoint) {
            wrong::free_before_checkpoint(self, &mut space);
        }
    }

    /// Undoes [`Self::release`] of a transaction that was not committed.
    pub fn keep(&self, block: PmBlock) {
        let descriptor = self.descriptor(block);
        debug_assert_eq!(descriptor.state(), State::Quarantined, "PM block {block} is kept");
        descriptor.set_state(State::Used);
        // The scan after the mount passes a block that is known.
        if let Some(hashed) = self.hashed()
            && let Ok(Owner::File { ino, block, .. }) = self.owner(block)
            && hashed.has_bit_of(block)
        {
            hashed.presence.insert(ino, block);
        }
    }

    /// Moves what the checkpoint has passed from quarantine to free.
    pub fn drain_quarantine(&self) {
        self.drain(&mut self.space.lock());
    }

    pub(super) fn drain(&self, space: &mut Space) {
        let passed = if wrong::passes_all() { Lsn(u64::MAX) } else { self.wal.checkpoint_lsn() };
        self.drain_passed(space, passed);
    }

    fn drain_passed(&self, space: &mut Space, passed: Lsn) {
        let mut pinned = Vec::new();
        while let Some((lsn, block)) = space.quarantine.front().copied() {
            if lsn >= passed {
                break;
            }
            space.quarantine.pop_front();
            if self.descriptor(block).is_pinned() {
                pinned.push((lsn, block));
            } else {
                // Before it is free: the next owner stores to it.
                self.wal.pm().forget(block.offset(), terrace_format::BLOCK_SIZE);
                self.put_free(space, block);
                space.left_quarantine += 1;
            }
        }
        space.quarantine.extend(pinned);
    }
}

/// The branches of planted mistakes.
mod wrong {
    use super::*;

    /// Every block may leave quarantine.
    pub(super) fn passes_all() -> bool {
        planted(Mistake::ClaimIgnoresQuarantine)
    }

    /// Blocks become free although the checkpoint has not passed the record that freed them.
    pub(super) fn free_before_checkpoint(pool: &BlockPool, space: &mut Space) {
        pool.drain_passed(space, Lsn(u64::MAX));
    }
}
