//! The daemon: opens a pool, serves its mount, ends it in order.
//!
//! Order of the end: the kernel sends no more requests (the session is over), the control socket takes no
//! more (its gate is closed), background work stopped, then `Engine::unmount` marks the pool clean. Beside a
//! device that does not answer see `ending`.
//!
//! Invariant: no thread of this process makes a call on its own mount, see `outside`.

use crate::control::state::StateDirectory;
use crate::control::{Contact, Server, Shared, state};
use crate::failure::{Failure, Outcome, plain, status};
use crate::limits::raise_limits;
use crate::memory::{SystemMemory, spare_daemon};
use crate::mounted_pool::{MountedPool, ReadyPool, readable};
use crate::names::Names;
use crate::ownership::{self, Trust};
use crate::plan::{Plan, refuse_inside, warn};
use crate::pool::{self, OpenPool};
use crate::stopper::{PATIENCE, Stopper, handle_signals};
use crate::{ending, launch, log, notify, output};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use terrace_engine::{Engine, MemorySource};
use terrace_fuse::{Adapter, Running, SessionOptions, Unmount, drop_pages};
use terrace_runtime::{Clock, SystemClock};
use terrace_transport::{KernelCache, Served};

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
        pool::open(&plan.pool, !plan.options.fs.read_only, &plan.options.lenience, plan.options.journal)
            .map_err(failed)?;
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
    warn(plan, &Vec::from_iter(plan.options.way_in.ready().map_err(failed)?));
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

fn serve(
    plan: &Plan,
    opened: OpenPool,
    uuid: &str,
    directory: &StateDirectory,
    flusher: bool,
) -> Outcome<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let ready = ReadyPool::emulate(plan, opened, &clock)?;
    // From here on signals wait until the mount can be ended in order.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(|error| Failure::new(plain(&error)))?;
    let mut mounted = ready.mount(plan, &clock)?;
    let fs = Arc::clone(&mounted.fs);
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
    let names = Names::start(std::mem::take(&mut mounted.names))
        .map_err(|error| give_up(Failure::new(plain(&error))))?;
    // Socket and contact are made before the mount, which may cover their directory.
    let listener = Server::listen(&socket).map_err(give_up)?;
    let contact = Contact { socket: socket.clone(), pid: std::process::id(), uuid: String::new() };
    let (running, served) = start_session(plan, &fs, &contact).map_err(give_up)?;
    // The FUSE device stays open until the end of this process, so a session that is given up must be aborted.
    let abort = || drop(terrace_fuse::unmount(&plan.dir, Unmount::Abort));
    let background = fs.start_background().map_err(|error| {
        abort();
        Failure::new(format!("cannot start threads: {}", plain(&error)))
    })?;
    let describe = describe(plan, &mounted, &contact, uuid, (flusher, &running));
    let session_over = Arc::new(AtomicBool::new(false));
    let stopper = Stopper {
        dir: plan.dir.clone(),
        connection: running.connection(),
        fs: Arc::clone(&fs),
        clock: Arc::clone(&clock),
        session_over: Arc::clone(&session_over),
    };
    let stop = stopper.in_background();
    let asked = stop.clone();
    // A client that asks for the end has checked the users of the mount, so the end has no patience.
    let asked = move || asked(Duration::ZERO);
    let shared =
        Shared::new(served, mounted.superblock, describe, running.ring_figures(), asked, Arc::clone(&names));
    let started = Server::start(shared, listener, &socket).and_then(|server| {
        handle_signals(signals, plan.foreground, move || stop(PATIENCE))
            .map_err(|error| Failure::new(plain(&error)))?;
        Ok(server)
    });
    let server = started.inspect_err(|_| abort())?;
    tracing::info!(pool = %plan.pool.display(), dir = %plan.dir.display(), "mounted");
    notify::notify("READY=1");
    if !plan.foreground {
        launch::ready();
    }
    if let Err(error) = running.join() {
        tracing::error!(%error, "session ended");
        abort();
    }
    session_over.store(true, Ordering::Relaxed);
    ending::finish(&fs, server, background, &names)
}

/// The part of the status that is the same from the begin of the mount to its end.
fn describe(
    plan: &Plan,
    mounted: &MountedPool,
    contact: &Contact,
    uuid: &str,
    (flusher, running): (bool, &Running),
) -> Value {
    json!({
        "pool": output::path_text(&plan.pool),
        "mountpoint": output::path_text(&plan.dir),
        "uuid": uuid,
        "state_directory": contact.socket.parent().map(output::path_text),
        "label": pool::label(&mounted.superblock),
        "mounted": true,
        "pid": contact.pid,
        "pm": mounted.medium,
        "version": env!("CARGO_PKG_VERSION"),
        "io_flusher": flusher,
        "warnings": mounted.warnings,
        "emulated": mounted.emulated,
        "connection": running.connection().number(),
        "transport": running.transport().name(),
    })
}

/// Mounts, and begins to serve a pool.
fn start_session(plan: &Plan, fs: &Arc<Engine>, contact: &Contact) -> Outcome<(Running, Arc<Served>)> {
    let control = serde_json::to_vec(contact).map_err(|error| Failure::new(error.to_string()))?;
    let kernel = Arc::new(OnceLock::new());
    let cache = KernelCache::new(plan.options.kernel_cache_bytes).with_drop_pages(drop_pages(&kernel));
    let served = Arc::new(Served::new(Arc::clone(fs), cache));
    let adapter = Adapter::new(Arc::clone(&served), control, Arc::clone(&kernel));
    let mut session = SessionOptions::new(&plan.pool, &plan.dir);
    session.allow_other = plan.options.allow_other;
    session.flags.clone_from(&plan.options.flags);
    let memory = SystemMemory::read().look().into_iter().map(|memory| memory.total_bytes).min();
    plan.options.way_in.set(&mut session, memory);
    let running = terrace_fuse::start(adapter, &session, |notifier| {
        let _ = kernel.set(notifier);
    });
    Ok((running.map_err(|error| Failure::new(error.to_string()))?, served))
}

fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(String::new, |at| format!("{}:{}", at.file(), at.line()));
        let text = panic.payload_as_str().unwrap_or("panic");
        tracing::error!(place, thread = std::thread::current().name(), "{text}");
    }));
}
