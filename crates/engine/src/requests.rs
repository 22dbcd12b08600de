//! Entry points for requested movements, and the step that does them.

use crate::engine::Engine;
use std::sync::{Arc, Weak};
use terrace_format::Ino;
use terrace_migration::requested::progress::{HandMove, HandPlan, HandReport};
use terrace_migration::requested::queue::ByHand;
use terrace_runtime::thread::Waker;
use terrace_runtime::{Next, Step};
use terrace_store::error::FsResult;

/// Requests a movement of a file, or of a directory with everything in it, in the background. Gives the
/// number of the request.
///
/// # Errors
/// EINVAL when there is no such tier; EROFS; ESTALE; EAGAIN when too many wait already.
pub fn move_by_hand(engine: &Engine, ino: Ino, action: HandMove) -> FsResult<u64> {
    engine.by_hand.request(&engine.migration, ino, action)
}

/// The files and bytes that a requested movement would move, without moving them. Looks at all files below
/// the path first.
///
/// # Errors
/// As [`move_by_hand`]; EIO.
pub fn plan_by_hand(engine: &Engine, ino: Ino, action: HandMove) -> FsResult<HandPlan> {
    ByHand::plan(&engine.migration, ino, action)
}

/// The report of a requested movement; `None` for an unknown number, or one that ended too long ago.
pub fn hand_report(engine: &Engine, id: u64) -> Option<HandReport> {
    engine.by_hand.report(id)
}

/// The requested movements that wait, are under way, or ended lately.
pub(crate) fn hand_reports(engine: &Engine) -> Vec<HandReport> {
    engine.by_hand.reports()
}

/// Does one bounded part of the requested movements. Of several threads that call it only one works at a
/// time.
pub fn hand_step(engine: &Engine) -> Next {
    engine.by_hand.step(&engine.migration)
}

/// The background step of requested movements, with its waker.
pub(crate) fn hand_background(engine: &Arc<Engine>) -> (Box<dyn Step>, Waker) {
    (Box::new(HandStep { engine: Arc::downgrade(engine) }), engine.by_hand.waker.clone())
}

/// Background step: one bounded part of the requested movements.
struct HandStep {
    engine: Weak<Engine>,
}

impl Step for HandStep {
    fn name(&self) -> &'static str {
        "terrace-by-hand"
    }

    fn step(&mut self) -> Next {
        self.engine.upgrade().map_or(Next::Done, |engine| hand_step(&engine))
    }
}
