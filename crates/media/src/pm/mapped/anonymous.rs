//! Anonymous memory as a medium, for comparisons with PM.

use super::{Access, RamPm, check_size, fill};
use crate::OpenError;
use std::fs::File;
use std::path::Path;

impl RamPm {
    /// Anonymous memory of `size` zero bytes, by the same stores as PM: for comparisons.
    ///
    /// # Errors
    /// [`OpenError::InvalidSize`], and what the operating system says.
    pub fn anonymous(size: u64) -> Result<RamPm, OpenError> {
        let path = Path::new("anonymous memory");
        check_size(path, size)?;
        let made = rustix::fs::memfd_create("terrace", rustix::fs::MemfdFlags::CLOEXEC);
        let file =
            File::from(made.map_err(|error| OpenError::io(path, "create", std::io::Error::from(error)))?);
        fill(&file, path, size)?;
        let access = Access { uid: rustix::process::geteuid().as_raw(), mode: 0o600, block_device: false };
        Self::map_whole(file, path, access, (size, true))
    }
}
