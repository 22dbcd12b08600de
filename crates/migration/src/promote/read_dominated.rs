//! Promotion by policy ([TPFS] section 5.4, "reverse migration"): while PM bandwidth idles, cold blocks of
//! read-dominated files are promoted.
//!
//! A step is one bounded piece: it looks at some entries of the table of files, reads some cold blocks of one
//! file and queues them for promotion. It fills PM only up to the threshold, so that no block is demoted for
//! it. After an error of a device it pauses (M6).

use crate::migration::Migration;
use crate::observe::observe;
use crate::pace::BACK_OFF;
use crate::promote::cursor::{Cursor, next_read_dominated};
use terrace_placement::decision::{ReadRule, read_rule};
use terrace_store::attempt::with_pages::with_pages;
use terrace_store::error::FsError;
use terrace_store::moving::bring_up::{PIECE, bring_up};
use terrace_store::types::Wait;

/// Promotes a piece, if the policy and equation (2) ask for it and there is room below the threshold.
pub(crate) fn reverse_round(migration: &Migration) {
    let idle = migration.store.steering.data_flows().idle();
    if !migration.store.steering.policy().follows_reads()
        || read_rule(true, false, idle) != ReadRule::ToPm
        || migration.store.mode.read_only
    {
        return;
    }
    let now = migration.store.clock.monotonic_ns();
    // The cursor is taken out, so that no lock is held while a device is read.
    let mut cursor = std::mem::take(&mut *migration.reverse.lock());
    reverse_piece(migration, &mut cursor, now);
    *migration.reverse.lock() = cursor;
}

fn reverse_piece(migration: &Migration, cursor: &mut Cursor, now: u64) {
    if now < cursor.not_before_ns
        || !migration.store.dram.promotions().is_empty()
        || migration.store.pressure.is_stuck()
        || migration.store.pressure.is_draining()
        || room_below_threshold(migration) < PIECE
    {
        return;
    }
    let Some((ino, generation, from)) =
        cursor.file.take().or_else(|| next_read_dominated(&migration.store, cursor))
    else {
        return;
    };
    match with_pages(&migration.store, Wait::Allowed, || bring_up(&migration.store, ino, generation, from)) {
        Ok(next) => cursor.file = next.map(|next| (ino, generation, next)),
        Err(FsError::Stale) => {}
        Err(error) => {
            tracing::debug!("reverse migration of inode {ino}: {error}");
            cursor.not_before_ns = now + BACK_OFF.as_nanos() as u64;
        }
    }
}

/// PM blocks that may be used before demotion begins.
fn room_below_threshold(migration: &Migration) -> u64 {
    let seen = observe(migration);
    let percent = u64::from(migration.store.steering.policy().threshold_percent(&seen).unwrap_or(0));
    (seen.total_blocks * percent / 100).saturating_sub(seen.used_blocks() + seen.arriving_blocks)
}
