//! Unmount: dirty pages are written back or settled, the last checkpoint is written, the pool is marked
//! clean.

use crate::background::meet_all_pages;
use crate::engine::Engine;
use terrace_fs::sync::barrier;
use terrace_fs::write_back::file::keep_in_pm;
use terrace_fs::write_back::rounds::write_back_noted;
use terrace_store::error::FsResult;
use terrace_store::types::Wait;

/// Ends a mount: dirty pages are written back, or settled if no lower tier takes them; the last checkpoint is
/// written; the pool is marked clean, and everything is durable. Devices need no flush: blocks that a record
/// names were flushed before it (M1). Drop [`Background`] first; no operation may follow.
///
/// # Errors
/// The error of a medium: the pool is not marked clean then, and the next mount recovers it. Also when dirty
/// pages of a file had room neither on a device nor in PM; all other files are saved.
pub fn unmount(engine: &Engine) -> FsResult<()> {
    let kept = keep_all(engine);
    meet_all_pages(engine);
    engine.store.persistent.wal().close()?;
    engine.store.persistent.pm().close().map_err(terrace_wal::Error::from)?;
    kept
}

/// Before the end of a mount: writes back all files, and settles the pages that no lower tier takes. Files
/// with the fewest such pages are settled first, so that as many files as possible are saved. A file without
/// room does not keep later files from being saved.
///
/// # Errors
/// The first error of a file without room.
pub(crate) fn keep_all(engine: &Engine) -> FsResult<()> {
    let mut refused = Vec::new();
    for ino in engine.store.dram.volatile_sizes().files() {
        if let Err(error) = write_back_noted(&engine.store, ino, Wait::Allowed) {
            tracing::warn!("inode {ino} cannot be written back: {error}; kept in persistent memory");
            refused.push(ino);
        }
    }
    refused.sort_by_key(|ino| engine.store.dram.cache().count_dirty(*ino));
    let mut first_error = None;
    for ino in refused {
        if let Err(error) = keep_in_pm(&engine.store, ino, Wait::Allowed) {
            tracing::error!("what was written last to inode {ino} is lost: {error}");
            first_error.get_or_insert(error);
        }
    }
    first_error.map_or(Ok(()), Err)
}

/// Tells long operations to end soon: a `sync_to` under way gives up.
pub fn begin_end(engine: &Engine) {
    engine.store.pressure.begin_end();
}

/// Settles all dirty pages without waiting for a device: for the end of a mount beside a device that does not
/// answer. Files with the fewest dirty pages come first.
///
/// # Errors
/// The first error of a file that PM has no room for, or that needs a metadata page of a lower tier: its
/// pages stay dirty.
pub fn keep_without_devices(engine: &Engine) -> FsResult<()> {
    let mut files = engine.store.dram.volatile_sizes().files();
    files.sort_by_key(|ino| engine.store.dram.cache().count_dirty(*ino));
    let mut first_error = None;
    for ino in files {
        if let Err(error) = keep_in_pm(&engine.store, ino, Wait::Never) {
            first_error.get_or_insert(error);
        }
    }
    barrier(&engine.store)?;
    first_error.map_or(Ok(()), Err)
}
