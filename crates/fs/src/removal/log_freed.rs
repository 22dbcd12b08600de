//! The slot of an inode that is freed.

use terrace_format::inode::InodeSlot;
use terrace_store::change::staged::Staged;
use terrace_store::inode::slot::log_whole_slot;
use terrace_store::types::inode::Inode;

/// Logs a slot as free: all zeros but the generation, which rises.
pub(crate) fn log_freed_slot(staged: &mut Staged<'_>, inode: &Inode) {
    let mut slot = InodeSlot::zeroed();
    slot.generation = inode.slot.generation.get().wrapping_add(1).into();
    log_whole_slot(&mut staged.tx, inode.place, &slot);
}
