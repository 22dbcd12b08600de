//! The end of a mount on request: by a signal, or by a client of the control socket.
//!
//! Order: dirty pages are synced, the directory is unmounted, the session ends; users who stay are cut off when the
//! patience is over. Each wait has a bound, because a device may hang.

use crate::{ending, mounts, outside};
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use terrace_engine::Engine;
use terrace_fuse::{Connection, Unmount};
use terrace_runtime::Clock;
use terrace_runtime::activity::Work;
use terrace_runtime::thread::spawn;

/// Time for users of the mount to end after SIGTERM, before they are cut off.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// Time for a session to end after its last mount.
const SOON: Duration = Duration::from_millis(300);
/// Pause before the next look whether the session is over.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Pause before the next try to unmount a directory that is in use.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// Ends the mount on request.
pub(crate) struct Stopper {
    pub(crate) dir: PathBuf,
    pub(crate) connection: Connection,
    pub(crate) fs: Arc<Engine>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Set when the session is over.
    pub(crate) session_over: Arc<AtomicBool>,
}

impl Stopper {
    /// A function that ends the session in a thread of its own; its argument is the patience with users of the mount.
    pub(crate) fn in_background(self) -> impl Fn(Duration) + Clone + Send + Sync + 'static {
        let stopper = Arc::new(self);
        move |patience| {
            let stopper = Arc::clone(&stopper);
            if let Err(error) = spawn("terrace-stop", move || stopper.stop(patience)) {
                tracing::error!(%error, "cannot stop");
            }
        }
    }

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
            self.clock.sleep(LOOK_AGAIN);
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
            let _work = Work::begin();
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
            self.clock.sleep(TRY_AGAIN);
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

/// Ends the session by signals of the process, in a thread of its own.
///
/// # Errors
/// The operating system's, when no thread can be made.
pub(crate) fn handle_signals(
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
