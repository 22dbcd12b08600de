//! Follows locations of metadata pages on lower tiers (design C1, docs/decisions/0014): an intact page stays at its
//! location while its content stays the same; a page that has to change gets a block in PM; a damaged page counts as
//! lost. Repair writes no lower tier but headers.

use crate::state::Round;
use crate::state::pool::Bytes;
use terrace_check::below::{Found, place_of, read};
use terrace_format::below::Identity;

/// Reads of a page before its device counts as not answering.
pub(crate) const MAX_READS: usize = 3;

/// The page on a lower tier to which a location leads.
pub(crate) enum Copy {
    Intact(Bytes),
    /// The location is on a lower tier, and its page is not there.
    Lost,
    /// The location is not on a lower tier.
    Elsewhere,
}

/// Follows a location.
pub(crate) fn copy_below(round: &mut Round<'_>, word: u64, identity: Identity) -> Copy {
    let Some(place) = place_of(&round.pool.superblock, word) else { return Copy::Elsewhere };
    let (device, at) = (place.device, place.block);
    let mut found = Found::Nowhere;
    for _ in 0..MAX_READS {
        found = read(round.pool.view, &round.pool.superblock, word, identity);
        if !matches!(found, Found::Unreadable(Some(_))) {
            break;
        }
    }
    let why = match found {
        // The first pointer to a page gets it; of two pointers to one page one is damaged.
        Found::Page(bytes) if round.below.places.insert((device.0, at.0)) => return Copy::Intact(bytes),
        Found::Page(_) | Found::Nowhere => "named twice".to_string(),
        Found::Other(what) => what,
        // A device that answers no read may be back tomorrow; a single unreadable block stays unreadable.
        Found::Unreadable(Some(error)) if round.pool.device_block(device.0.into(), 0).is_some() => error,
        Found::Unreadable(_) => {
            round.below.absent.get_or_insert(device.0);
            return Copy::Lost;
        }
    };
    round.actions.lose_some(format!("a metadata page on device {device}, block {at}, is lost: {why}"));
    Copy::Lost
}
