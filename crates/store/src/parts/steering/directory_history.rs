//! The directory history: how files ended lately, synced or not, by kind of name (family) and directory
//! (`terrace_placement::prior`).
//!
//! A fixed table of one word per level: a tag, the score, and the inode number of the directory above.
//! Families point to their directory, a directory to its parent; a new level overwrites the level in its
//! place, and only files made since the mount have a directory history. The table neither allocates nor
//! locks: two threads may lose each other's counts, which costs only accuracy of a prediction. Everything is
//! volatile.

use terrace_format::Ino;
use terrace_placement::prior::{LEVELS, Score};
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// Key of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(pub u32);

impl Key {
    /// Of a file without a directory history.
    pub const NONE: Key = Key(0);

    /// Of the files of a directory.
    pub fn directory(ino: Ino) -> Key {
        Key::mixed(ino.0)
    }

    /// Of the files of a family in a directory. Files without a family count as a family too.
    fn family((directory, generation): (Ino, u32), family: u32) -> Key {
        Key::mixed(directory.0 ^ u64::from(family.wrapping_add(generation << 1) | 1) << 32)
    }

    fn mixed(word: u64) -> Key {
        Key((word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 | 1)
    }
}

/// A level, unpacked.
#[derive(Clone, Copy)]
struct Level {
    tag: u32,
    score: Score,
    /// The directory above; zero when it is not known.
    above: Ino,
}

/// With fewer places, index and tag would not hold the whole key.
const LEAST_PLACES: u64 = 1 << 8;

const MOST_PLACES: u64 = 1 << 16;

/// Bits of a key in a tag: with the index of a place they are all of it.
const TAG_BITS: u32 = 24;

const _: () = assert!(LEAST_PLACES >= 1 << (u32::BITS - TAG_BITS), "index and tag hold the whole key");

impl Level {
    fn pack(self) -> u64 {
        u64::from(self.tag) << 40 | u64::from(self.score.pack()) << 32 | self.above.0 & 0xffff_ffff
    }
    fn unpack(word: u64) -> Level {
        let score = Score::unpack((word >> 32) as u8);
        Level { tag: (word >> 40) as u32, score, above: Ino(word & 0xffff_ffff) }
    }
}

/// The table.
pub struct DirectoryHistories(Vec<AtomicU64>);

impl DirectoryHistories {
    /// A table for a PM of `pm_blocks` blocks: a word for each level.
    pub fn new(pm_blocks: u64) -> DirectoryHistories {
        let places = (pm_blocks / 4).clamp(LEAST_PLACES, MOST_PLACES).next_power_of_two();
        DirectoryHistories((0..places).map(|_| AtomicU64::new(0)).collect())
    }

    fn place(&self, key: Key) -> (&AtomicU64, u32) {
        // The low bit says nothing.
        let key = key.0.rotate_right(1);
        (&self.0[key as usize & (self.0.len() - 1)], key >> (u32::BITS - TAG_BITS))
    }

    fn level(&self, key: Key) -> Option<Level> {
        let (word, tag) = self.place(key);
        Some(Level::unpack(word.load(Ordering::Relaxed))).filter(|level| level.tag == tag)
    }

    /// Makes a level below `above`, or says where it lies.
    fn enter(&self, key: Key, above: Ino) {
        let (word, tag) = self.place(key);
        let found = Level::unpack(word.load(Ordering::Relaxed));
        if found.tag != tag || found.above != above {
            let score = if found.tag == tag { found.score } else { Score::default() };
            word.store(Level { tag, score, above }.pack(), Ordering::Relaxed);
        }
    }

    /// A file of a family is made in a directory of a generation, whose own parent is `above`: its key.
    pub(crate) fn file_made(&self, directory: (Ino, u32), above: Ino, family: u32) -> Key {
        self.enter(Key::directory(directory.0), above);
        let key = Key::family(directory, family);
        self.enter(key, directory.0);
        key
    }

    /// A directory is made: its history is empty, even if its inode number is used again.
    pub(crate) fn directory_made(&self, ino: Ino, directory: Ino, above: Ino) {
        self.enter(Key::directory(directory), above);
        let (word, tag) = self.place(Key::directory(ino));
        word.store(Level { tag, score: Score::default(), above: directory }.pack(), Ordering::Relaxed);
    }

    /// Whether a file is expected to be synced.
    pub(crate) fn expects(&self, mut key: Key) -> Option<bool> {
        for at in 0..LEVELS {
            let level = self.level(key).filter(|_| key != Key::NONE)?;
            let next = Key::directory(level.above);
            if let Some(expected) = level.score.expects(at) {
                return Some(expected);
            }
            if level.above.0 == 0 || next == key {
                return None;
            }
            key = next;
        }
        None
    }

    /// A file was synced soon after it was written, or was not.
    pub fn tell(&self, mut key: Key, synced: bool) {
        for _ in 0..LEVELS {
            if key == Key::NONE {
                return;
            }
            let (word, tag) = self.place(key);
            let mut level = Level::unpack(word.load(Ordering::Relaxed));
            if level.tag != tag {
                return;
            }
            let score = level.score.told(synced);
            if score != level.score {
                level.score = score;
                word.store(level.pack(), Ordering::Relaxed);
            }
            let next = Key::directory(level.above);
            if level.above.0 == 0 || next == key {
                return;
            }
            if self.level(next).is_none() {
                // The directory is older than the mount, or its level was overwritten.
                self.enter(next, Ino(0));
            }
            key = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_placement::prior::family;

    const ROOT: Ino = Ino(1);

    #[test]
    fn the_nearest_directory_history_decides_for_a_new_file() {
        let table = DirectoryHistories::new(1 << 14);
        let (database, tree) = (Ino(10), Ino(20));
        table.directory_made(database, ROOT, ROOT);
        table.directory_made(tree, ROOT, ROOT);
        let made = |directory, name: &str| table.file_made((directory, 1), ROOT, family(name.as_bytes()));
        assert_eq!(table.expects(made(tree, "a.c")), None);
        table.tell(made(tree, "a.c"), false);
        table.tell(made(database, "000001.log"), true);
        table.tell(made(database, "LOG"), false);
        assert_eq!(table.expects(made(tree, "b.c")), Some(false), "of its family");
        assert_eq!(table.expects(made(tree, "b.h")), Some(false), "of its directory");
        assert_eq!(table.expects(made(database, "000002.log")), Some(true));
        assert_eq!(table.expects(made(database, "LOG")), Some(false));
        assert_eq!(table.expects(made(database, "x.sst")), Some(true));
    }

    #[test]
    fn a_new_directory_follows_its_siblings_and_a_reused_number_inherits_no_history() {
        let table = DirectoryHistories::new(1 << 14);
        let (objects, first, second) = (Ino(7), Ino(8), Ino(9));
        table.directory_made(objects, ROOT, ROOT);
        table.directory_made(first, objects, ROOT);
        for _ in 0..3 {
            table.tell(table.file_made((first, 1), objects, 0), false);
        }
        table.directory_made(second, objects, ROOT);
        assert_eq!(table.expects(table.file_made((second, 1), objects, 0)), Some(false));
        // The inode number of the first directory is used again, under another parent.
        table.directory_made(Ino(11), ROOT, ROOT);
        table.directory_made(first, Ino(11), ROOT);
        assert_eq!(table.expects(table.file_made((first, 2), Ino(11), 0)), Some(false), "what the root says");
        (0..2).for_each(|_| table.tell(table.file_made((Ino(11), 1), ROOT, 0), true));
        assert_eq!(table.expects(table.file_made((first, 2), Ino(11), 0)), Some(true));
    }

    #[test]
    fn more_directories_than_places_harm_nobody() {
        let table = DirectoryHistories::new(0);
        let mut known = 0;
        for ino in 2..10_000 {
            let key = table.file_made((Ino(ino), 1), Ino(ino / 2), family(b"a.c"));
            table.tell(key, ino % 2 == 0);
            known += u64::from(table.expects(key).is_some());
        }
        assert!(known > 9000, "{known}");
        table.tell(Key::NONE, false);
        assert_eq!(table.expects(Key::NONE), None);
    }
}
