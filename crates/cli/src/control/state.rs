//! The state directory of a mounted pool: `/run/terrace/<uuid>` for root, else below `$XDG_RUNTIME_DIR` or
//! `/tmp/terrace-<uid>`. Holds the control socket, and the log where there is no syslog.
//!
//! A daemon removes its own at its end, that of a killed one goes with the next mount or unmount. Invariant: a directory
//! is made, and a dead one removed, under the lock of the base above it, and what is made holds no socket; so a daemon that
//! starts loses nothing, however long it takes until it listens.

use crate::failure::{Failure, Outcome, plain};
use rustix::fs::{FlockOperation, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_runtime::{Clock, SystemClock};

/// Name of the socket.
const SOCKET: &str = "control";
/// Between its making and its listening a socket refuses as a dead one does.
const STARTING: Duration = Duration::from_secs(2);

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

/// The name of a pool's state directory: every user can ask a mount where its socket is, and is not to learn the UUID.
fn public_name(uuid: &str) -> String {
    let name = |uuid: uuid::Uuid| uuid::Uuid::from_bytes(terrace_format::seal::public_name(uuid.as_bytes()));
    uuid::Uuid::try_parse(uuid).map_or_else(|_| uuid.to_string(), |uuid| name(uuid).to_string())
}

/// The state directory of a pool, mounted or not.
pub fn directory_of(uuid: &str) -> Option<PathBuf> {
    sockets(uuid).first().and_then(|socket| socket.parent()).map(Path::to_path_buf)
}

/// Makes the state directory of a pool, which the caller has locked: a socket there is that of a killed daemon. `None` when
/// somebody listens at one: what the caller has locked is a copy of a mounted pool, and commands that ask for the one
/// would reach the other.
pub fn make(uuid: &str) -> Outcome<Option<PathBuf>> {
    let uuid = &public_name(uuid);
    let mut last = Failure::new("no directory for the control socket");
    if sockets(uuid).iter().any(|socket| is_served(socket)) {
        return Ok(None);
    }
    for base in bases() {
        match make_in(&base, uuid) {
            Ok(path) => return Ok(path),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

fn make_in(base: &Path, uuid: &str) -> Outcome<Option<PathBuf>> {
    private(base)?;
    let _lock = lock(base).map_err(|error| Failure::at(base, plain(&error)))?;
    let path = base.join(uuid);
    private(&path)?;
    let socket = path.join(SOCKET);
    if is_served(&socket) {
        return Ok(None);
    }
    match fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::at(&socket, plain(&error))),
        _ => Ok(Some(path)),
    }
}

/// Whether somebody listens at a socket.
fn is_served(socket: &Path) -> bool {
    fs::symlink_metadata(socket).is_ok_and(|found| found.file_type().is_socket()) && !refuses(socket)
}

/// Held while the result lives.
fn lock(base: &Path) -> io::Result<File> {
    let directory = File::open(base)?;
    flock(&directory, FlockOperation::LockExclusive)?;
    Ok(directory)
}

/// Removes the state directories of killed daemons. One that holds a log stays, and so does what cannot be judged: that a
/// directory stays harms nobody.
pub fn remove_dead() {
    for base in bases() {
        let ours = |found: fs::Metadata| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
        if fs::symlink_metadata(&base).is_ok_and(ours) {
            let _ = remove_dead_in(&base, STARTING);
        }
    }
}

fn remove_dead_in(base: &Path, starting: Duration) -> io::Result<()> {
    let _lock = lock(base)?;
    for directory in fs::read_dir(base)?.flatten() {
        let named = directory.file_name().to_str().is_some_and(|name| uuid::Uuid::try_parse(name).is_ok());
        let path = directory.path();
        if named && directory.file_type().is_ok_and(|kind| kind.is_dir()) && is_dead(&path, starting) {
            let _ = fs::remove_file(path.join(SOCKET));
            let _ = fs::remove_dir(&path);
        }
    }
    Ok(())
}

/// Whether a state directory holds a socket that refuses, and nothing else.
fn is_dead(path: &Path, starting: Duration) -> bool {
    let Ok(entries) = fs::read_dir(path) else { return false };
    let names: Vec<_> = entries.map_while(Result::ok).map(|entry| entry.file_name()).collect();
    if names != [OsStr::new(SOCKET)] {
        return false;
    }
    let socket = path.join(SOCKET);
    let Ok(found) = fs::symlink_metadata(&socket) else { return false };
    let made_ns = found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec());
    let now_ns = SystemClock::default().wall_ns();
    let settled = now_ns.saturating_sub(made_ns) >= starting.as_nanos() as i64;
    found.file_type().is_socket() && settled && refuses(&socket)
}

/// Whether nobody listens. A daemon that is stopped may have more callers than it takes, and is not waited for.
fn refuses(socket: &Path) -> bool {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let caller = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (Ok(caller), Ok(address)) = (caller, SocketAddrUnix::new(socket)) else { return false };
    connect(&caller, &address) == Err(rustix::io::Errno::CONNREFUSED)
}

/// Control sockets that a daemon of this pool may have.
pub fn sockets(uuid: &str) -> Vec<PathBuf> {
    let uuid = &public_name(uuid);
    bases().into_iter().map(|base| base.join(uuid).join(SOCKET)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// The directories of killed daemons stayed for ever.
    #[test]
    fn only_what_a_killed_daemon_left_is_removed() -> Result<(), Box<dyn std::error::Error>> {
        let base = std::env::temp_dir().join(format!("terrace-state-{}", std::process::id()));
        private(&base).map_err(|failure| failure.text)?;
        let path = |number: u8| base.join(uuid::Uuid::from_bytes([number; 16]).to_string());
        for number in 0..6 {
            fs::create_dir(path(number))?;
        }
        fs::create_dir(base.join("something"))?;
        let bind = |path: PathBuf| UnixListener::bind(path.join(SOCKET));
        for dead in [path(0), path(1), base.join("something")] {
            drop(bind(dead)?);
        }
        fs::write(path(1).join("log"), "it was killed")?;
        let _served = bind(path(2))?;
        // 3 is empty: its daemon starts.
        fs::write(path(4).join(SOCKET), "no socket")?;
        fs::write(path(5).join("log"), "it ended")?;
        remove_dead_in(&base, Duration::from_secs(3600))?;
        assert!(path(0).exists(), "it may be about to listen");
        remove_dead_in(&base, Duration::ZERO)?;
        assert!(!path(0).exists());
        let stays = [1, 2, 3, 4, 5].map(|number| fs::read_dir(path(number)).map(Iterator::count).ok());
        assert_eq!(stays, [Some(2), Some(1), Some(0), Some(1), Some(1)]);
        assert!(base.join("something").join(SOCKET).exists());
        // A daemon that starts where one was killed has a directory that nobody takes for dead.
        let uuid = uuid::Uuid::from_bytes([0; 16]).to_string();
        fs::create_dir(path(0))?;
        drop(bind(path(0))?);
        assert_eq!(make_in(&base, &uuid).map_err(|failure| failure.text)?, Some(path(0)));
        // What is served keeps its socket.
        let served = uuid::Uuid::from_bytes([2; 16]).to_string();
        assert_eq!(make_in(&base, &served).map_err(|failure| failure.text)?, None);
        assert!(path(2).join(SOCKET).exists());
        remove_dead_in(&base, Duration::ZERO)?;
        assert_eq!(fs::read_dir(path(0))?.count(), 0);
        Ok(fs::remove_dir_all(&base)?)
    }
}
