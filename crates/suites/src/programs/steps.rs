//! Steps of the checks: a call that must succeed, fail or give these bytes. A failed step names its place.

use crate::content::difference;
use crate::outcome::Outcome;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Bytes of a mebibyte.
pub(super) const MIB: usize = 1 << 20;

/// A step of a check that failed, with the place.
pub(super) trait At<T> {
    /// The value, or the error after the place.
    fn at(self, what: &str) -> Outcome<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, what: &str) -> Outcome<T> {
        self.map_err(|error| format!("{what}: {error}"))
    }
}

/// Fails with a text unless the condition holds.
pub(super) fn must(condition: bool, what: impl Into<String>) -> Outcome<()> {
    if condition { Ok(()) } else { Err(what.into()) }
}

/// Fails unless the bytes are the expected bytes.
pub(super) fn same(what: &str, found: &[u8], expected: &[u8]) -> Outcome<()> {
    difference(found, expected).map_or(Ok(()), |difference| Err(format!("{what}: {difference}")))
}

/// Fails unless the call failed with this errno.
pub(super) fn refused<T>(what: &str, result: io::Result<T>, errno: i32) -> Outcome<()> {
    match result {
        Ok(_) => Err(format!("{what}: succeeded")),
        Err(error) if error.raw_os_error() == Some(errno) => Ok(()),
        Err(error) => Err(format!("{what}: {error} instead of {}", io::Error::from_raw_os_error(errno))),
    }
}

/// A file, made if it is missing, open for reads and writes.
pub(super) fn open(path: &Path, flags: i32) -> Outcome<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).custom_flags(flags).open(path);
    file.at(&format!("open {}", path.display()))
}

/// Bytes of a file.
pub(super) fn read_at(file: &File, offset: u64, length: usize) -> Outcome<Vec<u8>> {
    let mut found = vec![0; length];
    file.read_exact_at(&mut found, offset).at("read")?;
    Ok(found)
}

/// This program as another process.
pub(super) fn helper(arguments: &[&OsStr], input: Stdio, output: Stdio) -> Outcome<Child> {
    let program = std::env::current_exe().at("current program")?;
    Command::new(program).args(arguments).stdin(input).stdout(output).spawn().at("start a process")
}
