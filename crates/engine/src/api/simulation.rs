//! Calls for tests, simulators and benchmarks alone: they drive background work by hand and count what a mount holds.
use crate::accounts::Accounts;
use crate::engine::Engine;
use std::sync::Arc;
use terrace_runtime::Next;
use terrace_runtime::Step;
use terrace_runtime::thread::Waker;
use terrace_store::error::FsResult;

/// Calls for tests, simulators and benchmarks alone: they drive background work by hand and count what a mount holds.
pub trait Simulation {
    /// The accounts of memory and space at this moment. It reads the block table, the bitmaps and the inode
    /// pages in PM.
    ///
    /// # Errors
    /// The medium's.
    fn accounts(&self) -> FsResult<Accounts>;

    /// Does one bounded part of the requested movements. Of several threads that call it only one works at a
    /// time.
    fn request_step(&self) -> Next;

    /// Demotes at once every metadata page that may be demoted, however much room PM has. For tests and
    /// simulators. Returns the number of demoted pages.
    ///
    /// # Errors
    /// The media's.
    fn lower_metadata_now(&self) -> FsResult<u64>;

    /// Lets predictors and temperature rest, or work again: for benchmarks that measure their cost for a
    /// request in the same pool, while migration does nothing. At rest, a block keeps its times and its mark.
    /// Under a policy without predictors there is no difference.
    fn let_predictors_rest(&self, rest: bool);

    /// The steps that background threads drive, with their wakers.
    fn background_steps(self: &Arc<Self>) -> Vec<(Box<dyn Step>, Waker)>;

    /// Drives all background work by hand until no step has work left, for at most `limit` steps. For tests
    /// and simulators.
    fn run_background(self: &Arc<Self>, limit: usize);
}

impl Simulation for Engine {
    fn accounts(&self) -> FsResult<Accounts> {
        crate::accounts::accounts(self)
    }

    fn request_step(&self) -> Next {
        crate::requests::request_step(self)
    }

    fn lower_metadata_now(&self) -> FsResult<u64> {
        terrace_migration::metadata::lower_metadata_now(&self.migration)
    }

    fn let_predictors_rest(&self, rest: bool) {
        self.store.steering.let_rest(rest)
    }

    fn background_steps(self: &Arc<Self>) -> Vec<(Box<dyn Step>, Waker)> {
        crate::background::background_steps(self)
    }

    fn run_background(self: &Arc<Self>, limit: usize) {
        crate::background::run_background(self, limit)
    }
}
