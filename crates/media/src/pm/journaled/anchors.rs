//! The two copies of the anchor: finding the newer one, and writing both at an opening (J10).
//!
//! Invariant: at each time the device has a sound copy of the newest durable anchor. A write goes over the older copy alone.

use super::error::JournalError;
use super::home::copy_of;
use crate::block::AlignedBlock;
use crate::{BlockMedium, MediaError};
use terrace_format::Corrupt;
use terrace_format::checkpoint::FAR;
use terrace_format::journal::{ANCHOR_COPIES, Anchor, RefusedAnchor};

/// Numbers from here on leave too few to count on from.
const LARGEST_NUMBER: u64 = FAR / 2;

/// Number of the first anchor of a device. Copy 0 comes last: programs that look at the first block alone see a journal only when
/// both copies are there.
pub(super) const FIRST_NUMBER: u64 = 1;

/// Takes both copies away, durably.
pub(super) fn erase_anchors(device: &dyn BlockMedium) -> Result<(), MediaError> {
    let zeros = [AlignedBlock::zeroed()];
    device.write_durable(&ANCHOR_COPIES.map(|copy| (copy, zeros.as_slice())))
}

/// Writes an anchor over the older copy.
fn write_anchor(device: &dyn BlockMedium, anchor: &Anchor) -> Result<(), MediaError> {
    let mut block = AlignedBlock::zeroed();
    block.0.copy_from_slice(&anchor.encode());
    device.write_durable(&[(copy_of(anchor.number), &[block])])
}

/// Writes an anchor to both copies, to the older copy first, and gives the one with the larger number. A crash between leaves
/// the newest state; so does the loss of one copy later.
pub(super) fn write_both(device: &dyn BlockMedium, anchor: Anchor) -> Result<Anchor, MediaError> {
    write_anchor(device, &anchor)?;
    let second = Anchor { number: anchor.number + 1, ..anchor };
    write_anchor(device, &second)?;
    Ok(second)
}

/// Number of the older copy, of an anchor that was written to both.
pub(super) fn older_copy(anchor: &Anchor) -> u64 {
    anchor.number - 1
}

/// The newest sound anchor of a device.
pub(super) fn newest_anchor(device: &dyn BlockMedium) -> Result<Anchor, JournalError> {
    let name = || device.name().to_string();
    let mut newest: Option<Anchor> = None;
    let mut refused = Vec::new();
    let mut failed = None;
    for copy in ANCHOR_COPIES.into_iter().filter(|copy| copy.0 < device.blocks()) {
        let mut block = [AlignedBlock::zeroed()];
        if let Err(error) = device.read(copy, &mut block) {
            failed = Some(error);
            continue;
        }
        match Anchor::decode(&block[0].0) {
            // The next write would go over the other copy, which may be the newer.
            Ok(anchor) if copy_of(anchor.number) != copy => {
                let found = format!("number {}", anchor.number);
                let expected = "an anchor of this copy";
                refused.push(RefusedAnchor::Corrupt(Corrupt::new("journal anchor", expected, found)));
            }
            Ok(anchor) if newest.is_none_or(|other| other.number < anchor.number) => newest = Some(anchor),
            Ok(_) => {}
            Err(why) => refused.push(why),
        }
    }
    if let Some(anchor) = newest {
        return refuse_far_numbers(&anchor)
            .map(|()| anchor)
            .map_err(|damage| JournalError::Damaged { device: name(), damage });
    }
    let version = refused.iter().find_map(|why| match why {
        RefusedAnchor::Version(version) => Some(*version),
        _ => None,
    });
    if let Some(version) = version {
        return Err(JournalError::Version { device: name(), version });
    }
    let damage = refused.into_iter().find_map(|why| match why {
        RefusedAnchor::Corrupt(damage) => Some(damage),
        _ => None,
    });
    match (damage, failed) {
        (Some(damage), _) => Err(JournalError::Damaged { device: name(), damage }),
        (None, Some(error)) => Err(error.into()),
        (None, None) => Err(JournalError::NotAJournal { device: name() }),
    }
}

/// Refuses numbers that an opening cannot count on from: the next anchor would be refused as damage.
fn refuse_far_numbers(anchor: &Anchor) -> Result<(), Corrupt> {
    let numbers = [anchor.number, anchor.epoch, anchor.sequence, anchor.acknowledged];
    match numbers.into_iter().find(|number| *number >= LARGEST_NUMBER) {
        Some(number) => {
            Err(Corrupt::new("journal anchor", "numbers that a journal can reach", number.to_string()))
        }
        None => Ok(()),
    }
}
