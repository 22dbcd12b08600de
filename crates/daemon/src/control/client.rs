//! The commands' side of the control socket: asks a daemon.
//!
//! A daemon is trusted by the user of its socket's peer, which the kernel tells (SO_PEERCRED). Each wait for the daemon
//! of another user has a bound.

use super::{Answer, Contact, Request};
use crate::failure::{Failure, Outcome, plain};
use crate::mounts::{self, Mount};
use crate::processes;
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_fuse::Connection;
use terrace_runtime::{Clock, SystemClock};

/// Time for a daemon to say which connection it serves.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// Time for the daemon of another user to answer a quick request.
const QUICK: Duration = Duration::from_secs(10);
/// Time for the daemon of another user to end.
const SLOW: Duration = Duration::from_secs(60);
/// Longest answer.
const LONGEST_ANSWER_BYTES: usize = 16 << 20;

/// A daemon that can be asked.
#[derive(Debug, Clone)]
pub struct Daemon {
    socket: PathBuf,
    /// Its user.
    uid: u32,
    /// The contact that it gave.
    pub contact: Contact,
}

/// Whether a process ends within this time.
pub fn ends_within(process: &OwnedFd, time: Duration) -> bool {
    ready(process, time)
}

/// Connects to a socket, and makes sure that a process of this user listens there.
pub(super) fn connect(socket: &Path, uid: u32) -> io::Result<(UnixStream, UnixCredentials)> {
    let stream = UnixStream::connect(socket)?;
    let peer = getsockopt(&stream, PeerCredentials)?;
    if peer.uid() != uid {
        return Err(io::Error::other("a process of another user listens there"));
    }
    Ok((stream, peer))
}

impl Daemon {
    /// The daemon of a user that listens at a socket.
    pub(super) fn at(socket: PathBuf, uid: u32, contact: Contact) -> Daemon {
        Daemon { socket, uid, contact }
    }

    /// The path of its socket.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its user.
    pub(super) fn user(&self) -> u32 {
        self.uid
    }

    /// The daemon's process, if it is in this PID namespace.
    pub(super) fn process(&self) -> Option<u32> {
        let (_, peer) = connect(&self.socket, self.uid).ok()?;
        u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0)
    }

    /// The connection that the daemon serves. `None` when it does not say so in time, or is of an earlier
    /// version.
    pub fn connection(&self) -> Option<Connection> {
        let mut pending = self.begin(&Request::Ping).ok()?;
        let answer = pending.wait(PATIENCE).then(|| pending.answer(|_| {}).ok()?.ok()).flatten()?;
        answer["connection"].as_u64()?.try_into().ok().map(Connection::new)
    }

    /// Whether the daemon serves this mount. A daemon that does not answer counts as serving it.
    pub(super) fn serves(&self, mount: &Mount) -> bool {
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
        // PID 0 stands for a process in another PID namespace.
        let pid = u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0);
        let process = pid.and_then(processes::handle);
        let trusted = [0, rustix::process::geteuid().as_raw()].contains(&self.uid);
        let patience = match request {
            _ if trusted => None,
            Request::Ping | Request::Status | Request::Where { .. } | Request::Iostat | Request::Stop => {
                Some(QUICK)
            }
            Request::End => Some(SLOW),
            // A movement may take long, and the user can interrupt the command.
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
    /// Whether the daemon belongs to root or to this user.
    trusted: bool,
    /// Time for the answer, from the beginning of the request.
    patience: Option<Duration>,
    clock: SystemClock,
    begun_ns: u64,
}

impl Pending {
    /// Waits for the result.
    pub fn finish(&mut self, progress: impl FnMut(u64)) -> Outcome<serde_json::Value> {
        self.answer(progress).and_then(|answer| answer.map_err(Failure::new))
    }

    /// Waits for the daemon's answer: the result, or the reason for a refusal. Fails without an answer, when
    /// the daemon has ended or the connection broke.
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

    /// Reads a line, or the part of it that came before the end of the connection. The daemon may be another
    /// user's and hostile: it may send without end, a byte now and then, or nothing.
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
            if line.len() > LONGEST_ANSWER_BYTES {
                return Err(Failure::new("daemon: says more than an answer can be"));
            }
        }
    }

    /// Waits for bytes to read, without a limit while a trusted daemon works, but not for a stopped daemon.
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

    /// Waits until the daemon's process has ended; false when it takes longer. Another user could keep its
    /// daemon alive, so the wait for it is short.
    pub fn wait_for_exit(&self, time: Duration) -> bool {
        let time = if self.trusted { time } else { time.min(QUICK) };
        self.process.as_ref().is_none_or(|process| ready(process, time))
    }
}

/// The text about a daemon that is stopped.
pub(super) fn stopped(pid: u32) -> String {
    format!("{} is stopped; 'kill -CONT {pid}' lets it go on", mounts::process_name(pid))
}

/// Whether a descriptor is ready to be read within this time.
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

    /// A daemon that ended before it accepted the connection reset it, and `terrace umount` took that for the
    /// answer "not clean".
    #[test]
    #[allow(clippy::unwrap_used)]
    fn an_end_of_the_daemon_without_an_answer_is_no_refusal() {
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
