//! The daemon: opens a pool, serves its mount, ends it in order.
//!
//! Order of the end: the kernel sends no more requests (the session is over), the control socket takes no
//! more (its gate is closed), background work stopped, then `Engine::unmount` marks the pool clean. Beside a
//! device that does not answer see `ending`.
//!
//! Invariant: no thread of this process makes a call on its own mount, see `outside`.

use crate::control::state::StateDirectory;
use crate::control::{Contact, Server, Shared, state};
use crate::emulation::Emulated;
use crate::failure::{Failure, Outcome, plain, status};
use crate::memory::spare_daemon;
use crate::mounts::{self, is_inside};
use crate::names::Names;
use crate::options::Options;
use crate::output;
use crate::ownership::{self, Trust};
use crate::pool::{self, OpenPool};
use crate::{ending, launch, log, notify, outside};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use terrace_engine::{Engine, PolicyKind};
use terrace_format::address::ROOT_INO;
use terrace_format::superblock::Superblock;
use terrace_fuse::{Adapter, Connection, Running, SessionOptions, Unmount};
use terrace_media::PmMedium;
use terrace_runtime::thread::spawn;
use terrace_runtime::{Clock, SystemClock};

/// Time for users of the mount to end after SIGTERM, before they are cut off.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time for a session to end after its last mount.
const SOON: Duration = Duration::from_millis(300);

/// The pool to mount, and its mount point; paths are absolute.
#[derive(Debug)]
pub struct Plan {
    /// Tier 0.
    pub pool: PathBuf,
    /// The directory.
    pub dir: PathBuf,
    /// Options.
    pub options: Options,
    /// Stay attached to the terminal.
    pub foreground: bool,
}

/// Serves until the mount ends. Returns an error only before the mount answers, or when the end was not
/// clean.
pub fn run(plan: &Plan) -> Outcome<()> {
    let failed = |failure: Failure| match failure.status {
        status::FAILED => failure.with_status(status::MOUNT_FAILED),
        _ => failure,
    };
    if !plan.foreground {
        launch::detach()?;
    }
    let short = raise_limits().map_err(failed)?;
    let mut opened =
        pool::open(&plan.pool, !plan.options.fs.read_only, &plan.options.lenience).map_err(failed)?;
    let user = rustix::process::geteuid();
    let harmless = !user.is_root()
        || ["nosuid", "nodev"].iter().all(|flag| plan.options.flags.iter().any(|is| is == flag));
    let trust = if harmless { Trust::Harmless } else { Trust::Full };
    opened.warnings.extend(ownership::admit(&opened.files, user.as_raw(), trust).map_err(failed)?);
    refuse_inside(plan, &opened).map_err(failed)?;
    let uuid = pool::uuid_text(&opened.superblock);
    let directory = state::make(&uuid).map_err(failed)?.ok_or_else(|| {
        let text =
            format!("a copy of a mounted pool: one with the same UUID, {uuid}, is in use; unmount it first");
        failed(Failure::at(&plan.pool, text))
    })?;
    log::start(plan.options.log.as_deref(), plan.foreground, &directory.path).map_err(failed)?;
    log_panics();
    warn(plan, &opened.warnings);
    warn(plan, &Vec::from_iter(short));
    // Set before the first thread, because threads inherit it.
    let flusher = terrace_fuse::become_io_flusher();
    spare_daemon();
    let result = serve(plan, opened, &uuid, &directory, flusher).map_err(failed);
    let _ = std::fs::remove_dir(&directory.path); // stays when a log lies in it
    if let Err(failure) = &result
        && plan.options.log.is_some()
    {
        tracing::error!("{}", failure.text);
    }
    result
}

/// Descriptors that a daemon needs when many requests wait at once.
const DESCRIPTORS: u64 = 256;
/// Descriptors without which the daemon could not end in order.
const FEWEST_DESCRIPTORS: u64 = 64;

/// Raises the limits of descriptors and of file sizes as far as the system allows. A warning when few
/// descriptors are left.
fn raise_limits() -> Outcome<Option<String>> {
    // Otherwise a write to a tier beyond the file size limit of the mounting shell would end the daemon.
    let unlimited = Rlimit { current: None, maximum: None };
    if setrlimit(Resource::Fsize, unlimited).is_err() {
        let maximum = getrlimit(Resource::Fsize).maximum;
        let _ = setrlimit(Resource::Fsize, Rlimit { current: maximum, maximum });
    }
    // If the limit cannot be raised, a write beyond it must fail instead of ending the process.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let raised = setrlimit(Resource::Nofile, limit);
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if now < FEWEST_DESCRIPTORS {
        let text = format!(
            "only {now} open files are allowed, and a mount needs {FEWEST_DESCRIPTORS}; raise the limit (ulimit -Hn)"
        );
        return Err(Failure::new(text));
    }
    Ok((raised.is_err() || now < DESCRIPTORS).then(|| {
        format!("only {now} files may be open: with many requests at once some wait; raise the limit (ulimit -Hn) to {DESCRIPTORS}")
    }))
}

fn serve(
    plan: &Plan,
    opened: OpenPool,
    uuid: &str,
    directory: &StateDirectory,
    flusher: bool,
) -> Outcome<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let OpenPool { media, superblock, mut warnings, names, .. } = opened;
    let Emulated { media, said: emulated, warnings: mut short } =
        plan.options.emulation.apply(media, &superblock, &clock)?;
    short.extend(unused_threshold(plan, &superblock));
    let pm = Arc::clone(&media.pm);
    // From here on signals wait until the mount can be ended in order.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(|error| Failure::new(plain(&error)))?;
    let medium = media.pm.describe();
    warn(plan, &short);
    let fs = Engine::mount(media, superblock, plan.options.fs.clone(), Arc::clone(&clock))
        .map_err(|error| Failure::at(&plan.pool, error))?;
    if !warnings.is_empty() && !plan.options.fs.read_only {
        warnings.extend(mend(&*pm, &superblock));
    }
    if let Err(error) = fs.stamp_devices() {
        let text = format!("a device does not say that it was used by this mount: {error}");
        tracing::warn!("{text}");
        warnings.push(text);
    }
    warnings.extend(short);
    let socket = directory.socket();
    // A failed mount leaves the pool clean. Not after a session has begun, because its requests may still be
    // under way.
    let give_up = |failure: Failure| {
        if let Err(error) = fs.unmount() {
            tracing::warn!("the next mount recovers the pool: {error}");
        }
        failure
    };
    readable(plan, &fs).map_err(give_up)?;
    let names = Names::start(names).map_err(|error| give_up(Failure::new(plain(&error))))?;
    // Socket and contact are made before the mount, which may cover their directory.
    let listener = Server::listen(&socket).map_err(give_up)?;
    let contact = Contact { socket: socket.clone(), pid: std::process::id(), uuid: String::new() };
    let running = start_session(plan, &fs, &contact).map_err(give_up)?;
    let background = match fs.start_background() {
        Ok(background) => background,
        Err(error) => {
            let _ = terrace_fuse::unmount(&plan.dir, Unmount::Abort);
            return Err(Failure::new(format!("cannot start threads: {}", plain(&error))));
        }
    };
    let describe = json!({
        "pool": output::path_text(&plan.pool), "mountpoint": output::path_text(&plan.dir), "uuid": uuid,
        "state_directory": socket.parent().map(output::path_text),
        "label": pool::label(&superblock), "mounted": true, "pid": contact.pid, "pm": medium, "version": env!("CARGO_PKG_VERSION"),
        "io_flusher": flusher, "warnings": warnings, "emulated": emulated, "connection": running.connection().number(),
    });
    let session_over = Arc::new(AtomicBool::new(false));
    let stop = {
        let stopper = Stopper {
            dir: plan.dir.clone(),
            connection: running.connection(),
            fs: Arc::clone(&fs),
            clock: Arc::clone(&clock),
            session_over: Arc::clone(&session_over),
        };
        let stopper = Arc::new(stopper);
        move |patience| {
            let stopper = Arc::clone(&stopper);
            if let Err(error) = spawn("terrace-stop", move || stopper.stop(patience)) {
                tracing::error!(%error, "cannot stop");
            }
        }
    };
    let asked = stop.clone();
    // A client that asks for the end has checked the users of the mount, so the end has no patience.
    let asked = move || asked(Duration::ZERO);
    let shared = Shared::new(Arc::clone(&fs), superblock, describe, asked, Arc::clone(&names));
    let started = Server::start(shared, listener, &socket).and_then(|server| {
        handle_signals(signals, plan.foreground, move || stop(PATIENCE))
            .map_err(|error| Failure::new(plain(&error)))?;
        Ok(server)
    });
    let server = match started {
        Ok(server) => server,
        Err(failure) => {
            let _ = terrace_fuse::unmount(&plan.dir, Unmount::Abort);
            return Err(failure);
        }
    };
    tracing::info!(pool = %plan.pool.display(), dir = %plan.dir.display(), "mounted");
    notify::notify("READY=1");
    if !plan.foreground {
        launch::ready();
    }
    if let Err(error) = running.join() {
        tracing::error!(%error, "session ended");
        // The FUSE device stays open until the end of this process, so the connection must be aborted.
        let _ = terrace_fuse::unmount(&plan.dir, Unmount::Abort);
    }
    session_over.store(true, Ordering::Relaxed);
    ending::finish(&fs, server, background, &names)
}

/// Writes warnings into the log, and to the user who mounts.
fn warn(plan: &Plan, warnings: &[String]) {
    for warning in warnings {
        tracing::warn!("{warning}");
        if !plan.foreground {
            output::warn(warning);
        }
    }
}

/// Refuses a pool with an unreadable root directory: every path begins there, so a mount would only answer
/// EIO.
fn readable(plan: &Plan, fs: &Engine) -> Outcome<()> {
    let pool = plan.pool.display();
    fs.getattr(ROOT_INO).map(drop).map_err(|error| {
        let advice = format!("'terrace check {pool}' says more, and with --repair brings back what can be");
        Failure::at(&plan.pool, format!("its root directory cannot be read ({error}); {advice}"))
    })
}

/// The warning about a threshold that the policy does not use.
fn unused_threshold(plan: &Plan, superblock: &Superblock) -> Option<String> {
    let percent = plan.options.fs.threshold_percent?;
    let policy = plan.options.fs.policy.map_or(superblock.policy, PolicyKind::id);
    let instead = match policy {
        id if id == PolicyKind::ANTICACHE.id() => return None,
        id if id == PolicyKind::STATIC.id() => "",
        _ => "; see threshold_min and threshold_max",
    };
    let name = terrace_engine::policy_name(policy)?;
    Some(format!(
        "mount option threshold={percent} is for policy=anticache alone, and the policy is {name}{instead}"
    ))
}

/// Rewrites a damaged copy of the superblock, now that the pool is known to be usable, and says so.
fn mend(pm: &dyn PmMedium, superblock: &Superblock) -> Option<String> {
    let said = match terrace_engine::mend_superblock(pm, superblock) {
        Ok(false) => return None,
        Ok(true) => "the damaged superblock copy was rewritten from the sound one".to_string(),
        Err(error) => format!("the damaged superblock copy cannot be rewritten: {error}"),
    };
    tracing::warn!("{said}");
    Some(said)
}

fn start_session(plan: &Plan, fs: &Arc<Engine>, contact: &Contact) -> Outcome<Running> {
    let control = serde_json::to_vec(contact).map_err(|error| Failure::new(error.to_string()))?;
    let kernel = Arc::new(OnceLock::new());
    let adapter = Adapter::new(Arc::clone(fs), control, Arc::clone(&kernel));
    let mut session = SessionOptions::new(&plan.pool, &plan.dir);
    session.allow_other = plan.options.allow_other;
    session.flags.clone_from(&plan.options.flags);
    terrace_fuse::start(adapter, &session, |notifier| {
        let _ = kernel.set(notifier);
    })
    .map_err(|error| Failure::new(error.to_string()))
}

/// Refuses a mount over files of the pool or over the log, which it would hide, and a log that is a file of
/// the pool.
fn refuse_inside(plan: &Plan, opened: &OpenPool) -> Outcome<()> {
    for (file, _) in &opened.files {
        if is_inside(file, &plan.dir) {
            let text = format!("lies inside the mount point {}; mount it elsewhere", plan.dir.display());
            return Err(Failure::at(file, text));
        }
    }
    let Some(log) = &plan.options.log else { return Ok(()) };
    if is_inside(log, &plan.dir) {
        let text = format!("log: lies inside the mount point {}, which hides it", plan.dir.display());
        return Err(Failure::at(log, text));
    }
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    if identity(log).is_some_and(|log| opened.files.iter().any(|(file, _)| identity(file) == Some(log))) {
        return Err(Failure::at(log, "log: a file of the pool"));
    }
    Ok(())
}

fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(String::new, |at| format!("{}:{}", at.file(), at.line()));
        let text = panic.payload_as_str().unwrap_or("panic");
        tracing::error!(place, thread = std::thread::current().name(), "{text}");
    }));
}

/// Ends the mount on request.
struct Stopper {
    dir: PathBuf,
    connection: Connection,
    fs: Arc<Engine>,
    clock: Arc<dyn Clock>,
    session_over: Arc<AtomicBool>,
}

impl Stopper {
    /// Has the kernel write changed pages of shared mappings: users of the mount may have made changes that
    /// only the kernel knows.
    fn write_kernel_pages(&self) {
        let device = format!("0:{}", self.connection.number());
        ending::for_a_while("terrace-pages", PATIENCE, move || {
            if let Err(error) = outside::write_pages(&device) {
                tracing::error!(%error, "pages of shared mappings may be lost");
            }
        });
    }

    /// Whether the mount on top at the directory is this session's.
    fn is_there(&self) -> bool {
        // If the list of mounts cannot be read, the mount counts as present.
        mounts::at(&self.dir)
            .map_or(true, |mount| mount.and_then(|mount| mount.connection()) == Some(self.connection))
    }

    fn is_over(&self) -> bool {
        self.session_over.load(Ordering::Relaxed)
    }

    /// Waits until the session is over; false when it takes longer.
    fn ends_within(&self, time: Duration) -> bool {
        let begin = self.clock.monotonic_ns();
        while !self.is_over() {
            if self.clock.monotonic_ns() - begin > time.as_nanos() as u64 {
                return false;
            }
            self.clock.sleep(Duration::from_millis(10));
        }
        true
    }

    /// Ends the session. Users of the mount, at the directory and elsewhere, are cut off after `patience`.
    fn stop(&self, patience: Duration) {
        if self.is_over() {
            return;
        }
        self.write_kernel_pages();
        self.fs.begin_end();
        // The sync has a limit, because a device may hang: dirty pages that the device does not take are
        // settled at the end.
        let fs = Arc::clone(&self.fs);
        ending::for_a_while("terrace-sync", PATIENCE, move || {
            if let Err(error) = fs.sync() {
                tracing::error!(%error, "sync before the end");
            }
        });
        self.leave_directory(patience);
        // The session lasts while copies of the mount in other namespaces or at other directories exist, or a
        // detached mount is in use.
        if self.ends_within(patience.max(SOON)) {
            return;
        }
        self.write_kernel_pages();
        if self.is_over() {
            return;
        }
        match self.connection.abort() {
            // After the abort an unmount sends no request to this daemon, so this thread may call it.
            Ok(()) if self.is_there() => drop(terrace_fuse::unmount(&self.dir, Unmount::Detach)),
            Ok(()) => {}
            Err(error) => self.leave(&error),
        }
        // Requests that wait for a device are answered when the device answers.
        ending::without_devices(&self.fs, &*self.clock, || self.is_over());
    }

    /// Unmounts the directory.
    fn leave_directory(&self, patience: Duration) {
        let begin = self.clock.monotonic_ns();
        // The mount may be gone from this namespace already, and another file system may be mounted there.
        while self.is_there() {
            match outside::unmount(&self.dir) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => return tracing::warn!(dir = %self.dir.display(), error, "not unmounted"),
            }
            if self.clock.monotonic_ns() - begin >= patience.as_nanos() as u64 {
                tracing::warn!(dir = %self.dir.display(), "still in use; users are cut off");
                self.write_kernel_pages();
                if let Err(error) = terrace_fuse::unmount(&self.dir, Unmount::Abort) {
                    tracing::warn!(%error, "detach");
                }
                return;
            }
            self.clock.sleep(Duration::from_millis(50));
        }
    }

    /// Ends the process when the session cannot be ended: the kernel allows an abort only to root, or if
    /// fusectl is mounted. The session ends with the process; the pool cannot be marked clean while requests
    /// are under way.
    fn leave(&self, error: &io::Error) {
        tracing::warn!(%error, "users elsewhere cannot be cut off without the end of this process");
        if self.fs.keep_without_devices().is_ok() && !self.is_over() {
            tracing::warn!("ended with the mount in use; the next mount recovers the pool");
            std::process::exit(1);
        }
    }
}

fn handle_signals(
    mut signals: Signals,
    foreground: bool,
    stop: impl Fn() + Send + 'static,
) -> io::Result<()> {
    spawn("terrace-signals", move || {
        for signal in signals.forever() {
            // A hang-up counts only with a terminal.
            if signal != SIGHUP || foreground {
                tracing::info!(signal, "ending");
                stop();
            }
        }
    })?;
    Ok(())
}
