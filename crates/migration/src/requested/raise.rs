//! Requested promotion: like a promotion by policy, but the user chooses the file, and PM takes blocks until
//! the reserve or the threshold of the policy is reached.

use crate::migration::Migration;
use crate::observe::observe;
use std::ops::ControlFlow;
use terrace_cache::PageKey;
use terrace_catalog::cold_map;
use terrace_format::inode::flag;
use terrace_format::{BLOCK_SIZE, FileBlock};
use terrace_runtime::interleave;
use terrace_store::attempt::with_pages::with_pages;
use terrace_store::error::{FsError, FsResult};
use terrace_store::lookup::cold_read::read_pages;
use terrace_store::lookup::intents::intents_of;
use terrace_store::moving::file_id::{FileId, load_file};
use terrace_store::moving::promote::promote;
use terrace_store::parts::devices::device::DeviceRead;
use terrace_store::parts::dram::promotions::Promotion;
use terrace_store::types::{MOST_BAD, WHOLE_FILE, Wait};
use terrace_wal::NoSpace;

/// Blocks read in a step.
const PIECE: u64 = 64;

/// A read of a device with the versions of its blocks (S6).
type Versioned<'a> = (DeviceRead<'a>, Vec<(FileBlock, u64)>);

/// The result of a step.
pub struct Raised {
    /// Blocks promoted into PM.
    pub blocks: u64,
    /// The block to go on at; `None` at the end of the file, or when the file is gone.
    pub next: Option<FileBlock>,
}

/// Whether PM has room above back-pressure, and the policy would not demote the promoted blocks at once.
fn takes_more(migration: &Migration) -> bool {
    let low = 2 * migration.store.pressure.throttle_below();
    migration.store.persistent.blocks().free_hint() >= low
        && migration.store.steering.policy().blocks_to_demote(&observe(migration)) == 0
}

/// Promotes some blocks of a file from `from` on. Blocks that changed meanwhile are left out; damage of a
/// block goes to `trouble`.
///
/// # Errors
/// ENOSPC when PM has no more room (blocks promoted before stay), EIO.
pub fn raise(
    migration: &Migration,
    file: FileId,
    from: FileBlock,
    trouble: &mut Option<FsError>,
) -> FsResult<Raised> {
    let mut raised = Raised { blocks: 0, next: None };
    let (reads, next) = plan_raise(migration, file, from)?;
    raised.next = next;
    interleave::point("raise:planned");
    for (read, versions) in reads {
        let mut pages = Vec::new();
        if read_pages(&migration.store, file.ino, &read, WHOLE_FILE, &mut pages).is_err() {
            // A damaged block does not keep its neighbours from being promoted.
            pages.clear();
            let mut failures = 0;
            for part in (0..read.blocks.len()).filter_map(|index| read.part(index..index + 1)) {
                if let Err(error) = read_pages(&migration.store, file.ino, &part, WHOLE_FILE, &mut pages) {
                    trouble.get_or_insert(error);
                    failures += 1;
                }
                if failures == MOST_BAD {
                    break;
                }
            }
        }
        for (block, page) in pages {
            if !takes_more(migration) {
                return Err(NoSpace::Tier.into());
            }
            let key = PageKey { ino: file.ino, generation: file.generation, block };
            let Some(version) = versions.iter().find_map(|(of, version)| (*of == block).then_some(*version))
            else {
                continue;
            };
            match promote(&migration.store, &Promotion { key, version, page }) {
                Ok(true) => {
                    raised.blocks += 1;
                    migration.store.pressure.moved().note_up(migration.store.clock.monotonic_ns());
                    migration.store.dram.cache().remove(key);
                }
                Ok(false) | Err(FsError::Stale) => {}
                // The promotion would have to wait for space.
                Err(FsError::WouldBlock) => return Err(NoSpace::Tier.into()),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(raised)
}

/// The device reads for the next blocks that PM lacks, with the versions of their blocks.
fn plan_raise(
    migration: &Migration,
    file: FileId,
    from: FileBlock,
) -> FsResult<(Vec<Versioned<'_>>, Option<FileBlock>)> {
    with_pages(&migration.store, Wait::Allowed, || plan_raise_in_pm(migration, file, from))
}

fn plan_raise_in_pm(
    migration: &Migration,
    file: FileId,
    from: FileBlock,
) -> FsResult<(Vec<Versioned<'_>>, Option<FileBlock>)> {
    let guard = migration.store.inodes.locks().read(file.ino);
    let Some(inode) = load_file(&migration.store, file)? else { return Ok((Vec::new(), None)) };
    let end = FileBlock(inode.size().div_ceil(BLOCK_SIZE));
    if !inode.slot.has(flag::HAS_COLD) || from >= end {
        return Ok((Vec::new(), None));
    }
    let intents = intents_of(&migration.store, &inode)?;
    let mut extents = Vec::new();
    let mut window = None;
    {
        let shard = migration
            .store
            .persistent
            .catalog()
            .read(migration.store.persistent.catalog().shard_of(file.ino.0));
        cold_map::scan(shard.reader(), file.ino, from, end, |extent| {
            // The window begins at the first cold block and has at most a piece.
            let first: &mut FileBlock = window.get_or_insert(extent.first.max(from));
            let until = end.min(FileBlock(((first.0 / PIECE) + 1) * PIECE));
            extents.extend(extent.slice(*first, until).filter(|extent| !extent.unwritten));
            if extent.end() < until { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
    }
    let Some(first) = window else { return Ok((Vec::new(), None)) };
    let until = end.min(FileBlock(((first.0 / PIECE) + 1) * PIECE));
    let mut wanted = Vec::new();
    for extent in extents {
        for block in (extent.first.0..extent.end().0).map(FileBlock) {
            let gone = intents.iter().any(|range| range.first <= block && block < range.end);
            let map = migration.store.persistent.map();
            if !gone && map.lookup_with(&guard, &inode.map(), block)?.is_none() {
                wanted.extend(extent.slice(block, block.plus(1)));
            }
        }
    }
    let reads = migration.store.devices.plan_reads(wanted).into_iter().map(|read| {
        let version = |(block, _): &(FileBlock, u32)| {
            (*block, migration.store.dram.cold_versions().get(file.ino, *block))
        };
        let versions = read.blocks.iter().map(version).collect();
        (read, versions)
    });
    let reads = reads.collect();
    Ok((reads, (until < end).then_some(until)))
}
