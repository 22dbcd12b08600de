//! Loading of regular files.

use crate::error::FsResult;
use crate::inode::slot::{load, load_to_read};
use crate::store::Store;
use crate::types::inode::{Inode, expect_regular};
use terrace_format::Ino;

/// Loads an inode that must be a regular file.
#[inline]
pub fn load_regular(store: &Store, ino: Ino) -> FsResult<Inode> {
    let inode = load(store, ino)?;
    expect_regular(&inode)?;
    Ok(inode)
}

/// As [`load_regular`], for a caller that only reads.
#[inline]
pub fn load_regular_to_read(store: &Store, ino: Ino) -> FsResult<Inode> {
    let inode = load_to_read(store, ino)?;
    expect_regular(&inode)?;
    Ok(inode)
}
