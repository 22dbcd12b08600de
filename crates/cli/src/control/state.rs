//! The state directory of a mounted pool: `/run/terrace/<uuid>` for root, else below `$XDG_RUNTIME_DIR` or
//! `/tmp/terrace-<uid>`. Holds the control socket, and the log where there is no syslog.

use crate::failure::{Failure, Outcome, plain};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Directories in which state directories may lie, best first.
fn bases() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid();
    let mut bases = Vec::new();
    if uid.is_root() {
        bases.push(PathBuf::from("/run/terrace"));
    } else if let Some(directory) = std::env::var_os("XDG_RUNTIME_DIR") {
        bases.push(Path::new(&directory).join("terrace"));
    }
    bases.push(PathBuf::from(format!("/tmp/terrace-{}", uid.as_raw())));
    bases
}

/// Makes a directory that only we can use, or accepts one that is ours.
fn private(path: &Path) -> Outcome<()> {
    let made = DirBuilder::new().mode(0o700).create(path);
    if let Err(error) = made
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(Failure::at(path, plain(&error)));
    }
    let found = fs::symlink_metadata(path).map_err(|error| Failure::at(path, plain(&error)))?;
    let ours = found.uid() == rustix::process::geteuid().as_raw();
    if !found.is_dir() || !ours || found.mode() & 0o022 != 0 {
        return Err(Failure::at(path, "not a directory that only this user can write; remove it"));
    }
    Ok(())
}

/// Makes the state directory of a pool.
pub fn make(uuid: &str) -> Outcome<PathBuf> {
    let mut last = Failure::new("no directory for the control socket");
    for base in bases() {
        let path = base.join(uuid);
        match private(&base).and_then(|()| private(&path)) {
            Ok(()) => return Ok(path),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

/// Control sockets that a daemon of this pool may have.
pub fn sockets(uuid: &str) -> Vec<PathBuf> {
    bases().into_iter().map(|base| base.join(uuid).join("control")).collect()
}
