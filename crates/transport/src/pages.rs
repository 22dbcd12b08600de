//! The state of an inode in the kernel's cache, as the store keeps it in the front end's note: its mode, and whether the
//! kernel may hold pages that are older than the file (decision 0020).
//!
//! Invariant: a note of zeros is the state of an inode of which the kernel holds nothing.

use terrace_engine::Note;

/// How the kernel treats an open file (design 6): one mode from first open to last close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Every read and write reaches the file system.
    Direct,
    /// The kernel caches pages, and keeps those it has: files that are only read (decision 0020).
    Cached,
}

/// The state of an inode in the kernel's cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pages {
    /// Blocks that the file takes of the budget, until its last close.
    pub kept_blocks: u32,
    pub cached: bool,
    /// The kernel may hold a page that is older than the file: a mapping, or a copy within the kernel, read it while the
    /// file was open in [`OpenMode::Direct`], perhaps beside a direct write. A direct open has the kernel drop all pages
    /// of before. Otherwise they are dropped only while no descriptor but that of the opening reader exists: the kernel
    /// does not lock pages during a write through the cache, so a drop beside such a write would let a reader bring the
    /// old page back for good.
    pub is_old: bool,
    /// The kernel has filled a page since the file was opened in [`OpenMode::Direct`].
    pub is_filled: bool,
    /// The only descriptor is having the pages dropped; further opens wait.
    pub drops: bool,
}

const CACHED: u32 = 1;
const IS_OLD: u32 = 2;
const DROPS: u32 = 4;
const IS_FILLED: u32 = 8;

impl Pages {
    pub fn of(note: &Note) -> Pages {
        let [kept_blocks, bits] = note.0;
        let has = |bit: u32| bits & bit != 0;
        Pages {
            kept_blocks,
            cached: has(CACHED),
            is_old: has(IS_OLD),
            is_filled: has(IS_FILLED),
            drops: has(DROPS),
        }
    }

    pub fn note(self) -> Note {
        let bit = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
        let old = bit(self.is_old, IS_OLD) | bit(self.is_filled, IS_FILLED);
        Note([self.kept_blocks, bit(self.cached, CACHED) | bit(self.drops, DROPS) | old])
    }

    /// The last descriptor is closed, or an open has failed that would have been the only one. A direct open that the
    /// kernel was told of, in an answer without FOPEN_KEEP_CACHE, has dropped the pages of before.
    pub fn close(&mut self, has_failed: bool) {
        self.is_old = self.is_filled || self.is_old && has_failed;
        self.is_filled = false;
    }

    pub fn mode(self) -> OpenMode {
        if self.cached { OpenMode::Cached } else { OpenMode::Direct }
    }
}

/// The kernel fills pages of an open file.
pub(crate) fn fill_pages(note: &mut Note) {
    let pages = Pages::of(note);
    *note = Pages { is_filled: pages.is_filled || !pages.cached, ..pages }.note();
}

/// Ends a drop: `done` when the kernel has dropped all pages. The mode of the file.
pub(crate) fn end_drop(note: &mut Note, done: bool) -> OpenMode {
    let mut pages = Pages::of(note);
    assert!(pages.drops, "a drop of pages ends that no open began");
    pages.drops = false;
    // Whatever kept the kernel from it may also keep it from dropping them at the direct open that this one becomes.
    (pages.cached, pages.is_old, pages.is_filled) = (done, !done, !done);
    *note = pages.note();
    pages.mode()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_holds_the_whole_state_of_an_inode() {
        assert_eq!(Pages::default().note(), Note::default());
        for bits in 0..16 {
            let note = Note([7, bits]);
            assert_eq!(Pages::of(&note).note(), note);
        }
    }
}
