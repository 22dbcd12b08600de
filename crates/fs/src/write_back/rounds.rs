//! Rounds of write-back: each writes one group of pages of a home ([HiNFS] section 3.3): that written least recently, pages that
//! are dirty for long, or pages behind a file's durable end.
//!
//! Failing pages for PM hold up no sound page of the file. Where a round over a file writes no page of a home, pages of that home
//! wait for a pause (`write_errors`).

use crate::write_back::file::{raise_durable, write_back_file};
use crate::write_back::group::{Written, write_back_blocks};
use crate::write_back::lazy::write_back_lazy;
use crate::write_back::tried::{Tried, try_group};
use std::time::Duration;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_placement::Home;
use terrace_runtime::interleave;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::load;
use terrace_store::parts::dram::write_errors::WriteErrors;
use terrace_store::store::Store;
use terrace_store::types::Wait;
use terrace_wal::Error;

/// The longest wait for a round of another thread.
pub(crate) const WAIT: Duration = Duration::from_millis(10);

/// The result of a round in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    Progress,
    /// No page is due, or other threads have all due pages in flight.
    Nothing,
}

/// A file, and the generation of its inode when a write-back began.
type File = (Ino, Option<u32>);

/// Notes the result of a write-back of pages of a home, or of both homes.
fn note_round(store: &Store, file: File, home: Option<Home>, result: &FsResult<()>) {
    match result {
        Ok(()) => store.dram.write_back().errors.succeeded(file.0, home),
        Err(error) => note_failure(store, file, error, |errors| {
            errors.note(file.0, home, error, store.clock.monotonic_ns());
        }),
    }
    store.dram.write_back().round_done();
}

/// Notes a failure by `note`, if it is one of the file.
fn note_failure(store: &Store, (ino, generation): File, error: &FsError, note: impl FnOnce(&WriteErrors)) {
    match error {
        // `Stale`: the file was removed meanwhile, and the next file of its inode number must not be told the
        // error.
        FsError::WouldBlock | FsError::Stale => {}
        _ => {
            // A removal forgets failures under the exclusive lock. An inode that cannot be read is told
            // rather than spared.
            let _guard = store.inodes.locks().read(ino);
            let is_gone = match (load(store, ino), generation) {
                (Ok(inode), Some(generation)) => inode.slot.generation.get() != generation,
                (Err(FsError::Stale), _) => true,
                _ => false,
            };
            if !is_gone {
                note(&store.dram.write_back().errors);
            }
        }
    }
}

/// The generation of an inode that is in use and can be read.
fn generation_of(store: &Store, ino: Ino) -> Option<u32> {
    let _guard = store.inodes.locks().read(ino);
    load(store, ino).ok().map(|inode| inode.slot.generation.get())
}

/// Writes a file back and notes the result.
pub fn write_back_noted(store: &Store, ino: Ino, wait: Wait) -> FsResult<()> {
    let generation = generation_of(store, ino);
    let (home, result) = match write_back_file(store, ino, wait) {
        // The file was removed meanwhile: no byte of it needs to be durable.
        Ok(()) | Err((_, FsError::Stale)) => (None, Ok(())),
        Err((home, error)) => (home, Err(error)),
    };
    note_round(store, (ino, generation), home, &result);
    result
}

/// Writes back a group around a block, but for pages for PM that wait after a failure.
fn group_round(store: &Store, ino: Ino, block: FileBlock) -> FsResult<Round> {
    let file = (ino, generation_of(store, ino));
    let tried = try_group(store, ino, block, |home, blocks| match home {
        Home::Block => write_back_blocks(store, ino, blocks, interleave::active()),
        Home::Pm => Ok(Written::default()),
    });
    let now = store.clock.monotonic_ns();
    if tried.home == Some(Home::Pm) && !store.dram.write_back().errors.is_waiting(ino, Home::Pm, now) {
        return pm_group_round(store, ino, block, u64::MAX, Wait::Allowed);
    }
    end_round(store, file, tried, false)
}

/// Writes back a group around a block if it goes into PM; after a failure the first sound group of the file with a page that is
/// dirty since `since_ns` or before. With `Wait::Never` no device is asked for content that pages lack.
fn pm_group_round(store: &Store, ino: Ino, block: FileBlock, since_ns: u64, wait: Wait) -> FsResult<Round> {
    let file = (ino, generation_of(store, ino));
    let try_at = |block| {
        try_group(store, ino, block, |home, blocks| match home {
            Home::Block => Ok(Written::default()),
            Home::Pm => write_back_lazy(store, ino, blocks, interleave::active(), wait),
        })
    };
    let mut tried = try_at(block);
    let (mut from, mut failed, mut is_blocked) = (FileBlock(0), tried.failure(), tried.is_blocked());
    while !tried.is_progress() && (failed.is_some() || is_blocked) {
        let next = store.dram.cache().first_of_home(ino, Home::Pm, from, since_ns);
        let Some(next) = next else { break };
        let group = try_at(next);
        from = group.end.max(next.plus(1));
        failed = failed.or(group.failure());
        is_blocked |= group.is_blocked();
        // Behind the durable end pages go in the order of their blocks, and an earlier one stays.
        let is_behind = group.first < next;
        if group.is_progress() {
            tried = group;
        }
        if is_behind {
            break;
        }
    }
    let first = tried.first;
    match &mut tried.result {
        Ok(written) => written.failed = failed.map(|error| (first, error)),
        Err(FsError::WouldBlock) if failed.is_some() => {
            tried.result = Ok(Written { failed: failed.map(|error| (first, error)), ..Written::default() });
        }
        Err(_) => {}
    }
    end_round(store, file, tried, is_blocked)
}

/// Notes the result of a group. `is_blocked`: pages of the file need a device, which a failure does not keep from being asked.
fn end_round(store: &Store, file: File, tried: Tried, is_blocked: bool) -> FsResult<Round> {
    let home = tried.home;
    let is_progress = tried.is_progress();
    match tried.result {
        // Pages beside were written: no pause.
        Ok(Written { failed: Some((_, error)), .. })
            if (is_progress || is_blocked) && home == Some(Home::Pm) =>
        {
            note_failure(store, file, &error, |errors| errors.note_beside_progress(file.0, &error));
            store.dram.write_back().round_done();
            if is_progress { Ok(Round::Progress) } else { Err(FsError::WouldBlock) }
        }
        Ok(Written { failed: Some((_, error)), .. }) => {
            note_round(store, file, home, &Err(error.clone()));
            Err(error)
        }
        // No page was written, as other threads have them in flight: the file's failures stay as they are.
        Ok(_) if !is_progress => {
            store.dram.write_back().round_done();
            Ok(Round::Nothing)
        }
        Ok(_) => {
            note_round(store, file, home, &Ok(()));
            Ok(Round::Progress)
        }
        // The reserved device blocks are still under I/O pins of readers of their old content: a delay, and
        // no failure to tell a descriptor of.
        Err(error @ FsError::Engine(Error::NoSpace(_))) => {
            store.dram.write_back().errors.postpone(file.0, home, &error, store.clock.monotonic_ns());
            store.dram.write_back().round_done();
            Err(error)
        }
        Err(FsError::Stale) => Ok(Round::Nothing),
        Err(error) => {
            note_round(store, file, home, &Err(error.clone()));
            Err(error)
        }
    }
}

/// Writes back the group that was written least recently, of a file that does not wait after a failure.
pub(crate) fn pressure_round(store: &Store) -> FsResult<Round> {
    // PM takes its pages at once, and no device holds them up.
    match lazy_round(store) {
        Ok(true) => Ok(Round::Progress),
        _ => device_round(store),
    }
}

/// As [`pressure_round`], of pages for devices, unless there are none.
pub(crate) fn device_round(store: &Store) -> FsResult<Round> {
    let now = store.clock.monotonic_ns();
    let errors = &store.dram.write_back().errors;
    match store
        .dram
        .cache()
        .least_recently_written(Home::Block, |ino| !errors.is_waiting(ino, Home::Block, now))
    {
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
    lazy_round_with(store, Wait::Never)
}

/// As [`lazy_round`], which it is with `Wait::Never`; otherwise devices may be asked for what a page needs.
pub(crate) fn lazy_round_with(store: &Store, wait: Wait) -> FsResult<bool> {
    let (now, errors) = (store.clock.monotonic_ns(), &store.dram.write_back().errors);
    lazy_round_of(store, wait, |ino| !errors.is_waiting(*ino, Home::Pm, now))
}

/// As [`lazy_round`], without pauses after failures: PM answers at once, and a writer needs the promises.
pub fn promise_round(store: &Store) -> FsResult<bool> {
    lazy_round_of(store, Wait::Never, |_| true)
}

fn lazy_round_of(store: &Store, wait: Wait, is_ready: impl Fn(&Ino) -> bool) -> FsResult<bool> {
    let cache = store.dram.cache();
    if cache.dirty_pages_of(Home::Pm) == 0 {
        return Ok(false);
    }
    let oldest = cache.least_recently_written(Home::Pm, |ino| is_ready(&ino));
    let mut failed = None;
    if let Some(key) = oldest {
        match pm_group_round(store, key.ino, key.block, u64::MAX, wait) {
            Ok(Round::Progress) => return Ok(true),
            Ok(Round::Nothing) => {}
            Err(error) => failed = Some(error),
        }
    }
    // The page lies behind a page that a device holds up, is in flight elsewhere, or fails; or such pages are the oldest.
    for ino in cache.dirty_files().into_iter().filter(&is_ready) {
        if let Some(block) = cache.first_of_home(ino, Home::Pm, FileBlock(0), u64::MAX) {
            match pm_group_round(store, ino, block, u64::MAX, wait) {
                Ok(Round::Progress) => return Ok(true),
                Ok(Round::Nothing) => {}
                // A page that needs a device is for a thread that may ask it.
                Err(error) if failed.is_none() || matches!(error, FsError::WouldBlock) => {
                    failed = Some(error)
                }
                Err(_) => {}
            }
        }
    }
    failed.map_or(Ok(false), Err)
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
        match block.map(|block| pm_group_round(store, ino, block, u64::MAX, Wait::Allowed)) {
            Some(Ok(Round::Progress)) => return true,
            Some(Ok(Round::Nothing)) => store.dram.write_back().wait_round(WAIT),
            Some(Err(_)) | None => return false,
        }
    }
    false
}

/// Behind many pages in flight, or of files that wait, there may be pages to write.
fn any_round(store: &Store, now_ns: u64) -> FsResult<Round> {
    let (cache, errors) = (store.dram.cache(), &store.dram.write_back().errors);
    let mut first_error = None;
    for ino in cache.dirty_files().into_iter().filter(|ino| !errors.is_waiting(*ino, Home::Block, now_ns)) {
        let Some(first) = cache.next_dirty(ino, FileBlock(0), FileBlock(u64::MAX)) else { continue };
        let block = cache.first_of_home(ino, Home::Block, first, u64::MAX).unwrap_or(first);
        match group_round(store, ino, block) {
            Ok(Round::Progress) => return Ok(Round::Progress),
            Ok(Round::Nothing) => {}
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    first_error.map_or(Ok(Round::Nothing), Err)
}

/// Writes back a group with a page that is dirty for too long, and raises sizes that nothing holds back.
pub(crate) fn age_round(store: &Store) -> FsResult<Round> {
    // Pages for PM that fail hold up no page for a device.
    let aged = aged_group(store, Home::Block, |ino, first, cutoff| {
        let block = store.dram.cache().first_of_home(ino, Home::Block, first, cutoff);
        group_round(store, ino, block.unwrap_or(first))
    });
    let first_error = match aged {
        Ok(Round::Progress) => return Ok(Round::Progress),
        aged => aged.err(),
    };
    let (now, errors) = (store.clock.monotonic_ns(), &store.dram.write_back().errors);
    for ino in store.dram.volatile_sizes().files() {
        if store.dram.cache().count_dirty(ino) == 0 && !errors.is_waiting(ino, Home::Block, now) {
            let file = (ino, generation_of(store, ino));
            let raised = raise_durable(store, ino, Wait::Allowed);
            note_round(store, file, None, &raised);
        }
    }
    first_error.map_or(Ok(Round::Nothing), Err)
}

/// As [`age_round`], of pages for PM alone: a device that hangs or fails holds none of them up. False: none was written.
pub(crate) fn lazy_age_round(store: &Store) -> bool {
    let cache = store.dram.cache();
    let aged = aged_group(store, Home::Pm, |ino, first, cutoff| {
        match cache.first_of_home(ino, Home::Pm, first, cutoff) {
            Some(block) => pm_group_round(store, ino, block, cutoff, Wait::Never),
            None => Ok(Round::Nothing),
        }
    });
    aged.is_ok_and(|round| round == Round::Progress)
}

/// A round with a page that is dirty for too long, the first one that makes progress, of files whose pages of a home do not wait
/// after a failure. `write` gets the first such page of a file, of either home, and the time since when pages are too old.
fn aged_group(
    store: &Store,
    home: Home,
    write: impl Fn(Ino, FileBlock, u64) -> FsResult<Round>,
) -> FsResult<Round> {
    let now = store.clock.monotonic_ns();
    // Pages that would be older at the next look are written back.
    let options = store.dram.lazy_writes().options();
    let Some(cutoff) = now.checked_sub(options.age.saturating_sub(options.period).as_nanos() as u64) else {
        return Ok(Round::Nothing);
    };
    let errors = &store.dram.write_back().errors;
    let due = store.dram.cache().aged(cutoff);
    let mut first_error = None;
    for (ino, block) in due.into_iter().filter(|(ino, _)| !errors.is_waiting(*ino, home, now)) {
        match write(ino, block, cutoff) {
            Ok(Round::Progress) => return Ok(Round::Progress),
            Ok(Round::Nothing) => {}
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    first_error.map_or(Ok(Round::Nothing), Err)
}
