//! Dirty pages that a change settles, zeroes or drops.

use crate::error::FsResult;
use crate::lookup::cold_extents::cold_extents;
use crate::store::Store;
use crate::types::inode::{Inode, Pending};
use crate::types::{BlockRange, WHOLE_FILE};
use smallvec::SmallVec;
use terrace_cache::{Dropped, Lines};
use terrace_format::inode::{InodeSlot, flag};
use terrace_format::{BLOCK_SIZE, FileBlock};
use terrace_map::Mapping;
use terrace_placement::Home;
use terrace_runtime::planted::{Mistake, planted};

/// For each block of a range whether PM or a lower tier has a block for it, written or unwritten.
pub fn placed(store: &Store, inode: &Inode, range: BlockRange) -> FsResult<SmallVec<[bool; 64]>> {
    let count = range.count() as usize;
    let mut mappings: SmallVec<[Option<Mapping>; 64]> = SmallVec::from_elem(None, count);
    store.persistent.map().lookup_run(&inode.map(), range.first, &mut mappings)?;
    let mut placed: SmallVec<[bool; 64]> = mappings.iter().map(Option::is_some).collect();
    if inode.slot.has(flag::HAS_COLD) && placed.contains(&false) {
        for extent in cold_extents(store, inode.ino, range)? {
            let inside = extent.slice(range.first, range.end);
            for extent in inside.iter() {
                let from = (extent.first.0 - range.first.0) as usize;
                placed[from..from + extent.length as usize].fill(true);
            }
        }
    }
    Ok(placed)
}

/// The number of dirty pages of a range whose blocks are not allocated on a medium. The caller holds the
/// inode's exclusive lock.
pub fn dirty_without_place(store: &Store, inode: &Inode, range: BlockRange) -> FsResult<u64> {
    if inode.pending.is_none_or(|pending| pending.new_blocks == 0) {
        return Ok(0);
    }
    let mut count = 0;
    for block in store.dram.cache().dirty_blocks(inode.ino, range.first, range.end, usize::MAX) {
        let placed = placed(store, inode, BlockRange::new(block, block.plus(1)))?;
        count += u64::from(placed.contains(&false));
    }
    Ok(count)
}

/// Drops the dirty pages of a range, and what was reserved for them. The caller holds the inode's exclusive lock.
pub(crate) fn drop_dirty_range(store: &Store, inode: &Inode, range: BlockRange) {
    const STEP: usize = 1024;
    assert!(store.inodes.locks().is_exclusive(inode.ino), "pages of inode {} drop unlocked (T2)", inode.ino);
    loop {
        let blocks = store.dram.cache().dirty_blocks(inode.ino, range.first, range.end, STEP);
        let mut dead_lines = 0;
        let drop_page = |block: &FileBlock| {
            let dropped = store.dram.cache().drop_dirty(inode.page_key(*block))?;
            dead_lines += lazy_lines(&dropped);
            Some(dropped)
        };
        let dropped = blocks.iter().map(drop_page);
        if planted(Mistake::PromiseKept) {
            dropped.for_each(drop);
        } else {
            give_promises_back(store, dropped, 0);
        }
        store.dram.lazy_writes().counts().add_dead(inode.ino, dead_lines);
        if blocks.len() < STEP {
            break;
        }
    }
}

/// Dirty lines of a page whose home is PM.
pub(crate) fn lazy_lines(dropped: &Dropped) -> u64 {
    if dropped.home == Home::Pm { u64::from(dropped.dirty.0.count_ones()) } else { 0 }
}

/// Gives back what was reserved for pages that are dropped, by their homes: a device block, or a PM block, but for `ended`
/// promises of PM blocks that ended already.
pub(crate) fn give_promises_back(store: &Store, dropped: impl Iterator<Item = Option<Dropped>>, ended: u64) {
    let (mut below, mut in_pm) = (0, 0);
    dropped.flatten().for_each(|dropped| match dropped.home {
        Home::Block => below += 1,
        Home::Pm => in_pm += 1,
    });
    if below > 0 {
        store.devices.space().unreserve(below);
    }
    assert!(in_pm >= ended, "{ended} promises ended for {in_pm} pages (P1)");
    if planted(Mistake::PromiseEndsTwice) && in_pm > ended {
        store.persistent.blocks().promises().take_back(1);
    }
    if in_pm > ended {
        store.persistent.blocks().promises().take_back((in_pm - ended) as usize);
    }
}

/// Zeros bytes `from..to` of dirty pages, those of one block. The caller holds the inode's exclusive lock.
pub fn zero_dirty(store: &Store, inode: &Inode, from: u64, to: u64) {
    let block = FileBlock(from / BLOCK_SIZE);
    let start = block.0 * BLOCK_SIZE;
    assert!(from <= to && to - start <= BLOCK_SIZE, "zeros at {from}..{to} are not of one block");
    let (from, to) = ((from - start) as usize, (to - start).min(BLOCK_SIZE) as usize);
    let key = inode.page_key(block);
    let Some(valid) = store.dram.cache().lines_of(key) else { return };
    // Lines that the page has not are zeroed on the medium by the same transaction, or lie past the durable end.
    let lines = Lines::touched(from, to).intersection(valid);
    let now = store.clock.monotonic_ns();
    let zeros = |bytes: &mut [u8; BLOCK_SIZE as usize]| {
        lines.cut(from, to).filter(|(_, has)| *has).for_each(|(part, _)| bytes[part].fill(0));
    };
    // A copy on its way holds what was cut off: where the size is raised again before it arrives, it would be seen.
    store.dram.cache().change_dirty(key, (lines, lines), true, now, zeros);
}

/// Brings an inode's entry up to date after a transaction: `slot` is what it logged, `visible` the size from
/// now on, `placed` the number of dirty pages without an allocated block that got one or were dropped. The
/// caller holds the inode's exclusive lock.
pub fn settle(store: &Store, inode: &Inode, slot: &InodeSlot, visible: u64, placed: i64) {
    assert!(placed >= 0, "{placed} dirty pages got a place");
    let Some(pending) = inode.pending else { return };
    assert!(
        store.inodes.locks().is_exclusive(inode.ino),
        "size of inode {} changes unlocked (T2)",
        inode.ino
    );
    let dirty = store.dram.cache().count_dirty(inode.ino);
    if dirty == 0 && visible <= slot.size.get() {
        store.dram.volatile_sizes().remove(inode.ino);
        return;
    }
    let new_blocks = pending.new_blocks.saturating_add_signed(placed.saturating_neg()).min(dirty);
    store
        .dram
        .volatile_sizes()
        .set(inode.ino, Pending { size: visible, mtime_ns: None, new_blocks, ..pending });
}

/// Forgets what DRAM holds of a file that is being removed. The caller holds the inode's exclusive lock.
pub fn forget_dirty(store: &Store, inode: &Inode) {
    if inode.pending.is_some() {
        drop_dirty_range(store, inode, WHOLE_FILE);
        store.dram.volatile_sizes().remove(inode.ino);
    }
    store.dram.mapped_files().forget(inode.ino);
    store.dram.write_back().forget(inode.ino);
}
