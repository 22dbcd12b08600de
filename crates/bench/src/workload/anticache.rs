//! The small measurements of [AC-BPFS section 4]: operations on names, durable appends, reads of partly hot
//! data.

use super::numbers::Picks;
use super::target::FileTarget;
use super::worker::{Tally, Worker};
use serde::{Deserialize, Serialize};
use std::io;

/// A line of [AC-BPFS table 1].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameOperation {
    /// chmod(2) of a file.
    ChangeMode,
    /// A file is created.
    Create,
    /// A file gets a second name.
    Link,
    /// A directory is made.
    MakeDirectory,
    /// A directory of 100 entries is read.
    ReadDirectory,
    /// A directory is renamed.
    RenameDirectory,
    /// A file is renamed.
    RenameFile,
    /// An empty directory is removed.
    RemoveDirectory,
    /// A symbolic link is made.
    Symlink,
    /// A file of 16 MiB is removed.
    Unlink16M,
    /// A file loses its second name.
    UnlinkHardLink,
}

impl NameOperation {
    /// Every operation, in the order of the table.
    pub const ALL: [NameOperation; 11] = [
        NameOperation::ChangeMode,
        NameOperation::Create,
        NameOperation::Link,
        NameOperation::MakeDirectory,
        NameOperation::ReadDirectory,
        NameOperation::RenameDirectory,
        NameOperation::RenameFile,
        NameOperation::RemoveDirectory,
        NameOperation::Symlink,
        NameOperation::Unlink16M,
        NameOperation::UnlinkHardLink,
    ];

    /// The name in the table.
    pub fn name(self) -> &'static str {
        match self {
            NameOperation::ChangeMode => "chmod",
            NameOperation::Create => "create",
            NameOperation::Link => "link",
            NameOperation::MakeDirectory => "mkdir",
            NameOperation::ReadDirectory => "readdir",
            NameOperation::RenameDirectory => "rename_dir",
            NameOperation::RenameFile => "rename_file",
            NameOperation::RemoveDirectory => "rmdir",
            NameOperation::Symlink => "symlink",
            NameOperation::Unlink16M => "unlink_16M",
            NameOperation::UnlinkHardLink => "unlink_hardlink",
        }
    }
}

/// Entries of the directory that is read.
const ENTRIES: u64 = 100;
const LARGE_BYTES: u64 = 16 << 20;

/// Repeats: prepare an operation, time the operation alone, clear up.
pub(crate) fn names(
    operation: NameOperation,
    target: &dyn FileTarget,
    worker: Worker,
    tally: &mut Tally,
) -> io::Result<()> {
    let (a, b) = (format!("names/a{}", worker.index), format!("names/b{}", worker.index));
    let content = if operation == NameOperation::Unlink16M { vec![1; 1 << 20] } else { Vec::new() };
    if operation == NameOperation::ReadDirectory {
        target.make_directory(&a)?;
        for entry in 0..ENTRIES {
            drop(target.open(&format!("{a}/{entry}"), true)?);
        }
    }
    loop {
        prepare(operation, target, &a, &b, &content)?;
        let more = tally.turn(|tally| {
            tally.other();
            act(operation, target, &a, &b)
        })?;
        // Removes the file that the operation made, or at the end the file prepared for the operation.
        for path in [&a, &b] {
            let keep = operation == NameOperation::ReadDirectory;
            if !keep && target.unlink(path).is_err() {
                let _ = target.remove_directory(path);
            }
        }
        if !more {
            break;
        }
    }
    if operation == NameOperation::ReadDirectory {
        for entry in 0..ENTRIES {
            target.unlink(&format!("{a}/{entry}"))?;
        }
        target.remove_directory(&a)?;
    }
    Ok(())
}

fn prepare(
    operation: NameOperation,
    target: &dyn FileTarget,
    a: &str,
    b: &str,
    content: &[u8],
) -> io::Result<()> {
    match operation {
        NameOperation::Create
        | NameOperation::MakeDirectory
        | NameOperation::Symlink
        | NameOperation::ReadDirectory => {}
        NameOperation::RenameDirectory | NameOperation::RemoveDirectory => target.make_directory(a)?,
        NameOperation::ChangeMode | NameOperation::Link | NameOperation::RenameFile => {
            drop(target.open(a, true)?)
        }
        NameOperation::UnlinkHardLink => {
            drop(target.open(a, true)?);
            target.link(a, b)?;
        }
        NameOperation::Unlink16M => {
            let mut file = target.open(a, true)?;
            for at in (0..LARGE_BYTES).step_by(content.len()) {
                file.write_at(content, at, false)?;
            }
        }
    }
    Ok(())
}

fn act(operation: NameOperation, target: &dyn FileTarget, a: &str, b: &str) -> io::Result<()> {
    match operation {
        NameOperation::ChangeMode => target.change_mode(a, 0o600),
        NameOperation::Create => target.open(a, true).map(drop),
        NameOperation::Link => target.link(a, b),
        NameOperation::MakeDirectory => target.make_directory(a),
        NameOperation::ReadDirectory => match target.list(a)?.len() as u64 {
            ENTRIES => Ok(()),
            found => Err(io::Error::other(format!("{found} of {ENTRIES} entries"))),
        },
        NameOperation::RenameDirectory | NameOperation::RenameFile => target.rename(a, b),
        NameOperation::RemoveDirectory => target.remove_directory(a),
        NameOperation::Symlink => target.symlink("a", a),
        NameOperation::Unlink16M => target.unlink(a),
        NameOperation::UnlinkHardLink => target.unlink(b),
    }
}

/// The file is truncated before it grows past this size.
const APPENDED_BYTES: u64 = 256 << 20;

/// Appends of `bytes` to a file, each followed by fsync.
pub(crate) fn append(
    bytes: u64,
    target: &dyn FileTarget,
    worker: Worker,
    tally: &mut Tally,
) -> io::Result<()> {
    let mut file = target.open(&format!("append/{}", worker.index), true)?;
    file.set_size(0)?;
    let content = vec![0x44; bytes as usize];
    let mut end = 0;
    loop {
        let more = tally.turn(|tally| {
            file.write_at(&content, end, false)?;
            file.sync()?;
            tally.wrote(bytes);
            Ok(())
        })?;
        if !more {
            return file.set_size(0);
        }
        end += bytes;
        if end + bytes > APPENDED_BYTES.max(bytes) {
            file.set_size(0)?;
            end = 0;
        }
    }
}

/// Requests in a turn of [`hotness`].
const REQUESTS: u64 = 10;

/// Makes the files, durably, in the order in which [`hotness`] reads the cold files.
pub(crate) fn populate_hotness(target: &dyn FileTarget, files: u64, bytes: u64) -> io::Result<()> {
    target.make_directory("hotness")?;
    let content = vec![0x21; bytes as usize];
    for number in 0..files {
        let mut file = target.open(&format!("hotness/{number}"), true)?;
        if file.size()? < bytes {
            file.write_at(&content, 0, false)?;
        }
        file.sync()?;
    }
    Ok(())
}

/// A turn is ten requests, each of a whole file. `hot` requests read the same ten files in every turn; the
/// remaining requests read the least recently read file. The files exceed PM many times, so this file is cold
/// under LRU.
pub(crate) fn hotness(
    files: u64,
    bytes: u64,
    hot: u64,
    target: &dyn FileTarget,
    seed: u64,
    tally: &mut Tally,
) -> io::Result<()> {
    if files <= REQUESTS || hot > REQUESTS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut buffer = vec![0; bytes as usize];
    let cold = files - REQUESTS;
    // Each round begins at another file.
    let mut next = Picks::new(seed).below(cold);
    // Hot files are read before the clock runs.
    for number in 0..hot {
        let mut file = target.open(&format!("hotness/{number}"), false)?;
        file.read_at(&mut buffer, 0)?;
        file.read_at(&mut buffer, 0)?;
    }
    loop {
        let more = tally.turn(|tally| {
            for request in 0..REQUESTS {
                let number = if request < hot {
                    request
                } else {
                    next = (next + 1) % cold;
                    REQUESTS + next
                };
                let mut file = target.open(&format!("hotness/{number}"), false)?;
                tally.read(file.read_at(&mut buffer, 0)? as u64);
            }
            Ok(())
        })?;
        if !more {
            return Ok(());
        }
    }
}
