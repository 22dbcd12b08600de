//! The part of `sync --to` below PM: blocks of lower tiers above the wanted tier are relocated to it.

use crate::migration::Migration;
use crate::requested::survey::{Survey, survey};
use terrace_format::inode::{SLOTS_PER_PAGE, flag};
use terrace_format::{FileBlock, Ino, TierId};
use terrace_runtime::interleave;
use terrace_store::attempt::with_pages::with_pages;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::load;
use terrace_store::moving::destination::Destination;
use terrace_store::moving::errors::concerns_all_files;
use terrace_store::moving::file_id::FileId;
use terrace_store::moving::relocate::move_between;
use terrace_store::moving::relocation_group::{MovingGroup, collect_below};
use terrace_store::pressure::ending::go_on;
use terrace_store::types::Wait;

/// How often all files are visited, and how often `sync_to` begins again because blocks were promoted
/// meanwhile. Blocks demoted meanwhile go to the wanted tier at once (`tiers_for`), so two passes are the
/// rule.
pub(crate) const MOST_PASSES: u32 = 8;

/// Blocks in use on lower tiers above `tier`, hidden cold copies included.
pub(crate) fn used_between(migration: &Migration, tier: u8) -> u64 {
    let above = migration.store.devices.tiers().into_iter().filter(|above| above.0 < tier);
    let totals = above
        .map(|above| migration.store.devices.space().totals_now(&migration.store.devices.of_tier(above)));
    totals.map(|totals| totals.total - totals.free).sum()
}

/// Relocates blocks of lower tiers above `tier` to `tier`. `progress` gets the most blocks that can be left.
///
/// # Errors
/// ENOSPC, EIO; EAGAIN when files changed faster than blocks moved, again and again.
pub(crate) fn drain_below(migration: &Migration, tier: u8, progress: &mut dyn FnMut(u64)) -> FsResult<()> {
    if !migration.store.devices.tiers().iter().any(|above| above.0 < tier) {
        return Ok(());
    }
    // The count of blocks that are left needs all chunk bitmaps.
    while migration.store.devices.space().load_step()? {}
    for _ in 0..MOST_PASSES {
        let (found, trouble) = drain_pass(migration, tier, progress)?;
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        if !found {
            return Ok(());
        }
    }
    Err(FsError::WouldBlock)
}

/// Visits all files once. Gives whether any block had to move, and the first damage.
fn drain_pass(
    migration: &Migration,
    tier: u8,
    progress: &mut dyn FnMut(u64),
) -> FsResult<(bool, Option<FsError>)> {
    let (to, most) = (Destination::AtOrBelow(TierId(tier)), migration.store.mode.group_blocks as usize);
    let (mut group, mut found, mut trouble) = (MovingGroup::default(), false, None);
    let pages = migration.store.inodes.numbers().lock().pages;
    for ino in (1..pages * SLOTS_PER_PAGE).map(Ino) {
        let Some(file) = has_cold(migration, ino, &mut trouble)? else { continue };
        let mut at = Some(FileBlock(0));
        while let Some(from) = at {
            go_on(&migration.store)?;
            at = match collect_below(&migration.store, file, from, most, to, &mut group) {
                Err(error) if error.concerns_one_file() && !concerns_all_files(&migration.store, &error) => {
                    trouble.get_or_insert(error);
                    None
                }
                collected => collected?,
            };
            if group.blocks.len() >= most {
                found = true;
                interleave::point("drain:between-rounds");
                move_between(&migration.store, std::mem::take(&mut group), to, &mut trouble)?;
                progress(used_between(migration, tier));
            }
        }
    }
    found |= !group.blocks.is_empty();
    move_between(&migration.store, group, to, &mut trouble)?;
    progress(used_between(migration, tier));
    Ok((found, trouble))
}

/// Bytes of files on each lower tier above `tier`.
///
/// # Errors
/// EIO.
pub(crate) fn survey_between(migration: &Migration, tier: u8) -> FsResult<Vec<(u8, u64)>> {
    if !migration.store.devices.tiers().iter().any(|above| above.0 < tier) {
        return Ok(Vec::new());
    }
    let (mut found, mut trouble) = (Survey::default(), None);
    let pages = migration.store.inodes.numbers().lock().pages;
    for ino in (1..pages * SLOTS_PER_PAGE).map(Ino) {
        let Some(file) = has_cold(migration, ino, &mut trouble)? else { continue };
        let mut at = Some(FileBlock(0));
        while let Some(from) = at {
            go_on(&migration.store)?;
            at = survey(migration, file, from, &mut found)?;
        }
    }
    let by_tier = (0..tier).zip(found.0).skip(1);
    trouble.map_or(Ok(by_tier.collect()), Err)
}

/// The file of an inode with cold extents. An inode that cannot be read becomes `trouble`.
fn has_cold(migration: &Migration, ino: Ino, trouble: &mut Option<FsError>) -> FsResult<Option<FileId>> {
    let found = with_pages(&migration.store, Wait::Allowed, || {
        let _guard = migration.store.inodes.locks().read(ino);
        load(&migration.store, ino)
    });
    match found {
        Ok(inode) if inode.slot.is_regular() && inode.slot.has(flag::HAS_COLD) => {
            Ok(Some(FileId { ino, generation: inode.slot.generation.get() }))
        }
        Ok(_) | Err(FsError::Stale) => Ok(None),
        Err(error) if migration.store.persistent.wal().is_stopped() => Err(error),
        Err(error) => {
            trouble.get_or_insert(error);
            Ok(None)
        }
    }
}
