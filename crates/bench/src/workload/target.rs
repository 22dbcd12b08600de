//! The target of a workload: a directory, or a file system in this process. A small trait for both, so a
//! personality is written once and does the same in both columns of a table.

use std::io;

/// A target with files, shared by threads. A path is a name, or a directory and a name with `/` between them.
pub trait FileTarget: Send + Sync {
    /// Makes a directory; an existing directory is no error.
    fn make_directory(&self, path: &str) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_directory(&self, path: &str) -> io::Result<()>;
    /// Opens for reading and writing; `create` makes a missing file.
    fn open(&self, path: &str, create: bool) -> io::Result<Box<dyn OpenedFile>>;
    /// Opens for reading alone, like fio's reads, cp, tar and grep; filebench always opens for reading and
    /// writing.
    fn open_to_read(&self, path: &str) -> io::Result<Box<dyn OpenedFile>> {
        self.open(path, false)
    }
    /// Removes a name of a file.
    fn unlink(&self, path: &str) -> io::Result<()>;
    /// Renames a file or directory.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Gives the file `from` the further name `to`.
    fn link(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes the symbolic link `path` to `text`.
    fn symlink(&self, text: &str, path: &str) -> io::Result<()>;
    /// Changes the mode of a file.
    fn change_mode(&self, path: &str, mode: u32) -> io::Result<()>;
    /// Size in bytes, as stat(2) gives it.
    fn size(&self, path: &str) -> io::Result<u64>;
    /// Names in a directory without `.` and `..`.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
    /// Makes all writes durable, and drops the data from the kernel's cache.
    fn settle(&self) -> io::Result<()>;
}

/// An open file; dropping closes.
pub trait OpenedFile: Send {
    /// Reads; gives fewer bytes than requested only at the end of the file.
    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all bytes. `sync`: durable on return, as with O_DSYNC.
    fn write_at(&mut self, bytes: &[u8], offset: u64, sync: bool) -> io::Result<()>;
    /// Makes all writes to the file durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Size in bytes.
    fn size(&mut self) -> io::Result<u64>;
    /// Changes the size.
    fn set_size(&mut self, bytes: u64) -> io::Result<()>;
}

/// Directory of a path and the name in it; the directory is empty for the root.
pub(crate) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}
