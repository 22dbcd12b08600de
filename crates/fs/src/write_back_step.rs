//! When dirty pages are written back ([HiNFS] section 3.3): from 5 % free room in DRAM on until 20 % are free, the least
//! recently written first; every five seconds what is dirty for thirty; and by writers that find no room.
//!
//! One thread does that. While a device holds it, the next one goes on with what other devices take, and so on ([`STEPS`]).

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::types::Wait;
use crate::write_errors::WriteErrors;
use std::sync::{Arc, Weak};
use std::time::Duration;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrace_runtime::sync::{Condvar, Mutex};
use terrace_runtime::thread::Waker;
use terrace_runtime::{Next, Step, interleave};
use terrace_wal::{Error, NoSpace};

/// How often old pages are looked for.
const PERIOD: Duration = Duration::from_secs(5);
/// No page stays dirty longer: those that would be older at the next look are written back.
const OLD: Duration = Duration::from_secs(30);
/// Threads, of which those behind the first only work while all before them are held by a device.
pub(crate) const STEPS: usize = 3;
/// A step that takes longer is held by a device.
const LATE: Duration = Duration::from_secs(5);
/// How often a thread looks whether it is wanted.
const STAND_BY: Duration = Duration::from_secs(1);
/// How long a writer waits for others' rounds before it looks for another home.
const MOST_WAITS: u32 = 1000;
const WAIT: Duration = Duration::from_millis(10);

/// The state of write-back.
pub(crate) struct WriteBack {
    /// Most dirty pages; 0: no write goes to DRAM.
    pub limit_pages: u64,
    pub waker: Waker,
    pub errors: WriteErrors,
    /// Pages that writers may make dirty and have not yet.
    admitted: AtomicU64,
    /// Set from 5 % free to 20 % free.
    draining: AtomicBool,
    /// Rises with every group done.
    rounds: (Mutex<u64>, Condvar),
    /// When each thread began its present step; 0: it is in none.
    begun_ns: [AtomicU64; STEPS],
}

impl WriteBack {
    pub fn new(buffer_bytes: u64) -> WriteBack {
        WriteBack {
            limit_pages: buffer_bytes / BLOCK_SIZE,
            waker: Waker::new(),
            errors: WriteErrors::new(),
            admitted: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            rounds: (Mutex::new(0), Condvar::new()),
            begun_ns: Default::default(),
        }
    }

    /// Lets a writer make so many pages dirty, if there is room for them beside those that others may make; a write that is
    /// larger than all room is let through alone. Of several that ask at once one or all may be refused that would fit.
    fn admit(&self, pages: u64, dirty: u64) -> Option<DirtyRoom<'_>> {
        let before = self.admitted.fetch_add(pages, Ordering::AcqRel).saturating_add(dirty);
        let room = DirtyRoom { write_back: self, pages };
        (before == 0 || before + pages <= self.limit_pages).then_some(room)
    }

    /// Pages that writers may make dirty and have not yet.
    pub fn admitted_pages(&self) -> u64 {
        self.admitted.load(Ordering::Acquire)
    }

    /// Whether the first `count` threads are all held by a device.
    fn are_late(&self, count: usize, now_ns: u64) -> bool {
        let late = |begun: &AtomicU64| {
            let begun_ns = begun.load(Ordering::Acquire);
            begun_ns > 0 && now_ns.saturating_sub(begun_ns) > LATE.as_nanos() as u64
        };
        self.begun_ns.iter().take(count).all(late)
    }

    /// Whether some thread is held by a device, and with it the pages that it has in flight.
    pub fn is_one_late(&self, now_ns: u64) -> bool {
        self.are_late(1, now_ns)
    }

    /// Wakes the background when little room is left.
    pub fn wake_if_due(&self, dirty: u64) {
        if self.is_nearly_full(dirty) && !self.draining.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    fn is_nearly_full(&self, dirty: u64) -> bool {
        dirty.saturating_mul(100) > self.limit_pages.saturating_mul(95)
    }

    /// Whether pages have to go for room.
    fn is_draining(&self, dirty: u64) -> bool {
        if dirty.saturating_mul(100) <= self.limit_pages.saturating_mul(80) {
            self.draining.store(false, Ordering::Release);
        } else if self.is_nearly_full(dirty) {
            self.draining.store(true, Ordering::Release);
        }
        self.draining.load(Ordering::Acquire)
    }

    /// Waits until another group is done, at most `limit`.
    pub fn wait_round(&self, limit: Duration) {
        if interleave::active() {
            return interleave::point("writeback:round");
        }
        let mut rounds = self.rounds.0.lock();
        self.rounds.1.wait_for(&mut rounds, limit);
    }

    fn round_done(&self) {
        *self.rounds.0.lock() += 1;
        self.rounds.1.notify_all();
    }

    /// The file is gone.
    pub fn forget(&self, ino: Ino) {
        self.errors.forget(ino);
    }
}

/// Room for pages that a writer is about to make dirty. Kept until they are: or each of many writers would find the same.
#[must_use]
pub(crate) struct DirtyRoom<'a> {
    write_back: &'a WriteBack,
    pages: u64,
}

impl Drop for DirtyRoom<'_> {
    fn drop(&mut self) {
        self.write_back.admitted.fetch_sub(self.pages, Ordering::AcqRel);
    }
}

/// What a round in the background did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    Progress,
    /// Nothing is due, or others have it.
    Nothing,
}

impl Fs {
    /// Notes what became of a write-back of what was an inode's `generation` when it began.
    fn note_round(&self, ino: Ino, generation: Option<u32>, result: &FsResult<()>) {
        match result {
            Ok(()) => self.write_back.errors.succeeded(ino),
            // Of a file that was removed meanwhile: who has its number next must not be told.
            Err(FsError::WouldBlock | FsError::Stale) => {}
            Err(error) => {
                // A removal forgets failures under the exclusive lock. What cannot be read is told rather than not.
                let _guard = self.locks.read(ino);
                let is_gone = match (self.load(ino), generation) {
                    (Ok(inode), Some(generation)) => inode.slot.generation.get() != generation,
                    (Err(FsError::Stale), _) => true,
                    _ => false,
                };
                if !is_gone {
                    self.write_back.errors.note(ino, error, self.clock.monotonic_ns());
                }
            }
        }
        self.write_back.round_done();
    }

    /// The generation of an inode that is in use and can be read.
    fn generation_of(&self, ino: Ino) -> Option<u32> {
        let _guard = self.locks.read(ino);
        self.load(ino).ok().map(|inode| inode.slot.generation.get())
    }

    /// Writes a file back and notes what became of it.
    pub(crate) fn write_back_noted(&self, ino: Ino) -> FsResult<()> {
        let generation = self.generation_of(ino);
        let result = match self.write_back_file(ino) {
            // It was removed meanwhile: nothing of it is to be durable.
            Err(FsError::Stale) => Ok(()),
            result => result,
        };
        self.note_round(ino, generation, &result);
        result
    }

    /// One group around a block.
    fn group_round(&self, ino: Ino, block: FileBlock) -> FsResult<Round> {
        let generation = self.generation_of(ino);
        let blocks = self.blocks_with(ino, block);
        let written = blocks.and_then(|blocks| self.write_back_blocks(ino, &blocks, interleave::active()));
        match written {
            // Nothing was tried of what others have in flight.
            Ok(written) if written.blocks.is_empty() => {
                self.write_back.round_done();
                Ok(Round::Nothing)
            }
            Ok(_) => {
                self.note_round(ino, generation, &Ok(()));
                Ok(Round::Progress)
            }
            // What was promised is free and waits for readers of its old content: no failure that anybody is to hear of.
            Err(error @ FsError::Engine(Error::NoSpace(_))) => {
                self.write_back.errors.postpone(ino, &error, self.clock.monotonic_ns());
                self.write_back.round_done();
                Err(error)
            }
            Err(FsError::Stale) => Ok(Round::Nothing),
            Err(error) => {
                self.note_round(ino, generation, &Err(error.clone()));
                Err(error)
            }
        }
    }

    /// Writes back the group that was written least recently, of a file that does not wait after a failure.
    fn pressure_round(&self) -> FsResult<Round> {
        let now = self.clock.monotonic_ns();
        let errors = &self.write_back.errors;
        match self.cache.least_recently_written(|ino| !errors.is_waiting(ino, now)) {
            Some(key) => match self.group_round(key.ino, key.block)? {
                // Others have all of it in flight, on a device that may hang.
                Round::Nothing => self.any_round(now),
                progress => Ok(progress),
            },
            None => self.any_round(now),
        }
    }

    /// Behind many pages of files that wait, or are in flight, there may be others.
    fn any_round(&self, now_ns: u64) -> FsResult<Round> {
        for ino in self.cache.dirty_files() {
            if !self.write_back.errors.is_waiting(ino, now_ns)
                && let Some(block) = self.cache.next_dirty(ino, FileBlock(0), FileBlock(u64::MAX))
                && self.group_round(ino, block)? == Round::Progress
            {
                return Ok(Round::Progress);
            }
        }
        Ok(Round::Nothing)
    }

    /// Writes back a group with a page that is dirty for too long, and raises sizes that nothing holds back.
    fn age_round(&self) -> FsResult<Round> {
        let now = self.clock.monotonic_ns();
        let Some(cutoff) = now.checked_sub((OLD - PERIOD).as_nanos() as u64) else {
            return Ok(Round::Nothing);
        };
        let errors = &self.write_back.errors;
        let due = self.cache.aged(cutoff);
        let mut first_error = None;
        for (ino, block) in due.into_iter().filter(|(ino, _)| !errors.is_waiting(*ino, now)) {
            match self.group_round(ino, block) {
                Ok(Round::Progress) => return Ok(Round::Progress),
                Ok(Round::Nothing) => {}
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        for ino in self.unwritten.files() {
            if self.cache.count_dirty(ino) == 0 && !errors.is_waiting(ino, now) {
                let generation = self.generation_of(ino);
                let raised = self.raise_durable(ino, Wait::Allowed);
                self.note_round(ino, generation, &raised);
            }
        }
        first_error.map_or(Ok(Round::Nothing), Err)
    }

    /// Waits for room for some dirty pages; helps to make it.
    ///
    /// # Errors
    /// `WouldBlock`; ENOSPC or what the device says when none can be made: PM may take the write then.
    pub(crate) fn wait_for_dirty_room(&self, pages: u64, wait: Wait) -> FsResult<DirtyRoom<'_>> {
        let mut waits = 0;
        loop {
            if let Some(room) = self.write_back.admit(pages, self.cache.dirty_pages()) {
                return Ok(room);
            }
            if wait != Wait::Allowed {
                return Err(FsError::WouldBlock);
            }
            match self.pressure_round() {
                Ok(Round::Progress) => {}
                // Another file may go; this one waits now.
                Err(error) if waits > MOST_WAITS => return Err(error),
                Err(_) => waits += 1,
                Ok(Round::Nothing) => {
                    let now = self.clock.monotonic_ns();
                    let stuck = |ino: &Ino| self.write_back.errors.is_waiting(*ino, now);
                    waits += 1;
                    let files = self.cache.dirty_files();
                    if waits > MOST_WAITS || (!files.is_empty() && files.iter().all(stuck)) {
                        return Err(self.write_back.errors.last().unwrap_or(NoSpace::Tier.into()));
                    }
                    self.write_back.wait_round(WAIT);
                }
            }
        }
    }
}

/// Background: one group per step.
pub(crate) struct WriteBackStep {
    fs: Weak<Fs>,
    /// Below [`STEPS`].
    number: usize,
    next_look_ns: u64,
}

impl WriteBackStep {
    pub fn new(fs: &Arc<Fs>, number: usize) -> WriteBackStep {
        WriteBackStep { fs: Arc::downgrade(fs), number, next_look_ns: 0 }
    }

    fn work(&mut self, fs: &Fs) -> Next {
        let draining = fs.write_back.is_draining(fs.cache.dirty_pages());
        if draining && fs.pressure_round().is_ok_and(|round| round == Round::Progress) {
            return Next::Again;
        }
        let now = fs.clock.monotonic_ns();
        if now >= self.next_look_ns {
            match fs.age_round() {
                Ok(Round::Progress) => return Next::Again,
                Ok(Round::Nothing) => {}
                Err(error) => tracing::debug!("write-back: {error}"),
            }
            self.next_look_ns = now + PERIOD.as_nanos() as u64;
        }
        // What failed is tried after its pause; nothing here spins.
        Next::After(if draining { Duration::from_millis(100) } else { PERIOD })
    }
}

impl Step for WriteBackStep {
    fn name(&self) -> &'static str {
        ["terrace-writeb", "terrace-writeb1", "terrace-writeb2"].get(self.number).copied().unwrap_or_default()
    }

    fn step(&mut self) -> Next {
        let Some(fs) = self.fs.upgrade() else {
            return Next::Done;
        };
        if fs.wal.is_stopped() {
            return Next::After(PERIOD);
        }
        let now = fs.clock.monotonic_ns();
        if !fs.write_back.are_late(self.number, now) {
            return Next::After(STAND_BY);
        }
        let begun = &fs.write_back.begun_ns[self.number];
        begun.store(now.max(1), Ordering::Release);
        let next = self.work(&fs);
        begun.store(0, Ordering::Release);
        match next {
            // While it is wanted it comes as often as it looks.
            Next::After(pause) if self.number > 0 => Next::After(pause.min(STAND_BY)),
            next => next,
        }
    }
}
