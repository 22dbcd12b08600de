//! TODO header of store/pressure/ending.rs

use crate::store::error::{FsError, FsResult};
use crate::store::store::Store;

/// ECANCELED once the mount ends.
pub(crate) fn go_on(store: &Store) -> FsResult<()> {
    if store.pressure.is_ending() { Err(FsError::Ending) } else { Ok(()) }
}
