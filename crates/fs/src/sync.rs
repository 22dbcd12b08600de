//! Durability on demand: fsync, the barrier of `terrace sync`, and emptying PM to a lower tier.

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::migration::MigrationStep;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use terrace_format::Ino;
use terrace_format::table::Owner;
use terrace_runtime::{Next, Step};

impl Fs {
    /// Makes an inode's data and metadata durable. Every write was committed when it returned, so only the
    /// medium is asked (design 5).
    ///
    /// # Errors
    /// ESTALE; EIO when PM has failed since.
    pub fn fsync(&self, ino: Ino, _data_only: bool) -> FsResult<()> {
        if self.wal.is_stopped() {
            return Err(FsError::Engine(terrace_wal::Error::Stopped));
        }
        self.slot_place(ino)?;
        self.pm.persist();
        Ok(())
    }

    /// As [`Self::fsync`], for a directory.
    ///
    /// # Errors
    /// As [`Self::fsync`].
    pub fn fsyncdir(&self, ino: Ino) -> FsResult<()> {
        self.fsync(ino, false)
    }

    /// Barrier: everything written so far is durable.
    ///
    /// # Errors
    /// EIO when PM has failed.
    pub fn sync(&self) -> FsResult<()> {
        if self.wal.is_stopped() {
            return Err(FsError::Engine(terrace_wal::Error::Stopped));
        }
        self.pm.persist();
        Ok(())
    }

    /// Moves everything that is in PM now to `tier` or below, and waits. `progress` is told how many
    /// blocks are left.
    ///
    /// # Errors
    /// EINVAL when there is no such tier, ENOSPC when it cannot take all, EIO.
    pub fn sync_to(self: &Arc<Fs>, tier: u8, progress: &mut dyn FnMut(u64)) -> FsResult<()> {
        if tier == 0 {
            return self.sync();
        }
        if !self.devices.tiers().iter().any(|found| found.0 >= tier) {
            return Err(FsError::Invalid);
        }
        self.migration.drain.fetch_add(1, Ordering::AcqRel);
        let done = self.drain(progress);
        self.migration.drain.fetch_sub(1, Ordering::AcqRel);
        done?;
        self.devices.flush_all()?;
        self.sync()
    }

    /// Demotes until nothing that was written before the call is only in PM.
    fn drain(self: &Arc<Fs>, progress: &mut dyn FnMut(u64)) -> FsResult<()> {
        // Blocks written after this version need not go.
        let before = self.blocks.new_version();
        let mut step = MigrationStep::new(self, 1);
        let mut failures = 0;
        loop {
            let left = self.dirty_before(before)?;
            progress(left);
            if left == 0 {
                return Ok(());
            }
            let begun = self.migration.report();
            if step.step() == Next::Again {
                failures = 0;
                continue;
            }
            if let Some(reason) = self.migration.report().reason {
                failures += 1;
                if failures > 3 {
                    tracing::warn!("sync to a lower tier gives up: {reason}");
                    return Err(terrace_wal::NoSpace::Tier.into());
                }
                self.clock.sleep(Duration::from_millis(500));
            } else if begun.demoted_bytes == self.migration.report().demoted_bytes {
                self.migration.wait_round(Duration::from_millis(10));
            }
        }
    }

    /// File blocks whose newest copy is only in PM and was written before a version.
    fn dirty_before(&self, before: u64) -> FsResult<u64> {
        while self.blocks.scan_step()? {}
        let mut count = 0;
        for block in self.blocks.first_block().0..self.blocks.end_block().0 {
            let block = terrace_format::PmBlock(block);
            let descriptor = self.blocks.descriptor(block);
            if descriptor.state() == terrace_blocks::State::Used
                && descriptor.version() < before
                && !descriptor.is_clean()
                && matches!(self.blocks.owner(block)?, Owner::File { unwritten: false, .. })
            {
                count += 1;
            }
        }
        Ok(count)
    }
}
