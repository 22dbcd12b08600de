//! The choices between lazy and eager of the blocks of files, made by each sync ([`sync_state`](crate::sync_state)).
//!
//! A state outlives the page of its block: it is the ghost of the publication. States lie in the index of dirty blocks, and
//! are dropped by their last write when there are too many.
//!
//! Lock order: the lock of a shard of the index is innermost, and never held together with a lock of pages.

use crate::block_cache::BlockCache;
use crate::header::{Lines, PageKey};
use crate::sync_state::{Judged, LineCosts, SyncAges, SyncState, WrittenLines};
use terrace_format::{FileBlock, Ino};
use terrace_placement::Home;

impl BlockCache {
    /// Limits the number of states.
    pub fn limit_sync_states(&self, most: u64) {
        self.files.limit_states(most);
    }

    /// Notes a write of some lines of blocks of the file of `first`, to PM if `is_direct`. The caller holds the inode's
    /// exclusive lock.
    pub fn note_lines(
        &self,
        first: PageKey,
        written: impl Iterator<Item = (FileBlock, WrittenLines)>,
        is_direct: bool,
        now_ns: u64,
    ) {
        self.files.with_states(first, self.dirty_pages_of(Home::Pm), now_ns, |file| {
            for (block, write) in written {
                let state = file.states.entry(block).or_insert_with(SyncState::new);
                if state.written == 0 {
                    file.since_sync.push(block);
                }
                state.note(write, is_direct, now_ns);
            }
        });
    }

    /// Whether the next writes of the blocks from `first` on are lazy, by their last syncs: into `choices`, `None` for a block
    /// without a choice. Gives the choice for such blocks by the last sync of the file, that of most of its blocks; `None`
    /// before the first sync. The caller holds the inode's lock.
    pub fn sync_choices(
        &self,
        first: PageKey,
        now_ns: u64,
        ages: SyncAges,
        choices: &mut [Option<bool>],
    ) -> Option<bool> {
        choices.fill(None);
        let files = self.files.shard(first.ino).lock();
        let file = files.get(&first.ino).filter(|file| file.generation == first.generation)?;
        let is_synced = file.synced_ns.is_some_and(|at| now_ns.saturating_sub(at) < ages.idle_ns);
        let end = first.block.plus(choices.len() as u64);
        for (block, state) in file.states.range(first.block..end) {
            let choice = state.is_eager.map(|is_eager| !(is_eager && is_synced));
            choices[(block.0 - first.block.0) as usize] = choice;
        }
        file.is_eager.map(|is_eager| !(is_eager && is_synced))
    }

    /// Chooses for the blocks of a file that were written since its last sync, at the begin of a sync. The caller holds the
    /// inode's lock, at least shared.
    pub fn judge_sync(
        &self,
        ino: Ino,
        generation: u32,
        now_ns: u64,
        costs: LineCosts,
        ages: SyncAges,
    ) -> Judged {
        let mut judged = Judged::default();
        self.files.note_synced(ino, now_ns);
        let (blocks, has_pages) = {
            let mut files = self.files.shard(ino).lock();
            let Some(file) = files.get_mut(&ino).filter(|file| file.generation == generation) else {
                return judged;
            };
            file.synced_ns = Some(now_ns);
            (std::mem::take(&mut file.since_sync), !file.blocks.is_empty())
        };
        let dirty = |block: &FileBlock| match has_pages {
            true => self.dirty_lines(PageKey { ino, generation, block: *block }),
            false => Lines::default(),
        };
        let flushed: Vec<(FileBlock, Lines)> = blocks.iter().map(|block| (*block, dirty(block))).collect();
        let mut files = self.files.shard(ino).lock();
        let Some(file) = files.get_mut(&ino).filter(|file| file.generation == generation) else {
            return judged;
        };
        for (block, dirty) in flushed {
            // A block without writes is in the list a second time.
            if let Some(state) = file.states.get_mut(&block).filter(|state| state.written > 0) {
                let new = state.judge(dirty, now_ns, costs, ages, &mut judged.verdicts);
                judged.new.extend(new.map(|is_eager| (block, is_eager)));
            }
        }
        if judged.verdicts.eager + judged.verdicts.lazy > 0 {
            file.is_eager = Some(judged.verdicts.eager > judged.verdicts.lazy);
        }
        judged
    }

    /// Whether the state of a block has a choice.
    pub fn has_choice(&self, key: PageKey) -> bool {
        let files = self.files.shard(key.ino).lock();
        let file = files.get(&key.ino).filter(|file| file.generation == key.generation);
        file.and_then(|file| file.states.get(&key.block)).is_some_and(|state| state.is_eager.is_some())
    }

    /// Whether states were dropped since the mount, as there were too many.
    #[inline]
    pub fn has_dropped_states(&self) -> bool {
        self.files.has_dropped()
    }

    /// Whether a file had a sync less than `ages.idle_ns` ago, for files without a state too. Rarely the sync of another file
    /// counts as well.
    pub fn is_synced(&self, ino: Ino, now_ns: u64, ages: SyncAges) -> bool {
        self.files.synced_ns(ino).is_some_and(|at| now_ns.saturating_sub(at) < ages.idle_ns)
    }

    /// Files with a dirty page or a state.
    pub fn indexed_files(&self) -> usize {
        self.files.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Dirty lines of a page.
    fn dirty_lines(&self, key: PageKey) -> Lines {
        let shard = self.shard(&key).lock();
        let dirty = shard.find(key).map(|at| shard.header(at)).filter(|header| header.list.is_dirty());
        dirty.map_or(Lines::default(), |header| header.dirty)
    }

    /// Forgets a file that is removed. The caller holds the inode's exclusive lock.
    pub fn forget_syncs(&self, ino: Ino) {
        self.files.forget_states(ino);
    }

    /// The number of states.
    pub fn sync_states(&self) -> u64 {
        self.files.states()
    }

    /// Blocks of a file with a choice, and how many of them are eager.
    pub fn count_choices(&self, ino: Ino) -> (u64, u64) {
        let files = self.files.shard(ino).lock();
        let states = files.get(&ino).into_iter().flat_map(|file| file.states.values());
        states
            .filter_map(|state| state.is_eager)
            .fold((0, 0), |(all, eager), is_eager| (all + 1, eager + u64::from(is_eager)))
    }
}

#[cfg(test)]
mod tests {
    use crate::block_cache::BlockCache;
    use crate::header::{Lines, PageKey};
    use crate::sync_state::{Judged, LineCosts, SyncAges, WrittenLines};
    use terrace_format::{FileBlock, Ino};

    const COSTS: LineCosts = LineCosts { dram_ns: 10.0, pm_ns: 200.0 };
    const AGES: SyncAges = SyncAges { old_ns: 30_000, idle_ns: 5_000 };

    fn key(block: u64) -> PageKey {
        PageKey { ino: Ino(5), generation: 1, block: FileBlock(block) }
    }

    /// A direct write of lines of a block.
    fn write(cache: &BlockCache, block: u64, lines: Lines, now_ns: u64) {
        write_storing(cache, block, (lines, lines.0.count_ones()), now_ns);
    }

    /// A direct write of lines of a block that stores so many.
    fn write_storing(cache: &BlockCache, block: u64, (lines, direct): (Lines, u32), now_ns: u64) {
        let write = WrittenLines { lines, direct, is_new: false };
        cache.note_lines(key(block), [(FileBlock(block), write)].into_iter(), true, now_ns);
    }

    fn block_choice(cache: &BlockCache, key: PageKey, now_ns: u64) -> Option<bool> {
        let mut choices = [None];
        cache.sync_choices(key, now_ns, AGES, &mut choices);
        choices[0]
    }

    fn cache() -> BlockCache {
        let cache = BlockCache::new(1 << 20, 0);
        cache.limit_sync_states(1 << 10);
        cache
    }

    #[test]
    fn a_block_written_once_for_each_sync_is_eager_and_one_written_often_is_lazy() {
        let cache = cache();
        write(&cache, 1, Lines::ALL, 1);
        for _ in 0..3 {
            write(&cache, 2, Lines(0xff), 1);
        }
        assert_eq!(block_choice(&cache, key(1), 1), None, "no sync yet");
        let Judged { verdicts, mut new } = cache.judge_sync(Ino(5), 1, 2, COSTS, AGES);
        assert_eq!((verdicts.lazy, verdicts.eager, verdicts.lines), (1, 1, 64 + 24));
        new.sort_unstable();
        assert_eq!(new, [(FileBlock(1), true), (FileBlock(2), false)]);
        assert_eq!(block_choice(&cache, key(1), 3), Some(false));
        assert_eq!(block_choice(&cache, key(2), 3), Some(true));
        assert_eq!(cache.judge_sync(Ino(5), 1, 4, COSTS, AGES), Default::default(), "nothing was written");
        write(&cache, 1, Lines::ALL, 5);
        assert_eq!(cache.judge_sync(Ino(5), 1, 6, COSTS, AGES).new, [], "the same choice");
    }

    #[test]
    fn a_part_of_a_block_is_lazy_where_a_direct_write_stores_the_whole_block() {
        let cache = cache();
        write_storing(&cache, 1, (Lines(0xff), 64), 1);
        write_storing(&cache, 2, (Lines(0xff), 8), 1);
        write_storing(&cache, 3, (Lines(u64::MAX >> 1), 64), 1);
        let Judged { mut new, .. } = cache.judge_sync(Ino(5), 1, 2, COSTS, AGES);
        new.sort_unstable();
        assert_eq!(new, [(FileBlock(1), false), (FileBlock(2), true), (FileBlock(3), true)]);
    }

    #[test]
    fn a_new_block_is_stored_whole_either_way() {
        let cache = cache();
        let write = |lines, direct, is_new| (FileBlock(1), WrittenLines { lines, direct, is_new });
        let writes = [write(Lines(0xff), 64, true), write(Lines(0xff00), 8, false)];
        cache.note_lines(key(1), writes[..1].iter().copied(), true, 1);
        assert_eq!(cache.judge_sync(Ino(5), 1, 2, COSTS, AGES).new, [(FileBlock(1), true)], "written once");
        cache.note_lines(key(1), writes.into_iter(), true, 3);
        assert_eq!(cache.judge_sync(Ino(5), 1, 4, COSTS, AGES).new, [(FileBlock(1), false)], "appended to");
    }

    #[test]
    fn a_block_without_a_choice_follows_the_last_sync_of_its_file() {
        let cache = cache();
        write(&cache, 1, Lines::ALL, 1);
        assert_eq!(cache.sync_choices(key(9), 1, AGES, &mut []), None, "no sync yet");
        cache.judge_sync(Ino(5), 1, 2, COSTS, AGES);
        assert_eq!(cache.sync_choices(key(9), 3, AGES, &mut []), Some(false));
        assert_eq!(cache.sync_choices(key(9), 2 + 5_000, AGES, &mut []), Some(true), "no sync for long");
        (0..9).for_each(|at| write(&cache, at % 3, Lines::ALL, 3));
        cache.judge_sync(Ino(5), 1, 4, COSTS, AGES);
        assert_eq!(cache.sync_choices(key(9), 5, AGES, &mut []), Some(true));
    }

    #[test]
    fn a_file_without_a_sync_for_long_is_lazy_again() {
        let cache = cache();
        write(&cache, 1, Lines::ALL, 1);
        cache.judge_sync(Ino(5), 1, 2, COSTS, AGES);
        assert_eq!(block_choice(&cache, key(1), 2 + 4_999), Some(false));
        assert_eq!(block_choice(&cache, key(1), 2 + 5_000), Some(true));
    }

    #[test]
    fn lines_of_an_old_ghost_count_as_written_back() {
        let cache = cache();
        write(&cache, 1, Lines::ALL, 1);
        let verdicts = cache.judge_sync(Ino(5), 1, 40_000, COSTS, AGES).verdicts;
        assert_eq!((verdicts.lazy, verdicts.eager), (1, 0));
    }

    #[test]
    fn a_single_file_may_have_all_states() {
        let cache = cache();
        (0..1 << 10).for_each(|at| write(&cache, at, Lines(1), at));
        assert_eq!((cache.sync_states(), cache.has_dropped_states()), (1 << 10, false));
    }

    #[test]
    fn states_are_limited_and_the_latest_writes_stay() {
        let cache = cache();
        for at in 0..5_000 {
            write(&cache, at, Lines(1), at);
        }
        assert!(cache.sync_states() <= 1 << 10, "{}", cache.sync_states());
        assert!(cache.has_dropped_states());
        let verdicts = cache.judge_sync(Ino(5), 1, 5_000, COSTS, AGES).verdicts;
        assert_eq!(verdicts.eager, cache.sync_states());
        assert_eq!(block_choice(&cache, key(4_999), 5_000), Some(false));
        cache.forget_syncs(Ino(5));
        assert_eq!(cache.sync_states(), 0);
        assert!(cache.is_synced(Ino(5), 9_999, AGES) && !cache.is_synced(Ino(5), 10_000, AGES));
        assert!(!cache.is_synced(Ino(6), 5_000, AGES));
    }
}
