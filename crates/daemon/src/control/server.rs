//! The daemon's side of the control socket: a thread that accepts and a thread per request.
//!
//! Invariant: no call into the file system runs once `end` has begun: the gate of the answers is closed before.

use super::answers::{Answers, Reply};
use super::{Answer, Request};
use crate::failure::{Failure, Outcome, plain};
use crate::names::Names;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SendFlags, send};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use terrace_format::superblock::Superblock;
use terrace_fuse::RingFigures;
use terrace_runtime::activity::Work;
use terrace_runtime::sync::{Condvar, Mutex};
use terrace_runtime::thread::spawn;
use terrace_runtime::{Clock, SystemClock};
use terrace_transport::Served;

/// Time for a slow client to read its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause before the next try to accept a caller, when no descriptor was free.
const PRESSURE: Duration = Duration::from_millis(50);
/// Longest wait of the end for a request that is being answered.
const LAST_ANSWER: Duration = Duration::from_secs(1);
/// Longest request.
const LONGEST_REQUEST_BYTES: u64 = 1 << 16;

/// Sends the number of blocks left, unless the client has not read earlier messages: a stopped client would
/// otherwise hold the request, and so the gate, until it runs again.
fn tell_progress(stream: &UnixStream, left: u64) {
    if let Ok(mut line) = serde_json::to_vec(&Answer::Progress(left)) {
        line.push(b'\n');
        // A message as short as this is sent whole or not at all.
        let _ = send(stream, &line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

/// How a pool ended: clean, with the pool files that lost their names; or not clean, with the reason.
pub type Ended = Result<Vec<String>, String>;

/// The state that all requests share.
pub struct Shared {
    answers: Answers,
    stop: Box<dyn Fn() + Send + Sync>,
    closing: AtomicBool,
    /// The pool's end, and the number of requests that still wait for it.
    end: Mutex<(Option<Ended>, usize)>,
    changed: Condvar,
}

/// A listening control socket.
pub struct Server {
    shared: Arc<Shared>,
    path: PathBuf,
}

impl Shared {
    /// `describe` is merged into the status; `rings` gives the figures of rings; `stop` asks the daemon to end.
    pub fn new(
        served: Arc<Served>,
        superblock: Superblock,
        describe: serde_json::Value,
        rings: impl Fn() -> Option<RingFigures> + Send + Sync + 'static,
        stop: impl Fn() + Send + Sync + 'static,
        names: Arc<Names>,
    ) -> Arc<Shared> {
        Arc::new(Shared {
            answers: Answers::new(served, superblock, describe, Box::new(rings), names),
            stop: Box::new(stop),
            closing: AtomicBool::new(false),
            end: Mutex::new((None, 0)),
            changed: Condvar::new(),
        })
    }

    /// Answers a request.
    fn answer(&self, request: &Request, progress: &mut dyn FnMut(u64)) -> Reply {
        match request {
            Request::End => self.wait_for_end(),
            Request::Stop => {
                (self.stop)();
                Ok(serde_json::Value::Null)
            }
            _ => self.answers.answer(request, progress),
        }
    }

    fn wait_for_end(&self) -> Reply {
        let mut end = self.end.lock();
        while end.0.is_none() {
            self.changed.wait(&mut end);
        }
        match end.0.clone() {
            Some(Err(text)) => Err(text),
            Some(Ok(lost)) => Ok(serde_json::json!({ "lost": lost })),
            None => Ok(serde_json::Value::Null),
        }
    }

    fn serve(&self, stream: UnixStream) -> io::Result<()> {
        let peer = getsockopt(&stream, PeerCredentials)?;
        let allowed = [0, rustix::process::geteuid().as_raw()].contains(&peer.uid());
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut line = String::new();
        BufReader::new((&stream).take(LONGEST_REQUEST_BYTES)).read_line(&mut line)?;
        let send = |answer: &Answer| -> io::Result<()> {
            let mut line = serde_json::to_vec(answer)?;
            line.push(b'\n');
            (&stream).write_all(&line)
        };
        if !allowed {
            return send(&Answer::Error("only root and the user who mounted it may ask".to_string()));
        }
        let work = Work::begin();
        let answer = match serde_json::from_str(&line) {
            Ok(request) => self.answer(&request, &mut |left| tell_progress(&stream, left)),
            Err(_) => Err(format!("unknown request {}; is the daemon of another version?", line.trim())),
        };
        drop(work);
        send(&answer.map_or_else(Answer::Error, Answer::Ok))
    }
}

impl Server {
    /// Makes the socket: before the mount, which may cover the directory of the socket. The socket of a
    /// killed daemon is replaced: the caller has the lock of the directory, so that daemon is dead.
    pub fn listen(path: &Path) -> Outcome<UnixListener> {
        let failed = |error: io::Error| Failure::at(path, format!("control socket: {}", plain(&error)));
        if let Err(error) = fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(failed(error));
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        Ok(listener)
    }

    /// Answers clients of the socket at `path`.
    pub fn start(shared: Arc<Shared>, listener: UnixListener, path: &Path) -> Outcome<Server> {
        let failed = |error: io::Error| Failure::at(path, format!("control socket: {}", plain(&error)));
        let server = Arc::clone(&shared);
        spawn("terrace-control", move || server.accept(&listener)).map_err(failed)?;
        Ok(Server { shared, path: path.to_path_buf() })
    }

    /// The gate, to be closed from another thread.
    pub fn gate(&self) -> Gate {
        Gate(Arc::clone(&self.shared))
    }

    /// Answers the requests that wait for the end, and removes the socket.
    pub fn end(self, result: Ended) {
        let _ = fs::remove_file(&self.path);
        self.shared.closing.store(true, Ordering::Relaxed);
        let mut end = self.shared.end.lock();
        assert!(end.0.is_none(), "the pool of a server ends once");
        end.0 = Some(result);
        self.shared.changed.notify_all();
        while end.1 > 0 {
            if self.shared.changed.wait_for(&mut end, LAST_ANSWER).timed_out() {
                break;
            }
        }
    }
}

/// The gate that each request has to pass.
pub struct Gate(Arc<Shared>);

impl Gate {
    /// Refuses further requests to the file system, and waits for requests under way.
    pub fn close(&self) {
        self.0.answers.close();
    }
}

/// A descriptor that is closed to make room for a caller when no other is free.
struct Spare(Option<File>);

impl Spare {
    fn new() -> Spare {
        Spare(File::open("/dev/null").ok())
    }

    /// Waits for a caller. If no descriptor is free for the caller, the spare is closed; without a spare the
    /// thread sleeps, because a caller that cannot be accepted would keep the poll busy.
    fn accept(&mut self, listener: &UnixListener) -> Option<UnixStream> {
        let mut set = [PollFd::new(listener, PollFlags::IN)];
        let _ = poll(&mut set, None);
        if let Ok((stream, _)) = listener.accept() {
            return Some(stream);
        }
        let had = self.0.take().is_some();
        let taken = had.then(|| listener.accept().ok()).flatten();
        if taken.is_none() {
            SystemClock::default().sleep(PRESSURE);
        }
        taken.map(|(stream, _)| stream)
    }
}

impl Shared {
    fn accept(self: Arc<Shared>, listener: &UnixListener) {
        let mut spare = Spare::new();
        loop {
            let stream = spare.accept(listener);
            if self.closing.load(Ordering::Relaxed) {
                return;
            }
            if let Some(stream) = stream {
                Arc::clone(&self).take_up(stream);
            }
            if spare.0.is_none() {
                spare = Spare::new();
            }
        }
    }

    fn take_up(self: Arc<Shared>, stream: UnixStream) {
        let shared = Arc::clone(&self);
        self.end.lock().1 += 1;
        let handler = spawn("terrace-request", move || {
            if let Err(error) = shared.serve(stream) {
                tracing::debug!(%error, "control connection");
            }
            shared.leave();
            shared.changed.notify_all();
        });
        if handler.is_err() {
            self.leave();
        }
    }

    /// A request is answered.
    fn leave(&self) {
        let mut end = self.end.lock();
        assert!(end.1 > 0, "a request ends that was not counted");
        end.1 -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that was stopped during `sync --to` once blocked the daemon's progress messages, and unmount
    /// waited for it.
    #[test]
    #[allow(clippy::unwrap_used)]
    fn progress_does_not_wait_for_a_stopped_client() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = spawn("test", move || {
            (0..100_000).for_each(|left| tell_progress(&ours, left));
            tell.send(()).unwrap();
        });
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(()));
        thread.unwrap().join().unwrap();
        // Each message that arrived is whole.
        let lines = BufReader::new(&theirs).lines().map(Result::unwrap);
        let count = lines.inspect(|line| assert!(serde_json::from_str::<Answer>(line).is_ok())).count();
        assert!(count > 10, "{count}");
    }
}
