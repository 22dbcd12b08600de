//! The choice of write-back in place (M5): the candidates whose cold copies may be written over, with exclusive I/O pins
//! on the copies from a look under the inode lock on.

use crate::error::{FsError, FsResult};
use crate::inode::slot::load;
use crate::lookup::cold_extents::cold_extents;
use crate::moving::candidate::Candidate;
use crate::moving::destination::Destination;
use crate::moving::errors::concerns_all_files;
use crate::store::Store;
use crate::types::BlockRange;
use std::collections::HashMap;
use terrace_catalog::DeviceRun;
use terrace_format::inode::flag;
use terrace_format::keys::ColdExtent;
use terrace_format::{DeviceId, FileBlock, Ino};
use terrace_space::Pin;
use terrace_wal::Error;

/// Most device writes for one group.
const MOST: usize = 32;

/// Where candidates may be written.
#[derive(Default)]
pub(crate) struct Places {
    /// The device block of each candidate's cold copy.
    pub(crate) of: HashMap<(Ino, FileBlock), DeviceRun>,
    /// The first damage of a file that was left out for it.
    pub(crate) damage: Option<FsError>,
    _pins: Vec<Pin>,
}

/// The cold copies of the candidates that are a few scattered blocks of a large extent, on a device that `to`
/// accepts, under exclusive I/O pins.
pub(crate) fn places_below(store: &Store, candidates: &[Candidate<'_>], to: Destination) -> FsResult<Places> {
    let mut places = Places::default();
    let mut left = MOST;
    for of_inode in candidates.chunk_by(|a, b| a.ino == b.ino) {
        let runs: Vec<&[Candidate<'_>]> = of_inode.chunk_by(Candidate::is_like_next).collect();
        // A file of which so much is scattered is faster written as a group.
        if runs.len() > left {
            continue;
        }
        let first = &of_inode[0];
        let _guard = store.inodes.locks().read(first.ino);
        let inode = match load(store, first.ino) {
            Ok(inode) if inode.slot.generation.get() == first.generation => inode,
            Ok(_) | Err(FsError::Stale) => continue,
            Err(error) => return Err(error),
        };
        if !inode.slot.has(flag::HAS_COLD) {
            continue;
        }
        let mut found: Vec<(&[Candidate<'_>], ColdExtent)> = Vec::new();
        for run in runs {
            found.extend(extent_to_keep(store, run, to)?.map(|extent| (run, extent)));
        }
        for of_extent in found.chunk_by(|a, b| a.1.first == b.1.first) {
            let blocks: usize = of_extent.iter().map(|(run, _)| run.len()).sum();
            if blocks as u64 * u64::from(store.mode.in_place.one_of) > u64::from(of_extent[0].1.length) {
                continue;
            }
            for (run, extent) in of_extent {
                let start = extent.start.plus(run[0].block.0 - extent.first.0);
                let whole = DeviceRun { device: extent.device, start, length: run.len() as u64 };
                let Some(pin) = store.devices.space().pin_alone(whole) else { continue };
                places._pins.push(pin);
                left -= 1;
                for (index, candidate) in (0..).zip(*run) {
                    let place = DeviceRun { start: start.plus(index), length: 1, ..whole };
                    places.of.insert((candidate.ino, candidate.block), place);
                }
            }
        }
    }
    Ok(places)
}

/// The device blocks of all candidates that are whole in PM and have a cold extent, written or unwritten,
/// under exclusive I/O pins. If `to` is given: on devices that it accepts, without files whose metadata lies below PM.
pub(crate) fn all_places_below(
    store: &Store,
    candidates: &[Candidate<'_>],
    to: Option<Destination>,
) -> FsResult<Places> {
    let (mut places, mut damage) = (Places::default(), None);
    // Damage of a file keeps no other in PM (I8).
    let mut leave_out = |error: FsError| match error {
        FsError::Engine(Error::PageBelow(_)) if to.is_some() => Ok(()),
        error if error.concerns_one_file() && !concerns_all_files(store, &error) => {
            damage.get_or_insert(error);
            Ok(())
        }
        error => Err(error),
    };
    for of_inode in candidates.chunk_by(|a, b| a.ino == b.ino) {
        let first = &of_inode[0];
        let _guard = store.inodes.locks().read(first.ino);
        let inode = match load(store, first.ino) {
            Ok(inode) if inode.slot.generation.get() == first.generation => inode,
            Ok(_) | Err(FsError::Stale) => continue,
            Err(error) => {
                leave_out(error)?;
                continue;
            }
        };
        if !inode.slot.has(flag::HAS_COLD) {
            continue;
        }
        let is_same = |c: &&Candidate<'_>| store.persistent.blocks().descriptor(c.pm).version() == c.version;
        for candidate in of_inode.iter().filter(|c| c.may_overwrite()).filter(is_same) {
            let range = BlockRange::new(candidate.block, candidate.block.plus(1));
            let extents = match cold_extents(store, first.ino, range) {
                Ok(extents) => extents,
                Err(error) => {
                    leave_out(error)?;
                    break;
                }
            };
            let Some(slice) = extents.first().and_then(|extent| extent.slice(range.first, range.end)) else {
                continue;
            };
            let place = DeviceRun::from(&slice);
            if !to.is_none_or(|to| may_stay_on(store, place.device, candidate.pinned_tier, to)) {
                continue;
            }
            let Some(pin) = store.devices.space().pin_alone(place) else { continue };
            places._pins.push(pin);
            places.of.insert((candidate.ino, candidate.block), place);
        }
    }
    places.damage = damage;
    Ok(places)
}

/// The extent that has all blocks of a run, when it is worth keeping and they may be written over it. The caller holds
/// the inode lock.
fn extent_to_keep(store: &Store, run: &[Candidate<'_>], to: Destination) -> FsResult<Option<ColdExtent>> {
    let is_same = |c: &Candidate<'_>| store.persistent.blocks().descriptor(c.pm).version() == c.version;
    if !run.iter().all(|candidate| candidate.may_overwrite() && is_same(candidate)) {
        return Ok(None);
    }
    let range = BlockRange::new(run[0].block, run[0].block.plus(run.len() as u64));
    let extent = cold_extents(store, run[0].ino, range)?.into_iter().next();
    Ok(extent.filter(|extent| {
        extent.first <= range.first
            && range.end <= extent.end()
            && !extent.unwritten
            && extent.length >= store.mode.in_place.extent_blocks
            && may_stay_on(store, extent.device, run[0].pinned_tier, to)
    }))
}

/// Whether blocks may stay on a device: it is sound, and of a tier where they are wanted.
fn may_stay_on(store: &Store, device: DeviceId, pinned_tier: Option<u8>, to: Destination) -> bool {
    let Some(found) = store.devices.list().get(usize::from(device.0)) else { return false };
    let now_ns = store.clock.monotonic_ns();
    let is_wanted = match (to, pinned_tier) {
        (Destination::Any, Some(tier)) if tier > 0 => found.tier.0 == tier,
        (Destination::Rather(tier), _) => found.tier == tier,
        _ => to.accepts(found.tier),
    };
    // During `sync --to` demotion goes to the requested tier or below.
    is_wanted
        && found.tier.0 >= store.pressure.drain_to().0
        && !found.is_avoided(now_ns)
        && !store.devices.io().is_silent(device, now_ns)
}
