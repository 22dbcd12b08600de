//! Durability on demand: fsync, the barrier of `terrace sync`, and emptying PM to a lower tier.

use crate::write_back::rounds::write_back_noted;
use terrace_format::{FileBlock, Ino};
use terrace_runtime::planted::{Mistake, planted};
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::load;
use terrace_store::pressure::buffer::has_lazy_writes;
use terrace_store::steering::kept_choices::keep_choices;
use terrace_store::steering::learn::expect_use;
use terrace_store::steering::learn::{judge_sync, note_fsync};
use terrace_store::store::Store;
use terrace_store::types::Wait;
use terrace_wal::Error;

/// When changes that are committed are durable.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durable {
    /// Now.
    Now,
    /// After the next `persist`.
    Later,
}

/// Makes an inode's data and metadata durable (design 5): its dirty pages are written back and its size
/// committed. A write to PM was committed before it returned, so for most files PM alone is persisted.
///
/// # Errors
/// `WouldBlock` when there are dirty pages, or the journal has to be waited for, and the caller may not wait; EIO when PM has
/// failed since; what the device says, the pages staying dirty.
pub fn fsync(store: &Store, ino: Ino, wait: Wait) -> FsResult<()> {
    if wait != Wait::Allowed && when_durable(store)? == Durable::Later {
        return Err(FsError::WouldBlock);
    }
    write_dirty(store, ino, wait)?;
    barrier(store)
}

/// As [`fsync`] by a caller that may not wait, who then waits for the journal by [`persist_then`].
///
/// # Errors
/// As [`fsync`]; `WouldBlock` for dirty pages alone.
pub fn begin_fsync(store: &Store, ino: Ino) -> FsResult<Durable> {
    write_dirty(store, ino, Wait::Never)?;
    when_durable(store)
}

/// Writes the dirty pages of an inode back, and its size: all is committed.
fn write_dirty(store: &Store, ino: Ino, wait: Wait) -> FsResult<()> {
    expect_use(store, ino);
    if planted(Mistake::FsyncFlushesDevices) {
        wrong::flush_devices(store)?;
    }
    if store.persistent.wal().is_stopped() {
        return Err(FsError::NotDurable);
    }
    let is_waiting = store.dram.volatile_sizes().get(ino).is_some();
    if is_waiting && wait != Wait::Allowed && !is_done_here(store, ino)? {
        return Err(FsError::WouldBlock);
    }
    note_fsync(store, ino);
    let choices = judge_sync(store, ino);
    let written = if is_waiting { write_back_noted(store, ino, wait) } else { Ok(()) };
    keep_choices(store, ino, &choices);
    written
}

/// Whether everything committed so far is durable, or has to wait for the journal device of PM.
fn when_durable(store: &Store) -> FsResult<Durable> {
    let pm = store.persistent.pm();
    if pm.order_persists() {
        return Ok(Durable::Now);
    }
    let is_durable = store.persistent.wal().try_persist(pm.point()).map_err(|_| FsError::NotDurable)?;
    Ok(if is_durable { Durable::Now } else { Durable::Later })
}

/// As [`barrier`], without a wait: calls `done` once, now or later; `done` neither changes files nor waits. True if the caller has to
/// bring a thread that may wait to [`persist_waiting`].
pub fn persist_then(store: &Store, done: impl FnOnce(FsResult<()>) + Send + 'static) -> bool {
    store.persistent.wal().persist_then(Box::new(|result| done(result.map_err(|_| FsError::NotDurable))))
}

/// Does the waiting that [`persist_then`] left to another thread.
pub fn persist_waiting(store: &Store) {
    store.persistent.pm().persist_waiting();
}

/// Most pages for PM that the thread of a request writes back: 512 KiB.
const MOST_HERE: usize = 128;

/// Whether the dirty pages of a file are so few, all for PM and none in another write-back, that the thread of a request writes
/// them back: a sync that ended in the middle would have used up the choices of new blocks.
fn is_done_here(store: &Store, ino: Ino) -> FsResult<bool> {
    if !has_lazy_writes(store) {
        return Ok(false);
    }
    let blocks = store.dram.cache().dirty_blocks(ino, FileBlock(0), FileBlock(u64::MAX), MOST_HERE + 1);
    let _guard = store.inodes.locks().read(ino);
    let inode = match load(store, ino) {
        Err(FsError::Stale | FsError::Engine(Error::PageBelow(_))) => return Ok(false),
        inode => inode?,
    };
    let waits = |block: &FileBlock| store.dram.cache().waits_for_pm(inode.page_key(*block));
    Ok(blocks.len() <= MOST_HERE && blocks.iter().all(waits))
}

/// A number for a descriptor that is opened now, for [`fsync_handle`].
pub fn new_handle(store: &Store) -> u64 {
    store.dram.write_back().errors.new_handle()
}

/// As [`fsync`], through a descriptor: it also gets, once, the error of a write-back that failed since it was
/// opened (I5).
///
/// # Errors
/// As [`fsync`].
pub fn fsync_handle(store: &Store, ino: Ino, handle: u64, wait: Wait) -> FsResult<()> {
    and_tell(store, ino, handle, fsync(store, ino, wait))
}

/// As [`begin_fsync`], through a descriptor.
///
/// # Errors
/// As [`fsync_handle`].
pub fn begin_fsync_handle(store: &Store, ino: Ino, handle: u64) -> FsResult<Durable> {
    and_tell(store, ino, handle, begin_fsync(store, ino))
}

fn and_tell<T>(store: &Store, ino: Ino, handle: u64, synced: FsResult<T>) -> FsResult<T> {
    if matches!(synced, Err(FsError::WouldBlock)) {
        return synced;
    }
    // After the attempt: its own failure is told by it.
    let told = store.dram.write_back().errors.tell(ino, handle);
    let synced = synced?;
    told.map_or(Ok(synced), Err)
}

/// Whether PM has failed: nothing changes until the next mount.
pub fn is_stopped(store: &Store) -> bool {
    store.persistent.wal().is_stopped()
}

/// As [`fsync`], for a directory.
///
/// # Errors
/// As [`fsync`].
pub fn fsyncdir(store: &Store, ino: Ino) -> FsResult<()> {
    fsync(store, ino, Wait::Allowed)
}

/// Whether a change of names is durable when its call returns: the fence of its commit makes it so. After a failure of PM
/// fsync has that to tell.
pub fn needs_no_fsyncdir(store: &Store) -> bool {
    store.persistent.pm().order_persists() && !is_stopped(store)
}

/// Everything written so far becomes durable: dirty pages of all files too.
///
/// # Errors
/// EIO when PM has failed; the first error of a file whose pages could not be written back. All others were.
pub fn sync(store: &Store) -> FsResult<()> {
    let mut first_error = None;
    for ino in store.dram.volatile_sizes().files() {
        if let Err(error) = write_back_noted(store, ino, Wait::Allowed) {
            first_error.get_or_insert(error);
        }
    }
    barrier(store)?;
    first_error.map_or(Ok(()), Err)
}

/// Everything committed so far is durable.
pub fn barrier(store: &Store) -> FsResult<()> {
    if store.persistent.wal().is_stopped() {
        return Err(FsError::NotDurable);
    }
    store.persistent.persist()
}

/// Planted mistakes of this file.
mod wrong {
    use super::{FsResult, Store};

    /// `fsync-flushes-devices`.
    pub(super) fn flush_devices(store: &Store) -> FsResult<()> {
        store.devices.flush_all()
    }
}
