//! Step functions: background work in bounded pieces.

use std::time::Duration;

/// The wish of a step for its next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// More work is left; call again at once.
    Again,
    /// Nothing to do; call again after this time or when woken.
    After(Duration),
    /// Finished for good.
    Done,
}

/// A kind of background work. `step` does one bounded piece and holds no lock when it returns.
pub trait Step: Send {
    /// A short name for logs and thread names.
    fn name(&self) -> &'static str;
    /// Does one bounded piece of work and says when to come back.
    fn step(&mut self) -> Next;
}
