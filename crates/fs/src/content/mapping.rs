//! Mappings of files: pages of a mapping are buffered already, by the kernel or by a client, so writes to a mapped file are
//! eager, after its lazy pages were written back.
//!
//! A file is marked under its exclusive inode lock, and a writer that chose DRAM before asks again under the lock: no page
//! becomes lazy after the mark.

use crate::write_back::rounds::write_back_noted;
use terrace_format::{FileBlock, Ino};
use terrace_placement::Home;
use terrace_store::attempt::with_pages::with_pages;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::load::load_regular;
use terrace_store::pressure::buffer::has_lazy_writes;
use terrace_store::store::Store;
use terrace_store::types::Wait;

/// A client maps a file: its writes are eager until each mapping has ended, from here on without a lazy page.
///
/// # Errors
/// ESTALE; EISDIR and EINVAL for other inodes; `WouldBlock` while pages wait; EIO and what a device says when they cannot be
/// written back. The mapping is not begun then.
pub fn begin_mapping(store: &Store, ino: Ino, wait: Wait) -> FsResult<()> {
    with_pages(store, wait, || {
        let _guard = store.inodes.locks().write(ino);
        load_regular(store, ino)?;
        store.dram.mapped_files().begin(ino);
        Ok(())
    })?;
    write_back_lazy_pages(store, ino, wait).inspect_err(|_| end_mapping(store, ino))
}

/// A client ends a mapping that it has begun.
pub fn end_mapping(store: &Store, ino: Ino) {
    store.dram.mapped_files().end(ino);
}

/// Before the kernel's write of a page of a mapping: the file is eager until its last close. Pages that cannot be written back
/// stay; fsync tells of them (C29).
///
/// # Errors
/// `WouldBlock` while pages wait; those of the inode.
pub(super) fn expect_pages(store: &Store, ino: Ino, wait: Wait) -> FsResult<()> {
    if !has_lazy_writes(store) || store.dram.mapped_files().has_pages(ino) {
        return Ok(());
    }
    with_pages(store, wait, || {
        let _guard = store.inodes.locks().write(ino);
        load_regular(store, ino)?;
        store.dram.mapped_files().note_pages(ino);
        Ok(())
    })?;
    match write_back_lazy_pages(store, ino, wait) {
        // The next attempt is to find the pages again.
        Err(FsError::WouldBlock) => {
            store.dram.mapped_files().closed(ino);
            return Err(FsError::WouldBlock);
        }
        Err(error) => tracing::debug!("inode {ino}: pages before a mapping: {error}"),
        Ok(()) => {}
    }
    Ok(())
}

fn write_back_lazy_pages(store: &Store, ino: Ino, wait: Wait) -> FsResult<()> {
    if !has_lazy_pages(store, ino, wait)? {
        return Ok(());
    }
    if wait != Wait::Allowed {
        return Err(FsError::WouldBlock);
    }
    write_back_noted(store, ino, wait)
}

fn has_lazy_pages(store: &Store, ino: Ino, wait: Wait) -> FsResult<bool> {
    let cache = store.dram.cache();
    if cache.dirty_pages_of(Home::Pm) == 0 {
        return Ok(false);
    }
    with_pages(store, wait, || {
        let _guard = store.inodes.locks().read(ino);
        let inode = load_regular(store, ino)?;
        let blocks = cache.dirty_blocks(ino, FileBlock(0), FileBlock(u64::MAX), usize::MAX);
        Ok(blocks.iter().any(|block| cache.home_of(inode.page_key(*block)) == Some(Home::Pm)))
    })
}
