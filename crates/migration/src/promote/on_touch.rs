//! Promotion by touch: a cold block that is read again gets a clean copy in PM; its cold copy stays valid
//! (S2).

use crate::migration::Migration;
use terrace_store::error::{FsError, FsResult};
use terrace_store::moving::promote::promote;

/// Promotions done in one step.
const BATCH: usize = 64;

/// Does some of the queued promotions, as long as PM has room above the throttle mark.
pub fn promotion_round(migration: &Migration) -> FsResult<()> {
    for _ in 0..BATCH {
        // A block promoted during a `sync --to` would hide a cold copy that must be relocated.
        let draining = migration.store.pressure.drain_to().0 > 0;
        if draining
            || migration.store.persistent.blocks().free_hint() < 2 * migration.store.pressure.throttle_below()
        {
            migration.store.dram.promotions().clear();
            return Ok(());
        }
        let Some(promotion) = migration.store.dram.promotions().pop() else {
            return Ok(());
        };
        match promote(&migration.store, &promotion) {
            Ok(true) => {
                migration.store.pressure.moved().note_up(migration.store.clock.monotonic_ns());
                migration.store.dram.cache().remove(promotion.key);
            }
            Ok(false) | Err(FsError::Stale | FsError::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
