//! Answers that wait until changes are durable, without a thread for each: hundreds of them join one commit of the journal.

use crate::guard::{ended, guarded};
use crate::served::Served;
use rustix::io::Errno;
use std::sync::Arc;
use terrace_engine::Durability;
use terrace_runtime::thread::Queue;

/// Answers once everything committed before is durable.
#[derive(Clone)]
pub(crate) struct WhenDurable {
    pub served: Arc<Served>,
    /// For the threads that write the journal.
    pub commits: Queue,
}

impl WhenDurable {
    /// Calls `end` when all changes so far are durable, or PM has failed.
    pub fn then(&self, user: u32, end: impl FnOnce(Result<(), Errno>) + Send + 'static) {
        let done = Box::new(move |result| end(ended(result)));
        if self.served.fs().persist_then(done) {
            let served = Arc::clone(&self.served);
            let commits = move || {
                served.fs().persist_waiting();
                Ok(())
            };
            self.commits.submit(user, Box::new(move || guarded("commit", commits).unwrap_or_default()));
        }
    }
}
