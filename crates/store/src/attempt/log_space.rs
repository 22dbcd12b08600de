//! Back-pressure of a journal: changes that its log does not have yet fill a buffer in memory.

use crate::error::{FsError, FsResult};
use crate::store::Store;
use crate::types::Wait;
use std::time::Duration;

/// A change waits so often for so long at most.
const PAUSES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// A change waits a little for the log before the buffer is full: whoever fills it writes the log under its locks.
///
/// A large request waits sooner while somebody syncs: a sync writes all that is before it.
///
/// # Errors
/// `WouldBlock` when the caller may not wait.
pub fn wait_for_log(store: &Store, bytes: u64, wait: Wait) -> FsResult<()> {
    let is_large = bytes >= store.steering.parameters().large_min;
    let is_short = || {
        let backlog = store.persistent.pm().backlog();
        backlog.waiting_bytes > if is_large { backlog.sync_bytes } else { backlog.limit_bytes / 2 }
    };
    if !is_short() {
        return Ok(());
    }
    if wait == Wait::Never {
        return Err(FsError::WouldBlock);
    }
    for _ in 0..PAUSES {
        store.persistent.pm().waker().wake();
        store.clock.sleep(PAUSE);
        if !is_short() {
            break;
        }
    }
    Ok(())
}
