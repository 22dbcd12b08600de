//! unlink and rmdir: the name goes in one transaction, the content in the background (C10).

use crate::names::directory_change::stage_directory_change;
use crate::names::lookup::{check_name, find};
use crate::removal::log_freed::log_freed_slot;
use crate::removal::orphans::{help_reclaim, is_bare};
use smallvec::SmallVec;
use terrace_catalog::dentry;
use terrace_format::inode::flag;
use terrace_format::{Corrupt, Ino};
use terrace_store::attempt::run::run_attempts;
use terrace_store::change::dirty::forget_dirty;
use terrace_store::change::staged::Staged;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::numbers::{begin_free, end_free};
use terrace_store::inode::orphan_list::{link_orphan, lock_orphans};
use terrace_store::inode::slot::{load, load_directory, log_slot, wall_now};
use terrace_store::operation::need::{Attempt, Need};
use terrace_store::operation::op::{Op, SMALL_RECORD};
use terrace_store::parts::inodes::removal_queue::Job;
use terrace_store::store::Store;
use terrace_store::types::Wait;
use terrace_store::types::inode::Inode;

/// Removes a name of anything but a directory.
///
/// # Errors
/// ENOENT, EISDIR, EIO. Never ENOSPC.
pub fn unlink(store: &Store, parent: Ino, name: &[u8], wait: Wait) -> FsResult<()> {
    remove_name(store, parent, name, false, wait)
}

/// Removes an empty directory.
///
/// # Errors
/// ENOENT, ENOTDIR, ENOTEMPTY, EIO.
pub fn rmdir(store: &Store, parent: Ino, name: &[u8], wait: Wait) -> FsResult<()> {
    remove_name(store, parent, name, true, wait)
}

fn remove_name(store: &Store, parent: Ino, name: &[u8], directory: bool, wait: Wait) -> FsResult<()> {
    check_name(name)?;
    let mut op = Op::reclaiming(wait);
    run_attempts(store, &mut op, SMALL_RECORD, |reservation, _op| {
        let entry = {
            let _guard = store.inodes.locks().read(parent);
            load_directory(store, parent)?;
            find(store, parent, name)?.ok_or(FsError::NotFound)?
        };
        let _guards = store.inodes.locks().write_many(&[parent, entry.ino]);
        let parent_inode = load_directory(store, parent)?;
        let mut staged = Staged::new(store, None, false);
        let mut shards = store.persistent.catalog().write(&[store.persistent.catalog().shard_of(parent.0)]);
        if !dentry::remove_same(&mut shards, &mut staged.tx, parent, &entry, name)? {
            drop(shards);
            // Another operation changed the name between the two locks, which a new attempt sees; or the page
            // is damaged, and new attempts would never end.
            return Err(match find(store, parent, name)? {
                Some(now) if now == entry => {
                    let site = format!("entry {:#x} of directory {parent}", entry.cookie);
                    FsError::from(Corrupt::new(site, "in its place in the leaf", "elsewhere")).into()
                }
                _ => Need::Again.into(),
            });
        }
        let inode = load(store, entry.ino)?;
        check_removable(&inode, directory)?;
        staged.unlink_emptied(&mut shards)?;
        stage_directory_change(store, &mut staged, &parent_inode, -1, -i32::from(directory));
        drop_link(store, reservation, staged, &inode)
    })?;
    help_reclaim(store);
    Ok(())
}

/// Takes one link (for a directory both) from an inode and commits. The last link frees an inode without
/// content and references at once, and makes an orphan of any other inode.
pub(crate) fn drop_link(
    store: &Store,
    reservation: terrace_wal::Reservation<'_>,
    mut staged: Staged<'_>,
    inode: &Inode,
) -> Attempt<()> {
    let mut slot = inode.slot;
    let left = if slot.is_directory() { 0 } else { slot.nlink.get().saturating_sub(1) };
    slot.nlink = left.into();
    slot.ctime = wall_now(store).into();
    if left > 0 {
        log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
        staged.commit(reservation)?;
        return Ok(());
    }
    if is_bare(store, inode.ino, &slot) && !store.inodes.open_files().is_referenced(inode.ino) {
        begin_free(store, inode.ino);
        log_freed_slot(&mut staged, inode);
        let freed = staged.commit(reservation);
        end_free(store, inode.ino, freed.is_ok());
        if freed.is_ok() {
            forget_dirty(store, inode);
        }
        return freed.map(|_| ());
    }
    slot.flags = (slot.flags.get() | flag::ORPHAN).into();
    log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
    let list = lock_orphans(store, inode.ino);
    link_orphan(store, &mut staged.tx, inode)?;
    staged.commit(reservation)?;
    drop(list);
    if !store.inodes.open_files().is_referenced(inode.ino) {
        store.inodes.removals().push(Job::Orphan(inode.ino));
    } else if store.mode.late_references {
        store.inodes.removals().left_behind(store.clock.monotonic_ns());
    }
    Ok(())
}

/// Whether a name may be removed by unlink or rmdir.
pub(crate) fn check_removable(inode: &Inode, as_directory: bool) -> FsResult<()> {
    match (inode.slot.is_directory(), as_directory) {
        (true, false) => Err(FsError::IsDirectory),
        (false, true) => Err(FsError::NotDirectory),
        (true, true) if inode.size() > 0 => Err(FsError::NotEmpty),
        _ => Ok(()),
    }
}

/// Inodes of one operation, for locking.
pub type InodeList = SmallVec<[Ino; 4]>;
