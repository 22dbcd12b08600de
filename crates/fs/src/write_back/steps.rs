//! When dirty pages are written back ([HiNFS] section 3.3): from 5 % free room in DRAM on until 20 % are
//! free, the least recently written first; every five seconds the pages that are dirty for thirty; and by
//! writers that find no room.
//!
//! A single thread does this work. While a device holds it up, the next thread goes on with pages for other
//! devices, and so on ([`STEPS`]).

use crate::write_back::file::{blocks_with, raise_durable, write_back_file};
use crate::write_back::group::{Written, write_back_blocks};
use crate::write_back::lazy::write_back_lazy;
use std::sync::{Arc, Weak};
use std::time::Duration;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_placement::Home;
use terrace_runtime::sync::atomic::Ordering;
use terrace_runtime::{Next, Step, interleave};
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::load;
use terrace_store::parts::dram::write_back::DirtyRoom;
use terrace_store::store::Store;
use terrace_store::types::Wait;
use terrace_wal::{Error, NoSpace};

/// How often a thread looks whether it is wanted.
const STAND_BY: Duration = Duration::from_secs(1);

/// The number of waits for other rounds of write-back before a writer looks for another home.
const MOST_WAITS: u32 = 1000;
/// How often a lazy write waits for the end of another group before it goes the direct way.
const MOST_LAZY_WAITS: u32 = 10;
/// How many groups a lazy write writes back for room before it goes the direct way.
const MOST_LAZY_ROUNDS: u32 = 64;

const WAIT: Duration = Duration::from_millis(10);

/// The result of a round in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    Progress,
    /// No page is due, or other threads have all due pages in flight.
    Nothing,
}

/// Notes the result of a write-back; `generation` is that of the inode when it began.
fn note_round(store: &Store, ino: Ino, generation: Option<u32>, result: &FsResult<()>) {
    match result {
        Ok(()) => store.dram.write_back().errors.succeeded(ino),
        // `Stale`: the file was removed meanwhile, and the next file of its inode number must not be told the
        // error.
        Err(FsError::WouldBlock | FsError::Stale) => {}
        Err(error) => {
            // A removal forgets failures under the exclusive lock. An inode that cannot be read is told
            // rather than spared.
            let _guard = store.inodes.locks().read(ino);
            let is_gone = match (load(store, ino), generation) {
                (Ok(inode), Some(generation)) => inode.slot.generation.get() != generation,
                (Err(FsError::Stale), _) => true,
                _ => false,
            };
            if !is_gone {
                store.dram.write_back().errors.note(ino, error, store.clock.monotonic_ns());
            }
        }
    }
    store.dram.write_back().round_done();
}

/// The generation of an inode that is in use and can be read.
fn generation_of(store: &Store, ino: Ino) -> Option<u32> {
    let _guard = store.inodes.locks().read(ino);
    load(store, ino).ok().map(|inode| inode.slot.generation.get())
}

/// Writes a file back and notes the result.
pub fn write_back_noted(store: &Store, ino: Ino, wait: Wait) -> FsResult<()> {
    let generation = generation_of(store, ino);
    let result = match write_back_file(store, ino, wait) {
        // The file was removed meanwhile: no byte of it needs to be durable.
        Err(FsError::Stale) => Ok(()),
        result => result,
    };
    note_round(store, ino, generation, &result);
    result
}

/// Writes back a group around a block.
fn group_round(store: &Store, ino: Ino, block: FileBlock) -> FsResult<Round> {
    round_of(store, ino, block, |home, blocks| match home {
        Home::Block => write_back_blocks(store, ino, blocks, interleave::active()),
        Home::Pm => write_back_lazy(store, ino, blocks, interleave::active(), Wait::Allowed),
    })
}

/// Writes back a group around a block if it goes into PM; with `Wait::Never` no device is asked for what it lacks.
fn pm_group_round(store: &Store, ino: Ino, block: FileBlock, wait: Wait) -> FsResult<Round> {
    round_of(store, ino, block, |home, blocks| match home {
        Home::Block => Ok(Written::default()),
        Home::Pm => write_back_lazy(store, ino, blocks, interleave::active(), wait),
    })
}

fn round_of(
    store: &Store,
    ino: Ino,
    block: FileBlock,
    write: impl FnOnce(Home, &[FileBlock]) -> FsResult<Written>,
) -> FsResult<Round> {
    let generation = generation_of(store, ino);
    let written = blocks_with(store, ino, block).and_then(|(home, blocks)| write(home, &blocks));
    match written {
        Ok(Written { failed: Some((_, error)), .. }) => {
            note_round(store, ino, generation, &Err(error.clone()));
            Err(error)
        }
        // No page was written, as other threads have them in flight: the file's failures stay as they are.
        Ok(written) if written.blocks.is_empty() => {
            store.dram.write_back().round_done();
            Ok(Round::Nothing)
        }
        Ok(_) => {
            note_round(store, ino, generation, &Ok(()));
            Ok(Round::Progress)
        }
        // The reserved device blocks are still under I/O pins of readers of their old content: a delay, and
        // no failure to tell a descriptor of.
        Err(error @ FsError::Engine(Error::NoSpace(_))) => {
            store.dram.write_back().errors.postpone(ino, &error, store.clock.monotonic_ns());
            store.dram.write_back().round_done();
            Err(error)
        }
        Err(FsError::Stale) => Ok(Round::Nothing),
        Err(error) => {
            note_round(store, ino, generation, &Err(error.clone()));
            Err(error)
        }
    }
}

/// Writes back the group that was written least recently, of a file that does not wait after a failure.
fn pressure_round(store: &Store) -> FsResult<Round> {
    // PM takes its pages at once, and no device holds them up.
    match lazy_round(store) {
        Ok(true) => Ok(Round::Progress),
        _ => device_round(store),
    }
}

/// As [`pressure_round`], of pages for devices, unless there are none.
fn device_round(store: &Store) -> FsResult<Round> {
    let now = store.clock.monotonic_ns();
    let errors = &store.dram.write_back().errors;
    match store.dram.cache().least_recently_written(Home::Block, |ino| !errors.is_waiting(ino, now)) {
        Some(key) => match group_round(store, key.ino, key.block)? {
            // Other threads have the whole group in flight, perhaps on a device that hangs.
            Round::Nothing => any_round(store, now),
            progress => Ok(progress),
        },
        None => any_round(store, now),
    }
}

/// Writes back the group for PM that was written least recently, of a file that does not wait after a failure. False: there
/// was none. No device is asked (I10), and no PM block but those promised (P1): a page that needs either is for others.
pub fn lazy_round(store: &Store) -> FsResult<bool> {
    let (now, errors) = (store.clock.monotonic_ns(), &store.dram.write_back().errors);
    let lazy = store.dram.cache().least_recently_written(Home::Pm, |ino| !errors.is_waiting(ino, now));
    let mut first_error = None;
    match lazy.map(|key| pm_group_round(store, key.ino, key.block, Wait::Never)) {
        None => return Ok(false),
        Some(Ok(Round::Progress)) => return Ok(true),
        Some(Ok(Round::Nothing)) => {}
        Some(Err(error)) => first_error = Some(error),
    }
    // The page lies behind a page that a device holds up, is in flight elsewhere, or fails.
    for ino in store.dram.cache().dirty_files().into_iter().filter(|ino| !errors.is_waiting(*ino, now)) {
        if let Some(block) = store.dram.cache().next_dirty(ino, FileBlock(0), FileBlock(u64::MAX)) {
            match pm_group_round(store, ino, block, Wait::Never) {
                Ok(Round::Progress) => return Ok(true),
                Ok(Round::Nothing) => {}
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
    }
    first_error.map_or(Ok(false), Err)
}

/// Writes back the first group behind the durable end of a file, if its home is PM; false: it is not, cannot be written, or is
/// in flight for long.
pub(crate) fn tail_round(store: &Store, ino: Ino) -> bool {
    const MOST_TRIES: u32 = 8;
    let first = || {
        let inode = load(store, ino).ok()?;
        let durable = FileBlock(inode.durable_size() / BLOCK_SIZE);
        let block = store.dram.cache().next_dirty(ino, durable, FileBlock(u64::MAX))?;
        (store.dram.cache().home_of(inode.page_key(block))? == Home::Pm).then_some(block)
    };
    for _ in 0..MOST_TRIES {
        let block = {
            let _guard = store.inodes.locks().read(ino);
            first()
        };
        match block.map(|block| pm_group_round(store, ino, block, Wait::Allowed)) {
            Some(Ok(Round::Progress)) => return true,
            Some(Ok(Round::Nothing)) => store.dram.write_back().wait_round(WAIT),
            Some(Err(_)) | None => return false,
        }
    }
    false
}

/// Behind many pages in flight, or of files that wait, there may be pages to write.
fn any_round(store: &Store, now_ns: u64) -> FsResult<Round> {
    for ino in store.dram.cache().dirty_files() {
        if !store.dram.write_back().errors.is_waiting(ino, now_ns)
            && let Some(block) = store.dram.cache().next_dirty(ino, FileBlock(0), FileBlock(u64::MAX))
            && group_round(store, ino, block)? == Round::Progress
        {
            return Ok(Round::Progress);
        }
    }
    Ok(Round::Nothing)
}

/// Writes back a group with a page that is dirty for too long, and raises sizes that nothing holds back.
fn age_round(store: &Store) -> FsResult<Round> {
    let first_error = match aged_group(store, |ino, block| group_round(store, ino, block)) {
        Ok(Round::Progress) => return Ok(Round::Progress),
        aged => aged.err(),
    };
    let (now, errors) = (store.clock.monotonic_ns(), &store.dram.write_back().errors);
    for ino in store.dram.volatile_sizes().files() {
        if store.dram.cache().count_dirty(ino) == 0 && !errors.is_waiting(ino, now) {
            let generation = generation_of(store, ino);
            let raised = raise_durable(store, ino, Wait::Allowed);
            note_round(store, ino, generation, &raised);
        }
    }
    first_error.map_or(Ok(Round::Nothing), Err)
}

/// As [`age_round`], of groups for PM alone: a device that hangs holds none of them up. False: none was written.
pub(crate) fn lazy_age_round(store: &Store) -> bool {
    let aged = aged_group(store, |ino, block| pm_group_round(store, ino, block, Wait::Never));
    aged.is_ok_and(|round| round == Round::Progress)
}

/// A round with a page that is dirty for too long, the first one that makes progress.
fn aged_group(store: &Store, write: impl Fn(Ino, FileBlock) -> FsResult<Round>) -> FsResult<Round> {
    let now = store.clock.monotonic_ns();
    // Pages that would be older at the next look are written back.
    let options = store.dram.lazy_writes().options();
    let Some(cutoff) = now.checked_sub(options.age.saturating_sub(options.period).as_nanos() as u64) else {
        return Ok(Round::Nothing);
    };
    let errors = &store.dram.write_back().errors;
    let due = store.dram.cache().aged(cutoff);
    let mut first_error = None;
    for (ino, block) in due.into_iter().filter(|(ino, _)| !errors.is_waiting(*ino, now)) {
        match write(ino, block) {
            Ok(Round::Progress) => return Ok(Round::Progress),
            Ok(Round::Nothing) => {}
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    first_error.map_or(Ok(Round::Nothing), Err)
}

/// Waits for room for some dirty pages; helps to make it.
///
/// # Errors
/// `WouldBlock`; ENOSPC or what the device says when none can be made: PM may take the write then.
pub(crate) fn wait_for_dirty_room(store: &Store, pages: u64, wait: Wait) -> FsResult<DirtyRoom<'_>> {
    let mut waits = 0;
    loop {
        if let Some(room) = store.dram.write_back().admit(pages, store.dram.cache().dirty_pages()) {
            return Ok(room);
        }
        if wait != Wait::Allowed {
            return Err(FsError::WouldBlock);
        }
        match pressure_round(store) {
            Ok(Round::Progress) => {}
            // The failed file waits for its pause; another file may be written next.
            Err(error) if waits > MOST_WAITS => return Err(error),
            Err(_) => waits += 1,
            Ok(Round::Nothing) => {
                let now = store.clock.monotonic_ns();
                let stuck = |ino: &Ino| store.dram.write_back().errors.is_waiting(*ino, now);
                waits += 1;
                let files = store.dram.cache().dirty_files();
                if waits > MOST_WAITS || (!files.is_empty() && files.iter().all(stuck)) {
                    return Err(store.dram.write_back().errors.last().unwrap_or(NoSpace::Tier.into()));
                }
                store.dram.write_back().wait_round(WAIT);
            }
        }
    }
}

/// Room for some lazy pages; `None`: there is none now.
pub(crate) fn admit_lazy(store: &Store, pages: u64) -> Option<DirtyRoom<'_>> {
    let (cache, write_back) = (store.dram.cache(), store.dram.write_back());
    write_back.admit_lazy(pages, cache.dirty_pages(), cache.dirty_pages_of(Home::Pm))
}

/// As [`admit_lazy`], after a wait in which lazy pages are written back, if the caller may wait. `None`: pages for devices, of
/// which nobody knows how long they take, or pages that cannot be written now fill the buffer, and PM takes the write.
pub(crate) fn wait_for_lazy_room(store: &Store, pages: u64, wait: Wait) -> Option<DirtyRoom<'_>> {
    let mut waits = 0;
    // Other writers may take the room that a round makes.
    for _ in 0..MOST_LAZY_ROUNDS {
        if let Some(room) = admit_lazy(store, pages) {
            return Some(room);
        }
        if wait != Wait::Allowed
            || waits > MOST_LAZY_WAITS
            || store.dram.cache().dirty_pages_of(Home::Pm) < pages
        {
            return None;
        }
        match lazy_round(store) {
            Ok(true) => {}
            Ok(false) => {
                waits += 1;
                store.dram.write_back().wait_round(WAIT);
            }
            Err(_) => return None,
        }
    }
    None
}

/// Background: one group per step.
pub struct WriteBackStep {
    store: Weak<Store>,
    /// Below [`STEPS`].
    number: usize,
    next_look_ns: u64,
}

impl WriteBackStep {
    /// The step of one thread.
    pub fn new(store: &Arc<Store>, number: usize) -> WriteBackStep {
        WriteBackStep { store: Arc::downgrade(store), number, next_look_ns: 0 }
    }

    fn work(&mut self, store: &Store) -> Next {
        // Old pages first: a page that is written again and again is never the one written least recently.
        let (now, period) = (store.clock.monotonic_ns(), store.dram.lazy_writes().options().period);
        if now >= self.next_look_ns {
            match age_round(store) {
                Ok(Round::Progress) => return Next::Again,
                Ok(Round::Nothing) => {}
                Err(error) => tracing::debug!("write-back: {error}"),
            }
            self.next_look_ns = now + period.as_nanos() as u64;
        }
        let draining = store.dram.write_back().is_draining(store.dram.cache().dirty_pages());
        // Pages for PM are for the steps of their own (`lazy_step`).
        let has_pages = store.dram.cache().dirty_pages_of(Home::Block) > 0;
        if draining && has_pages && device_round(store).is_ok_and(|round| round == Round::Progress) {
            return Next::Again;
        }
        // A failed write-back is tried again after its pause, so the step does not spin.
        Next::After(if draining { Duration::from_millis(100) } else { period })
    }
}

impl Step for WriteBackStep {
    fn name(&self) -> &'static str {
        ["terrace-writeb", "terrace-writeb1", "terrace-writeb2"].get(self.number).copied().unwrap_or_default()
    }

    fn step(&mut self) -> Next {
        let Some(store) = self.store.upgrade() else {
            return Next::Done;
        };
        if store.persistent.wal().is_stopped() {
            return Next::After(store.dram.lazy_writes().options().period);
        }
        let now = store.clock.monotonic_ns();
        if !store.dram.write_back().are_late(self.number, now) {
            return Next::After(STAND_BY);
        }
        let begun = &store.dram.write_back().begun_ns[self.number];
        begun.store(now.max(1), Ordering::Release);
        let next = self.work(&store);
        begun.store(0, Ordering::Release);
        match next {
            // While it is wanted it comes as often as it looks.
            Next::After(pause) if self.number > 0 => Next::After(pause.min(STAND_BY)),
            next => next,
        }
    }
}
