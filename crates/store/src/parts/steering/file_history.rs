//! The file histories: the predictors' state of each (inode, generation) that was written or read lately.
//!
//! A fixed table in sets of four; a new file takes the place of the file of its set that was used longest
//! ago. A file takes a line of the processor's cache, at a place of its own while there are no more inodes
//! than places, so a request touches a single line. The table neither allocates nor locks: a writer holds the
//! file's lock exclusively; readers and fsync may lose each other's counts, which costs only accuracy of a
//! prediction. Everything is volatile.

use crate::parts::steering::directory_history::{DirectoryHistories, Key};
use crate::parts::steering::prediction_score::{Outcome, PredictionScore};
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_media::prefetch;
use terrace_placement::Parameters;
use terrace_placement::read_frequency::ReadFrequency;
use terrace_placement::synchronicity::{Judgement, Synchronicity, WRITE_BACK_TICKS};
use terrace_placement::write_size::Entry;
use terrace_runtime::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Histories that share a set.
const WAYS: usize = 4;

/// Least and most sets of a table.
const LEAST_SETS: u64 = 64;

const MOST_SETS: u64 = 1 << 14;

/// Bits of the bytes in [`FileHistory::pending`]; the blocks are above.
const PENDING_BYTES: u32 = 40;

/// Most blocks in [`FileHistory::pending`]. Their bytes fit into `PENDING_BYTES` bits.
const MOST_PENDING: u32 = (1 << (64 - PENDING_BYTES)) - 1;

const _: () = assert!(
    (MOST_PENDING as u64) * BLOCK_SIZE < 1 << PENDING_BYTES,
    "the bytes of that many blocks fit into their bits"
);

/// The history of a file: 64 bytes. All accesses are relaxed: no word depends on another.
#[derive(Default)]
#[repr(align(64))]
pub struct FileHistory {
    /// Inode and generation; 0 is an empty place.
    key: AtomicU64,
    /// [`Synchronicity`], packed.
    sync: AtomicU64,
    /// Bytes read since the last write.
    read: AtomicU64,
    /// The last run: [`FileHistory::run`], packed.
    run: AtomicU64,
    /// Bytes and blocks written whose outcome, synced or not, is still open.
    pending: AtomicU64,
    /// Size in bytes when last used.
    size: AtomicU64,
    /// Tick of the first write of [`Self::pending`].
    since: AtomicU32,
    /// [`Key`] of its directory history.
    directories: AtomicU32,
    /// Tick of the last use.
    used: AtomicU32,
    /// Not zero once a write was long enough to leave an entry (`write_entries.rs`).
    long: AtomicU32,
}

/// Bits of the blocks in [`FileHistory::run`]; the counter is above them, the block after the run above that.
const RUN_BLOCKS: u32 = 24;

const RUN_END: u32 = 32;

const _: () = assert!(RUN_BLOCKS + u8::BITS == RUN_END, "the counter lies between blocks and end");

/// The tables and parameters that a file history needs to learn from an event.
#[derive(Clone, Copy)]
pub struct Lessons<'a> {
    /// The predictors' parameters.
    pub parameters: &'a Parameters,
    /// Predictions beside outcomes.
    pub score: &'a PredictionScore,
    /// The directory histories.
    pub directories: &'a DirectoryHistories,
    /// Now.
    pub tick: u32,
}

impl FileHistory {
    #[inline]
    fn synchronicity(&self) -> Synchronicity {
        Synchronicity::unpack(self.sync.load(Ordering::Relaxed))
    }
    /// The prediction for the next write. A file without a history of its own takes that of its directory
    /// history, unless earlier writes with an open outcome were judged already.
    pub fn judged(&self, directories: &DirectoryHistories) -> Synchronicity {
        let mut state = self.synchronicity();
        if self.pending.load(Ordering::Relaxed) == 0 {
            self.ask(&mut state, directories);
        }
        state
    }
    /// Bytes read since the last write.
    pub fn reads(&self) -> ReadFrequency {
        ReadFrequency { bytes: self.read.load(Ordering::Relaxed) }
    }
    /// The last run: its entry, and the block after it.
    #[inline]
    pub fn run(&self) -> (Entry, u64) {
        let word = self.run.load(Ordering::Relaxed);
        let blocks = word & ((1 << RUN_BLOCKS) - 1);
        (Entry { bytes: blocks * BLOCK_SIZE, counter: (word >> RUN_BLOCKS) as u8 }, word >> RUN_END)
    }

    #[inline]
    fn set_run(&self, entry: Entry, end: u64) {
        let blocks = (entry.bytes / BLOCK_SIZE).min((1 << RUN_BLOCKS) - 1);
        // Behind the last block of the largest file nothing continues.
        let end = end.min(u64::from(u32::MAX));
        let word = end << RUN_END | u64::from(entry.counter) << RUN_BLOCKS | blocks;
        self.run.store(word, Ordering::Relaxed);
    }

    /// Whether a write was long enough to leave an entry.
    #[inline]
    pub(crate) fn has_entries(&self) -> bool {
        self.long.load(Ordering::Relaxed) != 0
    }

    /// From now on.
    pub(crate) fn set_has_entries(&self) {
        self.long.store(1, Ordering::Relaxed);
    }

    /// Forgets the file; the place is empty.
    fn clear(&self) {
        for word in [&self.key, &self.sync, &self.read, &self.run, &self.pending, &self.size] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.since, &self.directories, &self.used, &self.long] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Inode number.
    #[inline]
    fn ino(&self) -> u64 {
        self.key.load(Ordering::Relaxed) >> 32
    }

    #[inline]
    fn set_used(&self, size: u64, tick: u32) -> &FileHistory {
        self.size.store(size, Ordering::Relaxed);
        self.used.store(tick, Ordering::Relaxed);
        self
    }

    /// The bytes and blocks with an open outcome, synced or not, and their prediction.
    #[inline]
    fn pending(&self) -> (u64, u32, Judgement) {
        let word = self.pending.load(Ordering::Relaxed);
        (word & ((1 << PENDING_BYTES) - 1), (word >> PENDING_BYTES) as u32, self.synchronicity().judgement)
    }

    /// Whether write-back would have written the bytes with an open outcome by now.
    #[inline]
    fn is_late(&self, tick: u32) -> bool {
        tick.saturating_sub(self.since.load(Ordering::Relaxed)) >= WRITE_BACK_TICKS
    }

    /// The outcome of the file is known: its directory history is told, unless it was told the same last.
    #[inline]
    fn tell(&self, state: &mut Synchronicity, synced: bool, directories: &DirectoryHistories) {
        if state.tells(synced) {
            directories.tell(Key(self.directories.load(Ordering::Relaxed)), synced);
        }
    }

    /// Takes the prediction of the directory history, if the file has no history of its own.
    #[inline]
    fn ask(&self, state: &mut Synchronicity, directories: &DirectoryHistories) {
        if !state.judgement.is_own() {
            state.expect(directories.expects(Key(self.directories.load(Ordering::Relaxed))));
        }
    }

    /// The outcome of the pending judgement is known: tells the score.
    #[inline]
    fn settle(&self, outcome: Outcome, score: &PredictionScore) {
        let (bytes, _, judgement) = self.pending();
        if bytes > 0 {
            score.add(Ino(self.ino()), judgement, outcome, bytes);
            self.pending.store(0, Ordering::Relaxed);
        }
    }

    /// A write of `bytes` in `blocks` that leaves `entry` and ends before block `end`.
    #[inline]
    pub fn note_write(
        &self,
        (bytes, blocks): (u64, u32),
        (entry, end): (Entry, u64),
        durable: bool,
        lessons: Lessons<'_>,
    ) {
        self.set_run(entry, end);
        self.read.store(0, Ordering::Relaxed);
        let pending = self.pending.load(Ordering::Relaxed);
        let mut state = self.synchronicity();
        let waits = pending > 0;
        let known = if waits { !self.is_late(lessons.tick) } else { state.judgement.is_own() };
        let most = u64::from(lessons.parameters.sync_blocks.min(MOST_PENDING));
        let waiting = (pending >> PENDING_BYTES) + u64::from(blocks);
        state.blocks = state.blocks.saturating_add(blocks);
        let stays = state.judgement == Judgement::Asynchronous || u64::from(state.blocks) < most;
        if known && stays && waiting < most && !durable {
            // The usual case: the prediction stays, and the counts fit into their bits.
            if !waits {
                self.since.store(lessons.tick, Ordering::Relaxed);
            }
            self.pending.store(pending + (bytes | u64::from(blocks) << PENDING_BYTES), Ordering::Relaxed);
            self.sync.store(state.pack(), Ordering::Relaxed);
        } else {
            self.judge_write((bytes, blocks), durable, lessons);
        }
    }

    /// A write with which the judgement of the file may change.
    fn judge_write(&self, (bytes, blocks): (u64, u32), durable: bool, lessons: Lessons<'_>) {
        let mut state = self.synchronicity();
        if durable {
            // An O_SYNC write needs no prediction, and syncs the bytes written before.
            self.settle_synced(lessons);
            state.wrote_durably();
        } else {
            self.note_unsynced((bytes, blocks), &mut state, lessons);
        }
        self.sync.store(state.pack(), Ordering::Relaxed);
    }

    /// A write without O_SYNC. The judgement changes only while no bytes have an open outcome, so that each
    /// byte is counted under the judgement that was made of it.
    fn note_unsynced(&self, (bytes, blocks): (u64, u32), state: &mut Synchronicity, lessons: Lessons<'_>) {
        let Lessons { parameters, score, directories, tick } = lessons;
        let (mut before, mut count, _) = self.pending();
        if before > 0 && self.is_late(tick) {
            self.settle(Outcome::NotSynced, score);
            self.tell(state, false, directories);
            (before, count) = (0, 0);
        }
        if before == 0 {
            self.since.store(tick, Ordering::Relaxed);
            self.ask(state, directories);
            self.sync.store(state.pack(), Ordering::Relaxed);
        }
        let count = count.saturating_add(blocks).min(MOST_PENDING);
        let bytes = (before + bytes).min((1 << PENDING_BYTES) - 1);
        self.pending.store(bytes | u64::from(count) << PENDING_BYTES, Ordering::Relaxed);
        let was = state.judgement;
        state.wrote(blocks, parameters);
        if count >= parameters.sync_blocks || state.judgement != was {
            self.settle(Outcome::NotSynced, score);
            self.tell(state, false, directories);
        }
    }

    /// An fsync decides the outcome of the open bytes: synced, if it is not too late.
    #[inline]
    fn settle_synced(&self, lessons: Lessons<'_>) {
        let late = self.is_late(lessons.tick);
        self.settle(if late { Outcome::NotSynced } else { Outcome::Synced }, lessons.score);
    }

    #[inline]
    fn note_fsync(&self, lessons: Lessons<'_>) {
        let mut state = self.synchronicity();
        self.settle_synced(lessons);
        if state.blocks > 0 {
            state.synced(lessons.parameters);
            let short = state.is_synchronous();
            self.tell(&mut state, short, lessons.directories);
            self.sync.store(state.pack(), Ordering::Relaxed);
        }
    }

    /// The last close: bytes that are not synced by now count as not synced, which the directory history learns. The next
    /// write has no open outcome before it, so it asks the directory history anew.
    fn note_close(&self, lessons: Lessons<'_>) {
        if self.pending().0 > 0 {
            self.settle(Outcome::NotSynced, lessons.score);
            let mut state = self.synchronicity();
            self.tell(&mut state, false, lessons.directories);
            self.sync.store(state.pack(), Ordering::Relaxed);
        }
    }

    /// The file is new, with the directory history of key `directories`.
    pub fn note_made(&self, directories: Key) {
        self.directories.store(directories.0, Ordering::Relaxed);
    }

    #[inline]
    /// Notes that bytes were read.
    pub fn note_read(&self, bytes: u64) {
        let mut state = self.reads();
        state.read(bytes);
        self.read.store(state.bytes, Ordering::Relaxed);
    }
}

/// The table.
pub struct FileHistories {
    states: Vec<FileHistory>,
}

#[inline]
fn key(ino: Ino, generation: u32) -> u64 {
    ino.0 << 32 | u64::from(generation)
}

impl FileHistories {
    /// A table for a PM of `pm_blocks` blocks. It has more files than PM holds, because a file that loses its
    /// place loses its predictions before its next use.
    pub fn new(pm_blocks: u64) -> FileHistories {
        let sets = pm_blocks.clamp(LEAST_SETS, MOST_SETS).next_power_of_two();
        FileHistories { states: (0..sets as usize * WAYS).map(|_| FileHistory::default()).collect() }
    }

    /// Where a file is looked for first. Inode numbers are handed out in order: neighbours do not meet.
    #[inline]
    fn own_place(&self, ino: Ino) -> &FileHistory {
        &self.states[ino.0 as usize & (self.states.len() - 1)]
    }

    /// The places that a file may be in.
    #[inline]
    fn set(&self, ino: Ino) -> &[FileHistory] {
        let first = ino.0 as usize & (self.states.len() - 1) & !(WAYS - 1);
        &self.states[first..first + WAYS]
    }

    /// A file's state, if it is there.
    #[inline]
    pub fn get(&self, ino: Ino, generation: u32) -> Option<&FileHistory> {
        self.find(ino, |found| found == key(ino, generation))
    }

    /// An inode's state of any generation: an inode has a single state at a time.
    #[inline]
    fn of(&self, ino: Ino) -> Option<&FileHistory> {
        self.find(ino, |found| found >> 32 == ino.0)
    }

    #[inline]
    fn find(&self, ino: Ino, is: impl Fn(u64) -> bool) -> Option<&FileHistory> {
        let is = |state: &&FileHistory| is(state.key.load(Ordering::Relaxed));
        Some(self.own_place(ino)).filter(&is).or_else(|| self.set(ino).iter().find(is))
    }

    /// The tick of a file's last use, if that is remembered.
    pub fn last_used(&self, ino: Ino, generation: u32) -> Option<u32> {
        self.get(ino, generation).map(|state| state.used.load(Ordering::Relaxed))
    }

    /// A file's state, made when it is not there, used at `tick` with `size` bytes.
    #[inline]
    pub(crate) fn enter(
        &self,
        ino: Ino,
        generation: u32,
        size: u64,
        tick: u32,
        score: &PredictionScore,
    ) -> &FileHistory {
        let own = self.own_place(ino);
        let state = if own.key.load(Ordering::Relaxed) == key(ino, generation) {
            own
        } else {
            self.enter_elsewhere(ino, generation, score)
        };
        state.set_used(size, tick)
    }

    #[cold]
    fn enter_elsewhere(&self, ino: Ino, generation: u32, score: &PredictionScore) -> &FileHistory {
        let own = self.own_place(ino);
        // Its own place is taken before any other and never becomes empty again. An inode has one state: its earlier
        // life gives way to it.
        let state = if own.key.load(Ordering::Relaxed) == 0 {
            own
        } else if let Some(found) = self.of(ino) {
            found
        } else {
            let used = |state: &&FileHistory| match state.key.load(Ordering::Relaxed) {
                0 => 0,
                _ => state.used.load(Ordering::Relaxed).max(1),
            };
            self.set(ino).iter().min_by_key(used).unwrap_or(own)
        };
        if state.key.load(Ordering::Relaxed) != key(ino, generation) {
            state.settle(Outcome::NotSynced, score);
            state.clear();
            state.key.store(key(ino, generation), Ordering::Relaxed);
        }
        state
    }

    /// A file is about to be used: its line is loaded while the request does other things.
    #[inline]
    pub fn expect(&self, ino: Ino) {
        prefetch(self.own_place(ino));
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

    /// Bytes not yet in the score: those for which an fsync would come too late count as not synced, the others
    /// as unknown.
    pub fn unsettled(&self, now: u32, mut visit: impl FnMut(Judgement, bool, u64)) {
        for state in &self.states {
            let (bytes, _, judgement) = state.pending();
            if state.key.load(Ordering::Relaxed) != 0 && bytes > 0 {
                visit(judgement, state.is_late(now), bytes);
            }
        }
    }

    /// The number of places of the table, for walks over it in pieces.
    pub fn places(&self) -> usize {
        self.states.len()
    }

    /// The file at a place, if it is read-dominated: if `times` its size was read.
    pub fn read_dominated_at(&self, place: usize, times: u32) -> Option<(Ino, u32)> {
        let state = self.states.get(place)?;
        let key = state.key.load(Ordering::Relaxed);
        let file = (Ino(key >> 32), key as u32);
        (key != 0 && state.reads().is_dominated(state.size.load(Ordering::Relaxed), times)).then_some(file)
    }
}

// The scheduler's atomics (terrace_runtime::sync) are larger.
const _: () = assert!(size_of::<FileHistory>() == 64 || size_of::<AtomicU64>() != 8);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const P: Parameters = Parameters::PUBLISHED;

    /// A table with what is learnt.
    struct Table {
        files: FileHistories,
        score: PredictionScore,
        directories: DirectoryHistories,
    }

    impl Table {
        fn new() -> Table {
            Table::of(0)
        }
        fn of(pm_blocks: u64) -> Table {
            let (files, directories) = (FileHistories::new(pm_blocks), DirectoryHistories::new(pm_blocks));
            Table { files, score: PredictionScore::default(), directories }
        }
        fn lessons(&self, tick: u32) -> Lessons<'_> {
            Lessons { parameters: &P, score: &self.score, directories: &self.directories, tick }
        }
        fn enter(&self, ino: u64, generation: u32, tick: u32) -> &FileHistory {
            self.files.enter(Ino(ino), generation, 0, tick, &self.score)
        }
        /// A file made in a directory of the root.
        fn make(&self, ino: u64, directory: u64) {
            let key = self.directories.file_made((Ino(directory), 1), Ino(1), 0);
            self.enter(ino, 0, 1).note_made(key);
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
        assert!(!files.get(Ino(7), 0).is_some_and(|state| state.judged(&table.directories).is_synchronous()));
        assert!(table.enter(7, 2, 1).judged(&table.directories).is_synchronous());
        assert!(files.get(Ino(7), 0).is_none());
        // Many more files than places: the file used last always has its place.
        for ino in 100..100 + 64 * files.places() as u64 {
            table.enter(ino, 0, ino as u32);
            assert!(files.get(Ino(ino), 0).is_some());
        }
        assert!(files.get(Ino(7), 2).is_none());
    }

    #[test]
    fn the_tally_counts_bytes_by_prediction_and_outcome() {
        let table = Table::new();
        for _ in 0..3 {
            table.write(1, 2, 1);
            table.fsync(1, 1);
        }
        (0..4).for_each(|_| table.write(2, 1024, 1));
        let report = table.score.report();
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
        let report = table.score.report();
        assert_eq!((report.unjudged.synced_bytes, report.unjudged.unsynced_bytes), (9 * 4096, 4 * 4096));
        assert_eq!((report.synchronous.synced_bytes, report.synchronous.unsynced_bytes), (0, 2 * 4096));
    }

    #[test]
    fn a_new_file_is_expected_to_end_like_earlier_files_of_its_directory() {
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
        table.files.unsettled(1, |_, _, bytes| open += bytes);
        assert_eq!(open, 0, "a close decides");
        let expected = table.score.report().expected_asynchronous;
        assert_eq!((expected.synced_bytes, expected.unsynced_bytes), (0, 9 * 2 * 4096), "all but the first");
        // A file with a history keeps its own.
        table.make(5, 20);
        table.write(5, 1, 1);
        table.fsync(5, 1);
        table.write(5, 1, 1);
        table.fsync(5, 1);
        let report = table.score.report();
        assert_eq!(
            (report.expected_asynchronous.synced_bytes, report.synchronous.synced_bytes),
            (4096, 4096)
        );
    }

    /// The recorded calls of the mix of row tpfs-predict, for some files of each program: tick, number of the
    /// file, then `M`ade with its path, `W`ritten with blocks and bytes, `S`ynced, or `C`losed for the last
    /// time. Mails of the first seconds are the initial content of the mail store.
    const MIX: &str = include_str!("../../../tests/recorded/mix.txt");

    /// The inode of a directory, made when it is not there.
    fn directory<'a>(table: &Table, made: &mut HashMap<&'a str, Ino>, path: &'a str) -> Ino {
        if path.is_empty() {
            return Ino(1);
        }
        if let Some(ino) = made.get(path) {
            return *ino;
        }
        let above = path.rsplit_once('/').map_or("", |(above, _)| above);
        let parent = directory(table, made, above);
        let beyond = directory(table, made, above.rsplit_once('/').map_or("", |(beyond, _)| beyond));
        let ino = Ino(100_000 + made.len() as u64);
        table.directories.directory_made(ino, parent, beyond);
        made.insert(path, ino);
        ino
    }

    /// The confusion matrix of the mix, (synced, unsynced) bytes by judgement, all counted, without what comes before
    /// `begin`.
    fn replay_mix(begin: u32) -> [(u64, u64); Judgement::COUNT] {
        let (table, mut made) = (Table::of(1 << 16), HashMap::new());
        let matrix = |now| {
            let mut report = table.score.report();
            table.files.unsettled(now, |judgement, late, bytes| {
                report.row_mut(judgement).unsynced_bytes += u64::from(late) * bytes;
            });
            Judgement::ALL.map(|judgement| {
                let row = report.row_mut(judgement);
                (row.synced_bytes, row.unsynced_bytes)
            })
        };
        let (mut before, mut last) = ([(0, 0); Judgement::COUNT], 0);
        for line in MIX.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u32>().unwrap();
            let (tick, ino) = (number(0), u64::from(number(1)) + 10);
            if last < begin && tick >= begin {
                before = matrix(tick);
            }
            last = tick;
            match words[2] {
                "M" => {
                    let (path, name) = words[3].rsplit_once('/').unwrap_or(("", words[3]));
                    let parent = directory(&table, &mut made, path);
                    let above =
                        directory(&table, &mut made, path.rsplit_once('/').map_or("", |(above, _)| above));
                    let family = terrace_placement::prior::family(name.as_bytes());
                    let directories = table.directories.file_made((parent, 1), above, family);
                    table.enter(ino, 0, tick).note_made(directories);
                }
                "W" => {
                    let (blocks, bytes) = (number(3), u64::from(number(4)));
                    let run = (Entry { bytes, counter: 0 }, 1);
                    table.enter(ino, 0, tick).note_write((bytes, blocks), run, false, table.lessons(tick));
                }
                "S" => table.fsync(ino, tick),
                _ => table.close(ino, tick),
            }
        }
        let after = matrix(last + WRITE_BACK_TICKS);
        std::array::from_fn(|at| (after[at].0 - before[at].0, after[at].1 - before[at].1))
    }

    #[test]
    fn predictors_recall_synced_and_unsynced_bytes_of_a_recorded_mix() {
        // The mail store is older than write-back lets dirty pages become when the mix begins.
        let rows = replay_mix(WRITE_BACK_TICKS + 700);
        let sum = |of: fn(&(u64, u64)) -> u64, is: &dyn Fn(Judgement) -> bool| -> u64 {
            Judgement::ALL
                .iter()
                .zip(&rows)
                .filter(|(judgement, _)| is(**judgement))
                .map(|(_, row)| of(row))
                .sum()
        };
        let (synced, unsynced) = (sum(|row| row.0, &|_| true), sum(|row| row.1, &|_| true));
        let right_synced = sum(|row| row.0, &|judgement| judgement.is_synchronous()) * 1000 / synced;
        let right_unsynced = sum(|row| row.1, &|judgement| !judgement.is_synchronous()) * 1000 / unsynced;
        assert!(right_synced >= 950 && right_unsynced >= 950, "{right_synced} {right_unsynced} {rows:?}");
        // As the publications have it, a file without a history is synchronous.
        let alone = sum(|row| row.1, &|judgement| judgement == Judgement::Asynchronous) * 1000 / unsynced;
        assert!(alone < 950, "{alone}");
    }
}
