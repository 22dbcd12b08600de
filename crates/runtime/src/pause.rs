//! Stopping at a named point, so that a test can kill the daemon there and nowhere else.
//!
//! `TERRACE_TEST_PAUSE=POINT` in the environment of the daemon: the thread that comes to the point logs "paused at
//! POINT" and stays there until the process ends, with whatever locks it holds. `POINT@FILE`: not before the
//! file exists. Unset, a point costs one load. For tests only; points are in [`POINTS`].
#![allow(clippy::disallowed_methods)] // sleeps until killed

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// The points: name, and the state of the pool when a thread stops there.
pub const POINTS: &[(&str, &str)] = &[
    ("recovery:read", "the records to be replayed are known, nothing was written"),
    ("recovery:replay", "half of the records are replayed"),
    ("recovery:replayed", "all records are replayed and fenced, the checkpoint is the old one"),
    ("recovery:raised", "the checkpoint of the new mount is in both copies"),
    ("checkpoint:settled", "what the checkpoint will pass is fenced, no copy of it is written"),
    ("checkpoint:copy", "one copy of the checkpoint is new, the other old; also in every mount"),
    ("demotion:copied", "a group is written to its device, not flushed"),
    ("demotion:flushed", "a group is flushed, not committed"),
    ("lazy:streamed", "lines of dirty pages are in PM, not fenced and not committed"),
    ("writeback:copied", "dirty pages are written to their device, not flushed"),
    ("writeback:flushed", "dirty pages are flushed, not committed"),
];

struct Plan {
    point: String,
    file: Option<PathBuf>,
}

fn plan() -> Option<Plan> {
    let text = std::env::var("TERRACE_TEST_PAUSE").ok().filter(|text| !text.is_empty())?;
    let (point, file) = match text.split_once('@') {
        Some((point, file)) => (point.to_string(), Some(PathBuf::from(file))),
        None => (text, None),
    };
    if POINTS.iter().any(|(name, _)| *name == point) {
        return Some(Plan { point, file });
    }
    tracing::error!("TERRACE_TEST_PAUSE: no point {point}");
    None
}

/// As [`at`], for a point without a lock held: here a simulator may run another operation.
pub fn at_unlocked(point: &'static str) {
    crate::interleave::point(point);
    at(point);
}

/// Stops here when a test asks for it.
pub fn at(point: &str) {
    static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
    let Some(plan) = PLAN.get_or_init(plan) else { return };
    debug_assert!(POINTS.iter().any(|(name, _)| *name == point), "{point} is not in the table");
    if plan.point != point || plan.file.as_ref().is_some_and(|file| !file.exists()) {
        return;
    }
    tracing::warn!("paused at {point}");
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
