//! Finds the daemon behind a path, a mount or a pool.
//!
//! Every user can mount a file system that calls itself Terrace, and listen at a socket: a daemon is trusted
//! by the user of its socket's peer, which the kernel tells (SO_PEERCRED). Each wait for a mount has a bound:
//! its daemon may be dead, or stopped.

use super::client::{Daemon, PATIENCE, connect, ends_within, stopped};
use super::{Contact, state};
use crate::failure::{Failure, Outcome, plain};
use crate::mounts::{self, Mount, patiently};
use crate::{pool, processes};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use terrace_fuse::{Connection, Unmount};

/// Room for the longest contact.
const MOST_CONTACT_BYTES: usize = 4096;

/// The daemon, if any, behind a path.
pub enum Located {
    /// A file or directory of a mount that is served.
    Mounted(Daemon),
    /// A mount whose daemon has died.
    Dead,
    /// No file of a mount; perhaps the path of a pool.
    NotMounted,
}

/// The daemon, if any, behind a mount of Terrace's type.
pub enum Behind {
    /// A daemon that answers.
    Daemon(Daemon),
    /// The daemon of the mount has died.
    Dead,
    /// A daemon that cannot be asked: its process, if known, and the reason.
    Unreachable(Option<u32>, Failure),
    /// No daemon of the mounting user: the mount only calls itself Terrace.
    Nobody,
}

/// Finds the daemon behind a path of a mount, or behind a pool's path.
pub fn locate(path: &Path) -> Outcome<Located> {
    let (absolute, mount) = mounts::look(path)?;
    if let Some(mount) = mount.filter(Mount::is_ours) {
        return match behind(&mount, path) {
            Behind::Daemon(daemon) => Ok(Located::Mounted(daemon)),
            Behind::Dead if absolute == mount.mountpoint => Ok(Located::Dead),
            Behind::Dead => {
                Err(Failure::at(path, "lies in a mount whose daemon has ended; 'terrace umount' it"))
            }
            Behind::Unreachable(_, failure) => Err(failure),
            Behind::Nobody => Err(Failure::at(path, NOBODY)),
        };
    }
    match pool::peek(path) {
        Ok(superblock) => {
            // Its socket takes callers, and nobody answers.
            if let Some(pid) = processes::lock_owner(&absolute).filter(|pid| processes::is_ending(*pid)) {
                return Err(Failure::at(path, ending(pid)));
            }
            let daemon = of_pool(&absolute, &pool::uuid_text(&superblock));
            if let Some(pid) =
                daemon.as_ref().and_then(Daemon::process).filter(|pid| processes::is_stopped(*pid))
            {
                return Err(Failure::at(path, stopped(pid)));
            }
            Ok(daemon.map_or(Located::NotMounted, Located::Mounted))
        }
        Err(_) => Ok(Located::NotMounted),
    }
}

/// The failure text about a pool whose daemon was killed.
fn ending(pid: u32) -> String {
    let name = mounts::process_name(pid);
    format!("{name} was killed and has not ended: it waits for a device; 'terrace umount' its directory")
}

/// The failure text about a mount that only calls itself Terrace.
pub const NOBODY: &str =
    "calls itself a Terrace mount, but no daemon of its user stands behind it; unmount it with umount(8)";

/// Finds the daemon behind a mount of Terrace's type, through a path in the mount.
pub fn behind(mount: &Mount, path: &Path) -> Behind {
    if let Some(pid) = mount.held_process() {
        if processes::is_stopped(pid) {
            return Behind::Unreachable(Some(pid), Failure::at(&mount.mountpoint, stopped(pid)));
        }
        // A daemon that is ending still holds the FUSE device open, so neither the connection nor the users of the mount
        // can end: abort it.
        let _ = mount.connection().map(Connection::abort);
        return Behind::Dead;
    }
    let mut asked = contact_of(path);
    let is_on_top = || mounts::at(&mount.mountpoint).is_ok_and(|top| top.as_ref() == Some(mount));
    // If this user may not read the file, the mount point itself may still answer.
    if matches!(asked, Some(Err(Errno::ACCESS | Errno::PERM))) && is_on_top() {
        asked = contact_of(&mount.mountpoint);
    }
    let by_its_pool = || {
        let superblock = pool::peek(&mount.source).ok()?;
        of_pool(&mount.source, &pool::uuid_text(&superblock)).filter(|daemon| daemon.serves(mount))
    };
    let process = || processes::lock_owner(&mount.source);
    match asked {
        Some(Ok(value)) => match serde_json::from_slice::<Contact>(&value) {
            Ok(contact) => reach(contact, mount),
            Err(_) => Behind::Nobody,
        },
        Some(Err(error)) if mounts::means_dead(error) => Behind::Dead,
        Some(Err(Errno::ACCESS | Errno::PERM)) => match by_its_pool() {
            Some(daemon) => Behind::Daemon(daemon),
            None => {
                let text = "the mount of another user, who did not allow others to use it; ask that user";
                Behind::Unreachable(process(), Failure::at(&mount.mountpoint, text))
            }
        },
        Some(Err(_)) => Behind::Nobody,
        None => match (process(), by_its_pool()) {
            // As above.
            (Some(pid), _) if processes::is_ending(pid) => {
                let _ = mount.connection().map(Connection::abort);
                Behind::Dead
            }
            // Even a stopped daemon's socket accepts callers, so only an answer proves a live daemon.
            (_, Some(daemon)) if daemon.connection().is_some() => Behind::Daemon(daemon),
            (process, _) => {
                let who = process.map_or_else(|| "its daemon".to_string(), mounts::process_name);
                let text = match process {
                    Some(pid) if processes::is_stopped(pid) => stopped(pid),
                    _ => format!("{who} does not answer: it is stopped, or waits for a device"),
                };
                Behind::Unreachable(process, Failure::at(&mount.mountpoint, text))
            }
        },
    }
}

/// Removes the mount of a dead daemon, and waits for the end of its process, which can end now that its
/// connection is gone.
///
/// # Errors
/// The operating system's.
pub fn clear(mount: &Mount) -> io::Result<()> {
    let process = processes::lock_owner(&mount.source).filter(|pid| processes::is_ending(*pid));
    terrace_fuse::unmount(&mount.mountpoint, Unmount::Detach)?;
    if let Some(process) = process.and_then(processes::handle) {
        ends_within(&process, PATIENCE);
    }
    Ok(())
}

/// The daemon that has the pool with this path and UUID mounted, in whatever mount namespace.
pub fn of_pool(pool: &Path, uuid: &str) -> Option<Daemon> {
    let daemon = |socket: PathBuf, uid| {
        let contact = Contact { socket: socket.clone(), pid: 0, uuid: uuid.to_string() };
        Daemon::at(socket, uid, contact)
    };
    let own = rustix::process::geteuid().as_raw();
    for socket in state::sockets(uuid) {
        if connect(&socket, own).is_ok() {
            return Some(daemon(socket, own));
        }
    }
    // A daemon of another user, or in another mount namespace, is found by the process that has the pool's
    // lock.
    if let Some(pid) = processes::lock_owner(pool)
        && let Some(uid) = processes::user_of(pid)
    {
        let roots = [PathBuf::from("/"), PathBuf::from(format!("/proc/{pid}/root"))];
        for socket in roots.iter().flat_map(|root| state::sockets_of(root, uuid, uid)) {
            if connect(&socket, uid).is_ok_and(|(_, peer)| peer.pid().unsigned_abs() == pid) {
                return Some(daemon(socket, uid));
            }
        }
    }
    let mount = mounts::of_pool(pool).ok()??;
    match reach(serde_json::from_slice(&contact_of(&mount.mountpoint)?.ok()?).ok()?, &mount) {
        Behind::Daemon(found) => Some(daemon(found.socket().to_path_buf(), found.user())),
        _ => None,
    }
}

/// The process that has the pool with this path and UUID mounted, in whatever mount namespace.
pub fn owner(pool: &Path, uuid: &str) -> Option<u32> {
    processes::lock_owner(pool).or_else(|| {
        let daemon = of_pool(pool, uuid)?;
        let (_, peer) = connect(daemon.socket(), daemon.user()).ok()?;
        u32::try_from(peer.pid()).ok()
    })
}

/// The contact that the daemon of a mount gives; `None` when no answer comes in time.
fn contact_of(path: &Path) -> Option<rustix::io::Result<Vec<u8>>> {
    let path = path.to_path_buf();
    patiently(move || {
        let mut value = vec![0; MOST_CONTACT_BYTES];
        let length = match rustix::fs::getxattr(&path, terrace_fuse::CONTROL_XATTR, &mut value[..]) {
            // A daemon of an earlier version knows the attribute under its earlier name only.
            Err(Errno::OPNOTSUPP | Errno::NODATA) => {
                rustix::fs::getxattr(&path, terrace_fuse::EARLIER_CONTROL_XATTR, &mut value[..])?
            }
            length => length?,
        };
        value.truncate(length);
        Ok(value)
    })
}

/// Connects to the daemon that a mount's contact names.
fn reach(contact: Contact, mount: &Mount) -> Behind {
    let Some(uid) = mount.owner else { return Behind::Nobody };
    // A process that has no pool is no daemon. For mounts of root and of this user the peer's user is proof
    // enough.
    let trusted = [0, rustix::process::geteuid().as_raw()].contains(&uid);
    let is_daemon = |pid: u32| trusted || processes::has_lock(pid, &mount.source);
    let mut through = OsString::from(format!("/proc/{}/root", contact.pid));
    through.push(&contact.socket);
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for socket in [contact.socket.clone(), PathBuf::from(through)] {
        match connect(&socket, uid) {
            Ok((_, peer)) => {
                let daemon = Daemon::at(socket, uid, contact);
                let believed = is_daemon(peer.pid().unsigned_abs()) && daemon.serves(mount);
                return if believed { Behind::Daemon(daemon) } else { Behind::Nobody };
            }
            Err(error) => last = error,
        }
    }
    let what = match last.kind() {
        io::ErrorKind::PermissionDenied => "only root and the user who mounted it may ask".to_string(),
        _ => plain(&last),
    };
    let failure = Failure::new(format!("control socket {}: {what}", contact.socket.display()));
    // Without a connection only the named process can prove a daemon.
    let process = (processes::user_of(contact.pid) == Some(uid)).then_some(contact.pid);
    match process {
        Some(pid) if is_daemon(pid) => Behind::Unreachable(Some(pid), failure),
        _ if trusted || last.kind() == io::ErrorKind::PermissionDenied => Behind::Unreachable(None, failure),
        _ => Behind::Nobody,
    }
}
