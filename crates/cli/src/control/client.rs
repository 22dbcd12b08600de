//! Commands' side of the control socket.

use super::{Answer, Contact, Request, state};
use crate::failure::{Failure, Outcome, plain};
use crate::mounts;
use crate::pool;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A daemon that can be asked.
#[derive(Debug, Clone)]
pub struct Daemon {
    socket: PathBuf,
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

/// Finds the daemon behind a path of a mount, or behind a pool's path.
pub fn locate(path: &Path) -> Outcome<Located> {
    let mut value = vec![0; 4096];
    match rustix::fs::getxattr(path, terrace_fuse::CONTROL_XATTR, &mut value[..]) {
        Ok(length) => {
            let contact = serde_json::from_slice(&value[..length])
                .map_err(|error| Failure::at(path, format!("control attribute: {error}")))?;
            return reach(contact).map(Located::Mounted);
        }
        Err(error) if mounts::means_dead(error) => {
            let directory = mounts::absolute(path)?;
            if mounts::at(&directory)?.is_some() {
                return Ok(Located::Dead);
            }
            return Err(Failure::at(path, "lies in a mount whose daemon has ended; 'terrace umount' it"));
        }
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {
            return Err(Failure::at(path, "no such file or directory"));
        }
        Err(_) => {}
    }
    // A file that we may not read can still be told from its file system.
    if let Ok(found) = rustix::fs::stat(path)
        && let Some(mount) = mounts::of_device(found.st_dev)?
        && let Some(daemon) = locate_mount(&mount.mountpoint)
    {
        return Ok(Located::Mounted(daemon));
    }
    let Ok(superblock) = pool::peek(path) else { return Ok(Located::NotMounted) };
    let uuid = pool::uuid_text(&superblock);
    for socket in state::sockets(&uuid) {
        if UnixStream::connect(&socket).is_ok() {
            let contact = Contact { socket: socket.clone(), pid: 0, uuid };
            return Ok(Located::Mounted(Daemon { socket, contact }));
        }
    }
    match mounts::of_pool(&pool::canonical(path)?)? {
        Some(mount) => match locate_mount(&mount.mountpoint) {
            Some(daemon) => Ok(Located::Mounted(daemon)),
            None => Ok(Located::NotMounted),
        },
        None => Ok(Located::NotMounted),
    }
}

/// The daemon that has the pool with this UUID mounted, wherever that is.
pub fn owner(uuid: &str) -> Option<Pid> {
    let streams = state::sockets(uuid).into_iter().filter_map(|socket| UnixStream::connect(socket).ok());
    let mut peers = streams.filter_map(|stream| rustix::net::sockopt::socket_peercred(&stream).ok());
    peers.next().map(|peer| peer.pid)
}

/// The process that serves a mount, when it can be seen from here.
pub fn process_of(mountpoint: &Path) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(contact_of(mountpoint)?.pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Whether a process ends within this time.
pub fn ends_within(process: &OwnedFd, time: Duration) -> bool {
    ready(process, time)
}

fn locate_mount(mountpoint: &Path) -> Option<Daemon> {
    reach(contact_of(mountpoint)?).ok()
}

/// What the daemon of a mount says of itself.
fn contact_of(mountpoint: &Path) -> Option<Contact> {
    let mut value = vec![0; 4096];
    let length = rustix::fs::getxattr(mountpoint, terrace_fuse::CONTROL_XATTR, &mut value[..]).ok()?;
    serde_json::from_slice(&value[..length]).ok()
}

fn reach(contact: Contact) -> Outcome<Daemon> {
    let own = contact.socket.clone();
    let mut through = OsString::from(format!("/proc/{}/root", contact.pid));
    through.push(&contact.socket);
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for socket in [own, PathBuf::from(through)] {
        match UnixStream::connect(&socket) {
            Ok(_) => return Ok(Daemon { socket, contact }),
            Err(error) => last = error,
        }
    }
    let what = match last.kind() {
        io::ErrorKind::PermissionDenied => "only root and the user who mounted it may ask".to_string(),
        _ => plain(&last),
    };
    Err(Failure::new(format!("control socket {}: {what}", contact.socket.display())))
}

impl Daemon {
    /// Asks; `progress` gets the blocks left.
    pub fn ask(&self, request: &Request, progress: impl FnMut(u64)) -> Outcome<serde_json::Value> {
        self.begin(request)?.finish(progress)
    }

    /// Sends a request.
    pub fn begin(&self, request: &Request) -> Outcome<Pending> {
        let broken = |error: io::Error| Failure::new(format!("daemon: {}", plain(&error)));
        let mut stream = UnixStream::connect(&self.socket).map_err(broken)?;
        let mut line = serde_json::to_vec(request).map_err(|error| Failure::new(error.to_string()))?;
        line.push(b'\n');
        stream.write_all(&line).map_err(broken)?;
        let pid = rustix::net::sockopt::socket_peercred(&stream).map(|peer| peer.pid).ok();
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(Pending { reader: BufReader::new(stream), process, pid })
    }
}

/// A request under way.
pub struct Pending {
    reader: BufReader<UnixStream>,
    process: Option<OwnedFd>,
    /// The daemon's process.
    pub pid: Option<Pid>,
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
            let mut line = String::new();
            let ended = || Failure::new("daemon: ended without an answer; see its log");
            match self.reader.read_line(&mut line) {
                Ok(0) => return Err(ended()),
                Ok(_) => {}
                Err(error) => return Err(Failure::new(format!("daemon: {}", plain(&error)))),
            }
            match serde_json::from_str(&line).map_err(|_| ended())? {
                Answer::Progress(left) => progress(left),
                Answer::Ok(value) => return Ok(Ok(value)),
                Answer::Error(text) => return Ok(Err(text)),
            }
        }
    }

    /// Whether the answer, or the end of the daemon, has come within this time.
    pub fn wait(&self, time: Duration) -> bool {
        ready(self.reader.get_ref(), time)
    }

    /// Waits until the daemon's process has ended; false when it takes longer.
    pub fn wait_for_exit(&self, time: Duration) -> bool {
        self.process.as_ref().is_none_or(|process| ready(process, time))
    }
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
        let daemon = Daemon { socket: path.clone(), contact };
        let mut refused = daemon.begin(&Request::End).unwrap();
        let server = listener.try_clone().unwrap();
        let thread = spawn("test", move || {
            let (mut stream, _) = server.accept().unwrap();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
            serde_json::to_writer(&mut stream, &Answer::Error("not clean".to_string())).unwrap();
        });
        assert_eq!(refused.answer(|_| {}), Ok(Err("not clean".to_string())));
        thread.unwrap().join().unwrap();
        let mut silent = daemon.begin(&Request::End).unwrap();
        drop(listener);
        assert!(silent.wait(Duration::from_secs(60)));
        let reset = silent.answer(|_| {}).unwrap_err();
        assert!(reset.text.starts_with("daemon: "), "{reset:?}");
        std::fs::remove_file(&path).unwrap();
    }
}
