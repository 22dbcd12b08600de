//! A file with all its states, so that a read beside changes can be judged.

use crate::below;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use terrace_engine::{Engine, Wait};
use terrace_format::Ino;
use terrace_runtime::sync::Mutex;

/// A word for each unit of a file: the tag of the change that wrote it, or 0.
pub type Content = Vec<u64>;

/// A file and all its states. The writer notes each state before it makes the change.
pub struct StatedFile {
    /// Its inode.
    pub ino: Ino,
    /// Bytes of a unit, each of which has the word of a single change.
    pub unit: usize,
    /// The states, the first one first.
    pub states: Mutex<Vec<Content>>,
    /// The last state that is complete.
    complete: AtomicUsize,
}

/// The bytes of some units with a word.
pub fn units(word: u64, unit: usize, count: usize) -> Vec<u8> {
    word.to_le_bytes().repeat(count * unit / 8)
}

/// A range of units of a file that has at most `most`.
pub fn some_units(most: usize, longest: u64) -> Range<usize> {
    let first = below(most as u64) as usize;
    first..(first + 1 + below(longest) as usize).min(most)
}

impl StatedFile {
    /// A file that has this content.
    pub fn new(ino: Ino, unit: usize, content: Content) -> StatedFile {
        StatedFile { ino, unit, states: Mutex::new(vec![content]), complete: AtomicUsize::new(0) }
    }

    /// Notes the state after a change of the last one; gives its number.
    pub fn begin(&self, change: impl FnOnce(&mut Content, u64)) -> usize {
        let mut states = self.states.lock();
        let mut content = states.last().cloned().unwrap_or_default();
        let number = states.len();
        change(&mut content, number as u64);
        states.push(content);
        number
    }

    /// The change of the last state is made: no later read may miss it.
    pub fn end(&self) {
        self.complete.fetch_add(1, Ordering::Relaxed);
    }

    /// The word of each unit of bytes that were read.
    ///
    /// # Panics
    /// When a unit has bytes of several changes.
    pub fn words(&self, data: &[u8]) -> Content {
        let word_of = |unit: &[u8]| {
            let word = u64::from_le_bytes(*unit.first_chunk().unwrap_or_else(|| panic!("a part of a word")));
            assert_eq!(
                unit,
                &units(word, self.unit, 1)[..unit.len()],
                "a unit of inode {} is torn",
                self.ino
            );
            word
        };
        data.chunks(self.unit).map(word_of).collect()
    }

    /// Reads the whole file, which has a state that it had meanwhile.
    ///
    /// # Panics
    /// When it has another state, or cannot be read.
    pub fn read(&self, fs: &Engine, most: usize) {
        let from = self.complete.load(Ordering::Relaxed);
        let mut data = vec![0; most * self.unit];
        let count = fs.read(self.ino, 0, &mut data, Wait::Allowed).unwrap_or_else(|error| panic!("{error}"));
        let found = self.words(&data[..count]);
        let states = self.states.lock();
        let possible = &states[from..];
        assert!(possible.contains(&found), "inode {}: {found:?} is none of {possible:?}", self.ino);
    }
}
