//! What a workload runs on: any directory, or a file system in this process. One small trait, so that a
//! personality is written once and both columns of a table do the same.

use std::io;

/// A place for files. Paths are relative, `/` between at most one directory and a name; threads share it.
pub trait FileTarget: Send + Sync {
    /// Makes a directory; one that exists is no error.
    fn make_directory(&self, path: &str) -> io::Result<()>;
    fn remove_directory(&self, path: &str) -> io::Result<()>;
    /// Opens for reading and writing; `create` makes the file when there is none.
    fn open(&self, path: &str, create: bool) -> io::Result<Box<dyn OpenedFile>>;
    /// Opens for reading alone, as fio does for reads, and cp, tar and grep for all; filebench opens for both.
    fn open_to_read(&self, path: &str) -> io::Result<Box<dyn OpenedFile>> {
        self.open(path, false)
    }
    fn unlink(&self, path: &str) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn link(&self, from: &str, to: &str) -> io::Result<()>;
    fn symlink(&self, text: &str, path: &str) -> io::Result<()>;
    fn change_mode(&self, path: &str, mode: u32) -> io::Result<()>;
    /// Size in bytes, as stat(2) gives it.
    fn size(&self, path: &str) -> io::Result<u64>;
    /// Names in a directory without `.` and `..`.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    /// Makes everything durable and, where a cache of the kernel holds data, drops it from there.
    fn settle(&self) -> io::Result<()>;
}

/// An open file; dropping closes.
pub trait OpenedFile: Send {
    /// Bytes read: fewer than asked at the end only.
    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all. `sync`: durable on return, as O_DSYNC.
    fn write_at(&mut self, bytes: &[u8], offset: u64, sync: bool) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
    fn size(&mut self) -> io::Result<u64>;
    fn set_size(&mut self, bytes: u64) -> io::Result<()>;
}

/// Directory of a path and the name in it; the directory is empty for the root.
pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}
