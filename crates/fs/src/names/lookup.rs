//! Look-ups of names, and references of the kernel that they leave.

use crate::removal::orphans::help_reclaim;
use terrace_catalog::dentry;
use terrace_catalog::dentry::Dentry;
use terrace_format::Ino;
use terrace_format::inode::flag;
use terrace_store::attempt::with_pages::reading;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::{load_any, load_directory_to_read, load_to_read};
use terrace_store::parts::inodes::removal_queue::Job;
use terrace_store::store::Store;
use terrace_store::types::{Attributes, Wait};

/// Longest name.
const NAME_MAX: usize = 255;

/// Checks a name that a directory is to hold.
pub(crate) fn check_name(name: &[u8]) -> FsResult<()> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return Err(FsError::Invalid);
    }
    Ok(())
}

/// The entry of a name. The caller holds the directory's lock.
pub fn find(store: &Store, directory: Ino, name: &[u8]) -> FsResult<Option<Dentry>> {
    let shard = store.persistent.catalog().read(store.persistent.catalog().shard_of(directory.0));
    Ok(dentry::lookup(shard.reader(), store.persistent.name_hash(), directory, name)?)
}

/// Takes a lookup reference on an inode of any type by its number, as "." of it: for file handles, whose
/// number may be out of date. The caller holds the inode lock.
fn look_up_number(store: &Store, ino: Ino) -> FsResult<()> {
    let inode = load_to_read(store, ino)?;
    // The inode has no name: it is an orphan or about to become one, and gets no new reference.
    if inode.slot.has(flag::ORPHAN) || inode.slot.nlink.get() == 0 {
        return Err(FsError::Stale);
    }
    store.inodes.open_files().looked_up(ino);
    Ok(())
}

/// Finds a name and takes a lookup reference; "." is an inode of any type itself, ".." a directory's parent.
///
/// # Errors
/// ENOENT, ENOTDIR, ENAMETOOLONG, EIO; ESTALE for "." and ".." of what was removed, or never was.
pub fn lookup(store: &Store, parent: Ino, name: &[u8]) -> FsResult<Attributes> {
    try_lookup(store, parent, name, Wait::Allowed)
}

/// As [`lookup`]; it waits for metadata on a lower tier only if it may.
///
/// # Errors
/// As [`lookup`]; `WouldBlock`.
pub fn try_lookup(store: &Store, parent: Ino, name: &[u8], wait: Wait) -> FsResult<Attributes> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    let ino = reading(store, wait, || {
        let _guard = store.inodes.locks().read(parent);
        if name == b"." {
            look_up_number(store, parent)?;
            return Ok(parent);
        }
        let directory = load_directory_to_read(store, parent)?;
        let ino = match name {
            // The parent may be gone too, and its number another inode's.
            b".." if directory.slot.has(flag::ORPHAN) => return Err(FsError::Stale),
            b".." => Ino(u64::from(directory.slot.parent_or_rdev.get())),
            _ => find(store, parent, name)?.ok_or(FsError::NotFound)?.ino,
        };
        // The directory lock is held: the last name cannot be removed before the reference is counted.
        store.inodes.open_files().looked_up(ino);
        Ok(ino)
    })?;
    attributes_or_forget(store, ino, wait)
}

/// Attributes of an inode whose reference was just taken; gives the reference back on failure.
pub(crate) fn attributes_or_forget(store: &Store, ino: Ino, wait: Wait) -> FsResult<Attributes> {
    let found = reading(store, wait, || {
        let _guard = store.inodes.locks().read(ino);
        load_to_read(store, ino)
    });
    match found {
        Ok(inode) => Ok(inode.attributes()),
        Err(error) => {
            forget(store, ino, 1);
            Err(error)
        }
    }
}

/// Gives lookup references back.
pub fn forget(store: &Store, ino: Ino, count: u64) {
    if store.inodes.open_files().forget(ino, count) {
        queue_if_orphan(store, ino);
    }
}

/// Queues an inode for removal when it has no name left.
pub(crate) fn queue_if_orphan(store: &Store, ino: Ino) {
    // The orphan flag is set before the last reference ends, or the removal of the name queues the job
    // itself.
    let found = {
        let _guard = store.inodes.locks().read(ino);
        load_any(store, ino)
    };
    match found {
        Ok(inode) if !inode.slot.has(flag::ORPHAN) => {}
        // Pages with orphans stay in PM.
        Err(FsError::Engine(terrace_wal::Error::PageBelow(_))) => {}
        // An orphan, or an inode that cannot be read now, goes to the reclaimer.
        _ => {
            store.inodes.removals().push(Job::Orphan(ino));
            help_reclaim(store);
        }
    }
}
