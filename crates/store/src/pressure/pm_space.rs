//! Free PM blocks against the marks: throttling of writers, and questions whether PM is short.

use crate::error::{FsError, FsResult};
use crate::store::Store;
use crate::types::Wait;
use std::time::Duration;
use terrace_format::TierId;
use terrace_space::SpaceTotals;

/// Whether a writer waits for PM blocks, or soon will.
pub(crate) fn is_short_of_pm(store: &Store) -> bool {
    let is_drained = store.pressure.is_draining();
    store.pressure.is_pressed()
        || !is_drained && store.persistent.blocks().free_hint() < store.pressure.throttle_below()
}

/// Back-pressure: a writer waits a little for demotion before PM is full.
pub fn wait_for_demotion(store: &Store, wait: Wait) -> FsResult<()> {
    store.persistent.wal().checkpoint_if_idle()?;
    store.persistent.blocks().drain_quarantine();
    let (free, low) = (store.persistent.blocks().free_hint(), store.pressure.throttle_below());
    let threads = store.pressure.has_workers();
    let stuck = store.pressure.is_stuck();
    if free >= low || !threads || stuck {
        return Ok(());
    }
    if wait == Wait::Never {
        return Err(FsError::WouldBlock);
    }
    store.pressure.wake();
    // The emptier PM is of free blocks, the longer the pause, up to 20 ms.
    let missing = (low - free) * 20 / low.max(1);
    store.pressure.wait_round(Duration::from_millis(1 + missing));
    Ok(())
}

/// Whether a lower tier is above its high mark and has another below it.
pub fn spills_from(store: &Store, tier: TierId) -> bool {
    let SpaceTotals { total, free } = store.devices.space().totals_now(&store.devices.of_tier(tier));
    let lowest = store.devices.tiers().last().copied();
    lowest != Some(tier) && store.steering.parameters().spill.is_due(total, total.saturating_sub(free))
}

/// Whether no lower tier has a free block. False as long as not all tiers are known.
pub fn is_full_below(store: &Store) -> bool {
    let devices: Vec<_> =
        store.devices.tiers().into_iter().flat_map(|tier| store.devices.of_tier(tier)).collect();
    store.devices.space().is_loaded() && store.devices.space().totals_now(&devices).free == 0
}

/// Blocks of all tiers together, used or not.
pub fn capacity(store: &Store) -> u64 {
    let below = store.devices.list().iter().map(|device| device.medium.blocks().saturating_sub(1));
    store.persistent.blocks().usage().total + below.sum::<u64>()
}

/// Waits for the end of the scan after mount, which shortage, statfs and ENOSPC need (design 4.2), and
/// helps with it.
///
/// # Errors
/// `WouldBlock` when it is under way and the caller may not wait; EIO.
pub fn wait_for_scan(store: &Store, wait: Wait) -> FsResult<()> {
    if store.persistent.blocks().usage().unknown == 0 && store.devices.space().is_loaded() {
        return Ok(());
    }
    if wait != Wait::Allowed {
        return Err(FsError::WouldBlock);
    }
    while store.persistent.blocks().scan_step()? || store.devices.space().load_step()? {}
    Ok(())
}

/// Whether a writer that comes too fast has to wait a little, before PM is full (design 5).
#[inline]
pub fn is_pm_short(store: &Store) -> bool {
    store.persistent.blocks().free_hint() < store.pressure.throttle_below()
}
