//! The state directory of a mounted pool: `/run/terrace/<uuid>` for root, else below `$XDG_RUNTIME_DIR` or
//! `/tmp/terrace-<uid>`. It holds the control socket, and the log if the machine has no syslog.
//!
//! Every user can make every name in /tmp: root never looks there, and no socket counts in a directory that
//! another user owns or can write.
//!
//! A daemon has a lock on its state directory until it ends, and removes the directory then; the next mount
//! or unmount removes the directory of a killed daemon. Invariant: a directory is made and locked, and a dead
//! one removed, under the lock of the base above it; so a starting daemon keeps its directory, even if it
//! needs long until it listens.

use crate::failure::{Failure, Outcome, plain};
use rustix::fs::{FlockOperation, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Name of the socket.
const SOCKET: &str = "control";

/// The state directory of this daemon, locked.
#[derive(Debug)]
pub struct StateDirectory {
    /// The path of the directory.
    pub path: PathBuf,
    _lock: File,
}

impl StateDirectory {
    /// The path of the control socket.
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The bases in which state directories of this user may lie, best first.
fn bases() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    bases_of(own_uid(), runtime.as_deref())
}

/// The bases of a user with this XDG_RUNTIME_DIR.
fn bases_of(uid: u32, runtime: Option<&Path>) -> Vec<PathBuf> {
    if uid == 0 {
        return vec![PathBuf::from("/run/terrace")];
    }
    let runtime = runtime.map(|directory| directory.join("terrace"));
    runtime.into_iter().chain([PathBuf::from(format!("/tmp/terrace-{uid}"))]).collect()
}

/// Whether a path is of this type, belongs to a user, and is not writable for other users.
fn belongs(path: &Path, uid: u32, is_type: impl Fn(&fs::FileType) -> bool) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|found| is_type(&found.file_type()) && found.uid() == uid && found.mode() & 0o022 == 0)
}

/// Makes a directory that only this user can use, or accepts an existing one of this user.
fn private(path: &Path) -> Outcome<()> {
    let made = DirBuilder::new().mode(0o700).create(path);
    if let Err(error) = made
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(Failure::at(path, plain(&error)));
    }
    if !belongs(path, own_uid(), fs::FileType::is_dir) {
        return Err(Failure::at(
            path,
            "belongs to another user, or others may write to it; its owner or root must remove it",
        ));
    }
    Ok(())
}

/// The name of a pool's state directory: every user can ask a mount for the path of its socket, but must not
/// learn the UUID.
fn public_name(uuid: &str) -> String {
    let name = |uuid: uuid::Uuid| uuid::Uuid::from_bytes(terrace_format::seal::public_name(uuid.as_bytes()));
    uuid::Uuid::try_parse(uuid).map_or_else(|_| uuid.to_string(), |uuid| name(uuid).to_string())
}

/// The state directory of a pool, mounted or not.
pub fn directory_of(uuid: &str) -> Option<PathBuf> {
    bases().first().map(|base| base.join(public_name(uuid)))
}

/// Makes the state directory of a pool that the caller has locked: an old socket there belongs to a killed
/// daemon. `None` when a live daemon has the directory: then the caller's pool is a copy of a mounted pool,
/// and commands for one of them would reach the other.
pub fn make(uuid: &str) -> Outcome<Option<StateDirectory>> {
    let mut last = Failure::new("no directory for the control socket");
    if sockets(uuid).iter().any(|socket| !refuses(socket)) {
        return Ok(None);
    }
    let name = public_name(uuid);
    for base in bases() {
        match make_in(&base, &name) {
            Ok(made) => return Ok(made),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

/// Makes a base, and locks it. Another process may remove the empty base between the two steps: then it is
/// made again.
fn lock_base(base: &Path) -> Outcome<File> {
    loop {
        private(base)?;
        match lock(base, FlockOperation::LockExclusive) {
            Ok(lock) if is_at(&lock, base) => return Ok(lock),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::at(base, plain(&error))),
        }
    }
}

/// Whether a path names this directory.
fn is_at(directory: &File, path: &Path) -> bool {
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    let there = fs::symlink_metadata(path).map(identity).ok();
    there.is_some() && there == directory.metadata().map(identity).ok()
}

fn make_in(base: &Path, name: &str) -> Outcome<Option<StateDirectory>> {
    let _base = lock_base(base)?;
    let path = base.join(name);
    private(&path)?;
    let lock = match lock(&path, FlockOperation::NonBlockingLockExclusive) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(error) => return Err(Failure::at(&path, plain(&error))),
    };
    let made = StateDirectory { path, _lock: lock };
    let socket = made.socket();
    // A live daemon of an earlier version has no lock.
    if is_socket(&socket) && !refuses(&socket) {
        return Ok(None);
    }
    match fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::at(&socket, plain(&error))),
        _ => Ok(Some(made)),
    }
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// Locks a directory while the result lives.
fn lock(directory: &Path, operation: FlockOperation) -> io::Result<File> {
    let directory = File::open(directory)?;
    flock(&directory, operation)?;
    Ok(directory)
}

/// Removes the state directories of killed daemons. A directory with a log stays, and so does a directory
/// that cannot be judged, because a leftover does no harm.
pub fn remove_dead() {
    for base in bases() {
        if belongs(&base, own_uid(), fs::FileType::is_dir) {
            let _ = remove_dead_in(&base);
        }
    }
}

fn remove_dead_in(base: &Path) -> io::Result<()> {
    let _base = lock(base, FlockOperation::LockExclusive)?;
    for directory in fs::read_dir(base)?.flatten() {
        let named = directory.file_name().to_str().is_some_and(|name| uuid::Uuid::try_parse(name).is_ok());
        let path = directory.path();
        if !named || !directory.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let Ok(_lock) = lock(&path, FlockOperation::NonBlockingLockExclusive) else { continue };
        if is_dead(&path) {
            let _ = fs::remove_file(path.join(SOCKET));
            let _ = fs::remove_dir(&path);
        }
    }
    // The base goes as well if it is empty: rmdir refuses a base that still holds a state directory.
    let _ = fs::remove_dir(base);
    Ok(())
}

/// Whether a state directory that no daemon has locked holds at most a socket that refuses.
fn is_dead(path: &Path) -> bool {
    let Ok(entries) = fs::read_dir(path) else { return false };
    let names: Vec<_> = entries.map_while(Result::ok).map(|entry| entry.file_name()).collect();
    let socket = path.join(SOCKET);
    names.is_empty() || (names == [OsStr::new(SOCKET)] && is_socket(&socket) && refuses(&socket))
}

/// Whether no process listens at a socket. A stopped daemon's queue of callers may be full, so the connect
/// does not wait.
fn refuses(socket: &Path) -> bool {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let caller = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (Ok(caller), Ok(address)) = (caller, SocketAddrUnix::new(socket)) else { return false };
    connect(&caller, &address) == Err(rustix::io::Errno::CONNREFUSED)
}

/// Existing control sockets that may belong to a daemon of this user with this pool, and that no other user
/// can have put there.
pub fn sockets(uuid: &str) -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    sockets_in(Path::new("/"), bases_of(own_uid(), runtime.as_deref()), &public_name(uuid), own_uid())
}

/// As [`sockets`], for a daemon of another user, below the root directory of another process.
pub fn sockets_of(root: &Path, uuid: &str, uid: u32) -> Vec<PathBuf> {
    let runtime = PathBuf::from(format!("/run/user/{uid}"));
    sockets_in(root, bases_of(uid, Some(&runtime)), &public_name(uuid), uid)
}

fn sockets_in(root: &Path, bases: Vec<PathBuf>, name: &str, uid: u32) -> Vec<PathBuf> {
    let is_safe = |base: &PathBuf| belongs(base, uid, fs::FileType::is_dir);
    let below = |base: PathBuf| root.join(base.strip_prefix("/").unwrap_or(&base));
    let directories = bases.into_iter().map(below).filter(is_safe).map(|base| base.join(name));
    let sockets = directories.filter(is_safe).map(|directory| directory.join(SOCKET));
    sockets.filter(|socket| belongs(socket, uid, fs::FileType::is_socket)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::time::Duration;
    use terrace_runtime::{Clock, SystemClock};

    /// Directories of killed daemons once stayed for ever; later only directories without a socket did, when
    /// a daemon was killed before it listened.
    #[test]
    fn only_state_directories_of_killed_daemons_are_removed() -> Result<(), Box<dyn std::error::Error>> {
        let base = std::env::temp_dir().join(format!("terrace-state-{}", std::process::id()));
        private(&base).map_err(|failure| failure.text)?;
        let path = |number: u8| base.join(uuid::Uuid::from_bytes([number; 16]).to_string());
        for number in 0..7 {
            fs::create_dir(path(number))?;
        }
        fs::create_dir(base.join("something"))?;
        let bind = |path: PathBuf| UnixListener::bind(path.join(SOCKET));
        for dead in [path(0), path(1), path(6), base.join("something")] {
            drop(bind(dead)?);
        }
        fs::write(path(1).join("log"), "it was killed")?;
        // A daemon of an earlier version has no lock.
        let _served = bind(path(2))?;
        fs::write(path(4).join(SOCKET), "no socket")?;
        fs::write(path(5).join("log"), "it ended")?;
        let starts = lock(&path(6), FlockOperation::NonBlockingLockExclusive)?;
        remove_dead_in(&base)?;
        assert!(!path(0).exists() && !path(3).exists());
        let stays = [1, 2, 4, 5, 6].map(|number| fs::read_dir(path(number)).map(Iterator::count).ok());
        assert_eq!(stays, [Some(2), Some(1), Some(1), Some(1), Some(1)]);
        assert!(base.join("something").join(SOCKET).exists());
        // A pool has at most one daemon.
        let uuid = |number: u8| uuid::Uuid::from_bytes([number; 16]).to_string();
        assert!(make_in(&base, &uuid(6)).map_err(|failure| failure.text)?.is_none());
        drop(starts);
        // A daemon that starts after a killed one has a directory that does not count as dead.
        let made = make_in(&base, &uuid(6)).map_err(|failure| failure.text)?;
        assert_eq!(made.as_ref().map(|made| made.path.clone()), Some(path(6)));
        assert!(!path(6).join(SOCKET).exists());
        remove_dead_in(&base)?;
        assert!(path(6).exists());
        // A served pool keeps its socket.
        assert!(make_in(&base, &uuid(2)).map_err(|failure| failure.text)?.is_none());
        assert!(path(2).join(SOCKET).exists());
        Ok(fs::remove_dir_all(&base)?)
    }

    /// The directory /tmp/terrace-UID once stayed after the last mount of its user had ended.
    #[test]
    fn an_empty_base_is_removed_and_made_again() -> Result<(), Box<dyn std::error::Error>> {
        let base = std::env::temp_dir().join(format!("terrace-base-{}", std::process::id()));
        let name = uuid::Uuid::from_bytes([1; 16]).to_string();
        let made = make_in(&base, &name).map_err(|failure| failure.text)?;
        remove_dead_in(&base)?;
        assert!(base.join(&name).exists(), "a daemon has it");
        drop(made);
        let stale = File::open(&base)?;
        assert!(is_at(&stale, &base));
        remove_dead_in(&base)?;
        assert!(!base.exists());
        let _made = make_in(&base, &name).map_err(|failure| failure.text)?;
        assert!(base.join(&name).exists() && !is_at(&stale, &base));
        Ok(fs::remove_dir_all(&base)?)
    }

    /// A process that waits for the lock of a base makes the base again if it was removed meanwhile.
    #[test]
    fn a_base_removed_during_a_wait_for_its_lock_is_made_again() -> Result<(), Box<dyn std::error::Error>> {
        let base = std::env::temp_dir().join(format!("terrace-waited-{}", std::process::id()));
        private(&base).map_err(|failure| failure.text)?;
        let ours = lock(&base, FlockOperation::LockExclusive)?;
        let (waits, inode) = (base.clone(), ours.metadata()?.ino());
        let (tell, told) = std::sync::mpsc::channel();
        let thread = terrace_runtime::thread::spawn("waits", move || {
            let made = make_in(&waits, "pool").map(|made| made.map(|made| made.path.exists()));
            let _ = tell.send(made.map_err(|failure| failure.text));
        })?;
        // Waits until the thread is seen waiting for the lock, for at most a second. A thread that comes
        // later finds no base, and makes it.
        for _ in 0..1000 {
            let locks = fs::read_to_string("/proc/locks")?;
            let is_it = |line: &str| line.contains("-> FLOCK") && line.contains(&format!(":{inode} "));
            if locks.lines().any(is_it) {
                break;
            }
            SystemClock::default().sleep(Duration::from_millis(1));
        }
        fs::remove_dir(&base)?;
        drop(ours);
        thread.join().map_err(|_| "the other thread panicked")?;
        assert_eq!(told.recv()?, Ok(Some(true)));
        Ok(fs::remove_dir_all(&base)?)
    }

    /// A socket of an ordinary user in /tmp was once taken for the socket of root's daemon: it stopped root's
    /// mount, and answered root's commands.
    #[test]
    fn sockets_count_only_in_directories_without_other_writers() -> Result<(), Box<dyn std::error::Error>> {
        assert_eq!(bases_of(0, Some(Path::new("/tmp/evil"))), [PathBuf::from("/run/terrace")]);
        let base = std::env::temp_dir().join(format!("terrace-sockets-{}", std::process::id()));
        let uid = own_uid();
        let directory = base.join("uuid");
        for made in [&base, &directory] {
            DirBuilder::new().mode(0o700).create(made)?;
        }
        let _listener = UnixListener::bind(directory.join(SOCKET))?;
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        let socket = directory.join(SOCKET);
        mode(&socket, 0o600)?;
        let found = |uid| sockets_in(Path::new("/"), vec![base.clone()], "uuid", uid).len();
        assert_eq!((found(uid), found(uid + 1)), (1, 0), "the owner");
        for path in [&base, &directory, &socket] {
            mode(path, 0o777)?;
            assert_eq!(found(uid), 0, "others may write to {}", path.display());
            mode(path, 0o700)?;
        }
        assert_eq!(found(uid), 1);
        Ok(fs::remove_dir_all(&base)?)
    }
}
