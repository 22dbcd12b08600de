//! Access times: recorded when the mount's rule says that they are due.

use terrace_format::Ino;
use terrace_store::error::FsResult;
use terrace_store::inode::slot::{load, log_slot, wall_now};
use terrace_store::store::Store;
use terrace_store::types::Atime;
use terrace_store::types::inode::Inode;

const DAY_NS: i64 = 86_400_000_000_000;

pub(crate) fn atime_due(store: &Store, inode: &Inode) -> bool {
    if store.mode.read_only || store.mode.atime == Atime::Never {
        return false;
    }
    let slot = &inode.slot;
    let atime = slot.atime.get();
    atime <= slot.mtime.get()
        || atime <= slot.ctime.get()
        || store.clock.wall_coarse_ns().saturating_sub(atime) >= DAY_NS
}

/// Relative access time: a transaction of its own; a failure to record it is not the reader's.
pub(crate) fn touch_atime(store: &Store, ino: Ino) {
    let update = || -> FsResult<()> {
        let reservation = store.persistent.wal().reserve(128)?;
        let _guard = store.inodes.locks().write(ino);
        let inode = load(store, ino)?;
        if !atime_due(store, &inode) {
            return Ok(());
        }
        let mut slot = inode.slot;
        // Later than what it is compared with, however coarse the clock is.
        let newest = slot.mtime.get().max(slot.ctime.get()).saturating_add(1);
        slot.atime = wall_now(store).max(newest).into();
        let mut tx = terrace_wal::Tx::new();
        log_slot(&mut tx, inode.place, &inode.slot, &slot);
        store.persistent.wal().commit(reservation, &tx)?;
        Ok(())
    };
    if let Err(error) = update() {
        tracing::debug!("atime of inode {ino}: {error}");
    }
}
