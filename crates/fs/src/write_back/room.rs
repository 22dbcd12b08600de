//! Room in DRAM for dirty pages: a writer without room writes pages back, or waits for those that do.

use crate::write_back::rounds::{Round, WAIT, lazy_round, pressure_round};
use terrace_format::FileBlock;
use terrace_placement::Home;
use terrace_store::error::{FsError, FsResult};
use terrace_store::parts::dram::write_back::DirtyRoom;
use terrace_store::store::Store;
use terrace_store::types::Wait;
use terrace_wal::NoSpace;

/// The number of waits for other rounds of write-back before a writer looks for another home.
const MOST_WAITS: u32 = 1000;
/// How often a lazy write waits for the end of another group before it goes the direct way.
const MOST_LAZY_WAITS: u32 = 10;
/// How many groups a lazy write writes back for room before it goes the direct way.
const MOST_LAZY_ROUNDS: u32 = 64;

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
            Err(error) if waits > MOST_WAITS => return Err(of_writer(Some(error))),
            Err(_) => waits += 1,
            Ok(Round::Nothing) => {
                waits += 1;
                let has_pages = store.dram.cache().dirty_pages() > 0;
                if waits > MOST_WAITS || has_pages && do_all_wait(store, &[Home::Block, Home::Pm]) {
                    return Err(of_writer(store.dram.write_back().errors.last()));
                }
                store.dram.write_back().wait_round(WAIT);
            }
        }
    }
}

/// The error of a writer without room, by the error of write-back: a writer is not told the damage of a second file (I8).
fn of_writer(error: Option<FsError>) -> FsError {
    error.filter(FsError::can_fall_back_to_pm).unwrap_or(NoSpace::Tier.into())
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
            // No round may come for seconds.
            Ok(false) if do_all_wait(store, &[Home::Pm]) => return None,
            Ok(false) => {
                waits += 1;
                store.dram.write_back().wait_round(WAIT);
            }
            Err(_) => return None,
        }
    }
    None
}

/// Whether all files with pages of some homes wait after a failure.
fn do_all_wait(store: &Store, homes: &[Home]) -> bool {
    let (now, errors, cache) =
        (store.clock.monotonic_ns(), &store.dram.write_back().errors, store.dram.cache());
    let is_there = |home: &&Home| cache.dirty_pages_of(**home) > 0;
    cache.dirty_files().into_iter().all(|ino| {
        homes.iter().filter(is_there).all(|home| {
            errors.is_waiting(ino, *home, now)
                || cache.first_of_home(ino, *home, FileBlock(0), u64::MAX).is_none()
        })
    })
}
