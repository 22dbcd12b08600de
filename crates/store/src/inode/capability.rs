//! File capabilities: an attribute that ends with a change by an unprivileged user.

use crate::error::FsResult;
use crate::operation::need::{Attempt, Need};
use crate::store::Store;
use crate::types::inode::Inode;
use terrace_catalog::xattr;
use terrace_format::inode::flag;

/// The attribute that gives a program file its privileges. A change of the file by an unprivileged caller
/// must remove it, as it removes set-id bits.
pub const CAPABILITY: &[u8] = b"security.capability";

/// Whether a regular file has capabilities; they mean nothing on another kind of inode. The caller holds the
/// inode lock.
///
/// # Errors
/// `PageBelow`; EIO.
pub fn has_capability(store: &Store, inode: &Inode) -> FsResult<bool> {
    if !inode.slot.has(flag::HAS_XATTR) || !inode.slot.is_regular() {
        return Ok(false);
    }
    let shard = store.persistent.catalog().read(store.persistent.catalog().shard_of(inode.ino.0));
    Ok(xattr::length(shard.reader(), inode.ino, CAPABILITY)?.is_some())
}

/// Lacks the end of a file's capabilities where it has some: they go in a transaction of their own before the change,
/// so that a crash leaves the old content without them, never the new one with them.
pub fn expect_no_capability(store: &Store, inode: &Inode) -> Attempt<()> {
    if has_capability(store, inode)? { Err(Need::RemoveCapability(inode.ino).into()) } else { Ok(()) }
}
