//! What is remembered of files that were written or read lately: the predictors' state per (inode, generation).
//!
//! A fixed table in sets of four; a file that is not in it takes the place of the one used longest ago in its set.
//! Nothing is allocated and nothing locked: who writes a file holds its lock exclusively, readers and fsync may lose
//! one another's counts, which costs a prediction some accuracy and nothing else. Everything is volatile.

use crate::tally::{Outcome, Tally};
use terrace_format::Ino;
use terrace_placement::read_frequency::ReadFrequency;
use terrace_placement::synchronicity::{Judgement, Synchronicity};
use terrace_placement::write_size::Entry;
use terrace_placement::{Parameters, temperature};
use terrace_runtime::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Files that share a set.
const WAYS: usize = 4;
/// Least and most sets of a table.
const LEAST_SETS: u64 = 64;
const MOST_SETS: u64 = 1 << 14;
/// Bits of the bytes in [`FileState::pending`]; the blocks are above.
const PENDING_BYTES: u32 = 40;

/// One file: 64 bytes. All relaxed: each word stands for itself.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct FileState {
    /// Tick of the last use.
    used: AtomicU32,
    /// Counter of the last run.
    run_counter: AtomicU32,
    /// [`Synchronicity`], packed.
    sync: AtomicU64,
    /// Bytes read since the last write.
    read: AtomicU64,
    /// Block after the last run.
    run_end: AtomicU64,
    /// Bytes of the last run.
    run_bytes: AtomicU64,
    /// Bytes and blocks written since it was last known whether an fsync follows.
    pending: AtomicU64,
    /// Size in bytes when last used.
    size: AtomicU64,
}

impl FileState {
    pub fn synchronicity(&self) -> Synchronicity {
        Synchronicity::unpack(self.sync.load(Ordering::Relaxed))
    }
    pub fn reads(&self) -> ReadFrequency {
        ReadFrequency { bytes: self.read.load(Ordering::Relaxed) }
    }
    /// The last run: its entry, and the block after it.
    pub fn run(&self) -> (Entry, u64) {
        let counter = self.run_counter.load(Ordering::Relaxed) as u8;
        let entry = Entry { bytes: self.run_bytes.load(Ordering::Relaxed), counter };
        (entry, self.run_end.load(Ordering::Relaxed))
    }

    fn clear(&self) {
        for word in [&self.sync, &self.read, &self.run_end, &self.run_bytes, &self.pending, &self.size] {
            word.store(0, Ordering::Relaxed);
        }
        self.run_counter.store(0, Ordering::Relaxed);
    }

    /// Bytes of which it is not yet known whether an fsync follows, how many blocks they were, and what was
    /// predicted of them.
    fn pending(&self) -> (u64, u32, Judgement) {
        let word = self.pending.load(Ordering::Relaxed);
        (word & ((1 << PENDING_BYTES) - 1), (word >> PENDING_BYTES) as u32, self.synchronicity().judgement)
    }

    /// It is known now: tells the tally.
    fn settle(&self, outcome: Outcome, tally: &Tally) {
        let (bytes, _, judgement) = self.pending();
        if bytes > 0 {
            tally.add(judgement, outcome, bytes);
            self.pending.store(0, Ordering::Relaxed);
        }
    }

    /// A write of `bytes` in `blocks` that leaves `entry` and ends before block `end`.
    pub fn note_write(
        &self,
        (bytes, blocks): (u64, u32),
        (entry, end): (Entry, u64),
        durable: bool,
        parameters: &Parameters,
        tally: &Tally,
    ) {
        self.run_counter.store(u32::from(entry.counter), Ordering::Relaxed);
        self.run_bytes.store(entry.bytes, Ordering::Relaxed);
        self.run_end.store(end, Ordering::Relaxed);
        self.read.store(0, Ordering::Relaxed);
        let mut state = self.synchronicity();
        if durable {
            // Needs no prediction, and covers what was written before.
            self.settle(Outcome::Synced, tally);
            state.wrote_durably();
        } else {
            let most = (1 << PENDING_BYTES) - 1;
            let (before, count, _) = self.pending();
            let count = count.saturating_add(blocks).min((1 << (64 - PENDING_BYTES)) - 1);
            let word = (before + bytes).min(most) | u64::from(count) << PENDING_BYTES;
            self.pending.store(word, Ordering::Relaxed);
            if count >= parameters.sync_blocks {
                self.settle(Outcome::NotSynced, tally);
            }
            state.wrote(blocks, parameters);
        }
        self.sync.store(state.pack(), Ordering::Relaxed);
    }

    fn note_fsync(&self, parameters: &Parameters, tally: &Tally) {
        self.settle(Outcome::Synced, tally);
        let mut state = self.synchronicity();
        state.synced(parameters);
        self.sync.store(state.pack(), Ordering::Relaxed);
    }

    pub fn note_read(&self, bytes: u64) {
        let mut state = self.reads();
        state.read(bytes);
        self.read.store(state.bytes, Ordering::Relaxed);
    }
}

/// The table.
pub(crate) struct Files {
    /// Inode and generation of each place; 0 is empty. Apart from the states, so that a set is one line.
    keys: Vec<AtomicU64>,
    states: Vec<FileState>,
    sets: u64,
}

fn key(ino: Ino, generation: u32) -> u64 {
    ino.0 << 32 | u64::from(generation)
}

impl Files {
    /// A table for a PM of so many blocks.
    pub fn new(pm_blocks: u64) -> Files {
        let sets = (pm_blocks / 16).clamp(LEAST_SETS, MOST_SETS).next_power_of_two();
        let places = sets as usize * WAYS;
        Files {
            keys: (0..places).map(|_| AtomicU64::new(0)).collect(),
            states: (0..places).map(|_| FileState::default()).collect(),
            sets,
        }
    }

    fn set(&self, ino: Ino) -> usize {
        let mix = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        (mix & (self.sets - 1)) as usize * WAYS
    }

    /// A file's state, if it is there.
    pub fn get(&self, ino: Ino, generation: u32) -> Option<&FileState> {
        let first = self.set(ino);
        let wanted = key(ino, generation);
        let found = (first..first + WAYS).find(|at| self.keys[*at].load(Ordering::Relaxed) == wanted)?;
        Some(&self.states[found])
    }

    /// A file's state, made when it is not there, used at `tick` with `size` bytes.
    pub fn enter(&self, ino: Ino, generation: u32, size: u64, tick: u32, tally: &Tally) -> &FileState {
        let first = self.set(ino);
        let wanted = key(ino, generation);
        let mut oldest = (u32::MAX, first);
        for at in first..first + WAYS {
            let found = self.keys[at].load(Ordering::Relaxed);
            if found == wanted {
                return self.used(at, size, tick);
            }
            // An empty place, or the inode's earlier life, before any other.
            let age = if found == 0 || found >> 32 == ino.0 {
                0
            } else {
                self.states[at].used.load(Ordering::Relaxed).max(1)
            };
            if age < oldest.0 {
                oldest = (age, at);
            }
        }
        let at = oldest.1;
        self.states[at].settle(Outcome::NotSynced, tally);
        self.states[at].clear();
        self.keys[at].store(wanted, Ordering::Relaxed);
        self.used(at, size, tick)
    }

    fn used(&self, at: usize, size: u64, tick: u32) -> &FileState {
        let state = &self.states[at];
        if state.size.load(Ordering::Relaxed) != size {
            state.size.store(size, Ordering::Relaxed);
        }
        if state.used.load(Ordering::Relaxed) != tick {
            state.used.store(tick, Ordering::Relaxed);
        }
        state
    }

    /// An fsync of a file, whatever its generation: an inode has one at a time.
    pub fn note_fsync(&self, ino: Ino, parameters: &Parameters, tally: &Tally) {
        let first = self.set(ino);
        let found = (first..first + WAYS).find(|at| self.keys[*at].load(Ordering::Relaxed) >> 32 == ino.0);
        if let Some(at) = found {
            self.states[at].note_fsync(parameters, tally);
        }
    }

    /// Bytes not yet in the tally: those of files not used for long count as never synced, the others as unknown.
    pub fn unsettled(&self, now: u32, mut visit: impl FnMut(Judgement, bool, u64)) {
        for (key, state) in self.keys.iter().zip(&self.states) {
            let (bytes, _, judgement) = state.pending();
            if key.load(Ordering::Relaxed) != 0 && bytes > 0 {
                let idle = now.saturating_sub(state.used.load(Ordering::Relaxed)) >= temperature::WHOLE_AFTER;
                visit(judgement, idle, bytes);
            }
        }
    }

    /// Places of the table, for those who walk over it in pieces.
    pub fn places(&self) -> usize {
        self.keys.len()
    }

    /// The file at a place, if it is read-dominated.
    pub fn read_dominated_at(&self, place: usize) -> Option<(Ino, u32)> {
        let key = self.keys.get(place)?.load(Ordering::Relaxed);
        let state = &self.states[place];
        let file = (Ino(key >> 32), key as u32);
        (key != 0 && state.reads().is_dominated(state.size.load(Ordering::Relaxed))).then_some(file)
    }
}

// The scheduler's atomics (terrace_runtime::sync) are larger.
const _: () = assert!(size_of::<FileState>() == 64 || size_of::<AtomicU64>() != 8);

#[cfg(test)]
mod tests {
    use super::*;

    const P: Parameters = Parameters { sync_blocks: 1024, large_after: 4, large_min: 64 << 10 };

    fn write(state: &FileState, blocks: u32, tally: &Tally) {
        let bytes = u64::from(blocks) * 4096;
        state.note_write((bytes, blocks), (Entry { bytes, counter: 0 }, 1), false, &P, tally);
    }

    #[test]
    fn a_new_generation_begins_anew_and_the_oldest_file_of_a_set_goes() {
        let (files, tally) = (Files::new(0), Tally::default());
        write(files.enter(Ino(7), 1, 4096, 1, &tally), 2000, &tally);
        assert!(!files.get(Ino(7), 1).is_some_and(|state| state.synchronicity().is_synchronous()));
        assert!(files.enter(Ino(7), 2, 0, 1, &tally).synchronicity().is_synchronous());
        assert!(files.get(Ino(7), 1).is_none());
        // Many more files than places: none is lost that was used last.
        for ino in 100..100 + 64 * files.places() as u64 {
            files.enter(Ino(ino), 0, 0, ino as u32, &tally);
            assert!(files.get(Ino(ino), 0).is_some());
        }
        assert!(files.get(Ino(7), 2).is_none());
    }

    #[test]
    fn what_was_predicted_is_compared_with_what_happened() {
        let (files, tally) = (Files::new(0), Tally::default());
        let log = files.enter(Ino(1), 0, 0, 1, &tally);
        for _ in 0..3 {
            write(log, 2, &tally);
            files.note_fsync(Ino(1), &P, &tally);
        }
        let copy = files.enter(Ino(2), 0, 0, 1, &tally);
        (0..4).for_each(|_| write(copy, 1024, &tally));
        let report = tally.report();
        assert_eq!((report.unjudged.synced_bytes, report.synchronous.synced_bytes), (2 * 4096, 4 * 4096));
        assert_eq!((report.unjudged.unsynced_bytes, report.asynchronous.unsynced_bytes), (4 << 20, 12 << 20));
        write(copy, 10, &tally);
        let mut open = Vec::new();
        files.unsettled(2, |judgement, idle, bytes| open.push((judgement, idle, bytes)));
        assert_eq!(open, [(Judgement::Asynchronous, false, 40960)]);
    }
}
