//! The order of the lower tiers of a pool that is not mounted: `terrace tier`.
//!
//! A device's tier is its row's in the superblock alone: data names devices, not tiers, so that nothing moves with it. The
//! header's copy of the number is brought up to date by the next mount that writes. Pins name tiers by number:
//! [`standing_in`].

use std::collections::BTreeSet;
use terrace_format::geometry::SUPERBLOCK_COPIES;
use terrace_format::superblock::{DeviceRow, Superblock};
use terrace_media::{MediaError, PmMedium};
use zerocopy::IntoBytes;

/// Gives a device, by its index, another tier. A crash at any instant leaves a pool with the old order or with the new
/// one: the copy of the superblock that is in use is written last, when the other one is durable.
///
/// # Errors
/// The medium's.
pub fn set_device_tier(
    pm: &dyn PmMedium,
    superblock: &Superblock,
    device: usize,
    tier: u8,
) -> Result<Superblock, MediaError> {
    assert!(tier > 0 && device < superblock.device_rows().len(), "device {device}, tier {tier}");
    let mut changed = *superblock;
    if let Some(row) = changed.devices.get_mut(device) {
        row.tier = tier;
    }
    changed.seal();
    // The first copy is used where it is sound.
    let in_use = usize::from(!crate::mount::is_sound(pm, 0));
    for copy in [SUPERBLOCK_COPIES[1 - in_use], SUPERBLOCK_COPIES[in_use]] {
        pm.write(copy.offset(), changed.as_bytes())?;
        pm.persist();
    }
    Ok(changed)
}

/// The lower tiers in use, fastest first.
pub fn tiers_of(rows: &[DeviceRow]) -> BTreeSet<u8> {
    rows.iter().map(|row| row.tier).collect()
}

/// The tier that a pin to a number means: that one, or where no device has it any more the next slower one, else the
/// slowest.
pub(crate) fn standing_in(wanted: u8, tiers: impl Iterator<Item = u8>) -> u8 {
    let mut slowest = None;
    for tier in tiers {
        if wanted == 0 || tier >= wanted {
            return if wanted == 0 { 0 } else { tier };
        }
        slowest = Some(tier);
    }
    slowest.unwrap_or(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of tiers may be changed, and a number may then be nobody's.
    #[test]
    fn pins_to_a_number_that_no_tier_has_mean_the_next_slower_tier() {
        let means = |wanted| standing_in(wanted, [2, 4].into_iter());
        assert_eq!([0, 1, 2, 3, 4, 5, 255].map(means), [0, 2, 2, 4, 4, 4, 4]);
        assert_eq!(standing_in(3, std::iter::empty()), 3);
    }
}
