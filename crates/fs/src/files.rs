//! What is remembered of files that were written or read lately: the predictors' state per (inode, generation).
//!
//! A fixed table in sets of four; a file that is not in it takes the place of the one used longest ago in its set.
//! Nothing is allocated and nothing locked: who writes a file holds its lock exclusively, readers and fsync may lose
//! one another's counts, which costs a prediction some accuracy and nothing else. Everything is volatile.

use crate::relatives::{Key, Relatives};
use crate::tally::{Outcome, Tally};
use terrace_format::Ino;
use terrace_placement::Parameters;
use terrace_placement::read_frequency::ReadFrequency;
use terrace_placement::synchronicity::{Judgement, Synchronicity, WRITE_BACK_TICKS};
use terrace_placement::write_size::Entry;
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
    /// Tick of the first write of [`Self::pending`].
    since: AtomicU32,
    /// [`Key`] of its relatives.
    relatives: AtomicU32,
}

/// What is learnt from.
#[derive(Clone, Copy)]
pub(crate) struct Lessons<'a> {
    pub parameters: &'a Parameters,
    pub tally: &'a Tally,
    pub relatives: &'a Relatives,
    /// Now.
    pub tick: u32,
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
        for word in [&self.run_counter, &self.since, &self.relatives] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Bytes of which it is not yet known whether an fsync follows, how many blocks they were, and what was
    /// predicted of them.
    fn pending(&self) -> (u64, u32, Judgement) {
        let word = self.pending.load(Ordering::Relaxed);
        (word & ((1 << PENDING_BYTES) - 1), (word >> PENDING_BYTES) as u32, self.synchronicity().judgement)
    }

    /// Whether write-back would have written by now what waits for its outcome.
    fn is_late(&self, tick: u32) -> bool {
        tick.saturating_sub(self.since.load(Ordering::Relaxed)) >= WRITE_BACK_TICKS
    }

    /// Something became of the file: its relatives are told, unless they were told the same last.
    fn tell(&self, state: &mut Synchronicity, synced: bool, relatives: &Relatives) {
        if state.tells(synced) {
            relatives.tell(Key(self.relatives.load(Ordering::Relaxed)), synced);
        }
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
        lessons: Lessons<'_>,
    ) {
        self.run_counter.store(u32::from(entry.counter), Ordering::Relaxed);
        self.run_bytes.store(entry.bytes, Ordering::Relaxed);
        self.run_end.store(end, Ordering::Relaxed);
        self.read.store(0, Ordering::Relaxed);
        let mut state = self.synchronicity();
        if durable {
            // Needs no prediction, and covers what was written before.
            self.settle_synced(lessons);
            state.wrote_durably();
        } else {
            self.note_unsynced((bytes, blocks), &mut state, lessons);
        }
        self.sync.store(state.pack(), Ordering::Relaxed);
    }

    /// A write without O_SYNC. A judgement changes only when nothing waits for its outcome: what waits is counted as
    /// what was said of it.
    fn note_unsynced(&self, (bytes, blocks): (u64, u32), state: &mut Synchronicity, lessons: Lessons<'_>) {
        let Lessons { parameters, tally, relatives, tick } = lessons;
        let (mut before, mut count, _) = self.pending();
        if before > 0 && self.is_late(tick) {
            self.settle(Outcome::NotSynced, tally);
            self.tell(state, false, relatives);
            (before, count) = (0, 0);
        }
        if before == 0 {
            self.since.store(tick, Ordering::Relaxed);
            if !state.judgement.is_own() {
                state.expect(relatives.expects(Key(self.relatives.load(Ordering::Relaxed))));
                self.sync.store(state.pack(), Ordering::Relaxed);
            }
        }
        let count = count.saturating_add(blocks).min((1 << (64 - PENDING_BYTES)) - 1);
        let bytes = (before + bytes).min((1 << PENDING_BYTES) - 1);
        self.pending.store(bytes | u64::from(count) << PENDING_BYTES, Ordering::Relaxed);
        let was = state.judgement;
        state.wrote(blocks, parameters);
        if count >= parameters.sync_blocks || state.judgement != was {
            self.settle(Outcome::NotSynced, tally);
            self.tell(state, false, relatives);
        }
    }

    /// An fsync reaches what waits for its outcome, if it is not too late.
    fn settle_synced(&self, lessons: Lessons<'_>) {
        let late = self.pending().0 > 0 && self.is_late(lessons.tick);
        self.settle(if late { Outcome::NotSynced } else { Outcome::Synced }, lessons.tally);
    }

    fn note_fsync(&self, lessons: Lessons<'_>) {
        let mut state = self.synchronicity();
        self.settle_synced(lessons);
        if state.blocks > 0 {
            state.synced(lessons.parameters);
            let short = state.is_synchronous();
            self.tell(&mut state, short, lessons.relatives);
            self.sync.store(state.pack(), Ordering::Relaxed);
        }
    }

    /// Nobody has the file open any more: who wrote what was not synced is done with it.
    fn note_close(&self, lessons: Lessons<'_>) {
        if self.pending().0 > 0 {
            let mut state = self.synchronicity();
            self.tell(&mut state, false, lessons.relatives);
            self.sync.store(state.pack(), Ordering::Relaxed);
        }
    }

    /// The file is new, with relatives.
    pub fn note_made(&self, relatives: Key, lessons: Lessons<'_>) {
        self.relatives.store(relatives.0, Ordering::Relaxed);
        let mut state = self.synchronicity();
        state.expect(lessons.relatives.expects(relatives));
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

    /// An inode's state, whatever its generation: it has one at a time.
    fn of(&self, ino: Ino) -> Option<&FileState> {
        let first = self.set(ino);
        let found = (first..first + WAYS).find(|at| self.keys[*at].load(Ordering::Relaxed) >> 32 == ino.0)?;
        Some(&self.states[found])
    }

    /// An fsync of a file.
    pub fn note_fsync(&self, ino: Ino, lessons: Lessons<'_>) {
        if let Some(state) = self.of(ino) {
            state.note_fsync(lessons);
        }
    }

    /// The last close of a file.
    pub fn note_close(&self, ino: Ino, lessons: Lessons<'_>) {
        if let Some(state) = self.of(ino) {
            state.note_close(lessons);
        }
    }

    /// Bytes not yet in the tally: those for which an fsync would come too late count as not synced, the others
    /// as unknown.
    pub fn unsettled(&self, now: u32, mut visit: impl FnMut(Judgement, bool, u64)) {
        for (key, state) in self.keys.iter().zip(&self.states) {
            let (bytes, _, judgement) = state.pending();
            if key.load(Ordering::Relaxed) != 0 && bytes > 0 {
                visit(judgement, state.is_late(now), bytes);
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

    /// A table with what is learnt.
    struct Table {
        files: Files,
        tally: Tally,
        relatives: Relatives,
    }

    impl Table {
        fn new() -> Table {
            Table { files: Files::new(0), tally: Tally::default(), relatives: Relatives::new(0) }
        }
        fn lessons(&self, tick: u32) -> Lessons<'_> {
            Lessons { parameters: &P, tally: &self.tally, relatives: &self.relatives, tick }
        }
        fn enter(&self, ino: u64, generation: u32, tick: u32) -> &FileState {
            self.files.enter(Ino(ino), generation, 0, tick, &self.tally)
        }
        /// A file made in a directory of the root.
        fn make(&self, ino: u64, directory: u64) {
            let key = self.relatives.file_made((Ino(directory), 1), Ino(1), 0);
            self.enter(ino, 0, 1).note_made(key, self.lessons(1));
        }
        fn write(&self, ino: u64, blocks: u32, tick: u32) {
            let bytes = u64::from(blocks) * 4096;
            let entry = Entry { bytes, counter: 0 };
            self.enter(ino, 0, tick).note_write((bytes, blocks), (entry, 1), false, self.lessons(tick));
        }
        fn fsync(&self, ino: u64, tick: u32) {
            self.files.note_fsync(Ino(ino), self.lessons(tick));
        }
        fn close(&self, ino: u64, tick: u32) {
            self.files.note_close(Ino(ino), self.lessons(tick));
        }
    }

    #[test]
    fn a_new_generation_begins_anew_and_the_oldest_file_of_a_set_goes() {
        let table = Table::new();
        let files = &table.files;
        table.write(7, 2000, 1);
        assert!(!files.get(Ino(7), 0).is_some_and(|state| state.synchronicity().is_synchronous()));
        assert!(table.enter(7, 2, 1).synchronicity().is_synchronous());
        assert!(files.get(Ino(7), 0).is_none());
        // Many more files than places: none is lost that was used last.
        for ino in 100..100 + 64 * files.places() as u64 {
            table.enter(ino, 0, ino as u32);
            assert!(files.get(Ino(ino), 0).is_some());
        }
        assert!(files.get(Ino(7), 2).is_none());
    }

    #[test]
    fn what_was_predicted_is_compared_with_what_happened() {
        let table = Table::new();
        for _ in 0..3 {
            table.write(1, 2, 1);
            table.fsync(1, 1);
        }
        (0..4).for_each(|_| table.write(2, 1024, 1));
        let report = table.tally.report();
        assert_eq!((report.unjudged.synced_bytes, report.synchronous.synced_bytes), (2 * 4096, 4 * 4096));
        assert_eq!((report.unjudged.unsynced_bytes, report.asynchronous.unsynced_bytes), (4 << 20, 12 << 20));
        table.write(2, 10, 5);
        let open = |now| {
            let mut open = Vec::new();
            table.files.unsettled(now, |judgement, late, bytes| open.push((judgement, late, bytes)));
            open
        };
        assert_eq!(open(6), [(Judgement::Asynchronous, false, 40960)]);
        assert_eq!(open(5 + WRITE_BACK_TICKS), [(Judgement::Asynchronous, true, 40960)]);
    }

    #[test]
    fn an_fsync_after_write_back_would_have_written_comes_too_late() {
        let table = Table::new();
        table.write(1, 1, 10);
        table.fsync(1, 10 + WRITE_BACK_TICKS - 1);
        table.write(1, 2, 10 + WRITE_BACK_TICKS);
        table.fsync(1, 10 + 2 * WRITE_BACK_TICKS);
        // A late write finds out too, and begins anew.
        table.write(2, 4, 10);
        table.write(2, 8, 10 + WRITE_BACK_TICKS);
        table.fsync(2, 11 + WRITE_BACK_TICKS);
        let report = table.tally.report();
        assert_eq!((report.unjudged.synced_bytes, report.unjudged.unsynced_bytes), (9 * 4096, 4 * 4096));
        assert_eq!((report.synchronous.synced_bytes, report.synchronous.unsynced_bytes), (0, 2 * 4096));
    }

    #[test]
    fn what_files_of_a_directory_were_is_expected_of_the_next() {
        let table = Table::new();
        for ino in 1000..1010 {
            table.make(ino, 20);
            table.write(ino, 2, 1);
            table.close(ino, 1);
            table.make(ino + 1000, 30);
            table.write(ino + 1000, 3, 1);
            table.fsync(ino + 1000, 1);
            table.close(ino + 1000, 1);
        }
        let mut open = 0;
        table.files.unsettled(1, |judgement, _, bytes| {
            open += bytes * u64::from(judgement == Judgement::ExpectedAsynchronous);
        });
        assert_eq!(open, 9 * 2 * 4096, "all but the first");
        let report = table.tally.report();
        assert_eq!(report.expected_asynchronous.synced_bytes, 0);
        // A file with a history keeps its own.
        table.make(5, 20);
        table.write(5, 1, 1);
        table.fsync(5, 1);
        table.write(5, 1, 1);
        table.fsync(5, 1);
        let report = table.tally.report();
        assert_eq!(
            (report.expected_asynchronous.synced_bytes, report.synchronous.synced_bytes),
            (4096, 4096)
        );
    }
}
