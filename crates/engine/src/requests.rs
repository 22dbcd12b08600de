//! Entry points for moves that users ask for, and the step that works them off.

use crate::engine::Engine;
use std::sync::{Arc, Weak};
use terrace_format::Ino;
use terrace_migration::requested::progress::{HandMove, HandPlan, HandReport};
use terrace_migration::requested::queue::ByHand;
use terrace_runtime::thread::Waker;
use terrace_runtime::{Next, Step};
use terrace_store::error::FsResult;

/// Asks for a move of a file, or of a directory with all below it, in the background. Gives its number.
///
/// # Errors
/// EINVAL when there is no such tier; EROFS; ESTALE; EAGAIN when too many wait already.
pub fn move_by_hand(engine: &Engine, ino: Ino, action: HandMove) -> FsResult<u64> {
    engine.by_hand.request(&engine.migration, ino, action)
}

/// What a move would do. Takes as long as it takes to look at all files.
///
/// # Errors
/// As [`move_by_hand`]; EIO.
pub fn plan_by_hand(engine: &Engine, ino: Ino, action: HandMove) -> FsResult<HandPlan> {
    ByHand::plan(&engine.migration, ino, action)
}

/// What is known of a move; `None` when it is not known (any more).
pub fn hand_report(engine: &Engine, id: u64) -> Option<HandReport> {
    engine.by_hand.report(id)
}

/// The moves that wait, are under way, or ended lately.
pub(crate) fn hand_reports(engine: &Engine) -> Vec<HandReport> {
    engine.by_hand.reports()
}

/// Does one bounded piece of the moves that were asked for. Several threads may call it: one works.
pub fn hand_step(engine: &Engine) -> Next {
    engine.by_hand.step(&engine.migration)
}

/// The step that a thread drives.
pub(crate) fn hand_background(engine: &Arc<Engine>) -> (Box<dyn Step>, Waker) {
    (Box::new(HandStep { engine: Arc::downgrade(engine) }), engine.by_hand.waker.clone())
}

/// Background: one piece of what users asked for per step.
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
