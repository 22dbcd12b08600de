//! The reclaimer: removes orphans nobody refers to, finishes intents after a crash, scans the block table
//! and the inode file, gives back catalog pages that removes left nearly empty, empties the quarantine.
//!
//! Invariant: [`ReclaimStep`] waits for no device, so that one which hangs keeps nothing in PM but what needs it (I10). A job
//! that would have to wait goes to [`WaitingStep`]. Both, and operations, may work on one inode: each piece takes its lock and
//! looks anew.

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::memory::MemoryStep;
use crate::migration::{ClockStep, MigrationStep, SpillStep};
use crate::op::{Attempt, Op};
use crate::read_ahead::{self, AheadStep};
use crate::reclaim_queue::{Job, Task};
use crate::slot::{Inode, log_whole_slot};
use crate::truncate::WHOLE_FILE;
use crate::types::Wait;
use crate::write::Staged;
use crate::write_back_step::WriteBackStep;
use std::sync::Arc;
use std::time::Duration;
use terrace_format::inode::{InodeSlot, flag};
use terrace_format::keys::Kind;
use terrace_format::{Ino, PmOffset};
use terrace_runtime::thread::Waker;
use terrace_runtime::{Next, Step, interleave};

/// Keys of an orphan removed in one transaction.
const KEYS_PER_PIECE: usize = 2;
/// Who makes an orphan while more of them wait than this removes one of them itself. Beside many busy threads the reclaimer gets
/// its share of a processor only, and PM would fill with what is removed.
const MOST_WAITING: usize = 16;
/// Pieces of one orphan that it removes at most: a small file has its content, its keys, and its slot.
const HELPED_PIECES: usize = 4;

impl Fs {
    fn reclaim_job(&self, job: Job, wait: Wait) -> FsResult<()> {
        match job {
            Job::OrphanList(list) => {
                let unreferenced = |ino: &Ino| !self.references.is_referenced(*ino);
                let members = self.orphans_of(list)?;
                members.into_iter().filter(unreferenced).for_each(|ino| self.reclaim.push(Job::Orphan(ino)));
                Ok(())
            }
            Job::Intents(ino) => self.clear_intent(wait, ino, WHOLE_FILE),
            Job::Orphan(ino) => self.reclaim_orphan(ino, wait, usize::MAX),
        }
    }

    /// Back-pressure on who makes orphans: removes some of one when too many wait. Waits for no device. Called without locks.
    pub(crate) fn help_reclaim(&self) {
        if self.reclaim.backlog() <= MOST_WAITING || self.read_only || self.wal.is_stopped() {
            return;
        }
        let now_ns = self.clock.monotonic_ns();
        let Some((ino, task)) = self.reclaim.take_orphan() else { return };
        let done = self.reclaim_orphan(ino, Wait::Never, HELPED_PIECES);
        self.reclaim_done(task, done, Wait::Never, now_ns);
    }

    /// Does a job; one that cannot be done is put back.
    fn reclaim_task(&self, task: Task, wait: Wait, now_ns: u64) {
        let done = self.reclaim_job(task.job, wait);
        self.reclaim_done(task, done, wait, now_ns);
    }

    /// For an operation that found no space: removes some of what has no name left, or waits for those that do. Whether there
    /// may be more space now. `seen` counts the jobs that had ended when the operation began to look for space: what others
    /// ended since then may have given it. Called without locks.
    ///
    /// # Errors
    /// `WouldBlock`.
    pub(crate) fn reclaim_for_space(&self, seen: u64, wait: Wait) -> FsResult<bool> {
        if self.read_only || self.wal.is_stopped() {
            return Ok(false);
        }
        if let Some((ino, task)) = self.reclaim.take_orphan() {
            let done = self.reclaim_orphan(ino, wait, HELPED_PIECES);
            let is_done = done.is_ok();
            self.reclaim_done(task, done, wait, self.clock.monotonic_ns());
            return Ok(is_done);
        }
        // In this order: a job ends before nobody has it in hand.
        let is_at_work = self.reclaim.is_at_work();
        if self.reclaim.ended_so_far() != seen {
            return Ok(true);
        }
        if !is_at_work {
            return Ok(false);
        }
        if wait != Wait::Allowed {
            return Err(FsError::WouldBlock);
        }
        self.pressure.wait_round(Duration::from_millis(10));
        Ok(true)
    }

    fn reclaim_done(&self, task: Task, done: FsResult<()>, wait: Wait, now_ns: u64) {
        match done {
            Ok(()) | Err(FsError::Stale) => {}
            Err(FsError::WouldBlock) if wait == Wait::Never => self.reclaim.hand_over(task, now_ns),
            Err(error) => {
                tracing::warn!("reclaiming, {:?}: {error}; tried again later", task.job);
                self.reclaim.retry(task, now_ns);
            }
        }
        self.reclaim.ended();
    }

    /// Removes an orphan: pieces of its content, its keys, at last its slot. Does nothing when somebody
    /// refers to it or it is no orphan (any more). What is left after `most` pieces is queued again.
    fn reclaim_orphan(&self, ino: Ino, wait: Wait, most: usize) -> FsResult<()> {
        let mut op = Op::reclaiming(wait);
        let mut pieces = 0;
        while self.run(&mut op, self.large_record(), |reservation, op| {
            let _guard = self.locks.write(ino);
            let inode = self.load_any(ino)?;
            if !inode.slot.has(flag::ORPHAN) || inode.slot.is_free() || self.references.is_referenced(ino) {
                return Ok(false);
            }
            self.forget_dirty(&inode);
            self.reclaim_piece(op, reservation, &inode)
        })? {
            interleave::point("reclaim:between-pieces");
            pieces += 1;
            if pieces >= most {
                self.reclaim.push(Job::Orphan(ino));
                break;
            }
        }
        Ok(())
    }

    fn reclaim_piece(
        &self,
        op: &Op,
        reservation: terrace_wal::Reservation<'_>,
        inode: &Inode,
    ) -> Attempt<bool> {
        let mut staged = Staged::new(self, None, false);
        let piece = self.next_piece(op, inode, WHOLE_FILE)?;
        let mut shards = self.lock_piece(inode.ino, &piece);
        self.stage_piece(inode, &piece, &mut shards, &mut staged)?;
        let keys = match piece.complete && piece.is_empty() {
            true => {
                // A crash between node transactions can leave empty map nodes.
                self.stage_prune(inode, WHOLE_FILE, &mut staged)?
                    || self.stage_key_removal(inode, &mut shards, &mut staged)?
            }
            false => true,
        };
        staged.unlink_emptied(&mut shards)?;
        if keys {
            let mut slot = inode.slot;
            slot.blocks = slot.blocks.get().saturating_add_signed(staged.blocks_delta).into();
            crate::slot::log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
            staged.commit(reservation)?;
            return Ok(true);
        }
        // Nothing is left but the slot: it becomes free in the same transaction as the last change.
        self.begin_free(inode.ino);
        let _list = self.lock_orphans(inode.ino);
        let freed = self
            .unlink_orphan(&mut staged.tx, inode)
            .map(|()| log_freed_slot(&mut staged, inode))
            .and_then(|()| staged.commit(reservation));
        self.end_free(inode.ino, freed.is_ok());
        freed.map(|_| false)
    }

    /// Removes some keys of an inode; true when it removed any.
    fn stage_key_removal(
        &self,
        inode: &Inode,
        shards: &mut terrace_catalog::ShardsWrite<'_>,
        staged: &mut Staged<'_>,
    ) -> Attempt<bool> {
        let mut keys = Vec::new();
        for kind in [Kind::Xattr, Kind::Symlink, Kind::Intent] {
            let from = terrace_format::keys::Key::new(inode.ino.0, kind, &[]);
            let prefix = from.0.clone();
            shards.reader(&staged.tx).scan(&from, &prefix, |key, _| {
                keys.push(terrace_format::keys::Key(key.to_vec()));
                if keys.len() < KEYS_PER_PIECE {
                    std::ops::ControlFlow::Continue(())
                } else {
                    std::ops::ControlFlow::Break(())
                }
            })?;
        }
        keys.truncate(KEYS_PER_PIECE);
        for key in &keys {
            shards.remove(&mut staged.tx, key)?;
        }
        Ok(!keys.is_empty())
    }

    /// True when an inode has nothing but its slot, so that it can be freed at once.
    pub(crate) fn is_bare(&self, slot: &InodeSlot) -> bool {
        let keys = flag::HAS_XATTR | flag::HAS_COLD | flag::HAS_INTENT | flag::HAS_SYMLINK;
        slot.flags.get() & keys == 0
            && slot.root.get() == 0
            && slot.direct.iter().all(|pointer| pointer.get() == 0)
    }

    /// The steps that background threads drive, with their wakers.
    pub fn background_steps(self: &Arc<Fs>) -> Vec<(Box<dyn Step>, Waker)> {
        let reclaim = ReclaimStep {
            fs: Arc::clone(self),
            scanned: false,
            scan_not_before_ns: 0,
            cover_not_before_ns: 0,
        };
        let prepare = PrepareStep { fs: Arc::clone(self), next: PmOffset(0) };
        let mut steps: Vec<(Box<dyn Step>, Waker)> =
            vec![(Box::new(reclaim), self.reclaim.waker.clone()), (Box::new(prepare), Waker::new())];
        if !self.devices.list.is_empty() {
            for worker in 0..read_ahead::WORKERS {
                steps.push((Box::new(AheadStep::new(self, worker)), self.read_ahead.waker(worker)));
            }
        }
        if let Some(source) = &self.memory {
            steps.push((Box::new(MemoryStep::new(self, source)), Waker::new()));
        }
        if !self.read_only {
            let waiting = WaitingStep { fs: Arc::clone(self) };
            steps.push((Box::new(waiting), self.reclaim.handed_waker.clone()));
            steps.push((Box::new(ClockStep::new(self)), Waker::new()));
            for worker in 0..crate::pressure::WORKERS {
                steps.push((Box::new(MigrationStep::new(self, worker)), self.pressure.waker(worker)));
            }
            if self.devices.tiers().len() > 1 {
                steps.push((Box::new(SpillStep::new(self)), Waker::new()));
            }
            if self.has_buffer() {
                for number in 0..crate::write_back_step::STEPS {
                    let waker = if number == 0 { self.write_back.waker.clone() } else { Waker::new() };
                    steps.push((Box::new(WriteBackStep::new(self, number)), waker));
                }
            }
        }
        steps
    }

    /// Drives all background work by hand until nothing is left to do, at most `limit` pieces. For tests
    /// and simulators.
    pub fn run_background(self: &Arc<Fs>, limit: usize) {
        let mut steps = self.background_steps();
        for _ in 0..limit {
            let mut again = !self.read_only && self.hand_step() == Next::Again;
            for (step, _) in &mut steps {
                again |= step.step() == Next::Again;
            }
            if !again {
                return;
            }
        }
    }
}

/// Logs a slot as free: all zeros but the generation, which rises.
pub(crate) fn log_freed_slot(staged: &mut Staged<'_>, inode: &Inode) {
    let mut slot = InodeSlot::zeroed();
    slot.generation = inode.slot.generation.get().wrapping_add(1).into();
    log_whole_slot(&mut staged.tx, inode.place, &slot);
}

/// PM prepared in one step.
const PREPARE_BYTES: u64 = 8 << 20;

/// Background: populates the mapping of PM, so that writes meet no page fault. Once after mount.
struct PrepareStep {
    fs: Arc<Fs>,
    next: PmOffset,
}

impl Step for PrepareStep {
    fn name(&self) -> &'static str {
        "terrace-prepare"
    }

    fn step(&mut self) -> Next {
        let left = self.fs.pm.size().saturating_sub(self.next.0);
        if left == 0 {
            return Next::Done;
        }
        self.fs.pm.prepare(self.next, left.min(PREPARE_BYTES));
        self.next = self.next.plus(left.min(PREPARE_BYTES));
        Next::Again
    }
}

/// Pause after a failure of the scan.
const SCAN_AGAIN: Duration = Duration::from_secs(1);

/// Background: one bounded piece of reclaiming or scanning per step.
struct ReclaimStep {
    fs: Arc<Fs>,
    scanned: bool,
    scan_not_before_ns: u64,
    cover_not_before_ns: u64,
}

impl ReclaimStep {
    /// Scans a piece of the block table, the inode file and the chunk bitmaps; false when that is done.
    fn scan(&mut self) -> FsResult<bool> {
        let fs = &self.fs;
        let more_table = fs.blocks.scan_step()?;
        let more_inodes = fs.scan_inode_page(&mut fs.numbers.lock())?;
        let more_chunks = fs.devices.space.load_step()?;
        self.scanned = !(more_table || more_inodes || more_chunks);
        Ok(!self.scanned)
    }

    /// Does what is most urgent; false when nothing is due.
    fn piece(&mut self) -> bool {
        let now = self.fs.clock.monotonic_ns();
        if !self.scanned && now >= self.scan_not_before_ns {
            match self.scan() {
                Ok(_) => return true,
                Err(error) => {
                    tracing::warn!("scanning after mount: {error}");
                    self.scan_not_before_ns = now + SCAN_AGAIN.as_nanos() as u64;
                }
            }
        }
        if self.fs.read_only || self.fs.wal.is_stopped() {
            return false;
        }
        let Some(task) = self.fs.reclaim.take(now) else {
            return self.fs.catalog.shrink_step().unwrap_or_else(|error| {
                tracing::debug!("a sparse catalog leaf stays: {error}");
                true
            });
        };
        self.fs.reclaim_task(task, Wait::Never, now);
        true
    }
}

/// Metadata pages are covered in rounds this far apart: a page that changes all the time, as those under a loop of create
/// and unlink, is not covered between two of its changes. Idle steps are no measure: each unlink wakes this thread.
const COVER_EVERY: Duration = Duration::from_millis(800);

impl Step for ReclaimStep {
    fn name(&self) -> &'static str {
        "terrace-reclaim"
    }

    fn step(&mut self) -> Next {
        if self.piece() {
            return Next::Again;
        }
        // Idle: let what was freed become free, and what is cached expire.
        let now = self.fs.clock.monotonic_ns();
        if !self.fs.read_only && now >= self.cover_not_before_ns {
            self.fs.wal.cover_some();
            self.cover_not_before_ns = now + COVER_EVERY.as_nanos() as u64;
        }
        if !self.fs.read_only && !self.fs.wal.is_stopped() && self.fs.blocks.usage().quarantined > 0 {
            if let Err(error) = self.fs.wal.checkpoint_at_leisure() {
                tracing::warn!("checkpoint: {error}");
            }
            self.fs.blocks.drain_quarantine();
        }
        let more = self.fs.cache.give_back(now);
        if more { Next::Again } else { Next::After(Duration::from_millis(100)) }
    }
}

/// How often is looked for jobs that were handed over, beside the waker.
const HANDED_CHECK: Duration = Duration::from_secs(10);

/// Background: the jobs of the reclaimer that wait for a device or for room in PM, one per step.
struct WaitingStep {
    fs: Arc<Fs>,
}

impl Step for WaitingStep {
    fn name(&self) -> &'static str {
        "terrace-rm-wait"
    }

    fn step(&mut self) -> Next {
        if self.fs.wal.is_stopped() {
            return Next::After(HANDED_CHECK);
        }
        let Some(task) = self.fs.reclaim.take_handed() else {
            return Next::After(HANDED_CHECK);
        };
        self.fs.reclaim_task(task, Wait::Allowed, self.fs.clock.monotonic_ns());
        Next::Again
    }
}
