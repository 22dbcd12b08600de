//! Write-back in place (M5): a few scattered blocks of a large cold extent are written over their cold
//! copies, so that the extent stays whole for sequential readers. All other blocks go to free space, dense
//! overwrites as groups of their own. docs/decisions/0016 has the reasons.
//!
//! Only the cold copy of a block that PM holds whole may be overwritten. No reader needs such a copy (S2), so
//! a crash may leave it torn as long as the PM block stays: the checksum of the copy changes in the
//! transaction that drops the PM entry, after the flush. Invariants:
//! - The PM block that hides a copy is persisted before the first write over the copy, so it survives the
//!   same crash that tears the copy.
//! - The device blocks have an exclusive I/O pin from a look under the inode lock to the end: they are not
//!   used again meanwhile, no reader that needs them is under way, and no second writer has them. A later
//!   read of neighbouring blocks may pass over them, but does not judge their checksums (`is_stale`).
//! - A block that changed meanwhile stays in PM, whole; its cold copy matches no checksum until the block is
//!   demoted again.
//!
//! Few blocks are written in place at once, and none while PM is short: a group is faster than many small
//! writes. Where lower tiers have less room than a group needs, every block that hides a copy is.

use crate::attempt::with_pages::{reading, with_pages};
use crate::change::new_extent::NewLocation;
use crate::error::FsError;
use crate::moving::candidate::{Candidate, Copied};
use crate::moving::complete_partial::copy_content;
use crate::moving::destination::Destination;
use crate::moving::device_run::{Part, note_device_failure};
use crate::moving::in_place_choice::{Places, all_places_below, places_below};
use crate::moving::in_place_install::install_in_place;
use crate::moving::look_at::{look_at, refuse};
use crate::moving::victim::Victim;
use crate::moving::write_candidates::write_blocks;
use crate::pressure::pm_space::is_short_of_pm;
use crate::store::Store;
use crate::types::Wait;
use std::collections::BTreeMap;
use terrace_catalog::DeviceRun;
use terrace_format::{BLOCK_SIZE, DeviceId};
use terrace_runtime::sync::atomic::Ordering;

/// Blocks written without room with one flush: they may be scattered, and writers wait for the first ones.
const AT_ONCE: usize = 256;

/// Writes candidates in place where that is allowed and worth it. Returns the number of PM blocks freed, and
/// the remaining candidates.
pub(crate) fn write_in_place<'a>(
    store: &'a Store,
    candidates: Vec<Candidate<'a>>,
    to: Destination,
    trouble: &mut Option<FsError>,
) -> (u64, Vec<Candidate<'a>>) {
    if store.devices.list().is_empty() || is_short_of_pm(store) {
        return (0, candidates);
    }
    // The look-up does not wait for a device: the group counts as in flight, and other workers that make room
    // may wait for it.
    let places = with_pages(store, Wait::Never, || places_below(store, &candidates, to));
    // An error is left to the general way of demotion, which meets it again if it lasts.
    let Some(places) = places.ok().filter(|places| !places.of.is_empty()) else { return (0, candidates) };
    write_to_places(store, candidates, &places, trouble)
}

/// Writes candidates over the cold copies that they hide where lower tiers have too little room for them, on devices that
/// `to` accepts. Returns the number of PM blocks freed, and the remaining candidates.
pub(crate) fn write_without_room<'a>(
    store: &'a Store,
    mut candidates: Vec<Candidate<'a>>,
    to: Destination,
    trouble: &mut Option<FsError>,
) -> (u64, Vec<Candidate<'a>>) {
    let (mut freed, mut rest) = (0, Vec::new());
    while !candidates.is_empty() {
        let later = candidates.split_off(candidates.len().min(AT_ONCE));
        let group = std::mem::replace(&mut candidates, later);
        // As in `write_in_place`: no wait, and errors are left to the general way.
        let places = reading(store, Wait::Never, || all_places_below(store, &group, Some(to)));
        match places.ok().filter(|places| !places.of.is_empty()) {
            Some(places) => {
                let (moved, left) = write_to_places(store, group, &places, trouble);
                freed += moved;
                rest.extend(left);
            }
            None => rest.extend(group),
        }
    }
    (freed, rest)
}

/// Writes whole PM blocks over their cold copies, even if they are many or not scattered: on a full pool the
/// freed PM blocks count more than speed. Returns the number of PM blocks freed.
pub(crate) fn write_all_in_place(
    store: &Store,
    candidates: Vec<Candidate<'_>>,
    trouble: &mut Option<FsError>,
) -> u64 {
    match reading(store, Wait::Allowed, || all_places_below(store, &candidates, None)) {
        Ok(places) => {
            *trouble = trouble.take().or_else(|| places.damage.clone());
            if places.of.is_empty() { 0 } else { write_to_places(store, candidates, &places, trouble).0 }
        }
        Err(error) => {
            trouble.get_or_insert(error);
            0
        }
    }
}

/// Writes candidates over their cold copies. Returns the number of PM blocks freed, and the candidates that
/// have no such location.
fn write_to_places<'a>(
    store: &'a Store,
    candidates: Vec<Candidate<'a>>,
    places: &Places,
    trouble: &mut Option<FsError>,
) -> (u64, Vec<Candidate<'a>>) {
    let mut of_device: BTreeMap<DeviceId, (Vec<Candidate<'a>>, Vec<DeviceRun>)> = BTreeMap::new();
    let mut rest = Vec::new();
    let mut scratch = [0; BLOCK_SIZE as usize];
    for candidate in candidates {
        match places.of.get(&(candidate.ino, candidate.block)) {
            Some(place) => {
                // A block that cannot be copied must not go over a copy that may be sound.
                if let Err(error) = copy_content(store, &candidate, &mut scratch) {
                    refuse(store, candidate.pm);
                    trouble.get_or_insert(error);
                    continue;
                }
                let (list, runs) = of_device.entry(place.device).or_default();
                list.push(candidate);
                match runs.last_mut() {
                    Some(run) if run.start.plus(run.length) == place.start => run.length += 1,
                    _ => runs.push(*place),
                }
            }
            None => rest.push(candidate),
        }
    }
    // The PM blocks must survive any crash that may tear the copies below them (M5).
    if let Err(error) = store.persistent.persist() {
        // The log has stopped: no record could name another location of these blocks.
        trouble.get_or_insert(error);
        return (0, Vec::new());
    }
    let mut freed = 0;
    for (device, (list, runs)) in of_device {
        match write_over(store, device, list, &runs) {
            Ok(copied) => {
                if let Some(lost) = copied.iter().find_map(|copied| copied.candidate.read_error.as_ref()) {
                    trouble.get_or_insert_with(|| lost.clone());
                }
                freed += install_in_place(store, &copied, trouble);
            }
            Err(victims) => rest.extend(look_again(store, &victims, trouble)),
        }
    }
    // Groups are installed in the order of files and blocks.
    rest.sort_unstable_by_key(|candidate| (candidate.ino, candidate.block));
    (freed, rest)
}

/// Writes candidates over their cold copies, which lie in these runs, and flushes the device (M1). After a
/// failure the candidates are plain victims again, without I/O pins.
fn write_over<'a>(
    store: &'a Store,
    device: DeviceId,
    mut candidates: Vec<Candidate<'a>>,
    runs: &[DeviceRun],
) -> Result<Vec<Copied<'a>>, Vec<Victim>> {
    let is_whole = candidates.iter().all(Candidate::may_overwrite);
    assert!(is_whole, "a cold copy whose lines PM lacks is written over, among {} (M5)", candidates.len());
    let parts: Vec<Part> = runs.iter().map(|run| Part::over(*run)).collect();
    match write_blocks(store, &mut candidates, &parts) {
        Ok(copies) => {
            store.pressure.moved().in_place.fetch_add(copies.len() as u64, Ordering::Relaxed);
            let locations = copies.into_iter().map(NewLocation::Written);
            let copied = candidates.into_iter().zip(locations);
            Ok(copied.map(|(candidate, location)| Copied { candidate, location }).collect())
        }
        Err(error) => {
            tracing::debug!("not written in place: {error}");
            note_device_failure(store, device, &error);
            Err(candidates.iter().map(|c| Victim { ino: c.ino, block: c.block, pm: c.pm }).collect())
        }
    }
}

/// Candidates of those victims that are still whole blocks to be written: for free space.
fn look_again<'a>(store: &'a Store, victims: &[Victim], trouble: &mut Option<FsError>) -> Vec<Candidate<'a>> {
    let mut found = look_at(store, victims, trouble);
    found.retain(|candidate| !candidate.clean && candidate.is_whole());
    found
}
