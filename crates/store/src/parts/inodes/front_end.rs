//! The part of a front end in opens: its note on an inode, and its consent to an open.
//!
//! A front end caches content of open files. Its knowledge of an inode has to end with the last reference, and has to
//! change together with the count of opens. So the store keeps the front end's note beside the counts, under their
//! lock, and never reads it.

use crate::types::Wait;

/// A front end's note on an inode: all zeros for an inode without references.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Note(pub [u32; 2]);

/// How the content of a file that is being opened is best read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefer {
    /// Every read and write reaches the file system.
    Direct,
    /// The front end caches the content.
    Cached,
    /// The front end caches the content, if its share for such files has room for this file.
    CachedWithinBudget {
        /// Blocks of the file.
        blocks: u64,
        /// Also if the front end has to drop what it holds of the file first.
        at_any_cost: bool,
    },
}

/// An open that asks for consent.
#[derive(Debug, Clone, Copy)]
pub struct Asks {
    /// The preference of the file system.
    pub prefer: Prefer,
    /// No descriptor of the inode is open.
    pub is_first: bool,
    /// Whether the caller may wait.
    pub wait: Wait,
}

/// A front end that caches content. It is called under the lock of the inode and of its references, so it takes no
/// lock and calls nothing of the store.
pub trait FrontEnd {
    /// Consents to an open, which is counted then. False: the open has to wait, and is not counted.
    fn admit(&mut self, note: &mut Note, asks: Asks) -> bool;

    /// Learns that the last descriptor of an inode is closed.
    fn closed(&mut self, note: &mut Note);
}

/// A front end that caches nothing: it admits every open.
#[derive(Debug, Clone, Copy)]
pub struct NoCache;

impl FrontEnd for NoCache {
    fn admit(&mut self, _note: &mut Note, _asks: Asks) -> bool {
        true
    }

    fn closed(&mut self, _note: &mut Note) {}
}
