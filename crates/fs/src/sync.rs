//! Durability on demand: fsync, the barrier of `terrace sync`, and emptying PM to a lower tier.

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::migration::drain::MOST_PASSES;
use crate::migration::{MigrationStep, Victim};
use crate::types::Wait;
use serde::Serialize;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use terrace_blocks::{Descriptor, State};
use terrace_catalog::cold_map;
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, Ino, PmBlock};
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::{Next, Step, interleave};

/// What `sync` or `sync_to` would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SyncPlan {
    /// Bytes that would move, by the tier on which they are: (tier, bytes), tier 0 first.
    pub tiers: Vec<(u8, u64)>,
    /// Bytes of dirty pages, which would be written back first.
    pub dirty_bytes: u64,
}

impl Fs {
    /// Makes an inode's data and metadata durable (design 5): its dirty pages are written back and its size committed.
    /// What went to PM was committed when the write returned, so for most files only the medium is asked.
    ///
    /// # Errors
    /// `WouldBlock` when there are dirty pages and the caller may not wait; EIO when PM has failed since; what the device
    /// says, the pages staying dirty.
    pub fn fsync(&self, ino: Ino, _data_only: bool, wait: Wait) -> FsResult<()> {
        self.expect_use(ino);
        if planted(Mistake::FsyncFlushesDevices) {
            self.devices.flush_all()?;
        }
        if self.wal.is_stopped() {
            return Err(FsError::NotDurable);
        }
        let is_waiting = self.unwritten.get(ino).is_some();
        if is_waiting && wait != Wait::Allowed {
            return Err(FsError::WouldBlock);
        }
        self.note_fsync(ino);
        if is_waiting {
            self.write_back_noted(ino)?;
        }
        self.barrier()
    }

    /// A number for a descriptor that is opened now, for [`Self::fsync_handle`].
    pub fn new_handle(&self) -> u64 {
        self.write_back.errors.new_handle()
    }

    /// As [`Self::fsync`], through a descriptor: it also gets, once, the error of a write-back that failed since it was
    /// opened (I5).
    ///
    /// # Errors
    /// As [`Self::fsync`].
    pub fn fsync_handle(&self, ino: Ino, handle: u64, data_only: bool, wait: Wait) -> FsResult<()> {
        let synced = self.fsync(ino, data_only, wait);
        if matches!(synced, Err(FsError::WouldBlock)) {
            return synced;
        }
        // After the attempt: its own failure is told by it.
        let told = self.write_back.errors.tell(ino, handle);
        synced?;
        told.map_or(Ok(()), Err)
    }

    /// Whether PM has failed: nothing changes until the next mount.
    pub fn is_stopped(&self) -> bool {
        self.wal.is_stopped()
    }

    /// As [`Self::fsync`], for a directory.
    ///
    /// # Errors
    /// As [`Self::fsync`].
    pub fn fsyncdir(&self, ino: Ino) -> FsResult<()> {
        self.fsync(ino, false, Wait::Allowed)
    }

    /// Everything written so far becomes durable: dirty pages of all files too.
    ///
    /// # Errors
    /// EIO when PM has failed; the first error of a file whose pages could not be written back. All others were.
    pub fn sync(&self) -> FsResult<()> {
        let mut first_error = None;
        for ino in self.unwritten.files() {
            if let Err(error) = self.write_back_noted(ino) {
                first_error.get_or_insert(error);
            }
        }
        self.barrier()?;
        first_error.map_or(Ok(()), Err)
    }

    /// Before the end of a mount: writes back all files, and puts into PM what no lower tier takes, the files with the
    /// fewest such pages first, so that as many as can are kept. One that can be kept nowhere keeps no other from it.
    ///
    /// # Errors
    /// The first of such a file.
    pub(crate) fn keep_all(&self) -> FsResult<()> {
        let mut refused = Vec::new();
        for ino in self.unwritten.files() {
            if let Err(error) = self.write_back_noted(ino) {
                tracing::warn!("inode {ino} cannot be written back: {error}; kept in persistent memory");
                refused.push(ino);
            }
        }
        refused.sort_by_key(|ino| self.cache.count_dirty(*ino));
        let mut first_error = None;
        for ino in refused {
            if let Err(error) = self.keep_in_pm(ino, Wait::Allowed) {
                tracing::error!("what was written last to inode {ino} is lost: {error}");
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// What may take long ends from now on: a `sync_to` under way gives up.
    pub fn begin_end(&self) {
        self.pressure.begin_end();
    }

    /// Puts into PM what waits in DRAM for lower tiers, and waits for none of them: for the end of a mount beside a device
    /// that does not answer. The files with the fewest such pages first.
    ///
    /// # Errors
    /// The first of a file whose pages PM has no room for, or of which it needs something from below: it still waits.
    pub fn keep_without_devices(&self) -> FsResult<()> {
        let mut files = self.unwritten.files();
        files.sort_by_key(|ino| self.cache.count_dirty(*ino));
        let mut first_error = None;
        for ino in files {
            if let Err(error) = self.keep_in_pm(ino, Wait::Never) {
                first_error.get_or_insert(error);
            }
        }
        self.barrier()?;
        first_error.map_or(Ok(()), Err)
    }

    /// Everything committed so far is durable.
    fn barrier(&self) -> FsResult<()> {
        if self.wal.is_stopped() {
            return Err(FsError::NotDurable);
        }
        self.pm.persist();
        Ok(())
    }

    /// Moves everything that is above `tier` now to `tier` or below, and waits. `progress` is told how many
    /// blocks are left. Gives the bytes of the blocks that were written meanwhile and are in PM: with what was written
    /// they stay there, also what they held before.
    ///
    /// # Errors
    /// EINVAL when there is no such tier, EROFS, ENOSPC when it cannot take all, EIO; EAGAIN when changes were faster again
    /// and again.
    pub fn sync_to(self: &Arc<Fs>, tier: u8, progress: &mut dyn FnMut(u64)) -> FsResult<u64> {
        if tier == 0 {
            return self.sync().map(|()| 0);
        }
        self.check_drain(tier)?;
        let begin = self.blocks.new_version();
        self.pressure.begin_drain(tier);
        let done = self.send_down(tier, progress);
        self.pressure.end_drain();
        done?;
        interleave::point("sync:drained");
        // Each group was flushed before it was installed (M1).
        self.sync()?;
        let mut written = 0;
        self.file_blocks(
            |found| !found.is_clean() && found.version() >= begin,
            |_| {
                written += BLOCK_SIZE;
                Ok(ControlFlow::Continue(()))
            },
        )?;
        Ok(written)
    }

    fn send_down(self: &Arc<Fs>, tier: u8, progress: &mut dyn FnMut(u64)) -> FsResult<()> {
        // First what is dirty in DRAM: written back it lies where it should be, or in PM, and then goes with the rest.
        if !self.unwritten.files().is_empty() {
            self.sync()?;
        }
        self.take_clean_above(tier)?;
        for _ in 0..MOST_PASSES {
            self.drain(tier, progress)?;
            self.drain_below(tier, progress)?;
            if !self.take_clean_above(tier)? {
                return Ok(());
            }
        }
        Err(FsError::WouldBlock)
    }

    /// A clean block in PM hides its cold copy, which no pass over the tiers moves then. Where that copy lies above `tier`
    /// the block counts as changed from now on, and goes down like any other. True when there was one.
    fn take_clean_above(&self, tier: u8) -> FsResult<bool> {
        let mut taken = false;
        self.clean_above(tier, |found| {
            found.set_clean(false);
            taken = true;
        })?;
        Ok(taken)
    }

    /// Visits clean blocks in PM whose cold copy lies above `tier`, each with its inode locked.
    fn clean_above(&self, tier: u8, mut visit: impl FnMut(&Descriptor)) -> FsResult<()> {
        if !self.devices.tiers().iter().any(|above| above.0 < tier) {
            return Ok(());
        }
        self.file_blocks(
            |found| found.is_clean(),
            |Victim { ino, block, pm }| {
                self.with_pages(Wait::Allowed, || {
                    // Clean is what it is under this lock (S2).
                    let _guard = self.locks.write(ino);
                    let shard = self.catalog.read(self.catalog.shard_of(ino.0));
                    let below = cold_map::lookup(shard.reader(), ino, block)?;
                    let at = below.and_then(|extent| self.tier_of(extent.device));
                    let found = self.blocks.descriptor(pm);
                    if at.is_some_and(|at| at.0 < tier) && found.is_clean() {
                        visit(found);
                    }
                    Ok(())
                })?;
                Ok(ControlFlow::Continue(()))
            },
        )
    }

    fn check_drain(&self, tier: u8) -> FsResult<()> {
        if !self.devices.tiers().iter().any(|found| found.0 >= tier) {
            return Err(FsError::Invalid);
        }
        // Nothing moves there: waiting for it would never end.
        if self.read_only { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// What [`Self::sync_to`] would do now, or [`Self::sync`] for tier 0. Takes as long as it takes to look at all files
    /// where tiers lie between.
    ///
    /// # Errors
    /// As [`Self::sync_to`]; EIO.
    pub fn plan_sync_to(&self, tier: u8) -> FsResult<SyncPlan> {
        let mut plan = SyncPlan { tiers: Vec::new(), dirty_bytes: self.cache.dirty_bytes() };
        if tier == 0 {
            return Ok(plan);
        }
        self.check_drain(tier)?;
        let mut only_in_pm = 0;
        self.dirty_before(u64::MAX, |_| {
            only_in_pm += BLOCK_SIZE;
            Ok(ControlFlow::Continue(()))
        })?;
        self.clean_above(tier, |_| only_in_pm += BLOCK_SIZE)?;
        plan.tiers.push((0, only_in_pm));
        plan.tiers.extend(self.survey_between(tier)?);
        Ok(plan)
    }

    /// Demotes until nothing that was written before the call is only in PM.
    fn drain(self: &Arc<Fs>, tier: u8, progress: &mut dyn FnMut(u64)) -> FsResult<()> {
        // Blocks written after this version need not go.
        let before = self.blocks.new_version();
        let mut step = MigrationStep::new(self, 1);
        let mut failures = 0;
        let mut fewest = u64::MAX;
        loop {
            if self.wal.is_stopped() {
                return Err(FsError::NotDurable);
            }
            self.go_on()?;
            let mut left = 0;
            self.dirty_before(before, |_| {
                left += 1;
                Ok(ControlFlow::Continue(()))
            })?;
            progress(left + self.used_between(tier));
            if left == 0 {
                return Ok(());
            }
            interleave::point("drain:between-rounds");
            let begun = self.migration_report(self.clock.monotonic_ns());
            // Only what is done counts as progress: rounds that find other work do not make a failure pass.
            if left < fewest {
                (fewest, failures) = (left, 0);
            }
            if step.step() == Next::Again {
                continue;
            }
            if let Some(reason) = self.pressure.reason() {
                failures += 1;
                if failures > 3 {
                    tracing::warn!("sync to a lower tier gives up: {reason}");
                    return Err(reason);
                }
                self.clock.sleep(Duration::from_millis(500));
            } else if begun.demoted_bytes == self.migration_report(self.clock.monotonic_ns()).demoted_bytes {
                if !self.with_pages(Wait::Allowed, || self.is_any_left(before))? {
                    return Ok(());
                }
                self.pressure.wait_round(Duration::from_millis(10));
            }
        }
    }

    /// ECANCELED once the mount ends.
    pub(crate) fn go_on(&self) -> FsResult<()> {
        if self.pressure.is_ending() { Err(FsError::Ending) } else { Ok(()) }
    }

    /// Visits the file blocks that the block table says are only in PM and were written before a version.
    fn dirty_before(
        &self,
        before: u64,
        visit: impl FnMut(Victim) -> FsResult<ControlFlow<()>>,
    ) -> FsResult<()> {
        self.file_blocks(|found| found.version() < before && !found.is_clean(), visit)
    }

    /// Visits the file blocks of the block table whose descriptor is as wanted.
    fn file_blocks(
        &self,
        wanted: impl Fn(&Descriptor) -> bool,
        mut visit: impl FnMut(Victim) -> FsResult<ControlFlow<()>>,
    ) -> FsResult<()> {
        while self.blocks.scan_step()? {}
        for pm in (self.blocks.first_block().0..self.blocks.end_block().0).map(PmBlock) {
            let descriptor = self.blocks.descriptor(pm);
            if descriptor.state() == State::Used
                && wanted(descriptor)
                && let Owner::File { ino, block, unwritten: false } = self.blocks.owner(pm)?
                && visit(Victim { ino, block, pm })?.is_break()
            {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether any of those still holds bytes of a file. Those that an intent has taken away and the reclaimer
    /// has not yet removed do not: waiting for them would be waiting for the reclaimer.
    fn is_any_left(&self, before: u64) -> FsResult<bool> {
        let mut found = false;
        self.dirty_before(before, |Victim { ino, block, pm }| {
            let _guard = self.locks.read(ino);
            let inode = match self.load(ino) {
                Err(FsError::Stale) => return Ok(ControlFlow::Continue(())),
                inode => inode?,
            };
            let intents = self.intents_of(&inode)?;
            found = self.mapped_to(&inode, &intents, block, pm)?.is_some();
            Ok(if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(found)
    }
}
