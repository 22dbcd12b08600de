//! Demotion of metadata pages: when, how many, and which ones, by a clock hand over PM.

use crate::migration::Migration;
use crate::planner::note_stuck;
use terrace_blocks::State;
use terrace_format::PmBlock;
use terrace_format::table::{Owner, PageKind};
use terrace_runtime::sync::atomic::Ordering;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::numbers::scan_inode_page;
use terrace_store::metadata::lower::{lower_pages, movable};
use terrace_wal::Error;

/// Pages moved by one write and one flush.
const BATCH: usize = 64;

/// Blocks that the clock hand passes in a round in the background.
const STRIDE: u64 = 8192;

/// Share of PM, in percent, above which metadata moves beside data.
const SHARE_PERCENT: u64 = 50;

/// How long data could not leave PM before metadata does instead, in nanoseconds.
const STUCK_NS: u64 = 500_000_000;

/// One round in the background: moves some cold metadata when PM is scarce and data cannot, or not alone, make
/// room. `wanted` is what the policy wants, `data_moves` whether data leaves PM; one round in which it does not says
/// little, all that was picked may have been in use. Returns pages moved.
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

/// As [`metadata_round`]; whether it moved any. A failure has its reason in status and backs off (M6).
pub(crate) fn lower_some(migration: &Migration, wanted: u64, data_moves: bool) -> bool {
    metadata_round(migration, wanted, data_moves).unwrap_or_else(|error| {
        note_stuck(migration, &error);
        0
    }) > 0
}

/// Moves up to a batch of cold pages down, the clock hand passing at most `stride` blocks. Returns how many moved;
/// 0 also when no tier has room for one.
pub fn lower_metadata(migration: &Migration, stride: u64) -> FsResult<u64> {
    let most = migration.store.persistent.metadata_pages().may_move();
    if most == 0 || migration.store.persistent.wal().is_stopped() {
        return Ok(0);
    }
    while migration.store.persistent.blocks().scan_step()? {}
    // Inode pages move when their free slots are known.
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

/// Moves down at once every metadata page that may move, however much room PM has. For tests and simulators.
/// Returns how many moved.
///
/// # Errors
/// The media's.
pub fn lower_metadata_now(migration: &Migration) -> FsResult<u64> {
    let mut all = 0;
    loop {
        // Twice around: what was used lately is cold the second time.
        match lower_metadata(migration, 2 * migration.store.persistent.blocks().end_block().0)? {
            0 => return Ok(all),
            moved => all += moved,
        }
    }
}

/// The next pages under the clock hand that were not used since it last came by; what it may still pass goes down.
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
