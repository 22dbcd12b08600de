//! Size, link count and times of a directory whose entries change.

use terrace_store::change::staged::Staged;
use terrace_store::inode::slot::{log_slot, wall_now};
use terrace_store::store::Store;
use terrace_store::types::inode::Inode;

/// Logs a directory's entry count, link count and times.
pub(crate) fn stage_directory_change(
    store: &Store,
    staged: &mut Staged<'_>,
    directory: &Inode,
    entries: i64,
    links: i32,
) {
    let mut slot = directory.slot;
    slot.size = slot.size.get().saturating_add_signed(entries).into();
    slot.nlink = slot.nlink.get().saturating_add_signed(links).into();
    let now = wall_now(store);
    slot.mtime = now.into();
    slot.ctime = now.into();
    log_slot(&mut staged.tx, directory.place, &directory.slot, &slot);
}
