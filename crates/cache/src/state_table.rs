//! States of blocks between syncs, of the files of a shard of the index.
//!
//! The table takes at most [`STATE_BYTES`] for each state, however the states lie among files. Invariant: a state has writes
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
}

/// The states.
#[derive(Default)]
pub(crate) struct StateTable {
    states: IndexMap<Key, Entry, FxBuildHasher>,
    chains: FxHashMap<u32, Chain>,
    /// Direct writes behind the ends of files, to blocks without a state.
    appended: FxHashMap<u32, Appended>,
    /// The state that is looked at next when states are dropped.
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
        let chain = self.chains.entry(ino).or_insert(Chain { generation, first: NONE });
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
                let chain = self.chains.get_mut(&ino).filter(|chain| chain.first == block);
                chain.expect("a state without a previous one is the first of its chain").first = next;
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

    /// Drops the states in a chain.
    fn drop_chain(&mut self, ino: u32, choices: &FileChoices) {
        while let Some(chain) = self.chains.get(&ino) {
            self.drop_state((ino, chain.first), choices);
        }
    }

    /// Blocks of a file that were written since its last sync.
    pub(crate) fn since_sync(&self, ino: Ino, generation: u32) -> Vec<FileBlock> {
        let ino = ino.0 as u32;
        let chain = self.chains.get(&ino).filter(|chain| chain.generation == generation);
        let first = chain.and_then(|chain| (chain.first != NONE).then_some(chain.first));
        let next = |block: &u32| Some(self.states[&(ino, *block)].next).filter(|next| *next != NONE);
        std::iter::successors(first, next).map(|block| FileBlock(block.into())).collect()
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

    /// Settles the writes of a file that is closed for the last time: no sync will come for them. Blocks that a sync made lazy
    /// keep that choice.
    pub(crate) fn settle(&mut self, ino: Ino, choices: &FileChoices) {
        self.take_appended(ino, choices);
        while let Some(chain) = self.chains.get(&(ino.0 as u32)) {
            let key = (ino.0 as u32, chain.first);
            if self.states[&key].state.is_lazy {
                self.unchain(key);
                self.states[&key].state.begin_anew();
            } else {
                self.drop_state(key, choices);
            }
        }
    }

    /// Drops the state that is next, of those that were not written since they were looked at last: each gets a second chance,
    /// so the least recently written go first, about. False: there is none.
    pub(crate) fn drop_oldest(&mut self, choices: &FileChoices) -> bool {
        while !self.states.is_empty() {
            self.hand %= self.states.len();
            let Some((key, entry)) = self.states.get_index_mut(self.hand) else { return false };
            if !std::mem::take(&mut entry.state.is_touched) {
                let key = *key;
                self.drop_state(key, choices);
                return true;
            }
            self.hand += 1;
        }
        false
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
            let found = table.since_sync(Ino((*ino).into()), *generation);
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
                    table.settle(Ino(ino.into()), &choices);
                    expected.remove(&ino);
                }
                0 => {
                    let blocks = table.since_sync(Ino(ino.into()), generation);
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
