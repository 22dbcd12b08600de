//! Asks for what an attempt lacked.

use crate::error::{FsError, FsResult};
use crate::operation::need::Need;
use crate::operation::op::Op;
use crate::store::Store;

/// Provides a need by the provider that the engine has set:
/// [`Provide::provide`](crate::operation::provide::Provide::provide).
pub fn provide(store: &Store, op: &mut Op, need: Need, provided: &mut u32) -> FsResult<()> {
    // There is no provider while the mount is put together, or after it has ended.
    let provider = store.provider.get().ok_or(FsError::Ending)?;
    provider.provide(op, need, provided)
}
