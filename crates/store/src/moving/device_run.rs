//! Space on a device for a group: runs, their summaries, and devices that are passed over after a failure.

use crate::error::{FsError, FsResult};
use crate::moving::destination::{Destination, choices_for};
use crate::store::Store;
use terrace_catalog::DeviceRun;
use terrace_format::device::SUMMARY_ENTRIES;
use terrace_format::{DeviceBlock, DeviceId};
use terrace_media::MediaError;
use terrace_wal::{Error, NoSpace};

/// Runs shorter than this get no summary: small hole fills (design 4.5), which it would make longer by more than a 12th.
const SUMMARY_FROM: usize = 12;

/// Summary blocks of a run.
pub fn summaries(blocks: usize) -> usize {
    if blocks < SUMMARY_FROM { 0 } else { blocks.div_ceil(SUMMARY_ENTRIES) }
}

/// A device run and the number of blocks of a group that it takes. The group summaries lie before the blocks.
/// Behind them they would be overwritten at once: summaries lie in free space, where the next group would
/// begin.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// The run on the device.
    pub run: DeviceRun,
    /// Blocks of the group in the run.
    pub data: usize,
    /// Summary blocks before them.
    pub summary_blocks: usize,
}

impl Part {
    /// Cuts runs into blocks and summaries, as far as `left` blocks need them. `unwritten` ones have none.
    pub fn of(runs: Vec<DeviceRun>, left: &mut usize, unwritten: bool) -> impl Iterator<Item = Part> {
        let summaries = move |data| if unwritten { 0 } else { summaries(data) };
        runs.into_iter().map(move |run| {
            let mut data = (run.length as usize).min(*left);
            while data + summaries(data) > run.length as usize {
                data -= 1;
            }
            *left -= data;
            Part { run, data, summary_blocks: summaries(data) }
        })
    }

    /// A run whose blocks are written over, without a summary.
    pub fn over(run: DeviceRun) -> Part {
        Part { run, data: run.length as usize, summary_blocks: 0 }
    }

    /// The device block of the first block of the group.
    pub fn first(self) -> DeviceBlock {
        self.run.start.plus(self.summary_blocks as u64)
    }

    /// The blocks of the run that are free once it is written: group summaries and the unused end. After a
    /// failed write the whole run is free.
    pub fn free_of(self, is_written: bool) -> impl Iterator<Item = DeviceRun> {
        let (run, used) = (self.run, (self.summary_blocks + self.data) as u64);
        assert!(used <= run.length, "{used} of the {} blocks of a run are used (I6)", run.length);
        let before = DeviceRun { length: self.summary_blocks as u64, ..run };
        let behind = DeviceRun { start: run.start.plus(used), length: run.length - used, ..run };
        let free = if is_written { [before, behind] } else { [run, DeviceRun { length: 0, ..run }] };
        free.into_iter().filter(|free| free.length > 0)
    }

    /// The device block of each block of the group.
    pub fn places(self) -> impl Iterator<Item = DeviceRun> {
        (0..self.data as u64).map(move |at| DeviceRun { start: self.first().plus(at), length: 1, ..self.run })
    }
}

/// The device block of each block of a group, in the order of its parts.
pub fn places(parts: &[Part]) -> impl Iterator<Item = DeviceRun> {
    parts.iter().flat_map(|part| part.places())
}

/// Whether the tiers that a destination allows have room for blocks and their summaries together. True as long as not all
/// tiers are known: then a claim looks.
pub(crate) fn has_room(store: &Store, blocks: usize, to: Destination) -> bool {
    let space = store.devices.space();
    let wanted = (blocks + summaries(blocks)) as u64 + space.reserved();
    !space.is_loaded() || space.totals_now(&choices_for(store, to).concat()).free >= wanted
}

/// Space on one device for as many of `wanted` blocks as there is room for, with their summaries unless they are
/// `unwritten`.
pub(crate) fn parts_for(
    store: &Store,
    wanted: usize,
    unwritten: bool,
    to: Destination,
) -> FsResult<Vec<Part>> {
    let (mut parts, mut left) = (Vec::new(), wanted);
    let summary_blocks = if unwritten { 0 } else { summaries(wanted) };
    let mut runs = allocate_runs_for(store, (wanted + summary_blocks) as u64, to)?;
    while let Some(device) = runs.first().map(|run| run.device) {
        let several = runs.len() > 1;
        parts.extend(Part::of(std::mem::take(&mut runs), &mut left, unwritten));
        // Summaries of several runs took more than was thought.
        if left > 0 && several {
            runs = store.devices.space().allocate_runs(&[device], left as u64, false).unwrap_or_default();
        }
    }
    Ok(parts)
}

/// After a write of some parts: the summary blocks are hints in space that counts as free (docs/format.md);
/// after a failure the whole run is free.
pub(crate) fn settle_parts<T>(store: &Store, parts: &[Part], written: FsResult<T>) -> FsResult<T> {
    for part in parts {
        part.free_of(written.is_ok()).for_each(|free| store.devices.space().release_claim(free));
    }
    if let (Err(error), Some(part)) = (&written, parts.first()) {
        note_device_failure(store, part.run.device, error);
    }
    written
}

/// After a failed write to a device: the next group goes to another device, if a sound one is left.
pub(crate) fn note_device_failure(store: &Store, device: DeviceId, error: &FsError) {
    // The next round need not pause, once for each device that was sound: if all other devices are full, the
    // failed device is tried again with a pause.
    if avoid_failed(store, device, error) && store.devices.is_any_sound(store.clock.monotonic_ns()) {
        store.pressure.note_other_device();
    }
}

/// If the error is the device's own, the device is chosen last for a while. True if it was sound until now.
pub fn avoid_failed(store: &Store, device: DeviceId, error: &FsError) -> bool {
    let (FsError::Engine(Error::Media(MediaError::Device(_))), Ok(found)) =
        (error, store.devices.device(device))
    else {
        return false;
    };
    let now_ns = store.clock.monotonic_ns();
    let fresh = !found.is_avoided(now_ns);
    found.avoid(now_ns);
    fresh
}

/// Space for a group on the fastest lower tier that has any, on a device that did not fail a moment ago if any
/// other has.
pub fn allocate(store: &Store, blocks: u64) -> FsResult<DeviceRun> {
    allocate_for(store, blocks, Destination::Any)
}

/// Space on the first tier that has any, of those that the destination allows.
pub(crate) fn allocate_for(store: &Store, blocks: u64, to: Destination) -> FsResult<DeviceRun> {
    for devices in choices_for(store, to) {
        if let Some(run) = store.devices.space().allocate(&devices, blocks)? {
            return Ok(run);
        }
    }
    Err(NoSpace::Tier.into())
}

/// As [`allocate_for`], in several runs of one device where no hole is large enough.
fn allocate_runs_for(store: &Store, blocks: u64, to: Destination) -> FsResult<Vec<DeviceRun>> {
    for devices in choices_for(store, to) {
        let runs = store.devices.space().allocate_runs(&devices, blocks, false)?;
        if !runs.is_empty() {
            return Ok(runs);
        }
    }
    Err(NoSpace::Tier.into())
}
