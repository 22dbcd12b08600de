//! Demotion of a group: the victims get I/O pins, are written as a single device run, or as few runs in
//! flight together if the device has no hole of that size, and share a flush.

use crate::change::new_extent::NewLocation;
use crate::error::{FsError, FsResult};
use crate::moving::candidate::{Candidate, Copied};
use crate::moving::complete_partial::{complete, complete_in_pm, free_below};
use crate::moving::destination::Destination;
use crate::moving::device_run::{Part, has_room, parts_for, places, settle_parts};
use crate::moving::evict_clean::evict_clean;
use crate::moving::in_place::{write_in_place, write_without_room};
use crate::moving::install::install;
use crate::moving::look_at::look_at;
use crate::moving::victim::Victim;
use crate::moving::write_candidates::write_blocks;
use crate::store::Store;
use terrace_format::TierId;
use terrace_runtime::planted::{Mistake, planted};
use terrace_wal::{Error, NoSpace};

/// Candidates by where they go, unwritten ones by themselves. What is pinned to a lower tier goes there if it may.
fn by_destination(candidates: Vec<Candidate<'_>>, to: Destination) -> Vec<(Destination, Vec<Candidate<'_>>)> {
    let mut lists: Vec<((Destination, bool), Vec<Candidate<'_>>)> = Vec::new();
    for candidate in candidates {
        let to = match candidate.pinned_tier {
            Some(tier) if tier > 0 && to == Destination::Any => Destination::Rather(TierId(tier)),
            _ => to,
        };
        let key = (to, candidate.unwritten);
        match lists.iter_mut().find(|(found, _)| *found == key) {
            Some((_, list)) => list.push(candidate),
            None => lists.push((key, vec![candidate])),
        }
    }
    lists.into_iter().map(|((to, _), list)| (to, list)).collect()
}

/// Demotes a group. Returns the number of PM blocks freed. Damage of a file or PM block holds back only its
/// own blocks (I8); it is an error if trouble left no block that could be demoted.
pub fn demote(store: &Store, victims: &[Victim]) -> FsResult<u64> {
    demote_to(store, victims, Destination::Any)
}

/// As [`demote`], to the tiers that `to` allows.
pub fn demote_to(store: &Store, victims: &[Victim], to: Destination) -> FsResult<u64> {
    let mut trouble = None;
    let candidates = look_at(store, victims, &mut trouble);
    let (clean, dirty): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|c| c.clean);
    let (unwritten, dirty): (Vec<_>, Vec<_>) = dirty.into_iter().partition(|c| c.unwritten);
    let dirty = complete(store, dirty, &mut trouble);
    let mut freed = evict_clean(store, clean, &mut trouble)?;
    let (in_place, dirty) = write_in_place(store, dirty, to, &mut trouble);
    freed += in_place;
    let rest = unwritten.into_iter().chain(dirty).collect();
    let mut ended = None;
    for (to, list) in by_destination(rest, to) {
        match move_list(store, list, to, &mut freed, &mut trouble) {
            Err(error) if store.persistent.wal().is_stopped() => return Err(error),
            // Another list may have room or a sound device: its blocks leave PM, and the writer that waits goes on.
            Err(error) => _ = ended.get_or_insert(error),
            Ok(()) => {}
        }
    }
    match ended.or(trouble) {
        Some(error) if freed == 0 => Err(error),
        Some(error) => {
            tracing::debug!("some blocks cannot be demoted: {error}");
            Ok(freed)
        }
        None => Ok(freed),
    }
}

/// Moves candidates for one destination, of which either all are unwritten or none is, and adds the PM blocks freed.
///
/// Where lower tiers have less room than these need, candidates are first written over the cold copies that they hide, so
/// that extents stay whole (docs/decisions/0023). Copies of which none can be written over are given up, and their blocks
/// are given.
fn move_list<'a>(
    store: &'a Store,
    mut rest: Vec<Candidate<'a>>,
    to: Destination,
    freed: &mut u64,
    trouble: &mut Option<FsError>,
) -> FsResult<()> {
    let unwritten = rest.iter().any(|candidate| candidate.unwritten);
    let is_like = |candidate: &Candidate<'_>| candidate.unwritten == unwritten;
    assert!(
        rest.iter().all(is_like),
        "written blocks among {} unwritten ones are not copied (M1)",
        rest.len()
    );
    let mut may_stay_below = !unwritten;
    while !rest.is_empty() {
        let wanted = rest.len();
        let mut parts = match may_stay_below && !has_room(store, wanted, to) {
            true => Err(NoSpace::Tier.into()),
            false => parts_for(store, wanted, unwritten, to),
        };
        if let Err(FsError::Engine(Error::NoSpace(_))) = parts {
            if std::mem::take(&mut may_stay_below) {
                complete_in_pm(store, &mut rest)?;
                let (moved, left) = write_without_room(store, rest, to, trouble);
                (rest, *freed) = (left, *freed + moved);
                continue;
            }
            if free_below(store, &mut rest)? > 0 {
                parts = parts_for(store, wanted, unwritten, to);
            }
        }
        let (copied, left) = write_run(store, rest, &parts?)?;
        if let Some(lost) = copied.iter().find_map(|copied| copied.candidate.read_error.as_ref()) {
            trouble.get_or_insert_with(|| lost.clone());
        }
        let late = planted(Mistake::ExtentBeforeData).then(|| wrong::places_of(&copied));
        *freed += install(store, copied, trouble)?;
        if let Some(places) = late {
            wrong::write_late(store, &places)?;
        }
        rest = left;
    }
    Ok(())
}

/// Writes the candidates for which there are device blocks, with summaries, and flushes the device (M1). Unwritten
/// candidates only get device blocks. Returns the written candidates and the rest.
fn write_run<'a>(
    store: &'a Store,
    mut candidates: Vec<Candidate<'a>>,
    parts: &[Part],
) -> FsResult<(Vec<Copied<'a>>, Vec<Candidate<'a>>)> {
    let taken: usize = parts.iter().map(|part| part.data).sum();
    assert!(taken <= candidates.len(), "device blocks for {taken} of {} blocks (M1)", candidates.len());
    let left = candidates.split_off(taken);
    let written = match candidates.iter().any(|candidate| candidate.unwritten) {
        true => Ok(places(parts).map(NewLocation::Unwritten).collect()),
        false => write_blocks(store, &mut candidates, parts)
            .map(|copies| copies.into_iter().map(NewLocation::Written).collect()),
    };
    let locations: Vec<NewLocation> = settle_parts(store, parts, written)?;
    let copied = candidates.into_iter().zip(locations);
    Ok((copied.map(|(candidate, location)| Copied { candidate, location }).collect(), left))
}

/// Planted mistakes of this file.
mod wrong {
    use super::{Candidate, Copied, FsResult, Store};
    use terrace_catalog::DeviceRun;
    use terrace_format::PmBlock;
    use terrace_media::block::AlignedBlock;

    /// The blocks that `extent-before-data` copies too late.
    pub(super) fn places_of(copied: &[Copied<'_>]) -> Vec<(PmBlock, DeviceRun)> {
        let due = |candidate: &Candidate<'_>| !candidate.unwritten && candidate.read_error.is_none();
        let written = copied.iter().filter(|copied| due(&copied.candidate));
        written.map(|copied| (copied.candidate.pm, copied.location.place())).collect()
    }

    /// Copies blocks to device blocks that their extents name already: `extent-before-data`.
    pub(super) fn write_late(store: &Store, places: &[(PmBlock, DeviceRun)]) -> FsResult<()> {
        for (pm, place) in places {
            let mut block = [AlignedBlock::zeroed()];
            store.persistent.pm().read(pm.offset(), &mut block[0].0)?;
            store.devices.medium(place.device)?.write(place.start, &block)?;
        }
        store.devices.flush_all()
    }
}
