//! Open and release of files: references, and the preference for a front end's cache. The front end decides
//! (decision 0020).

use crate::names::lookup::queue_if_orphan;
use crate::names::setattr::setattr;
use terrace_format::inode::flag;
use terrace_format::{FileBlock, Ino};
use terrace_store::attempt::with_pages::reading;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::{load_to_read, next_mapped};
use terrace_store::metadata::fetch::fetch_leaves;
use terrace_store::parts::inodes::front_end::{Asks, FrontEnd, Note, Prefer};
use terrace_store::steering::learn::note_close;
use terrace_store::steering::read_dominated::is_read_dominated;
use terrace_store::store::Store;
use terrace_store::types::inode::Inode;
use terrace_store::types::{SetAttributes, Wait};
use terrace_wal::Error;

/// Files from here on are read in more than one request: 256 KiB.
const IN_PIECES: u64 = 256 << 10;

/// How a file is opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct HowToOpen {
    /// As O_TRUNC.
    pub truncate: bool,
    /// For writing.
    pub write: bool,
    /// Past every cache of a front end, also for reading.
    pub direct: bool,
}

/// Opens, if the front end admits it: false if the open has to wait for the front end, and is not counted. `front_end` is
/// called under the locks of the inode.
///
/// # Errors
/// ESTALE, EIO, and truncate's; `WouldBlock`.
pub fn open(
    store: &Store,
    ino: Ino,
    how: HowToOpen,
    wait: Wait,
    front_end: &mut dyn FrontEnd,
) -> FsResult<bool> {
    if how.write && store.mode.read_only {
        return Err(FsError::ReadOnly);
    }
    if how.truncate {
        let change = SetAttributes { size: Some(0), kill_set_id: true, ..Default::default() };
        setattr(store, ino, &change, wait)?;
    }
    let (admitted, has_cold) = reading(store, wait, || {
        let _guard = store.inodes.locks().read(ino);
        let inode = load_to_read(store, ino)?;
        let has_cold = inode.slot.has(flag::HAS_COLD);
        let changes = how.write || how.truncate || how.direct;
        // Each start of a set-id program must reach the file system.
        let is_direct = changes || inode.slot.is_regular() && inode.slot.mode.get() & 0o6000 != 0;
        let prefer = if is_direct { Prefer::Direct } else { preferred(store, &inode, has_cold)? };
        let admit = |note: &mut Note, is_first| front_end.admit(note, Asks { prefer, is_first, wait });
        Ok((store.inodes.open_files().open(ino, admit), has_cold))
    })?;
    if admitted
        && how.write
        && has_cold
        && let Err(error) = fetch_leaves(store, ino, wait)
    {
        release(store, ino, front_end);
        return Err(error);
    }
    Ok(admitted)
}

/// The preference for a file that is only read. A cold file is cached by the kernel, which then sends no
/// request for a cached page. A file in PM is cached too, under a policy that follows reads, while the kernel's cache
/// has room for such files: a page that the kernel drops and fetches again costs more than a direct read. Old pages are
/// dropped for a file that is read-dominated or longer than a request; for a small file that costs more than the read of
/// its end, which the cache saves (decision 0033). The predictors see only the reads that the kernel sends.
fn preferred(store: &Store, inode: &Inode, has_cold: bool) -> FsResult<Prefer> {
    if has_cold && mostly_cold(store, inode)? {
        return Ok(Prefer::Cached);
    }
    if !store.steering.policy().follows_reads() {
        return Ok(Prefer::Direct);
    }
    // An empty file is cached, too: the kernel knows its end.
    let blocks = inode.size().div_ceil(terrace_format::BLOCK_SIZE).max(1);
    let at_any_cost = inode.size() >= IN_PIECES || is_read_dominated(store, inode);
    Ok(Prefer::CachedWithinBudget { blocks, at_any_cost })
}

/// Blocks at the begin of a file that tell whether it lies below PM.
const LOOKED_AT: u64 = 64;

/// Whether none of the first blocks of the file lies in PM, or none at all, and no block is dirty.
fn mostly_cold(store: &Store, inode: &Inode) -> FsResult<bool> {
    if inode.pending.is_some() {
        return Ok(false);
    }
    if store.persistent.map().is_empty(inode.ino, &inode.slot) {
        return Ok(true);
    }
    let end = FileBlock(inode.size().div_ceil(terrace_format::BLOCK_SIZE).min(LOOKED_AT));
    match next_mapped(store, inode, FileBlock(0), end) {
        // Not known before the scan after the mount has ended, or of a file that may have blocks in unreadable entries of the
        // block table; an open does not wait for that, and does not fail for a preference.
        Err(FsError::Engine(Error::TableUnread | Error::Hidden(_))) => Ok(false),
        Err(error) if error.concerns_one_file() => Ok(false),
        found => Ok(found?.is_none()),
    }
}

/// Closes.
pub fn release(store: &Store, ino: Ino, front_end: &mut dyn FrontEnd) {
    let left = store.inodes.open_files().release(ino, |note| front_end.closed(note));
    if !left.is_open {
        note_close(store, ino);
        store.dram.mapped_files().closed(ino);
    }
    if !left.is_referenced {
        queue_if_orphan(store, ino);
    }
}
