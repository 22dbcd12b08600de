//! Entry points for requested movements, and the step that does them.

use crate::engine::Engine;
use std::sync::{Arc, Weak};
use terrace_format::Ino;
use terrace_migration::requested::progress::{MovePlan, MoveRequest, RequestReport};
use terrace_migration::requested::queue::RequestQueue;
use terrace_runtime::thread::Waker;
use terrace_runtime::{Next, Step};
use terrace_store::error::FsResult;

/// Requests a movement of a file, or of a directory with everything in it, in the background. Gives the
/// number of the request.
///
/// # Errors
/// EINVAL when there is no such tier; EROFS; ESTALE; EAGAIN when too many wait already.
pub fn request_move(engine: &Engine, ino: Ino, action: MoveRequest) -> FsResult<u64> {
    engine.requests.request(&engine.migration, ino, action)
}

/// The files and bytes that a requested movement would move, without moving them. Looks at all files below
/// the path first.
///
/// # Errors
/// As [`request_move`]; EIO.
pub fn plan_move(engine: &Engine, ino: Ino, action: MoveRequest) -> FsResult<MovePlan> {
    RequestQueue::plan(&engine.migration, ino, action)
}

/// The report of a requested movement; `None` for an unknown number, or one that ended too long ago.
pub fn request_report(engine: &Engine, id: u64) -> Option<RequestReport> {
    engine.requests.report(id)
}

/// The requested movements that wait, are under way, or ended lately.
pub(crate) fn request_reports(engine: &Engine) -> Vec<RequestReport> {
    engine.requests.reports()
}

/// Does one bounded part of the requested movements. Of several threads that call it only one works at a
/// time.
pub fn request_step(engine: &Engine) -> Next {
    engine.requests.step(&engine.migration)
}

/// The background step of requested movements, with its waker.
pub(crate) fn request_background(engine: &Arc<Engine>) -> (Box<dyn Step>, Waker) {
    (Box::new(RequestStep { engine: Arc::downgrade(engine) }), engine.requests.waker.clone())
}

/// Background step: one bounded part of the requested movements.
struct RequestStep {
    engine: Weak<Engine>,
}

impl Step for RequestStep {
    fn name(&self) -> &'static str {
        "terrace-by-hand"
    }

    fn step(&mut self) -> Next {
        self.engine.upgrade().map_or(Next::Done, |engine| request_step(&engine))
    }
}
