//! Removal of a range of a file, in pieces of one transaction each (S4, T7).

use crate::change::record_room::removed_blocks;
use crate::change::shards::{lock_shards, stage_device_free};
use crate::change::staged::Staged;
use crate::inode::slot::mapped;
use crate::operation::need::Attempt;
use crate::operation::op::Op;
use crate::store::Store;
use crate::types::BlockRange;
use crate::types::inode::Inode;
use std::iter::repeat_n;
use terrace_catalog::{DeviceRun, ShardsWrite, cold_map};
use terrace_format::inode::flag;
use terrace_format::keys::ColdExtent;
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_runtime::planted::{Mistake, planted};

/// The blocks that a piece of a removal takes away. They are looked up under the inode lock, before the
/// catalog shards are locked, so that every shard of the piece is known.
pub struct Piece {
    range: BlockRange,
    pm: Vec<(FileBlock, PmBlock)>,
    cold: Vec<ColdExtent>,
    /// The range is empty after this piece.
    pub complete: bool,
}

impl Piece {
    /// True if the piece removes no block.
    pub fn is_empty(&self) -> bool {
        self.pm.is_empty() && self.cold.is_empty()
    }
    /// Where the next piece starts.
    pub fn end(&self) -> FileBlock {
        self.range.end
    }
    /// The device blocks that become free.
    pub(crate) fn device_runs(&self) -> impl Iterator<Item = DeviceRun> {
        self.cold.iter().map(DeviceRun::from)
    }
}

/// PM blocks and cold extents that one record can remove. On the smallest lanes (4 KiB records) 32
/// and 2 with the radix map: 40 bytes a block, 600 an extent, the rest for the slot, the intent and emptied map pages.
fn piece_limits(store: &Store, op: &Op) -> (usize, usize) {
    let record = store.persistent.wal().max_record() >> op.piece_halvings;
    (removed_blocks(store, record).clamp(1, 512), (record / 2048).clamp(1, 32))
}

/// Looks up the next piece of a range. The caller holds the inode's exclusive lock.
pub fn next_piece(store: &Store, op: &Op, inode: &Inode, range: BlockRange) -> Attempt<Piece> {
    let (most_pm, most_cold) = piece_limits(store, op);
    let mut end = range.end;
    let mut cold = Vec::new();
    if inode.slot.has(flag::HAS_COLD) {
        let shard = store.persistent.catalog().read(store.persistent.catalog().shard_of(inode.ino.0));
        cold_map::scan(shard.reader(), inode.ino, range.first, range.end, |extent| {
            if cold.len() == most_cold {
                end = extent.first;
                return std::ops::ControlFlow::Break(());
            }
            cold.push(extent);
            std::ops::ControlFlow::Continue(())
        })?;
    }
    let mut found = Vec::new();
    let mut next = Some(range.first);
    while let Some(at) = next
        && found.len() <= most_pm
    {
        let left = most_pm + 1 - found.len();
        next = mapped(store, inode, BlockRange::new(at, end), left, &mut found)?;
    }
    if let Some((block, _)) = found.get(most_pm) {
        end = *block;
        found.truncate(most_pm);
    }
    assert!(end > range.first || range.is_empty(), "a removal does not get on at block {end} (T7)");
    let pm = found.into_iter().map(|(block, mapping)| (block, mapping.block)).collect();
    let cold = cold.into_iter().filter_map(|extent| extent.slice(range.first, end)).collect();
    Ok(Piece { range: BlockRange::new(range.first, end), pm, cold, complete: end == range.end })
}

/// Locks the shards that a piece changes.
pub fn lock_piece<'s>(store: &'s Store, ino: Ino, piece: &Piece) -> ShardsWrite<'s> {
    lock_shards(store, ino, piece.device_runs())
}

/// Adds the removal of a piece to a transaction: cold extents, then PM entries, in one record (S4).
pub fn stage_piece(
    store: &Store,
    inode: &Inode,
    piece: &Piece,
    shards: &mut ShardsWrite<'_>,
    staged: &mut Staged<'_>,
) -> Attempt<()> {
    bump_removed(store, inode, piece.range, &piece.cold);
    if !piece.cold.is_empty() {
        let mut freed = Vec::new();
        let (first, end) = (piece.range.first, piece.range.end);
        cold_map::cut(shards, &mut staged.tx, inode.ino, first, end, &mut freed)?;
        for (device, start, length) in freed {
            stage_device_free(store, DeviceRun { device, start, length }, shards, staged)?;
        }
    }
    let mut index = 0;
    while index < piece.pm.len() {
        let first = piece.pm[index].0;
        let mut count = 0;
        while index < piece.pm.len() && piece.pm[index].0 == first.plus(count as u64) {
            count += 1;
            index += 1;
        }
        staged.change_map(inode, first, repeat_n(None, count))?;
    }
    // After all of them: a block that was released in an attempt without room looks as if it had changed.
    piece.pm.iter().for_each(|(_, pm)| staged.release(*pm));
    staged.blocks_delta -= union_count(store, piece) as i64;
    Ok(())
}

/// Raises the versions of a removed range, so that a reader or movement that looked at it before sees the
/// change (S6), and drops the clean pages of its cold blocks.
pub fn bump_removed(store: &Store, inode: &Inode, range: BlockRange, cold: &[ColdExtent]) {
    if planted(Mistake::PunchIgnoredByVersion) {
        return;
    }
    // A reader's look, under the shared lock, is before this or after it.
    assert!(store.inodes.locks().is_exclusive(inode.ino), "inode {} loses blocks unlocked (S6)", inode.ino);
    store.dram.cold_versions().bump(inode.ino, range);
    for gone in cold.iter().filter_map(|extent| extent.slice(range.first, range.end)) {
        store.dram.cache().remove_range(inode.ino, inode.slot.generation.get(), gone.first, gone.end());
    }
}

/// File blocks that a piece removes, each once.
fn union_count(_store: &Store, piece: &Piece) -> u64 {
    let covered = |block: FileBlock| piece.cold.iter().any(|e| e.first <= block && block < e.end());
    let cold: u64 = piece.cold.iter().map(|extent| u64::from(extent.length)).sum();
    cold + piece.pm.iter().filter(|(block, _)| !covered(*block)).count() as u64
}
