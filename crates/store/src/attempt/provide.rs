//! Asks for what an attempt lacked.

use crate::error::{FsError, FsResult};
use crate::operation::need::Need;
use crate::operation::op::Op;
use crate::store::Store;

/// As [`Provide::provide`](crate::operation::provide::Provide::provide), from whoever the engine has set.
pub fn provide(store: &Store, op: &mut Op, need: Need, provided: &mut u32) -> FsResult<()> {
    // Nobody provides while the mount is being put together or has ended.
    let provider = store.provider.get().ok_or(FsError::Ending)?;
    provider.provide(op, need, provided)
}
