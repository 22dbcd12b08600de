//! Work that may take long gives up when the mount ends.

use crate::error::{FsError, FsResult};
use crate::store::Store;

/// ECANCELED once the mount ends.
pub fn go_on(store: &Store) -> FsResult<()> {
    if store.pressure.is_ending() { Err(FsError::Ending) } else { Ok(()) }
}
