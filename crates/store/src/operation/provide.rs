//! The only way up: an attempt says what it lacks, and the engine above knows who provides it.

use crate::error::FsResult;
use crate::operation::need::Need;
use crate::operation::op::Op;

/// Provides what attempts lack.
pub trait Provide: Send + Sync {
    /// Provides what an attempt lacked. Holds no lock when called and when it returns. Counts in `provided`, and
    /// refuses what comes back for ever; making or waiting for space does not count.
    ///
    /// # Errors
    /// Whatever the transaction or the device read of its own meets; ENOSPC; `WouldBlock` when the operation may not wait.
    fn provide(&self, op: &mut Op, need: Need, provided: &mut u32) -> FsResult<()>;
}
