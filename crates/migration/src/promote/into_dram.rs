//! Read migration into DRAM ([TPFS] sections 4 and 5.3): while DRAM bandwidth idles, blocks of read-dominated files go down
//! to a block tier, and a copy of each stays in DRAM.
//!
//! The move is a demotion like any other (M1, M2). The copy is taken from PM under the inode lock in which the
//! cold extent is installed, and kept only if it has the checksum that the extent names. One bounded piece per
//! step, and only while less than half of the cache is in use (design 7): what is demoted must not push out what is read
//! from below.

use crate::migration::Migration;
use crate::planner::move_group;
use crate::promote::cursor::next_read_dominated;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_placement::decision::{ReadRule, read_rule};
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::load::load_regular;
use terrace_store::inode::slot::next_mapped;
use terrace_store::moving::dram_copies::{LEAST, room_for_copies};
use terrace_store::moving::victim::{LEAVING, Victim};
use terrace_store::steering::read_dominated::belongs_in_dram;

/// Most blocks moved in one step.
const PIECE: u64 = 512;

/// Moves a piece, if the policy and equation (2) ask for it and DRAM has room.
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
    // Taken out: no lock is held while a device is written.
    let mut cursor = std::mem::take(&mut *migration.to_dram.lock());
    if let Some((ino, generation, from)) =
        cursor.file.take().or_else(|| next_read_dominated(migration, &mut cursor))
    {
        match sink(migration, ino, generation, from, room.min(PIECE)) {
            Ok(next) => cursor.file = next.map(|next| (ino, generation, next)),
            Err(error) => tracing::debug!("migration of inode {ino} into DRAM: {error}"),
        }
    }
    *migration.to_dram.lock() = cursor;
}

/// Moves at most `most` of a file's PM blocks at or behind `from` that were read; where to go on.
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
        // Not before all are found: after an error nobody would give the marked ones back.
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
    let (mut victims, mut at) = (Vec::new(), from);
    for _ in 0..most {
        let Some((block, mapping)) = next_mapped(&migration.store, &inode, at, end)? else {
            return Ok(Some((victims, None)));
        };
        let descriptor = migration.store.persistent.blocks().descriptor(mapping.block);
        if !mapping.unwritten && descriptor.read() > 0 {
            victims.push(Victim { ino, block, pm: mapping.block });
        }
        at = block.plus(1);
    }
    Ok(Some((victims, Some(at))))
}
