//! Promotion into DRAM ([TPFS] sections 4 and 5.3): while DRAM bandwidth idles, PM blocks of read-dominated
//! files are demoted, and a clean page of each stays in DRAM.
//!
//! The movement is a demotion like any other (M1, M2). The page is copied from PM under the inode lock that
//! installs the cold extent, and stays only if it has the checksum of the extent. A step is one bounded
//! piece, and runs only while less than half of the cache is used (design 7): new pages must not push out
//! pages of cold blocks that are read.

use crate::migration::Migration;
use crate::planner::move_group;
use crate::promote::cursor::next_read_dominated;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_map::Mapping;
use terrace_placement::decision::{ReadRule, read_rule};
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::load::load_regular;
use terrace_store::inode::slot::mapped;
use terrace_store::moving::dram_copies::{LEAST, room_for_copies};
use terrace_store::moving::victim::{LEAVING, Victim};
use terrace_store::steering::read_dominated::belongs_in_dram;
use terrace_store::types::BlockRange;

/// Most blocks moved in one step.
const PIECE: u64 = 512;

/// Demotes a piece, if the policy and equation (2) ask for it and DRAM has room.
pub(crate) fn to_dram_round(migration: &Migration) {
    let rule = read_rule(true, true, migration.store.steering.data_flows().idle());
    if !migration.store.steering.policy().follows_reads()
        || rule != ReadRule::ToDram
        || migration.store.devices.list().is_empty()
    {
        return;
    }
    let room = room_for_copies(&migration.store);
    if migration.store.mode.read_only || room < LEAST {
        return;
    }
    // The cursor is taken out, so that no lock is held while a device is written.
    let mut cursor = std::mem::take(&mut *migration.to_dram.lock());
    if let Some((ino, generation, from)) =
        cursor.file.take().or_else(|| next_read_dominated(&migration.store, &mut cursor))
    {
        match sink(migration, ino, generation, from, room.min(PIECE)) {
            Ok(next) => cursor.file = next.map(|next| (ino, generation, next)),
            Err(error) => tracing::debug!("migration of inode {ino} into DRAM: {error}"),
        }
    }
    *migration.to_dram.lock() = cursor;
}

/// Demotes at most `most` PM blocks of a file, at or behind `from`, that were read. Gives the block to go on
/// at.
fn sink(
    migration: &Migration,
    ino: Ino,
    generation: u32,
    from: FileBlock,
    most: u64,
) -> FsResult<Option<FileBlock>> {
    let Some((victims, next)) = read_blocks(migration, ino, generation, from, most)? else { return Ok(None) };
    if !victims.is_empty() {
        migration.store.dram.kept_copies().wanted(
            migration.store.clock.monotonic_ns().saturating_sub(migration.store.steering.mounted_ns()),
        );
        // Blocks are marked only after all are found: after an error no code would take the marks away.
        victims
            .iter()
            .for_each(|victim| migration.store.persistent.blocks().descriptor(victim.pm).touch_read(LEAVING));
        migration.store.pressure.begin_group(victims.len());
        move_group(migration, &victims)?;
    }
    Ok(next)
}

fn read_blocks(
    migration: &Migration,
    ino: Ino,
    generation: u32,
    from: FileBlock,
    most: u64,
) -> FsResult<Option<(Vec<Victim>, Option<FileBlock>)>> {
    let _guard = migration.store.inodes.locks().read(ino);
    let inode = match load_regular(&migration.store, ino) {
        Err(FsError::Stale) => return Ok(None),
        inode => inode?,
    };
    if inode.slot.generation.get() != generation || !belongs_in_dram(&migration.store, &inode) {
        return Ok(None);
    }
    let end = FileBlock(inode.size().div_ceil(BLOCK_SIZE));
    let mut found = Vec::new();
    let next = mapped(&migration.store, &inode, BlockRange::new(from, end), most as usize, &mut found)?;
    let was_read = |mapping: &Mapping| {
        !mapping.unwritten && migration.store.persistent.blocks().descriptor(mapping.block).read() > 0
    };
    let read = found.into_iter().filter(|(_, mapping)| was_read(mapping));
    Ok(Some((read.map(|(block, mapping)| Victim { ino, block, pm: mapping.block }).collect(), next)))
}
