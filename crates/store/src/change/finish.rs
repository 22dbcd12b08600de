//! The end of a change of content: size, times, commit, and dirty pages that it contained.

use crate::change::dirty::{drop_dirty_range, give_promises_back, lazy_lines, settle, zero_dirty};
use crate::change::staged::Staged;
use crate::inode::slot::{log_slot, wall_now};
use crate::operation::need::Attempt;
use crate::steering::learn::note_written_back;
use crate::store::Store;
use crate::types::LINE;
use crate::types::inode::Inode;
use terrace_format::Lsn;
use terrace_format::inode::InodeSlot;
use terrace_wal::Reservation;

/// Logs times and st_blocks besides what the caller changed in `slot`, and commits.
pub fn finish_change(
    store: &Store,
    reservation: Reservation<'_>,
    inode: &Inode,
    mut slot: InodeSlot,
    mut staged: Staged<'_>,
) -> Attempt<Lsn> {
    let (before, after) = (inode.durable_size(), slot.size.get());
    let may_fall = staged.drop_dirty.is_some() || inode.pending.is_some();
    assert!(
        after >= before || may_fall,
        "inode {} falls to {after} from {before}, its blocks stay (S4)",
        inode.ino
    );
    let now = wall_now(store);
    slot.mtime = now.into();
    slot.ctime = now.into();
    slot.blocks = slot.blocks.get().saturating_add_signed(staged.blocks_delta).into();
    log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
    let lsn = staged.commit(reservation)?;
    if inode.pending.is_some() {
        for (from, to) in std::mem::take(&mut staged.zero_dirty) {
            zero_dirty(store, inode, from, to);
        }
        if let Some(range) = staged.drop_dirty {
            drop_dirty_range(store, inode, range);
        }
    }
    settle_absorbed(store, inode, &slot, &staged);
    Ok(lsn)
}

/// Drops the dirty pages that a committed change contains, and brings the inode's entry up to date.
pub fn settle_absorbed(store: &Store, inode: &Inode, slot: &InodeSlot, staged: &Staged<'_>) {
    assert!(staged.is_done(), "pages of inode {} are settled before the commit (S3)", inode.ino);
    let mut written = 0;
    let dropped = staged.absorbed.iter().map(|key| {
        let dropped = store.dram.cache().drop_dirty(*key)?;
        written += lazy_lines(&dropped);
        Some(dropped)
    });
    give_promises_back(store, dropped, staged.ended_promises());
    note_written_back(store, inode.ino, written as usize * LINE);
    let visible = staged.visible.unwrap_or(inode.size().max(slot.size.get()));
    settle(store, inode, slot, visible, staged.placed);
}
