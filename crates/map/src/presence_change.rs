//! The blocks of files in memory, along with a change of the map.
//!
//! Invariant: a bit is set before the record of its block, and cleared after the record that removes it. After a change that
//! was not made the map says which bits stand.
//!
//! Locks: the inode of each block is locked exclusively.

use smallvec::SmallVec;
use terrace_blocks::Presence;
use terrace_blocks::pool::{Hashed, Known};
use terrace_format::{FileBlock, Ino};
use terrace_runtime::planted::{Mistake, planted};
use terrace_wal::Result;

/// The file map as witness of what presence has to say.
pub(crate) trait Witness: Send + Sync {
    /// The table of all files, where the map is one.
    fn table(&self) -> Option<&Hashed>;

    /// The bits, where the map has them.
    fn presence(&self) -> Option<&Presence> {
        self.table().map(|hashed| &hashed.presence)
    }

    /// Whether the map has a block, whatever its bit says.
    ///
    /// # Errors
    /// See [`crate::FileMap`].
    fn has_entry(&self, ino: Ino, block: FileBlock) -> Result<bool>;

    /// A block that was there has left PM.
    fn left(&self, ino: Ino, block: FileBlock);
}

/// Blocks of files that a change adds to presence or takes out of it. Dropped without an end it lets the map say which of
/// them are there: the scan after the mount may have passed a block meanwhile.
pub struct PresenceChange<'a> {
    witness: &'a dyn Witness,
    /// Memory knew all blocks when the change began: a block whose bit it set was nowhere.
    knew_all: bool,
    /// Entered already.
    added: SmallVec<[(Ino, FileBlock); 2]>,
    /// Taken out when the change is committed.
    removed: SmallVec<[(Ino, FileBlock); 2]>,
}

impl<'a> PresenceChange<'a> {
    pub(crate) fn new(witness: &'a dyn Witness) -> PresenceChange<'a> {
        let knew_all = witness.table().is_some_and(|hashed| hashed.known() == Known::All);
        PresenceChange { witness, knew_all, added: SmallVec::new(), removed: SmallVec::new() }
    }

    /// Enters a block; false if it was there.
    pub(crate) fn add(&mut self, ino: Ino, block: FileBlock) -> bool {
        let is_new = self.witness.presence().is_some_and(|presence| presence.insert(ino, block));
        if is_new && !planted(Mistake::PresenceBeforeCommit) {
            self.added.push((ino, block));
        }
        // Cleared and mapped again in one change: the block stays.
        self.removed.retain(|at| *at != (ino, block));
        is_new
    }

    /// Takes a block out at the commit.
    pub(crate) fn remove(&mut self, ino: Ino, block: FileBlock) {
        self.removed.push((ino, block));
    }

    pub(crate) fn committed(mut self) {
        self.added.clear();
        if let Some(presence) = self.witness.presence() {
            for (ino, block) in self.removed.drain(..) {
                if presence.remove(ino, block) {
                    self.witness.left(ino, block);
                }
            }
        }
    }

    pub(crate) fn doubtful(mut self) {
        if let Some(presence) = self.witness.presence() {
            self.added
                .drain(..)
                .chain(self.removed.drain(..))
                .for_each(|(ino, block)| presence.doubt(ino, block));
        }
    }
}

impl Drop for PresenceChange<'_> {
    fn drop(&mut self) {
        let Some(presence) = self.witness.presence() else { return };
        let added = self.added.drain(..).map(|at| (at, self.knew_all));
        for ((ino, block), was_absent) in added.chain(self.removed.drain(..).map(|at| (at, false))) {
            match self.witness.has_entry(ino, block) {
                Ok(true) => _ = presence.insert(ino, block),
                Ok(false) => _ = presence.remove(ino, block),
                // The search passed a line that cannot be read: no reason to doubt what memory knew.
                Err(_) if was_absent => _ = presence.remove(ino, block),
                Err(_) => presence.doubt(ino, block),
            }
        }
    }
}
