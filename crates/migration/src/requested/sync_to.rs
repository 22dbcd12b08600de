//! `sync --to`: all dirty pages and all blocks above the wanted tier go to it or below.

use crate::migration::Migration;
use crate::report::migration_report;
use crate::requested::drain::{MOST_PASSES, drain_below, survey_between, used_between};
use crate::worker::MigrationStep;
use serde::Serialize;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use terrace_blocks::{Descriptor, State};
use terrace_catalog::cold_map;
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, PmBlock};
use terrace_fs::sync::sync;
use terrace_runtime::{Next, Step, interleave};
use terrace_store::attempt::with_pages::with_pages;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::load;
use terrace_store::lookup::intents::intents_of;
use terrace_store::lookup::newest::mapped_to;
use terrace_store::moving::relocation_group::tier_of;
use terrace_store::moving::victim::Victim;
use terrace_store::pressure::ending::go_on;
use terrace_store::types::Wait;

/// A dry run of `sync` or `sync_to`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SyncPlan {
    /// Bytes that would move, by their present tier: (tier, bytes), tier 0 first.
    pub tiers: Vec<(u8, u64)>,
    /// Bytes of dirty pages, which would be written back first.
    pub dirty_bytes: u64,
}

/// Moves all blocks that are above `tier` now to `tier` or below, and waits. `progress` gets the number of
/// blocks left. Gives the bytes of blocks in PM that were written meanwhile: such a block stays in PM whole,
/// with its older bytes.
///
/// # Errors
/// EINVAL when there is no such tier, EROFS, ENOSPC when it cannot take all, EIO; EAGAIN when files changed
/// faster than blocks moved, again and again.
pub fn sync_to(migration: &Arc<Migration>, tier: u8, progress: &mut dyn FnMut(u64)) -> FsResult<u64> {
    if tier == 0 {
        return sync(&migration.store).map(|()| 0);
    }
    check_drain(migration, tier)?;
    let begin = migration.store.persistent.blocks().new_version();
    migration.store.pressure.begin_drain(tier);
    let done = send_down(migration, tier, progress);
    migration.store.pressure.end_drain();
    done?;
    interleave::point("sync:drained");
    // Each group was flushed before it was installed (M1).
    sync(&migration.store)?;
    let mut written = 0;
    file_blocks(
        migration,
        |found| !found.is_clean() && found.version() >= begin,
        |_| {
            written += BLOCK_SIZE;
            Ok(ControlFlow::Continue(()))
        },
    )?;
    Ok(written)
}

fn send_down(migration: &Arc<Migration>, tier: u8, progress: &mut dyn FnMut(u64)) -> FsResult<()> {
    // Dirty pages go first: written back, a page lies on a lower tier or in PM, and is then moved with all
    // other blocks.
    if !migration.store.dram.volatile_sizes().files().is_empty() {
        sync(&migration.store)?;
    }
    take_clean_above(migration, tier)?;
    for _ in 0..MOST_PASSES {
        drain(migration, tier, progress)?;
        drain_below(migration, tier, progress)?;
        if !take_clean_above(migration, tier)? {
            return Ok(());
        }
    }
    Err(FsError::WouldBlock)
}

/// A clean block in PM hides its cold copy from relocation. If that copy lies above `tier`, the block counts
/// as changed from now on, and is demoted like any other. Gives whether there was such a block.
fn take_clean_above(migration: &Migration, tier: u8) -> FsResult<bool> {
    let mut taken = false;
    clean_above(migration, tier, |found| {
        found.set_clean(false);
        taken = true;
    })?;
    Ok(taken)
}

/// Visits clean blocks in PM whose cold copy lies above `tier`, each with its inode locked.
fn clean_above(migration: &Migration, tier: u8, mut visit: impl FnMut(&Descriptor)) -> FsResult<()> {
    if !migration.store.devices.tiers().iter().any(|above| above.0 < tier) {
        return Ok(());
    }
    file_blocks(
        migration,
        |found| found.is_clean(),
        |Victim { ino, block, pm }| {
            with_pages(&migration.store, Wait::Allowed, || {
                // A block is certainly clean only while this lock is held (S2).
                let _guard = migration.store.inodes.locks().write(ino);
                let shard = migration
                    .store
                    .persistent
                    .catalog()
                    .read(migration.store.persistent.catalog().shard_of(ino.0));
                let below = cold_map::lookup(shard.reader(), ino, block)?;
                let at = below.and_then(|extent| tier_of(&migration.store, extent.device));
                let found = migration.store.persistent.blocks().descriptor(pm);
                if at.is_some_and(|at| at.0 < tier) && found.is_clean() {
                    visit(found);
                }
                Ok(())
            })?;
            Ok(ControlFlow::Continue(()))
        },
    )
}

fn check_drain(migration: &Migration, tier: u8) -> FsResult<()> {
    if !migration.store.devices.tiers().iter().any(|found| found.0 >= tier) {
        return Err(FsError::Invalid);
    }
    // A read-only mount moves no block, so the wait would never end.
    if migration.store.mode.read_only { Err(FsError::ReadOnly) } else { Ok(()) }
}

/// The bytes that [`sync_to`] would move now, or [`sync`] for tier 0. Looks at all files first if a lower
/// tier lies above `tier`.
///
/// # Errors
/// As [`sync_to`]; EIO.
pub fn plan_sync_to(migration: &Migration, tier: u8) -> FsResult<SyncPlan> {
    let mut plan = SyncPlan { tiers: Vec::new(), dirty_bytes: migration.store.dram.cache().dirty_bytes() };
    if tier == 0 {
        return Ok(plan);
    }
    check_drain(migration, tier)?;
    let mut only_in_pm = 0;
    dirty_before(migration, u64::MAX, |_| {
        only_in_pm += BLOCK_SIZE;
        Ok(ControlFlow::Continue(()))
    })?;
    clean_above(migration, tier, |_| only_in_pm += BLOCK_SIZE)?;
    plan.tiers.push((0, only_in_pm));
    plan.tiers.extend(survey_between(migration, tier)?);
    Ok(plan)
}

/// Demotes until no block written before the call is only in PM.
fn drain(migration: &Arc<Migration>, tier: u8, progress: &mut dyn FnMut(u64)) -> FsResult<()> {
    // Blocks written after this version need not go.
    let before = migration.store.persistent.blocks().new_version();
    let mut step = MigrationStep::new(migration, 1);
    let mut failures = 0;
    let mut fewest = u64::MAX;
    loop {
        if migration.store.persistent.wal().is_stopped() {
            return Err(FsError::NotDurable);
        }
        go_on(&migration.store)?;
        let mut left = 0;
        dirty_before(migration, before, |_| {
            left += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        progress(left + used_between(migration, tier));
        if left == 0 {
            return Ok(());
        }
        interleave::point("drain:between-rounds");
        let begun = migration_report(migration, migration.store.clock.monotonic_ns());
        // Only demoted blocks count as progress: a failure must not pass because rounds find other work.
        if left < fewest {
            (fewest, failures) = (left, 0);
        }
        if step.step() == Next::Again {
            continue;
        }
        if let Some(reason) = migration.store.pressure.reason() {
            failures += 1;
            if failures > 3 {
                tracing::warn!("sync to a lower tier gives up: {reason}");
                return Err(reason);
            }
            migration.store.clock.sleep(Duration::from_millis(500));
        } else if begun.demoted_bytes
            == migration_report(migration, migration.store.clock.monotonic_ns()).demoted_bytes
        {
            if !with_pages(&migration.store, Wait::Allowed, || is_any_left(migration, before))? {
                return Ok(());
            }
            migration.store.pressure.wait_round(Duration::from_millis(10));
        }
    }
}

/// Visits the file blocks that the block table says are only in PM and were written before a version.
fn dirty_before(
    migration: &Migration,
    before: u64,
    visit: impl FnMut(Victim) -> FsResult<ControlFlow<()>>,
) -> FsResult<()> {
    file_blocks(migration, |found| found.version() < before && !found.is_clean(), visit)
}

/// Visits the file blocks with a descriptor that passes the filter.
fn file_blocks(
    migration: &Migration,
    wanted: impl Fn(&Descriptor) -> bool,
    mut visit: impl FnMut(Victim) -> FsResult<ControlFlow<()>>,
) -> FsResult<()> {
    while migration.store.persistent.blocks().scan_step()? {}
    for pm in (migration.store.persistent.blocks().first_block().0
        ..migration.store.persistent.blocks().end_block().0)
        .map(PmBlock)
    {
        let descriptor = migration.store.persistent.blocks().descriptor(pm);
        if descriptor.state() == State::Used
            && wanted(descriptor)
            && let Owner::File { ino, block, unwritten: false } =
                migration.store.persistent.blocks().owner(pm)?
            && visit(Victim { ino, block, pm })?.is_break()
        {
            return Ok(());
        }
    }
    Ok(())
}

/// Whether any of these blocks still belongs to a file. Blocks under an intent do not, although the reclaimer
/// has not removed them yet: a wait for them would be a wait for the reclaimer.
fn is_any_left(migration: &Migration, before: u64) -> FsResult<bool> {
    let mut found = false;
    dirty_before(migration, before, |Victim { ino, block, pm }| {
        let _guard = migration.store.inodes.locks().read(ino);
        let inode = match load(&migration.store, ino) {
            Err(FsError::Stale) => return Ok(ControlFlow::Continue(())),
            inode => inode?,
        };
        let intents = intents_of(&migration.store, &inode)?;
        found = mapped_to(&migration.store, &inode, &intents, block, pm)?.is_some();
        Ok(if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(found)
}
