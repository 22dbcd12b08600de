//! Where a move may put blocks.

use crate::pressure::pm_space::spills_from;
use crate::store::Store;
use terrace_format::{DeviceId, TierId};

/// The lower tiers that a move may use, in the order in which they are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Destination {
    /// The fastest lower tier with room.
    Any,
    /// The given tier, else the fastest lower tier with room.
    Rather(TierId),
    /// The given tier alone.
    Only(TierId),
    /// The given tier or a lower one.
    AtOrBelow(TierId),
    /// A sound tier below the given one; only blocks on the given tier move (spill).
    Below(TierId),
}

impl Destination {
    /// Whether a block on this tier is at its destination.
    pub(crate) fn accepts(self, tier: TierId) -> bool {
        match self {
            Destination::Any | Destination::Rather(_) => true,
            Destination::Only(wanted) => tier == wanted,
            Destination::AtOrBelow(wanted) => tier >= wanted,
            Destination::Below(full) => tier > full,
        }
    }

    /// Whether a block on this tier is to go elsewhere.
    pub(crate) fn takes_from(self, tier: TierId) -> bool {
        match self {
            Destination::Below(full) => tier == full,
            _ => !self.accepts(tier),
        }
    }
}

/// The devices to try for a destination, best first: of each tier the devices that answer and did not fail a
/// moment ago, then the rest, so that a device is tried even if all failed.
pub fn choices_for(store: &Store, to: Destination) -> Vec<Vec<DeviceId>> {
    let now_ns = store.clock.monotonic_ns();
    let avoided = |id: &DeviceId| {
        store.devices.list().get(usize::from(id.0)).is_some_and(|found| found.is_avoided(now_ns))
            || store.devices.io().is_silent(*id, now_ns)
    };
    let tiers = tiers_for(store, to).into_iter().map(|tier| store.devices.of_tier(tier));
    let (last, mut choices): (Vec<_>, Vec<_>) =
        tiers.map(|tier| tier.into_iter().partition::<Vec<_>, _>(avoided)).unzip();
    // A spill can wait, so it tries no device that failed a moment ago.
    if !matches!(to, Destination::Below(_)) {
        choices.extend(last);
    }
    choices.retain(|devices| !devices.is_empty());
    choices
}

/// The tiers of a destination, best first.
fn tiers_for(store: &Store, to: Destination) -> Vec<TierId> {
    let mut tiers = store.devices.tiers();
    tiers.retain(|tier| to.accepts(*tier));
    // During `sync --to` demotion goes to the requested tier or below, or the block would be moved twice.
    let drain_to = store.pressure.drain_to();
    match to {
        Destination::Any => tiers.sort_by_key(|tier| (*tier < drain_to, *tier)),
        Destination::Rather(wanted) => {
            tiers.sort_by_key(|tier| (*tier < drain_to, *tier != wanted, *tier));
        }
        // A tier that is nearly full would spill the same blocks next, so it comes last.
        Destination::Below(_) => {
            // The question is asked once of each tier: its answer may change meanwhile, and sorting needs a
            // stable order.
            tiers.sort_by_cached_key(|tier| (*tier < drain_to, spills_from(store, *tier), *tier));
        }
        Destination::Only(_) | Destination::AtOrBelow(_) => {}
    }
    tiers
}
