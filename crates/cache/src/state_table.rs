//! States of blocks between syncs, of the files of a shard of the index.
//!
//! The table takes about [`STATE_BYTES`] for each state at most, however the states lie among files. Invariant: a state has writes
//! since the last sync exactly while it is in the chain of its file, and the chain's head has its generation. So an earlier file
//! of an inode leaves nothing in a chain, and at most idle states in the table.

use crate::file_choices::FileChoices;
use crate::header::{Lines, PageKey};
use crate::sync_state::{Appended, AppendedLines, Judged, LineCosts, SyncAges, SyncState, WrittenLines};
use indexmap::IndexMap;
use rustc_hash::{FxBuildHasher, FxHashMap};
use terrace_format::{FileBlock, Ino};

/// Most bytes of a state: itself, its places in the tables, and the head of a chain of its own.
pub const STATE_BYTES: u64 = 144;

/// Most files of a shard with sums of appends: beyond that all sums go, and the files are judged by their next syncs.
const MOST_APPENDED: usize = 256;

/// States that are compared for the earliest last write.
const SAMPLES: usize = 8;

/// A table with less room is not worth a smaller one.
const LITTLE_ROOM: usize = 64;

/// No block.
const NONE: u32 = u32::MAX;

/// Inode and block: numbers of both have 32 bits.
type Key = (u32, u32);

/// The state of a block, in the chain of its file.
struct Entry {
    generation: u32,
    /// Blocks of the file with writes since its last sync.
    next: u32,
    previous: u32,
    state: SyncState,
}

/// The chain of a file: blocks with writes since its last sync.
#[derive(Clone, Copy)]
struct Chain {
    generation: u32,
    first: u32,
    /// Whether the file was closed for the last time since it was written.
    is_closed: bool,
}

/// The states.
#[derive(Default)]
pub(crate) struct StateTable {
    states: IndexMap<Key, Entry, FxBuildHasher>,
    chains: FxHashMap<u32, Chain>,
    /// Direct writes behind the ends of files, to blocks without a state.
    appended: FxHashMap<u32, Appended>,
    /// The place of the first sample when states are dropped.
    hand: usize,
}

fn key_of(key: PageKey) -> Key {
    (key.ino.0 as u32, key.block.0 as u32)
}

impl StateTable {
    /// The number of states.
    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    /// Files with writes since their last syncs, in blocks with a state.
    pub(crate) fn chains(&self) -> usize {
        self.chains.len()
    }

    /// Files with sums of appends, for tests.
    #[cfg(test)]
    pub(crate) fn appended(&self) -> usize {
        self.appended.len()
    }

    /// Bytes of the tables of states, for tests.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        let buckets = |capacity: usize| (capacity * 8 / 7).next_power_of_two();
        let states =
            self.states.capacity() * (size_of::<(Key, Entry)>() + 8) + buckets(self.states.len()) * 9;
        states + buckets(self.chains.capacity()) * (size_of::<(u32, Chain)>() + 1)
    }

    /// The state of a block.
    pub(crate) fn state(&self, key: PageKey) -> Option<&SyncState> {
        let entry = self.states.get(&key_of(key)).filter(|entry| entry.generation == key.generation)?;
        Some(&entry.state)
    }

    /// Blocks of a file that the last sync made lazy.
    pub(crate) fn count_lazy(&self, ino: Ino, generation: u32) -> u64 {
        let is_lazy = |(key, entry): &(&Key, &Entry)| {
            key.0 == ino.0 as u32 && entry.generation == generation && entry.state.is_lazy
        };
        self.states.iter().filter(is_lazy).count() as u64
    }

    /// Notes a write of lines of blocks; gives the number of new states.
    pub(crate) fn note_lines(
        &mut self,
        first: PageKey,
        written: impl Iterator<Item = (FileBlock, WrittenLines)>,
        (is_direct, now_ns): (bool, u64),
        choices: &FileChoices,
    ) -> u64 {
        let before = self.states.len();
        if let Some(chain) = self.chains.get_mut(&(first.ino.0 as u32)) {
            chain.is_closed = false;
        }
        for (block, write) in written {
            let key = PageKey { block, ..first };
            if is_direct && write.is_append && self.state(key).is_none() {
                self.note_append(first, AppendedLines::of(block, write), now_ns, choices);
                continue;
            }
            let state = self.state_since_sync(key, choices);
            state.note(write, is_direct, now_ns);
        }
        self.states.len().saturating_sub(before) as u64
    }

    /// The state of a block, which is in the chain of its file from now on.
    fn state_since_sync(&mut self, key: PageKey, choices: &FileChoices) -> &mut SyncState {
        let (ino, block) = key_of(key);
        let found = self.states.get(&(ino, block)).map(|entry| (entry.generation, entry.state.written > 0));
        if found.is_none_or(|(generation, is_chained)| generation != key.generation || !is_chained) {
            if self.chains.get(&ino).is_some_and(|chain| chain.generation != key.generation) {
                self.drop_chain(ino, choices);
            }
            if found.is_none_or(|(generation, _)| generation != key.generation) {
                self.drop_state((ino, block), choices);
                self.make_room();
                let entry = Entry {
                    generation: key.generation,
                    next: NONE,
                    previous: NONE,
                    state: SyncState::default(),
                };
                self.states.insert((ino, block), entry);
                choices.count_state(key.ino, true);
            }
            self.chain((ino, block), key.generation);
        }
        &mut self.states[&(ino, block)].state
    }

    /// Grows by a quarter, not to the double.
    fn make_room(&mut self) {
        if self.states.len() == self.states.capacity() {
            self.states.reserve_exact(self.states.len() / 4 + 4);
        }
    }

    /// Notes a direct write behind the end of the file of `key`.
    pub(crate) fn note_append(
        &mut self,
        key: PageKey,
        write: AppendedLines,
        now_ns: u64,
        choices: &FileChoices,
    ) {
        let ino = key.ino.0 as u32;
        if self.appended.len() >= MOST_APPENDED && !self.appended.contains_key(&ino) {
            self.appended.drain().for_each(|(ino, _)| choices.count_appended(Ino(ino.into()), false));
        }
        let appended = self.appended.entry(ino).or_insert_with(|| {
            choices.count_appended(key.ino, true);
            Appended::new(key.generation)
        });
        if appended.generation != key.generation {
            *appended = Appended::new(key.generation);
        }
        appended.note(write, now_ns);
    }

    /// Takes the sums of a file's appends out.
    fn take_appended(&mut self, ino: Ino, choices: &FileChoices) -> Option<Appended> {
        let appended = self.appended.remove(&(ino.0 as u32))?;
        choices.count_appended(ino, false);
        Some(appended)
    }

    /// Puts a state at the begin of the chain of its file.
    fn chain(&mut self, (ino, block): Key, generation: u32) {
        let chain = self.chains.entry(ino).or_insert(Chain { generation, first: NONE, is_closed: false });
        assert_eq!(chain.generation, generation, "the chain of an earlier file of inode {ino}");
        let next = std::mem::replace(&mut chain.first, block);
        if let Some(entry) = self.states.get_mut(&(ino, next)) {
            entry.previous = block;
        }
        let entry = &mut self.states[&(ino, block)];
        (entry.previous, entry.next) = (NONE, next);
    }

    /// Takes a state out of the chain of its file.
    fn unchain(&mut self, (ino, block): Key) {
        let Entry { next, previous, .. } = self.states[&(ino, block)];
        if let Some(entry) = self.states.get_mut(&(ino, next)) {
            entry.previous = previous;
        }
        match self.states.get_mut(&(ino, previous)) {
            Some(entry) => entry.next = next,
            None if next == NONE => {
                self.chains.remove(&ino);
            }
            None => {
                if let Some(chain) = self.chains.get_mut(&ino) {
                    assert_eq!(chain.first, block, "the first block of the chain of inode {ino}");
                    chain.first = next;
                }
            }
        }
    }

    /// Drops a state, if there is one.
    fn drop_state(&mut self, key: Key, choices: &FileChoices) {
        let Some(entry) = self.states.get(&key) else { return };
        if entry.state.written > 0 {
            self.unchain(key);
        }
        if let Some(entry) = self.states.swap_remove(&key) {
            let ino = Ino(key.0.into());
            choices.count_state(ino, false);
            choices.count_lazy(ino, entry.state.is_lazy, false);
        }
        if self.states.capacity() > 4 * self.states.len() + LITTLE_ROOM {
            self.states.shrink_to(2 * self.states.len());
        }
        if self.chains.capacity() > 4 * self.chains.len() + LITTLE_ROOM {
            self.chains.shrink_to(2 * self.chains.len());
        }
    }

    /// Drops the states in the chain of an earlier file of the inode.
    fn drop_chain(&mut self, ino: u32, choices: &FileChoices) {
        while let Some(chain) = self.chains.get(&ino) {
            self.drop_state((ino, chain.first), choices);
        }
    }

    /// Blocks of a file that were written since its last sync, at most so many.
    pub(crate) fn since_sync(&self, ino: Ino, generation: u32, most: usize) -> Vec<FileBlock> {
        let ino = ino.0 as u32;
        let chain = self.chains.get(&ino).filter(|chain| chain.generation == generation);
        let first = chain.and_then(|chain| (chain.first != NONE).then_some(chain.first));
        let next = |block: &u32| Some(self.states[&(ino, *block)].next).filter(|next| *next != NONE);
        std::iter::successors(first, next).take(most).map(|block| FileBlock(block.into())).collect()
    }

    /// Judges the blocks of a sync, by the dirty lines of each. Eager blocks lose their states: flags of PM blocks keep the
    /// choice.
    pub(crate) fn judge(
        &mut self,
        (ino, generation): (Ino, u32),
        (blocks, dirty): (&[FileBlock], &[Lines]),
        costs: (LineCosts, SyncAges, u64),
        (judged, choices): (&mut Judged, &FileChoices),
    ) {
        let appended = self.take_appended(ino, choices);
        if let Some(appended) = appended.filter(|sums| sums.generation == generation) {
            appended.judge(costs, &mut judged.verdicts);
        }
        for (index, block) in blocks.iter().enumerate() {
            let key = key_of(PageKey { ino, generation, block: *block });
            let entry = self.states.get(&key).filter(|entry| entry.generation == generation);
            // Another sync of the file may have judged it meanwhile.
            if entry.is_none_or(|entry| entry.state.written == 0) {
                continue;
            }
            self.unchain(key);
            let state = &mut self.states[&key].state;
            let was_lazy = state.is_lazy;
            let dirty = dirty.get(index).copied().unwrap_or_default();
            let is_eager = state.judge(dirty, costs, &mut judged.verdicts);
            choices.count_lazy(ino, was_lazy, !is_eager);
            if is_eager {
                self.drop_state(key, choices);
            }
            if is_eager || !was_lazy {
                judged.new.push((*block, is_eager));
            }
        }
    }

    /// Notes the last close of a file. Gives whether its writes are to be settled now. The writes of a file with dirty pages are
    /// settled when the last of the pages is gone: a sync may come for them before.
    pub(crate) fn note_close(&mut self, ino: Ino, has_dirty: bool, choices: &FileChoices) -> bool {
        if let Some(chain) = self.chains.get_mut(&(ino.0 as u32)) {
            chain.is_closed = true;
        }
        if !has_dirty {
            self.take_appended(ino, choices);
        }
        !has_dirty && self.is_closed(ino)
    }

    /// Whether a file has writes since its last sync and is closed.
    pub(crate) fn is_closed(&self, ino: Ino) -> bool {
        self.chains.get(&(ino.0 as u32)).is_some_and(|chain| chain.is_closed)
    }

    /// Settles the writes of a closed file, at most so many blocks: no sync will come for them. Blocks that a sync made lazy
    /// keep that choice. Gives whether there are more.
    pub(crate) fn settle(&mut self, ino: Ino, most: usize, choices: &FileChoices) -> bool {
        for _ in 0..most {
            let chain = self.chains.get(&(ino.0 as u32)).filter(|chain| chain.is_closed);
            let Some(key) = chain.map(|chain| (ino.0 as u32, chain.first)) else { return false };
            if self.states[&key].state.is_lazy {
                self.unchain(key);
                self.states[&key].state.begin_anew();
            } else {
                self.drop_state(key, choices);
            }
        }
        self.is_closed(ino)
    }

    /// The state to be dropped next: that with the earliest last write of a few, which lie evenly in the table. Gives its place
    /// and that time; `None`: there is no state.
    pub(crate) fn oldest(&mut self) -> Option<(usize, u64)> {
        let count = self.states.len();
        self.hand = if self.hand + 1 < count { self.hand + 1 } else { 0 };
        let place = |sample: usize| (self.hand + sample * count / SAMPLES) % count.max(1);
        let found = |place: usize| Some((place, self.states.get_index(place)?.1.state.last_ns));
        (0..SAMPLES).filter_map(|sample| found(place(sample))).min_by_key(|(_, last_ns)| *last_ns)
    }

    /// Drops the state that is the oldest of a sample. False: there is none.
    pub(crate) fn drop_oldest(&mut self, choices: &FileChoices) -> bool {
        let oldest = self.oldest().and_then(|(place, _)| self.states.get_index(place));
        let Some(key) = oldest.map(|(key, _)| *key) else { return false };
        self.drop_state(key, choices);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{NONE, STATE_BYTES, StateTable};
    use crate::file_choices::FileChoices;
    use crate::header::{Lines, PageKey};
    use crate::sync_state::{Judged, LineCosts, SyncAges, WrittenLines};
    use std::collections::{BTreeMap, BTreeSet};
    use terrace_format::{FileBlock, Ino};

    const COSTS: LineCosts = LineCosts { dram_ns: 10.0, pm_ns: 200.0 };
    const AGES: SyncAges = SyncAges { old_ns: u64::MAX, idle_ns: u64::MAX };

    fn note(table: &mut StateTable, choices: &FileChoices, key: PageKey, lines: Lines) {
        let write = WrittenLines { lines, direct: lines.0.count_ones(), is_new: false, is_append: false };
        table.note_lines(key, [(key.block, write)].into_iter(), (true, 1), choices);
    }

    /// Asserts the invariants, and that the chains have the expected blocks.
    fn check(table: &StateTable, expected: &BTreeMap<u32, (u32, BTreeSet<u32>)>) {
        let written = table.states.values().filter(|entry| entry.state.written > 0).count();
        assert_eq!(written, expected.values().map(|(_, blocks)| blocks.len()).sum::<usize>());
        assert_eq!(table.chains.len(), expected.len());
        for (ino, (generation, blocks)) in expected {
            let found = table.since_sync(Ino((*ino).into()), *generation, usize::MAX);
            assert_eq!(found.len(), blocks.len(), "inode {ino}");
            assert_eq!(found.iter().map(|block| block.0 as u32).collect::<BTreeSet<u32>>(), *blocks);
            assert_eq!(table.states[&(*ino, table.chains[ino].first)].previous, NONE);
        }
    }

    #[test]
    fn chains_have_the_blocks_written_since_the_last_sync() {
        let (mut table, choices) = (StateTable::default(), FileChoices::new());
        let mut expected: BTreeMap<u32, (u32, BTreeSet<u32>)> = BTreeMap::new();
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..20_000 {
            let (ino, block) = (random(5) as u32, random(40) as u32);
            let generation = expected.get(&ino).map_or(1, |(generation, _)| *generation);
            match random(21) {
                20 => {
                    let has_dirty = random(2) == 0;
                    let ino_of = Ino(ino.into());
                    let is_due = table.note_close(ino_of, has_dirty, &choices);
                    assert_eq!(is_due, !has_dirty && expected.contains_key(&ino));
                    if is_due || random(2) == 0 {
                        while table.settle(ino_of, 3, &choices) {}
                        expected.remove(&ino);
                    }
                }
                0 => {
                    let blocks = table.since_sync(Ino(ino.into()), generation, usize::MAX);
                    let mut judged = Judged::default();
                    let of = (Ino(ino.into()), generation);
                    table.judge(of, (&blocks, &[]), (COSTS, AGES, 1), (&mut judged, &choices));
                    expected.remove(&ino);
                }
                1 => {
                    let before: BTreeSet<(u32, u32)> = table.states.keys().copied().collect();
                    table.drop_oldest(&choices);
                    for (ino, block) in before.iter().filter(|key| !table.states.contains_key(*key)) {
                        if let Some((_, blocks)) = expected.get_mut(ino) {
                            blocks.remove(block);
                        }
                    }
                    expected.retain(|_, (_, blocks)| !blocks.is_empty());
                }
                event => {
                    let generation = generation + u32::from(event == 2);
                    let key = PageKey { ino: Ino(ino.into()), generation, block: FileBlock(block.into()) };
                    note(&mut table, &choices, key, Lines(0xff));
                    let of_file = expected.entry(ino).or_insert((generation, BTreeSet::new()));
                    if of_file.0 != generation {
                        *of_file = (generation, BTreeSet::new());
                    }
                    of_file.1.insert(block);
                }
            }
            check(&table, &expected);
        }
        let lazy = table.states.values().filter(|entry| entry.state.is_lazy).count();
        assert!((0..5).any(|ino| choices.may_have_lazy(Ino(ino))) == (lazy > 0));
    }

    #[test]
    fn states_of_the_earliest_writes_are_dropped_first() {
        let (mut table, choices) = (StateTable::default(), FileChoices::new());
        let ages = |table: &StateTable| {
            let blocks: Vec<u64> = table.states.keys().map(|(_, block)| u64::from(*block)).collect();
            (
                blocks.iter().filter(|block| **block < 250).count(),
                blocks.iter().filter(|block| **block >= 750).count(),
            )
        };
        let write = |table: &mut StateTable, block: u64| {
            let key = PageKey { ino: Ino(5), generation: 1, block: FileBlock(block) };
            let write = WrittenLines { lines: Lines(1), direct: 1, is_new: false, is_append: false };
            table.note_lines(key, [(key.block, write)].into_iter(), (true, block + 1), &choices);
        };
        // A burst, then drops; then drops amid new writes.
        (0..1_000).for_each(|block| write(&mut table, block));
        (0..200).for_each(|_| assert!(table.drop_oldest(&choices)));
        let (earliest, latest) = ages(&table);
        assert!(
            earliest < 100 && latest > 240,
            "{earliest} of the first and {latest} of the last 250 are left"
        );
        for block in 1_000..1_200 {
            write(&mut table, block);
            assert!(table.drop_oldest(&choices));
        }
        let (earliest, latest) = ages(&table);
        assert!(
            earliest < 30 && latest > 400,
            "{earliest} of the first and {latest} of the last 450 are left"
        );
    }

    #[test]
    fn a_state_takes_at_most_its_share_of_memory_if_each_file_has_one() {
        for count in [100, 1_000, 4_096, 5_000, 70_000] {
            let (mut table, choices) = (StateTable::default(), FileChoices::new());
            for ino in 0..count {
                let key = PageKey { ino: Ino(ino), generation: 1, block: FileBlock(0) };
                note(&mut table, &choices, key, Lines(1));
            }
            let (bytes, most) = (table.bytes() as u64, (count + 64) * STATE_BYTES);
            assert!(bytes <= most, "{bytes} bytes of {most} for {count} states");
            (0..count - 10).for_each(|_| assert!(table.drop_oldest(&choices)));
            assert!(table.bytes() as u64 <= 200 * STATE_BYTES, "{} bytes for 10 states", table.bytes());
        }
    }
}
