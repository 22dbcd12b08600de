//! The way from an attempt to a higher layer: it ends with a need, and the engine provides it.

use crate::error::FsResult;
use crate::operation::need::Need;
use crate::operation::op::Op;

/// Provides the needs of attempts.
pub trait Provide: Send + Sync {
    /// Provides what an attempt lacked. Holds no lock when called and when it returns. Counts in `provided`, and
    /// refuses what comes back for ever; making or waiting for space does not count.
    ///
    /// # Errors
    /// Errors of the provider's own transaction or device read; ENOSPC; `WouldBlock` when the operation may
    /// not wait.
    fn provide(&self, op: &mut Op, need: Need, provided: &mut u32) -> FsResult<()>;
}
