//! The daemon's side of the control socket: a thread that accepts and a thread per request.
//!
//! Invariant: no call into the file system runs once `end` has begun: requests hold the gate for reading,
//! `end` takes it for writing.

use super::{Answer, Request};
use crate::failure::{Failure, Outcome, plain};
use crate::names::Names;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SendFlags, send};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use terrace_engine::{Engine, HandMove, Movements};
use terrace_format::Ino;
use terrace_format::superblock::Superblock;
use terrace_runtime::sync::{Condvar, Mutex, RwLock};
use terrace_runtime::thread::spawn;
use terrace_runtime::{Clock, SystemClock};

/// Time for a slow client to read its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause before the next try to accept a caller, when no descriptor was free.
const PRESSURE: Duration = Duration::from_millis(50);
/// More paths than the file system lists movements.
const MOST_PATHS: usize = 2048;
/// Longest request in bytes.
const LONGEST_REQUEST: u64 = 1 << 16;

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
    fs: RwLock<Option<Arc<Engine>>>,
    superblock: Superblock,
    describe: serde_json::Value,
    stop: Box<dyn Fn() + Send + Sync>,
    names: Arc<Names>,
    closing: AtomicBool,
    /// The pool's end, and the number of requests that still wait for it.
    end: Mutex<(Option<Ended>, usize)>,
    changed: Condvar,
    /// The paths of requested movements as users gave them, by the number of the movement.
    move_paths: Mutex<BTreeMap<u64, String>>,
}

/// A listening control socket.
pub struct Server {
    shared: Arc<Shared>,
    path: PathBuf,
}

impl Shared {
    /// `describe` is merged into the status; `stop` asks the daemon to end.
    pub fn new(
        fs: Arc<Engine>,
        superblock: Superblock,
        describe: serde_json::Value,
        stop: impl Fn() + Send + Sync + 'static,
        names: Arc<Names>,
    ) -> Arc<Shared> {
        Arc::new(Shared {
            fs: RwLock::new(Some(fs)),
            superblock,
            describe,
            stop: Box::new(stop),
            names,
            closing: AtomicBool::new(false),
            end: Mutex::new((None, 0)),
            changed: Condvar::new(),
            move_paths: Mutex::new(BTreeMap::new()),
        })
    }

    /// Tier by number or by a class that only one tier has.
    fn tier(&self, name: &str) -> Result<u8, String> {
        crate::pool::tier_named(self.superblock.device_rows(), name)
    }

    fn answer(&self, request: &Request, progress: &mut dyn FnMut(u64)) -> Result<serde_json::Value, String> {
        if matches!(request, Request::End) {
            return self.wait_for_end();
        }
        if matches!(request, Request::Stop) {
            (self.stop)();
            return Ok(serde_json::Value::Null);
        }
        let gate = self.fs.read();
        let Some(fs) = gate.as_ref() else { return Err("the mount is ending".to_string()) };
        let text = |error: terrace_engine::FsError| error.to_string();
        match request {
            Request::Ping => Ok(serde_json::json!({ "connection": self.describe["connection"] })),
            Request::Status => {
                let status = fs.status().map_err(text)?;
                let mut status = serde_json::to_value(status).map_err(|error| error.to_string())?;
                if let (Some(status), Some(describe)) = (status.as_object_mut(), self.describe.as_object()) {
                    status.extend(describe.clone());
                }
                let recovery = status["recovery"]["warnings"].as_array().cloned().unwrap_or_default();
                if let Some(warnings) = status["warnings"].as_array_mut() {
                    warnings.extend(recovery);
                }
                // The file system knows the medium of tier 0, not its path.
                let pool = self.describe["pool"].clone();
                if let Some(device) = status.pointer_mut("/tiers/0/devices/0") {
                    device["path"] = pool;
                }
                self.name_moves(&mut status);
                self.names.tell(&mut status);
                Ok(status)
            }
            Request::Where { ino } => {
                let found = fs.whereabouts(Ino(*ino)).map_err(text)?;
                serde_json::to_value(found).map_err(|error| error.to_string())
            }
            Request::Iostat => {
                serde_json::to_value(fs.io_report().map_err(text)?).map_err(|error| error.to_string())
            }
            Request::Move { ino, action, tier, dry_run, path } => {
                let begun = self.begin_move(fs, Ino(*ino), action, tier.as_deref(), *dry_run)?;
                if let (Some(id), Some(path)) = (begun.as_u64(), path) {
                    let mut paths = self.move_paths.lock();
                    paths.insert(id, path.clone());
                    if paths.len() > MOST_PATHS {
                        paths.pop_first();
                    }
                }
                Ok(begun)
            }
            Request::Moved { id } => match fs.hand_report(*id) {
                Some(report) => serde_json::to_value(report).map_err(|error| error.to_string()),
                None => Err(format!("no move {id}")),
            },
            Request::Sync => fs.sync().map(|()| serde_json::Value::Null).map_err(text),
            Request::SyncTo { tier } => {
                let tier = self.tier(tier)?;
                fs.sync_to(tier, progress)
                    .map(|written| serde_json::json!({ "written_meanwhile_bytes": written }))
                    .map_err(text)
            }
            Request::SyncPlan { tier } => {
                let tier = tier.as_deref().map_or(Ok(0), |tier| self.tier(tier))?;
                let plan = fs.plan_sync_to(tier).map_err(text)?;
                let mut plan = serde_json::to_value(plan).map_err(|error| error.to_string())?;
                plan["tier"] = tier.into();
                Ok(plan)
            }
            Request::End | Request::Stop => Ok(serde_json::Value::Null),
        }
    }

    /// Adds the path to each movement, and forgets the paths of movements that are no longer listed. A
    /// movement that begins meanwhile has a higher number.
    fn name_moves(&self, status: &mut serde_json::Value) {
        let Some(moves) = status["moves"].as_array_mut() else { return };
        let mut paths = self.move_paths.lock();
        if let Some(first) = moves.iter().filter_map(|one| one["id"].as_u64()).min() {
            *paths = paths.split_off(&first);
        }
        for one in moves {
            one["path"] = one["id"].as_u64().and_then(|id| paths.get(&id)).cloned().into();
        }
    }

    /// Begins a requested movement, or reports the effect that it would have.
    fn begin_move(
        &self,
        fs: &Engine,
        ino: Ino,
        action: &str,
        tier: Option<&str>,
        dry_run: bool,
    ) -> Result<serde_json::Value, String> {
        let tier = tier.map(|tier| self.tier(tier)).transpose()?;
        let action = match (action, tier) {
            ("migrate", Some(to)) => HandMove::Migrate { to },
            ("pin", Some(tier)) => HandMove::Pin { tier },
            ("unpin", None) => HandMove::Unpin,
            _ => return Err(format!("unknown move '{action}'; is the daemon of another version?")),
        };
        let text = |error: terrace_engine::FsError| error.to_string();
        if !dry_run {
            return fs.move_by_hand(ino, action).map(Into::into).map_err(text);
        }
        let plan = fs.plan_by_hand(ino, action).map_err(|error| match error {
            // The same text as the movement itself would give.
            terrace_engine::FsError::NotPermitted => "pinned to another tier; unpin it first".to_string(),
            other => text(other),
        })?;
        let mut plan = serde_json::to_value(plan).map_err(|error| error.to_string())?;
        plan["tier"] = tier.into();
        Ok(plan)
    }

    fn wait_for_end(&self) -> Result<serde_json::Value, String> {
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
        BufReader::new((&stream).take(LONGEST_REQUEST)).read_line(&mut line)?;
        let send = |answer: &Answer| -> io::Result<()> {
            let mut line = serde_json::to_vec(answer)?;
            line.push(b'\n');
            (&stream).write_all(&line)
        };
        if !allowed {
            return send(&Answer::Error("only root and the user who mounted it may ask".to_string()));
        }
        let answer = match serde_json::from_str(&line) {
            Ok(request) => self.answer(&request, &mut |left| tell_progress(&stream, left)),
            Err(_) => Err(format!("unknown request {}; is the daemon of another version?", line.trim())),
        };
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
        end.0 = Some(result);
        self.shared.changed.notify_all();
        while end.1 > 0 {
            if self.shared.changed.wait_for(&mut end, Duration::from_secs(1)).timed_out() {
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
        *self.0.fs.write() = None;
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
            shared.end.lock().1 -= 1;
            shared.changed.notify_all();
        });
        if handler.is_err() {
            self.end.lock().1 -= 1;
        }
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
