//! The choices between lazy and eager of the blocks of files, made by each sync ([`sync_state`](crate::sync_state)).
//!
//! A state outlives the page of its block: it is the ghost of the publication. States lie in the index of dirty blocks, and
//! are dropped by their last write when there are too many.
//!
//! Lock order: the lock of a shard of the index is innermost, and never held together with a lock of pages.

use crate::block_cache::BlockCache;
use crate::header::{Lines, PageKey};
use crate::sync_state::{Judged, LineCosts, SyncAges, SyncState};
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
        written: impl Iterator<Item = (FileBlock, Lines)>,
        is_direct: bool,
        now_ns: u64,
    ) {
        self.files.with_states(first, self.dirty_pages_of(Home::Pm), now_ns, |file| {
            for (block, lines) in written {
                let state = file.states.entry(block).or_insert_with(SyncState::new);
                if state.written == 0 {
                    file.since_sync.push(block);
                }
                state.written = state.written.saturating_add(lines.0.count_ones());
                state.last_ns = now_ns;
                if is_direct {
                    state.direct = state.direct.union(lines);
                }
            }
        });
    }

    /// The choice for the next write of a block: whether it is lazy; `None` without a choice. The caller holds the inode's
    /// lock.
    pub fn sync_choice(&self, key: PageKey, now_ns: u64, ages: SyncAges) -> Option<bool> {
        let files = self.files.shard(key.ino).lock();
        let file = files.get(&key.ino).filter(|file| file.generation == key.generation)?;
        let is_eager = file.states.get(&key.block)?.is_eager?;
        let is_synced = file.synced_ns.is_some_and(|at| now_ns.saturating_sub(at) < ages.idle_ns);
        Some(!(is_eager && is_synced))
    }

    /// The choice for a block that no sync has covered yet, by the last sync of its file: whether it is lazy, as most blocks of
    /// that sync; `None` before the first sync. The caller holds the inode's lock.
    pub fn file_choice(&self, key: PageKey, now_ns: u64, ages: SyncAges) -> Option<bool> {
        let files = self.files.shard(key.ino).lock();
        let file = files.get(&key.ino).filter(|file| file.generation == key.generation)?;
        let is_synced = file.synced_ns.is_some_and(|at| now_ns.saturating_sub(at) < ages.idle_ns);
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
        let blocks = {
            let mut files = self.files.shard(ino).lock();
            let Some(file) = files.get_mut(&ino).filter(|file| file.generation == generation) else {
                return judged;
            };
            file.synced_ns = Some(now_ns);
            std::mem::take(&mut file.since_sync)
        };
        let dirty = |block: &FileBlock| self.dirty_lines(PageKey { ino, generation, block: *block });
        let flushed: Vec<(FileBlock, Lines)> = blocks.iter().map(|block| (*block, dirty(block))).collect();
        let mut files = self.files.shard(ino).lock();
        let Some(file) = files.get_mut(&ino).filter(|file| file.generation == generation) else {
            return judged;
        };
        for (block, dirty) in flushed {
            if let Some(state) = file.states.get_mut(&block) {
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
    pub fn sync_choices(&self, ino: Ino) -> (u64, u64) {
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
    use crate::sync_state::{Judged, LineCosts, SyncAges};
    use terrace_format::{FileBlock, Ino};

    const COSTS: LineCosts = LineCosts { dram_ns: 10.0, pm_ns: 200.0 };
    const AGES: SyncAges = SyncAges { old_ns: 30_000, idle_ns: 5_000 };

    fn key(block: u64) -> PageKey {
        PageKey { ino: Ino(5), generation: 1, block: FileBlock(block) }
    }

    /// A direct write of lines of a block.
    fn write(cache: &BlockCache, block: u64, lines: Lines, now_ns: u64) {
        cache.note_lines(key(block), [(FileBlock(block), lines)].into_iter(), true, now_ns);
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
        assert_eq!(cache.sync_choice(key(1), 1, AGES), None, "no sync yet");
        let Judged { verdicts, mut new } = cache.judge_sync(Ino(5), 1, 2, COSTS, AGES);
        assert_eq!((verdicts.lazy, verdicts.eager, verdicts.lines), (1, 1, 64 + 24));
        new.sort_unstable();
        assert_eq!(new, [(FileBlock(1), true), (FileBlock(2), false)]);
        assert_eq!(cache.sync_choice(key(1), 3, AGES), Some(false));
        assert_eq!(cache.sync_choice(key(2), 3, AGES), Some(true));
        assert_eq!(cache.judge_sync(Ino(5), 1, 4, COSTS, AGES), Default::default(), "nothing was written");
        write(&cache, 1, Lines::ALL, 5);
        assert_eq!(cache.judge_sync(Ino(5), 1, 6, COSTS, AGES).new, [], "the same choice");
    }

    #[test]
    fn a_block_without_a_choice_follows_the_last_sync_of_its_file() {
        let cache = cache();
        write(&cache, 1, Lines::ALL, 1);
        assert_eq!(cache.file_choice(key(9), 1, AGES), None, "no sync yet");
        cache.judge_sync(Ino(5), 1, 2, COSTS, AGES);
        assert_eq!(cache.file_choice(key(9), 3, AGES), Some(false));
        assert_eq!(cache.file_choice(key(9), 2 + 5_000, AGES), Some(true), "no sync for long");
        (0..9).for_each(|at| write(&cache, at % 3, Lines::ALL, 3));
        cache.judge_sync(Ino(5), 1, 4, COSTS, AGES);
        assert_eq!(cache.file_choice(key(9), 5, AGES), Some(true));
    }

    #[test]
    fn a_file_without_a_sync_for_long_is_lazy_again() {
        let cache = cache();
        write(&cache, 1, Lines::ALL, 1);
        cache.judge_sync(Ino(5), 1, 2, COSTS, AGES);
        assert_eq!(cache.sync_choice(key(1), 2 + 4_999, AGES), Some(false));
        assert_eq!(cache.sync_choice(key(1), 2 + 5_000, AGES), Some(true));
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
        assert_eq!(cache.sync_choice(key(4_999), 5_000, AGES), Some(false));
        cache.forget_syncs(Ino(5));
        assert_eq!(cache.sync_states(), 0);
        assert!(cache.is_synced(Ino(5), 9_999, AGES) && !cache.is_synced(Ino(5), 10_000, AGES));
        assert!(!cache.is_synced(Ino(6), 5_000, AGES));
    }
}
