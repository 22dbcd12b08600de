//! Mappings of files by a client in this process; the kernel's mappings are seen by the pages that it writes.

use crate::engine::Engine;
use terrace_format::Ino;
use terrace_store::error::FsResult;
use terrace_store::types::Wait;

/// Mappings of files by a client in this process.
pub trait Mappings {
    /// A client maps a file: writes to the file are eager (docs/write-buffer.md) until each mapping has ended, after its lazy
    /// pages were written back. The client keeps a reference to the file as long.
    ///
    /// # Errors
    /// ESTALE, EISDIR, EINVAL; `WouldBlock` when there are lazy pages and the caller may not wait; EIO and the error of a device
    /// when they cannot be written back. The mapping is not begun then.
    fn begin_mapping(&self, ino: Ino, wait: Wait) -> FsResult<()>;

    /// A client ends a mapping that it has begun.
    fn end_mapping(&self, ino: Ino);
}

impl Mappings for Engine {
    fn begin_mapping(&self, ino: Ino, wait: Wait) -> FsResult<()> {
        terrace_fs::content::mapping::begin_mapping(&self.store, ino, wait)
    }

    fn end_mapping(&self, ino: Ino) {
        terrace_fs::content::mapping::end_mapping(&self.store, ino);
    }
}
