//! The end of a pool, also beside a device that does not answer.
//!
//! ext4 and ZFS wait for such a device, for ever if need be. Terrace settles dirty pages that wait for the
//! device: after a while without an answer they go to PM, and the daemon ends. The pool is then not marked
//! clean, because threads that wait for the device may still wake up: the next mount recovers the pool
//! without a loss, as after `kill -9`. If PM lacks room for the dirty pages, the daemon waits: an orderly
//! unmount must not lose them.

use crate::control::Server;
use crate::failure::{Failure, Outcome};
use crate::names::Names;
use crate::notify;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use terrace_engine::{Background, Engine};
use terrace_runtime::thread::spawn;
use terrace_runtime::{Clock, SystemClock};

/// Time without an answer of any device before the daemon ends without them. Linux gives a disk 30 s before
/// it tries again.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval between two looks at the devices' answers.
const STEP: Duration = Duration::from_millis(500);

/// The message about an end without the devices.
const WITHOUT: &str = "a device does not answer; what waited for it is in persistent memory, and the next mount recovers the pool";

/// Tells whether devices have been silent for too long.
struct Silence {
    answered_ns: u64,
    since_ns: u64,
    told: bool,
}

impl Silence {
    fn new(fs: &Engine, clock: &dyn Clock) -> Silence {
        Silence { answered_ns: fs.devices_answered_ns(), since_ns: clock.monotonic_ns(), told: false }
    }

    /// True when no device has answered for long and all dirty pages could be settled.
    fn can_leave(&mut self, fs: &Engine, clock: &dyn Clock) -> bool {
        let (answered, now) = (fs.devices_answered_ns(), clock.monotonic_ns());
        if answered != self.answered_ns {
            (self.answered_ns, self.since_ns) = (answered, now);
        }
        if now - self.since_ns < PATIENCE.as_nanos() as u64 {
            return false;
        }
        let kept = fs.keep_without_devices();
        if let Err(error) = &kept
            && !std::mem::replace(&mut self.told, true)
        {
            tracing::error!(%error, "a device does not answer, and what waits for it fits nowhere else; waiting for it");
        }
        kept.is_ok()
    }
}

/// Ends the pool after the session.
pub(super) fn finish(fs: &Arc<Engine>, server: Server, background: Background, names: &Names) -> Outcome<()> {
    notify::notify("STOPPING=1");
    fs.begin_end();
    let (tell, told) = channel();
    let (ending, gate) = (Arc::clone(fs), server.gate());
    let thread = spawn("terrace-end", move || {
        gate.close();
        drop(background);
        let _ = tell.send(ending.unmount().map_err(|error| error.to_string()));
    });
    let clock = SystemClock::default();
    let mut silence = Silence::new(fs, &clock);
    let result = loop {
        if let Err(error) = &thread {
            break Err(format!("no thread for it: {error}"));
        }
        match told.recv_timeout(STEP) {
            Ok(result) => break result,
            Err(RecvTimeoutError::Disconnected) => break Err("the thread for it ended early".to_string()),
            Err(RecvTimeoutError::Timeout) if silence.can_leave(fs, &clock) => break Err(WITHOUT.to_string()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    match &result {
        Ok(()) => tracing::info!("unmounted, pool is clean"),
        Err(error) => tracing::error!(%error, "unmounted, pool is not clean: the next mount recovers it"),
    }
    let lost = names.lost();
    for line in &lost {
        tracing::error!("{line}");
    }
    server.end(result.clone().map(|()| lost.clone()));
    if let Some(line) = lost.first() {
        return Err(Failure::new(line));
    }
    result.map_err(|error| Failure::new(format!("unmount: {error}")))
}

/// Runs a call in a thread of its own and waits for its end for at most `limit`.
pub(super) fn for_a_while(name: &str, limit: Duration, body: impl FnOnce() + Send + 'static) {
    let (tell, told) = channel();
    let thread = spawn(name, move || {
        body();
        let _ = tell.send(());
    });
    match thread {
        Ok(_) => drop(told.recv_timeout(limit)),
        Err(error) => tracing::error!(%error, "{name}"),
    }
}

/// Waits until `is_over`; ends the process when requests wait for a device that does not answer.
pub(super) fn without_devices(fs: &Engine, clock: &dyn Clock, is_over: impl Fn() -> bool) {
    let mut silence = Silence::new(fs, clock);
    while !is_over() {
        if silence.can_leave(fs, clock) {
            tracing::error!("{WITHOUT}");
            std::process::exit(1);
        }
        clock.sleep(STEP);
    }
}
