//! Constants and small acts that the tests of several subjects share.

use std::sync::mpsc;
use std::time::Duration;
use terrace_engine::{Engine, MountOptions, PolicyKind, Wait, WriteFlags};
use terrace_media::block::{Operation, Times};
use terrace_runtime::{Clock, SystemClock};
use terrace_testkit::SimulatedPool;

pub const W: Wait = Wait::Allowed;
pub const ASYNC: WriteFlags = WriteFlags { sync: false, kill_set_id: false, pages: false };
pub const SYNC: WriteFlags = WriteFlags { sync: true, kill_set_id: false, pages: false };
pub const BLOCK: u64 = 4096;
pub const EIO: i32 = 5;

/// Bytes in dirty pages.
pub fn dirty(fs: &Engine) -> u64 {
    fs.status().unwrap().dram.dirty_bytes
}

/// Options under which blocks move only when a test moves them.
pub fn quiet() -> MountOptions {
    MountOptions { policy: Some(PolicyKind::STATIC), ..MountOptions::default() }
}

/// Makes all writes to the device fail, or lets them succeed again.
pub fn break_device(pool: &SimulatedPool, broken: bool) {
    pool.device.clear_failures();
    if broken {
        pool.device.fail_next(Operation::Write, 0..u64::MAX, EIO, Times::Forever);
    }
}

/// Waits until other threads have made a condition true.
#[track_caller]
pub fn await_that(what: &str, is_so: impl Fn() -> bool) {
    let clock = SystemClock::default();
    let end_ns = clock.monotonic_ns() + Duration::from_secs(60).as_nanos() as u64;
    while !is_so() {
        assert!(clock.monotonic_ns() < end_ns, "{what}");
        std::thread::yield_now();
    }
}

/// Runs `run` on a thread, and fails when it does not end.
pub fn ends<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, result) = mpsc::channel();
    let thread = terrace_runtime::thread::spawn("ends", move || _ = tell.send(run()));
    assert!(thread.is_ok());
    result.recv_timeout(Duration::from_secs(30)).unwrap_or_else(|_| panic!("{what} does not end"))
}
