//! Promotion: a cold block that is read again comes into PM; its cold copy stays and is clean (S2).

use crate::data_checksum::covered;
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::{Need, Op, SMALL_RECORD};
use crate::types::Wait;
use crate::write::Staged;
use std::collections::VecDeque;
use terrace_cache::{Page, PageKey};
use terrace_format::BLOCK_SIZE;
use terrace_format::table::Owner;
use terrace_map::Mapping;
use terrace_runtime::sync::Mutex;

/// Promotions that wait; more are dropped: the block will be read again if it matters.
const QUEUE: usize = 1024;
/// Promotions done in one step.
const BATCH: usize = 64;

/// A block to bring into PM.
pub(crate) struct Promotion {
    pub(super) key: PageKey,
    pub(super) version: u64,
    pub(super) page: Page,
}

/// Blocks that are to come into PM.
#[derive(Default)]
pub(crate) struct Promotions {
    queue: Mutex<VecDeque<Promotion>>,
}

impl Promotions {
    /// Asks for a block to come into PM; `version` is its own when the page was read.
    pub fn want(&self, key: PageKey, version: u64, page: &Page) {
        let mut queue = self.queue.lock();
        if queue.len() < QUEUE {
            // Not the whole read that brought it.
            queue.push_back(Promotion { key, version, page: page.alone() });
        }
    }

    /// The next of them.
    pub fn pop(&self) -> Option<Promotion> {
        self.queue.lock().pop_front()
    }

    /// Forgets all of them.
    pub fn clear(&self) {
        self.queue.lock().clear();
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }
}

impl Fs {
    /// Does some of the queued promotions, as long as PM has room above the back-pressure mark.
    pub(super) fn promotion_round(&self) -> FsResult<()> {
        for _ in 0..BATCH {
            // What comes up during a `sync --to` would hide a copy that it is to move.
            let draining = self.pressure.drain_to().0 > 0;
            if draining || self.blocks.free_hint() < 2 * self.pressure.throttle_below() {
                self.promotions.clear();
                return Ok(());
            }
            let Some(promotion) = self.promotions.pop() else {
                return Ok(());
            };
            match self.promote(&promotion) {
                Ok(true) => {
                    self.pressure.moved().note_up(self.clock.monotonic_ns());
                    self.cache.remove(promotion.key);
                }
                Ok(false) | Err(FsError::Stale | FsError::WouldBlock) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn promote(&self, promotion: &Promotion) -> FsResult<bool> {
        let (ino, block) = (promotion.key.ino, promotion.key.block);
        let mut op = Op::new(Wait::Never);
        self.run(&mut op, SMALL_RECORD, |reservation, op| {
            let claim = self.blocks.claim(1, op.purpose)?;
            let _guard = self.locks.write(ino);
            let inode = self.load_regular(ino)?;
            let mapped = self.map.lookup(None, &inode.map(), block)?;
            let same = inode.slot.generation.get() == promotion.key.generation
                && self.cold_versions.get(ino, block) == promotion.version;
            let kept_below = self.pin_of(&inode)?.is_some_and(|tier| tier > 0);
            if !same || kept_below || block.0 * BLOCK_SIZE >= inode.durable_size() {
                return Ok(false);
            }
            if let Some(mapping) = mapped {
                return self.promote_rest(reservation, &inode, block, mapping, promotion.page.bytes());
            }
            if self.map.missing_nodes(&inode.map(), block, 1)? > 0 {
                return Err(Need::MapNodes { ino, first: block, count: 1 }.into());
            }
            let mut staged = Staged::new(self, Some(claim), true);
            let new = staged.take()?;
            let covered = covered(block.0 * BLOCK_SIZE, inode.durable_size());
            let checksum = staged.store_content(new, promotion.page.bytes().into(), covered)?;
            self.map.set(&mut staged.tx, &inode.map(), block, &[Some(Mapping::written(new))])?;
            staged.own_content(new, Owner::File { ino, block, unwritten: false }, checksum);
            staged.commit(reservation)?;
            self.blocks.descriptor(new).set_clean(true);
            Ok(true)
        })
    }
}
