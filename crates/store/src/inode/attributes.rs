//! Attributes of inodes, and targets of symbolic links.

use crate::attempt::with_pages::reading;
use crate::error::FsResult;
use crate::inode::slot::load_to_read;
use crate::store::Store;
use crate::types::inode::Inode;
use crate::types::{Attributes, Wait};
use terrace_catalog::symlink;
use terrace_format::Ino;

/// Attributes of an inode.
///
/// # Errors
/// ESTALE, EIO.
pub fn getattr(store: &Store, ino: Ino) -> FsResult<Attributes> {
    try_getattr(store, ino, Wait::Allowed)
}

/// As [`getattr`]; it waits for metadata on a lower tier only if it may.
///
/// # Errors
/// As [`getattr`]; `WouldBlock`.
pub fn try_getattr(store: &Store, ino: Ino, wait: Wait) -> FsResult<Attributes> {
    reading(store, wait, || {
        let _guard = store.inodes.locks().read(ino);
        Ok(load_to_read(store, ino)?.attributes())
    })
}

/// Target of a symlink. The caller holds the inode's lock.
pub fn symlink_target(store: &Store, inode: &Inode) -> FsResult<Vec<u8>> {
    let shard = store.persistent.catalog().read(store.persistent.catalog().shard_of(inode.ino.0));
    Ok(symlink::read(shard.reader(), inode.ino)?)
}
