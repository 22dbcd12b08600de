//! Commands' side of the control socket: finding the daemon behind a path, and asking it.
//!
//! Anybody can mount something that calls itself a Terrace mount, and listen at a socket: a daemon is believed by the user
//! that its socket's peer has, which the kernel tells (SO_PEERCRED). Nothing here waits for a mount without a bound: its
//! daemon may be dead, or stopped.

use super::{Answer, Contact, Request, state};
use crate::failure::{Failure, Outcome, plain};
use crate::mounts::{self, Mount, patiently};
use crate::{pool, processes};
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_fuse::{Connection, Unmount};
use terrace_runtime::{Clock, SystemClock};

/// How long a daemon may take to say which connection it serves.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the daemon of another user may take for what takes no time.
const QUICK: Duration = Duration::from_secs(10);
/// How long it may take to end.
const SLOW: Duration = Duration::from_secs(60);
/// Bytes of the longest answer.
const LONGEST: usize = 16 << 20;

/// A daemon that can be asked.
#[derive(Debug, Clone)]
pub struct Daemon {
    socket: PathBuf,
    /// Its user.
    uid: u32,
    /// What it said of itself.
    pub contact: Contact,
}

/// What a path leads to.
pub enum Located {
    /// A file or directory of a mount that is served.
    Mounted(Daemon),
    /// A mount whose daemon has died.
    Dead,
    /// Anything else; a pool perhaps.
    NotMounted,
}

/// What stands behind a mount of our type.
pub enum Behind {
    /// A daemon that answers.
    Daemon(Daemon),
    /// Nobody any more: its daemon has died.
    Dead,
    /// A daemon, which cannot be asked: its process, where that is known, and the reason.
    Unreachable(Option<u32>, Failure),
    /// No daemon of the user who mounted it: it only calls itself one of ours.
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

/// What is said of a mount that only calls itself one of ours.
pub const NOBODY: &str =
    "calls itself a Terrace mount, but no daemon of its user stands behind it; unmount it with umount(8)";

/// What stands behind a mount of our type, asked through a path in it.
pub fn behind(mount: &Mount, path: &Path) -> Behind {
    let mut asked = contact_of(path);
    let is_on_top = || mounts::at(&mount.mountpoint).is_ok_and(|top| top.as_ref() == Some(mount));
    // A file that we may not read can still be told from its mount.
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
            // What it holds open keeps the kernel from ending the connection, and users of the mount from ending.
            (Some(pid), _) if processes::is_ending(pid) => {
                let _ = mount.connection().map(Connection::abort);
                Behind::Dead
            }
            // One that is stopped takes callers, and says nothing.
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

/// Removes the mount of a dead daemon, and waits for the end of its process: what holds that has ended with the connection.
///
/// # Errors
/// What the operating system says.
pub fn clear(mount: &Mount) -> io::Result<()> {
    let process = processes::lock_owner(&mount.source).filter(|pid| processes::is_ending(*pid));
    terrace_fuse::unmount(&mount.mountpoint, Unmount::Detach)?;
    if let Some(process) = process.and_then(processes::handle) {
        ready(&process, PATIENCE);
    }
    Ok(())
}

/// The daemon that has the pool with this path and UUID mounted, wherever that is.
pub fn of_pool(pool: &Path, uuid: &str) -> Option<Daemon> {
    let daemon = |socket: PathBuf, uid| {
        let contact = Contact { socket: socket.clone(), pid: 0, uuid: uuid.to_string() };
        Daemon { socket, uid, contact }
    };
    let own = rustix::process::geteuid().as_raw();
    for socket in state::sockets(uuid) {
        if connect(&socket, own).is_ok() {
            return Some(daemon(socket, own));
        }
    }
    // Another user's, or in another mount namespace: the process that has the pool is the one to ask.
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
        Behind::Daemon(found) => Some(daemon(found.socket, found.uid)),
        _ => None,
    }
}

/// The process that has the pool with this path and UUID mounted, wherever that is.
pub fn owner(pool: &Path, uuid: &str) -> Option<u32> {
    processes::lock_owner(pool).or_else(|| {
        let daemon = of_pool(pool, uuid)?;
        let (_, peer) = connect(&daemon.socket, daemon.uid).ok()?;
        u32::try_from(peer.pid()).ok()
    })
}

/// Whether a process ends within this time.
pub fn ends_within(process: &OwnedFd, time: Duration) -> bool {
    ready(process, time)
}

/// What the daemon of a mount says of itself; `None` when nothing comes.
fn contact_of(path: &Path) -> Option<rustix::io::Result<Vec<u8>>> {
    let path = path.to_path_buf();
    patiently(move || {
        let mut value = vec![0; 4096];
        let length = match rustix::fs::getxattr(&path, terrace_fuse::CONTROL_XATTR, &mut value[..]) {
            // A daemon of before this name, of a program that was replaced meanwhile.
            Err(Errno::OPNOTSUPP | Errno::NODATA) => {
                rustix::fs::getxattr(&path, terrace_fuse::EARLIER_CONTROL_XATTR, &mut value[..])?
            }
            length => length?,
        };
        value.truncate(length);
        Ok(value)
    })
}

/// Connects to a socket, and makes sure that a process of this user listens there.
fn connect(socket: &Path, uid: u32) -> io::Result<(UnixStream, UnixCredentials)> {
    let stream = UnixStream::connect(socket)?;
    let peer = getsockopt(&stream, PeerCredentials)?;
    if peer.uid() != uid {
        return Err(io::Error::other("a process of another user listens there"));
    }
    Ok((stream, peer))
}

/// The daemon of a mount by what the mount says.
fn reach(contact: Contact, mount: &Mount) -> Behind {
    let Some(uid) = mount.owner else { return Behind::Nobody };
    // A process that has no pool is no daemon. Of root's mounts, and our own, the user is enough.
    let trusted = [0, rustix::process::geteuid().as_raw()].contains(&uid);
    let is_daemon = |pid: u32| trusted || processes::has_lock(pid, &mount.source);
    let mut through = OsString::from(format!("/proc/{}/root", contact.pid));
    through.push(&contact.socket);
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for socket in [contact.socket.clone(), PathBuf::from(through)] {
        match connect(&socket, uid) {
            Ok((_, peer)) => {
                let daemon = Daemon { socket, uid, contact };
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
    // Its process is all that is left to believe.
    let process = (processes::user_of(contact.pid) == Some(uid)).then_some(contact.pid);
    match process {
        Some(pid) if is_daemon(pid) => Behind::Unreachable(Some(pid), failure),
        _ if trusted || last.kind() == io::ErrorKind::PermissionDenied => Behind::Unreachable(None, failure),
        _ => Behind::Nobody,
    }
}

impl Daemon {
    /// Its process, where that can be seen from here.
    fn process(&self) -> Option<u32> {
        let (_, peer) = connect(&self.socket, self.uid).ok()?;
        u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0)
    }

    /// The connection that it serves. `None` when it does not say so in time, or is of an earlier version.
    pub fn connection(&self) -> Option<Connection> {
        let mut pending = self.begin(&Request::Ping).ok()?;
        let answer = pending.wait(PATIENCE).then(|| pending.answer(|_| {}).ok()?.ok()).flatten()?;
        answer["connection"].as_u64()?.try_into().ok().map(Connection::new)
    }

    /// Whether it serves this mount. One that does not say is believed.
    fn serves(&self, mount: &Mount) -> bool {
        self.connection().is_none_or(|connection| Some(connection) == mount.connection())
    }

    /// Asks; `progress` gets the blocks left.
    pub fn ask(&self, request: &Request, progress: impl FnMut(u64)) -> Outcome<serde_json::Value> {
        self.begin(request)?.finish(progress)
    }

    /// Sends a request.
    pub fn begin(&self, request: &Request) -> Outcome<Pending> {
        let broken = |error: io::Error| Failure::new(format!("daemon: {}", plain(&error)));
        let (mut stream, peer) = connect(&self.socket, self.uid).map_err(broken)?;
        let mut line = serde_json::to_vec(request).map_err(|error| Failure::new(error.to_string()))?;
        line.push(b'\n');
        stream.write_all(&line).map_err(broken)?;
        // Zero where it is in another PID namespace.
        let pid = u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0);
        let process = pid.and_then(processes::handle);
        let trusted = [0, rustix::process::geteuid().as_raw()].contains(&self.uid);
        let patience = match request {
            _ if trusted => None,
            Request::Ping | Request::Status | Request::Where { .. } | Request::Iostat | Request::Stop => {
                Some(QUICK)
            }
            Request::End => Some(SLOW),
            // However long it moves; whoever asks can break it off.
            _ => None,
        };
        let clock = SystemClock::default();
        let begun_ns = clock.monotonic_ns();
        Ok(Pending { reader: BufReader::new(stream), process, pid, trusted, patience, clock, begun_ns })
    }
}

/// A request under way.
pub struct Pending {
    reader: BufReader<UnixStream>,
    process: Option<OwnedFd>,
    /// The daemon's process.
    pub pid: Option<u32>,
    /// Whether it is root's daemon, or ours.
    trusted: bool,
    /// How long the answer may take by the clock, from the beginning of the request.
    patience: Option<Duration>,
    clock: SystemClock,
    begun_ns: u64,
}

impl Pending {
    /// Waits for the result.
    pub fn finish(&mut self, progress: impl FnMut(u64)) -> Outcome<serde_json::Value> {
        self.answer(progress).and_then(|answer| answer.map_err(Failure::new))
    }

    /// Waits for what the daemon says: the result, or why there is none. Fails when it says nothing: it has ended, or the
    /// connection broke.
    pub fn answer(&mut self, mut progress: impl FnMut(u64)) -> Outcome<Result<serde_json::Value, String>> {
        loop {
            let line = self.line()?;
            let ended =
                || Failure::new("daemon: ended without an answer; see its log (log=PATH, else syslog)");
            match serde_json::from_slice(&line).map_err(|_| ended())? {
                Answer::Progress(left) => progress(left),
                Answer::Ok(value) => return Ok(Ok(value)),
                Answer::Error(text) => return Ok(Err(text)),
            }
        }
    }

    /// Reads a line, or the part of it that came before the end of the connection. The daemon may be another user's and
    /// hostile: it may send without end, a byte now and then, or nothing.
    fn line(&mut self) -> Outcome<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            self.expect_bytes()?;
            let bytes =
                self.reader.fill_buf().map_err(|error| Failure::new(format!("daemon: {}", plain(&error))))?;
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (taken, is_over) = (end.map_or(bytes.len(), |at| at + 1), end.is_some() || bytes.is_empty());
            line.extend_from_slice(&bytes[..taken]);
            self.reader.consume(taken);
            if is_over {
                return Ok(line);
            }
            if line.len() > LONGEST {
                return Err(Failure::new("daemon: says more than an answer can be"));
            }
        }
    }

    /// Waits for something to read, however long the daemon works; but not for one that does nothing.
    fn expect_bytes(&self) -> Outcome<()> {
        let is_late = || {
            self.patience.is_some_and(|patience| {
                self.clock.monotonic_ns().saturating_sub(self.begun_ns) >= patience.as_nanos() as u64
            })
        };
        while self.reader.buffer().is_empty() && !self.wait(PATIENCE) && !is_late() {
            if let Some(pid) = self.pid.filter(|pid| processes::is_stopped(*pid)) {
                return Err(Failure::new(stopped(pid)));
            }
        }
        if is_late() { Err(Failure::new("daemon: does not answer")) } else { Ok(()) }
    }

    /// Whether the answer, or the end of the daemon, has come within this time.
    pub fn wait(&self, time: Duration) -> bool {
        ready(self.reader.get_ref(), time)
    }

    /// Waits until the daemon's process has ended; false when it takes longer, or is another user's, who may let it live.
    pub fn wait_for_exit(&self, time: Duration) -> bool {
        let time = if self.trusted { time } else { time.min(QUICK) };
        self.process.as_ref().is_none_or(|process| ready(process, time))
    }
}

fn stopped(pid: u32) -> String {
    format!("{} is stopped; 'kill -CONT {pid}' lets it go on", mounts::process_name(pid))
}

fn ready(descriptor: &impl std::os::fd::AsFd, time: Duration) -> bool {
    let limit = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    let mut set = [PollFd::new(descriptor, PollFlags::IN)];
    matches!(poll(&mut set, Some(&limit)), Ok(count) if count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use terrace_runtime::thread::spawn;

    /// `terrace umount` took the reset of a connection that a daemon had not taken up for an answer: "not clean".
    #[test]
    #[allow(clippy::unwrap_used)]
    fn a_daemon_that_ends_without_an_answer_has_not_said_no() {
        let path = std::env::temp_dir().join(format!("terrace-client-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let contact = Contact { socket: path.clone(), pid: 0, uuid: String::new() };
        let uid = rustix::process::geteuid().as_raw();
        let daemon = Daemon { socket: path.clone(), uid, contact };
        let mut refused = daemon.begin(&Request::End).unwrap();
        let server = listener.try_clone().unwrap();
        let thread = spawn("test", move || {
            let (mut stream, _) = server.accept().unwrap();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
            serde_json::to_writer(&mut stream, &Answer::Error("not clean".to_string())).unwrap();
        });
        assert_eq!(refused.answer(|_| {}), Ok(Err("not clean".to_string())));
        thread.unwrap().join().unwrap();
        let stranger = Daemon { uid: uid + 1, ..daemon.clone() };
        assert!(stranger.begin(&Request::End).is_err(), "another user listens");
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&sleeper);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        let mut waiting = daemon.begin(&Request::End).unwrap();
        waiting.pid = Some(sleeper.id());
        let answer = waiting.answer(|_| {}).unwrap_err();
        assert_eq!(
            answer.text,
            format!("sleep ({0}) is stopped; 'kill -CONT {0}' lets it go on", sleeper.id())
        );
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        // Connections of the requests above, not accepted yet.
        for _ in 0..2 {
            drop(listener.accept().unwrap());
        }
        let mut endless = daemon.begin(&Request::Status).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let thread = spawn("test", move || while stream.write_all(&[b'A'; 65536]).is_ok() {});
        let answer = endless.answer(|_| {}).unwrap_err();
        assert_eq!(answer.text, "daemon: says more than an answer can be");
        drop(endless);
        thread.unwrap().join().unwrap();
        let mut slow = daemon.begin(&Request::Status).unwrap();
        slow.patience = Some(Duration::from_millis(1));
        let _silent = listener.accept().unwrap();
        assert_eq!(slow.answer(|_| {}).unwrap_err().text, "daemon: does not answer");
        let mut silent = daemon.begin(&Request::End).unwrap();
        drop(listener);
        assert!(silent.wait(Duration::from_secs(60)));
        let reset = silent.answer(|_| {}).unwrap_err();
        assert!(reset.text.starts_with("daemon: "), "{reset:?}");
        std::fs::remove_file(&path).unwrap();
    }
}
