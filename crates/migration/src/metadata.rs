//! Demotion of metadata pages. A clock hand over PM finds cold pages; pages are demoted when PM is short and
//! data cannot make room.

use crate::migration::Migration;
use crate::planner::note_stuck;
use terrace_blocks::State;
use terrace_format::PmBlock;
use terrace_format::table::{Owner, PageKind};
use terrace_runtime::sync::atomic::Ordering;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::numbers::scan_inode_page;
use terrace_store::metadata::lower::{lower_pages, movable};
use terrace_store::pressure::pm_space::is_full_below;
use terrace_wal::Error;

/// Pages demoted with one flush.
const BATCH: usize = 64;

/// Blocks that the clock hand passes in a background round.
const STRIDE: u64 = 8192;

/// Share of metadata in PM, in percent, above which it is demoted beside data.
const SHARE_PERCENT: u64 = 50;

/// The time without demotion of data, in nanoseconds, after which metadata is demoted instead.
const STUCK_NS: u64 = 500_000_000;

/// A background round: demotes some cold metadata pages when PM is short and data cannot make room, or not
/// alone. `wanted` is the number of blocks that the policy wants, `data_moves` whether data is demoted. A
/// single round without demoted data proves little: all its victims may have been in use. Returns the number
/// of demoted pages.
fn metadata_round(migration: &Migration, wanted: u64, data_moves: bool) -> FsResult<u64> {
    let metadata = migration.store.persistent.metadata_pages();
    if !metadata.allowed || migration.store.pressure.is_draining() {
        return Ok(0);
    }
    let share =
        metadata.hand.lock().last_turn * 100 / migration.store.persistent.blocks().usage().total.max(1);
    let is_stuck = wanted > 0 && !data_moves;
    let stuck_ns = metadata.data_is_stuck_for(is_stuck, migration.store.clock.monotonic_ns());
    let due = wanted > 0 && share > SHARE_PERCENT || is_stuck && stuck_ns >= STUCK_NS;
    if !due && !metadata.eager {
        return Ok(0);
    }
    lower_metadata(migration, STRIDE)
}

/// As [`metadata_round`]; gives whether a page was demoted. After a failure status shows the reason, and a
/// pause follows (M6).
pub(crate) fn lower_some(migration: &Migration, wanted: u64, data_moves: bool) -> bool {
    metadata_round(migration, wanted, data_moves).unwrap_or_else(|error| {
        note_stuck(migration, &error);
        0
    }) > 0
}

/// Demotes up to a batch of cold pages; the clock hand passes at most `stride` blocks. Returns the number of
/// demoted pages, 0 also when no tier has room.
pub fn lower_metadata(migration: &Migration, stride: u64) -> FsResult<u64> {
    let most = migration.store.persistent.metadata_pages().may_move();
    if most == 0 || migration.store.persistent.wal().is_stopped() {
        return Ok(0);
    }
    // The search for pages that no tier has room for would pass all of PM, once for each writer that waits for room.
    if is_full_below(&migration.store) {
        return Ok(0);
    }
    while migration.store.persistent.blocks().scan_step()? {}
    // An inode page is demoted only when its free slots are known.
    while scan_inode_page(&migration.store, &mut migration.store.inodes.numbers().lock())? {}
    let (mut cold, mut left) = (Vec::new(), stride);
    while cold.is_empty() && left > 0 {
        let picked = pick_metadata(migration, &mut left).into_iter();
        cold.extend(picked.filter_map(|(pm, kind, datum)| movable(&migration.store, pm, kind, datum)));
    }
    cold.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    if cold.is_empty() {
        return Ok(0);
    }
    let moved = match lower_pages(&migration.store, &cold) {
        Err(FsError::Engine(Error::NoSpace(_))) => 0,
        moved => moved?,
    };
    if moved > 0 {
        migration.store.pressure.clear_reason();
        migration.not_before_ns.store(0, Ordering::Relaxed);
    }
    migration.store.persistent.metadata_pages().lowered.fetch_add(moved, Ordering::Relaxed);
    migration.store.pressure.moved().left.fetch_add(moved, Ordering::Relaxed);
    migration.store.persistent.wal().checkpoint_at_leisure()?;
    migration.store.persistent.blocks().drain_quarantine();
    Ok(moved)
}

/// Demotes at once every metadata page that may be demoted, however much room PM has. For tests and
/// simulators. Returns the number of demoted pages.
///
/// # Errors
/// The media's.
pub fn lower_metadata_now(migration: &Migration) -> FsResult<u64> {
    let mut all = 0;
    loop {
        // The clock hand goes round twice: pages used lately count as cold the second time.
        match lower_metadata(migration, 2 * migration.store.persistent.blocks().end_block().0)? {
            0 => return Ok(all),
            moved => all += moved,
        }
    }
}

/// The next pages under the clock hand that were not used since its last visit. `left` counts down the blocks
/// that the hand may still pass.
fn pick_metadata(migration: &Migration, left: &mut u64) -> Vec<(PmBlock, PageKind, u32)> {
    let (first, end) = (
        migration.store.persistent.blocks().first_block().0,
        migration.store.persistent.blocks().end_block().0,
    );
    let mut hand = migration.store.persistent.metadata_pages().hand.lock();
    let mut cold = Vec::new();
    while *left > 0 && cold.len() < BATCH {
        *left -= 1;
        if hand.next < first || hand.next >= end {
            hand.next = first;
            hand.last_turn = std::mem::take(&mut hand.seen);
            migration.store.persistent.metadata_pages().brought.store(0, Ordering::Relaxed);
        }
        let pm = PmBlock(hand.next);
        hand.next += 1;
        let descriptor = migration.store.persistent.blocks().descriptor(pm);
        if descriptor.state() != State::Used {
            continue;
        }
        let Ok(Owner::Page { kind: kind @ (PageKind::CatalogPage | PageKind::InodePage), datum }) =
            migration.store.persistent.blocks().owner(pm)
        else {
            continue;
        };
        hand.seen += 1;
        if !descriptor.clear_in_use() && !descriptor.is_pinned() {
            cold.push((pm, kind, datum));
        }
    }
    cold
}
