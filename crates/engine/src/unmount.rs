//! Unmount: dirty pages go below or into PM, the last checkpoint is written, the pool is marked clean.

use crate::background::meet_all_pages;
use crate::engine::Engine;
use terrace_fs::sync::barrier;
use terrace_fs::write_back::file::keep_in_pm;
use terrace_fs::write_back::steps::write_back_noted;
use terrace_store::error::FsResult;
use terrace_store::types::Wait;

/// Ends a mount: dirty pages written back (into PM, what no lower tier takes), the last checkpoint written, the pool
/// marked clean, all of it durable. Devices need no flush: what a record names was flushed before (M1). Drop
/// [`Background`] first; no operation may follow.
///
/// # Errors
/// The media's; the pool then is not marked clean and recovers at the next mount. Also when some dirty pages could
/// be kept nowhere: all others were.
pub fn unmount(engine: &Engine) -> FsResult<()> {
    let kept = keep_all(engine);
    meet_all_pages(engine);
    engine.store.persistent.wal().close()?;
    kept
}

/// Before the end of a mount: writes back all files, and puts into PM what no lower tier takes, the files with the
/// fewest such pages first, so that as many as can are kept. One that can be kept nowhere keeps no other from it.
///
/// # Errors
/// The first of such a file.
pub(crate) fn keep_all(engine: &Engine) -> FsResult<()> {
    let mut refused = Vec::new();
    for ino in engine.store.dram.volatile_sizes().files() {
        if let Err(error) = write_back_noted(&engine.store, ino) {
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

/// What may take long ends from now on: a `sync_to` under way gives up.
pub fn begin_end(engine: &Engine) {
    engine.store.pressure.begin_end();
}

/// Puts into PM what waits in DRAM for lower tiers, and waits for none of them: for the end of a mount beside a device
/// that does not answer. The files with the fewest such pages first.
///
/// # Errors
/// The first of a file whose pages PM has no room for, or of which it needs something from below: it still waits.
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
