//! Blocks pinned to PM in the search for victims: marked, left out, counted.

use crate::migration::Migration;
use terrace_blocks::{Descriptor, State};
use terrace_format::PmBlock;
use terrace_runtime::sync::atomic::Ordering;
use terrace_store::inode::tier_pin::{MOST_CLAIMED, REST};

/// Whether pinned blocks may be victims: while PM is emptied; and, when there are no other victims, while
/// users find no space (I9).
pub(crate) fn takes_kept(migration: &Migration, nothing_else: bool) -> bool {
    if migration.store.pressure.is_draining() {
        return true;
    }
    let (marked, usage) = (
        migration.store.inodes.tier_pins().kept.load(Ordering::Relaxed) > 0,
        migration.store.persistent.blocks().usage(),
    );
    // A large write claims many blocks at once.
    let short = usage.reserve + MOST_CLAIMED.min(usage.total / 6);
    nothing_else && marked && migration.store.persistent.blocks().free_hint() <= short
}

/// Whether the policy found only pinned blocks a moment ago: another search at once would find the same (M6).
pub(crate) fn rests_for_pins(migration: &Migration, now_ns: u64) -> bool {
    let draining = migration.store.pressure.is_draining();
    !draining && now_ns < migration.store.inodes.tier_pins().rest_until_ns.load(Ordering::Relaxed)
}

/// Notes that the policy found no victim.
pub(crate) fn rest_for_pins(migration: &Migration, now_ns: u64) {
    if migration.store.inodes.tier_pins().kept.load(Ordering::Relaxed) > 0 {
        migration
            .store
            .inodes
            .tier_pins()
            .rest_until_ns
            .store(now_ns + REST.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Counts the pinned blocks, and gives the filter that admits blocks as victims. After a change of a pin the
/// marks are cleared, and found anew.
pub(crate) fn count_kept(migration: &Migration, kept_too: bool) -> impl Fn(&Descriptor) -> bool + use<> {
    let changed = migration.store.inodes.tier_pins().changed.swap(false, Ordering::AcqRel);
    let mut kept = 0;
    if changed || migration.store.inodes.tier_pins().kept.load(Ordering::Relaxed) > 0 {
        for block in migration.store.persistent.blocks().first_block().0
            ..migration.store.persistent.blocks().end_block().0
        {
            let descriptor = migration.store.persistent.blocks().descriptor(PmBlock(block));
            if changed {
                descriptor.set_kept(false);
            } else if descriptor.is_kept() && descriptor.state() == State::Used {
                kept += 1;
            }
        }
        migration.store.inodes.tier_pins().kept.store(kept, Ordering::Relaxed);
    }
    move |descriptor| kept_too || !descriptor.is_kept()
}
