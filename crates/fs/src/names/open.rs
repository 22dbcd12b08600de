//! Open and release of files: references, the open mode, pages that the kernel is to drop.

use crate::names::lookup::queue_if_orphan;
use crate::names::setattr::setattr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use terrace_format::Ino;
use terrace_format::inode::flag;
use terrace_store::attempt::with_pages::reading;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::{load_to_read, next_mapped};
use terrace_store::metadata::fetch::fetch_leaves;
use terrace_store::parts::inodes::open_files::{OpenMode, Opening, Prefer};
use terrace_store::steering::learn::note_close;
use terrace_store::steering::read_dominated::is_read_dominated;
use terrace_store::store::Store;
use terrace_store::types::inode::Inode;
use terrace_store::types::{SetAttributes, Wait};

/// Files from here on are read in more than one request: 256 KiB.
const IN_PIECES: u64 = 256 << 10;

/// How to have the kernel drop all pages it has of an inode, true when it did: what was open directly can be cached
/// by it then. Called by opens that may wait, which hold no lock; once for good.
pub fn set_drop_pages(store: &Store, drop_pages: impl Fn(Ino) -> bool + Send + Sync + 'static) {
    let _ = store.inodes.drop_pages().set(Box::new(drop_pages));
}

/// Opens; `truncate` as O_TRUNC. The mode is that of the first open until the last close.
///
/// # Errors
/// ESTALE, EIO, and truncate's; `WouldBlock`.
pub fn open(store: &Store, ino: Ino, truncate: bool, write: bool, wait: Wait) -> FsResult<OpenMode> {
    if write && store.mode.read_only {
        return Err(FsError::ReadOnly);
    }
    if truncate {
        let change = SetAttributes { size: Some(0), kill_set_id: true, ..Default::default() };
        setattr(store, ino, &change, wait)?;
    }
    let drop_pages = store.inodes.drop_pages().get();
    let open = || {
        let _guard = store.inodes.locks().read(ino);
        let inode = load_to_read(store, ino)?;
        let has_cold = inode.slot.has(flag::HAS_COLD);
        // Each start of a set-id program must reach the file system.
        let is_direct = write || truncate || inode.slot.is_regular() && inode.slot.mode.get() & 0o6000 != 0;
        let prefer = if is_direct { Prefer::Direct } else { preferred(store, &inode, has_cold)? };
        Ok((store.inodes.open_files().open(ino, prefer, drop_pages.is_some(), wait), has_cold))
    };
    let (mode, has_cold) = loop {
        match reading(store, wait, open)? {
            (Opening::Open(mode), has_cold) => break (mode, has_cold),
            (Opening::Drops, has_cold) => {
                // Further opens wait for the drop, so it must end even after a panic.
                let drop_pages = || drop_pages.is_some_and(|drop_pages| drop_pages(ino));
                let done = catch_unwind(AssertUnwindSafe(drop_pages)).unwrap_or(false);
                break (store.inodes.open_files().dropped(ino, done), has_cold);
            }
            (Opening::Waits, _) if wait != Wait::Allowed => return Err(FsError::WouldBlock),
            (Opening::Waits, _) => store.inodes.open_files().wait_for_dropped(ino),
        }
    };
    if write
        && has_cold
        && let Err(error) = fetch_leaves(store, ino, wait)
    {
        release(store, ino);
        return Err(error);
    }
    Ok(mode)
}

/// The open mode of a file that is only read. A cold file is cached by the kernel, which then sends no
/// request for a cached page. A file in PM is cached too, under a policy that follows reads, if it is
/// read-dominated or longer than a request, and while the kernel's cache has room for such files: a page that
/// the kernel drops and fetches again costs more than a direct read. The predictors see only the reads that
/// the kernel sends.
fn preferred(store: &Store, inode: &Inode, has_cold: bool) -> FsResult<Prefer> {
    if has_cold && mostly_cold(store, inode)? {
        return Ok(Prefer::Cached);
    }
    let often = inode.size() >= IN_PIECES || is_read_dominated(store, inode);
    Ok(if often && store.steering.policy().follows_reads() {
        Prefer::CachedWhileRoom { blocks: inode.size().div_ceil(terrace_format::BLOCK_SIZE) }
    } else {
        Prefer::Direct
    })
}

/// Whether no block of the file lies in PM or is dirty.
fn mostly_cold(store: &Store, inode: &Inode) -> FsResult<bool> {
    if inode.pending.is_some() {
        return Ok(false);
    }
    let end = terrace_format::FileBlock(inode.size().div_ceil(terrace_format::BLOCK_SIZE));
    Ok(next_mapped(store, inode, terrace_format::FileBlock(0), end)?.is_none())
}

/// Closes.
pub fn release(store: &Store, ino: Ino) {
    let left = store.inodes.open_files().release(ino);
    if !left.is_open {
        note_close(store, ino);
    }
    if !left.is_referenced {
        queue_if_orphan(store, ino);
    }
}
