//! PM entries that are dropped because their blocks lie below now, if their versions are unchanged (M2, S3).

use crate::change::staged::Staged;
use crate::error::FsError;
use crate::inode::slot::load;
use crate::lookup::cold_extents::cold_extents;
use crate::lookup::intents::intents_of;
use crate::lookup::newest::{mapped_to, stays_for_write_back};
use crate::moving::candidate::Candidate;
use crate::operation::need::Attempt;
use crate::store::Store;
use crate::types::BlockRange;
use crate::types::inode::Inode;
use smallvec::SmallVec;
use std::iter::repeat_n;
use terrace_format::inode::flag;
use terrace_format::{DeviceId, FileBlock, PmBlock};
use terrace_runtime::planted::{Mistake, planted};

/// Whether each candidate still has the location and version that it had when its I/O pin was taken.
pub fn unchanged<'b, 'c: 'b>(
    store: &Store,
    inode: &Inode,
    candidates: impl Iterator<Item = &'b Candidate<'c>>,
) -> Attempt<SmallVec<[bool; 32]>> {
    let intents = intents_of(store, inode)?;
    let mut same = SmallVec::new();
    for candidate in candidates {
        let mapping = mapped_to(store, inode, &intents, candidate.block, candidate.pm)?;
        let there = mapping.is_some_and(|mapping| mapping.unwritten == candidate.unwritten);
        let version = store.persistent.blocks().descriptor(candidate.pm).version();
        // Write-back of a page that was dirtied since counts on the block (S6).
        let stays = stays_for_write_back(store, inode, candidate.block);
        same.push(there && version == candidate.version && candidate.read_error.is_none() && !stays);
    }
    Ok(same)
}

/// Drops the PM entries of blocks of an inode, in any order. Room in the map is asked for before a block is released: a
/// block that was released in an attempt without success looks as if it had changed.
pub(crate) fn stage_unmap<'b, 'c: 'b>(
    inode: &Inode,
    candidates: impl Iterator<Item = &'b Candidate<'c>> + Clone,
    staged: &mut Staged<'_>,
) -> Attempt<()> {
    let mut run: Option<BlockRange> = None;
    for candidate in candidates.clone() {
        assert_eq!(candidate.ino, inode.ino, "inode of PM block {} (S3)", candidate.pm);
        let block = candidate.block;
        match &mut run {
            Some(run) if run.end == block => run.end = block.plus(1),
            other => {
                let behind = BlockRange::new(block, block.plus(1));
                if let Some(run) = other.replace(behind) {
                    staged.change_map(inode, run.first, repeat_n(None, run.count() as usize))?;
                }
            }
        }
    }
    if let Some(run) = run {
        staged.change_map(inode, run.first, repeat_n(None, run.count() as usize))?;
    }
    candidates.for_each(|candidate| staged.release(candidate.pm));
    Ok(())
}

/// The inode of a piece while it is the one that was looked at. The caller holds its lock.
pub(crate) fn load_same(store: &Store, candidate: &Candidate<'_>) -> Attempt<Option<Inode>> {
    match load(store, candidate.ino) {
        Ok(inode) if inode.slot.generation.get() == candidate.generation => Ok(Some(inode)),
        Ok(_) | Err(FsError::Stale) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether the cold copy of a block is as good as the one in PM. The caller holds the inode's lock.
pub fn is_clean(store: &Store, inode: &Inode, block: FileBlock, pm: PmBlock) -> bool {
    if planted(Mistake::EvictOnlyCopy) && inode.slot.has(flag::HAS_COLD) {
        return wrong::has_any_copy(store, inode, block);
    }
    store.persistent.blocks().descriptor(pm).is_clean()
}

/// Whether what lies on a device can be had, as far as is known without asking it: the copy in PM may be the last.
pub(crate) fn is_readable(store: &Store, device: DeviceId) -> bool {
    let found = store.devices.list().get(usize::from(device.0));
    found.is_some_and(|found| !found.medium.is_missing())
        && !store.devices.io().has_failed(device)
        && !store.devices.io().is_silent(device, store.clock.monotonic_ns())
}

/// Planted mistakes of this file.
mod wrong {
    use super::{BlockRange, FileBlock, Inode, Store, cold_extents};

    /// `evict-only-copy`: a cold copy exists, and is taken for a valid copy.
    pub(super) fn has_any_copy(store: &Store, inode: &Inode, block: FileBlock) -> bool {
        let below = cold_extents(store, inode.ino, BlockRange::new(block, block.plus(1)));
        below.is_ok_and(|below| below.iter().any(|extent| !extent.unwritten))
    }
}
