//! Long requests in turns (docs/decisions/0025): a turn does a bounded number of pieces, each under locks of
//! its own, and ends with [`FsError::Unfinished`] if pieces are left. The caller keeps a [`Progress`] and
//! asks again, from any thread; other requests go first in between. No lock or claim is held from one turn to
//! the next.
//!
//! Invariant: each turn either ends the request or does a piece of it, so that the turns of a request come to
//! an end.

use crate::error::{FsError, FsResult};
use terrace_format::FileBlock;

/// Transactions of one turn; each takes some ten microseconds.
pub const TURN_PIECES: usize = 32;

/// Entries of a map that one turn looks at under one lock: a few hundred microseconds.
pub const TURN_ENTRIES: usize = 1024;

/// How far a long request has come. Its caller makes a new one for each request and hands it to every turn of it.
#[derive(Debug, Default)]
pub struct Progress {
    /// The first step is done: it is not done again.
    pub begun: bool,
    /// Where the next turn goes on.
    pub at: FileBlock,
    /// Names listed so far.
    pub names: Vec<u8>,
}

/// Takes turn after turn, for callers without other work.
pub fn all_turns<T>(mut turn: impl FnMut(&mut Progress) -> FsResult<T>) -> FsResult<T> {
    let mut progress = Progress::default();
    loop {
        match turn(&mut progress) {
            Err(FsError::Unfinished) => {}
            ended => return ended,
        }
    }
}
