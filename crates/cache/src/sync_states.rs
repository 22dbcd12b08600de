//! The choices between lazy and eager of the blocks of files, made by each sync ([`sync_state`](crate::sync_state)).
//!
//! A state outlives the page of its block: it is the ghost of the publication. States lie in the index of dirty blocks
//! ([`state_table`](crate::state_table)), and are dropped by their last write when there are too many. An eager block has no
//! state until the next write: a flag of the PM block has the choice. The last close of a file settles its writes. States of a
//! removed file stay until there are too many: a removal by the reclaimer would take the lock and the lines of the index from
//! writers.
//!
//! Lock order: the lock of a shard of the index is innermost, and never held together with a lock of pages.

use crate::block_cache::BlockCache;
use crate::dirty_files::{PORTION, Shard};
use crate::header::{Lines, PageKey};
use crate::sync_state::{AppendedLines, Judged, LineCosts, SyncAges, SyncVerdicts, WrittenLines};
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
        self.files.note_lines(first, written, (is_direct, now_ns), || self.dirty_pages_of(Home::Pm));
    }

    /// As [`Self::note_lines`], of an append that went straight to PM, if no block of the file can have a state; else false.
    pub fn note_append(&self, file: PageKey, write: AppendedLines, now_ns: u64) -> bool {
        self.files.note_append(file, write, now_ns)
    }

    /// Whether the next writes of the blocks from `first` on are lazy, by their last syncs: into `choices`, `None` for a block
    /// without a choice. Gives the choice for such blocks by the last sync of the file, that of most of its blocks, and lazy if
    /// that was long ago; `None` before the first sync. The caller holds the inode's lock.
    pub fn sync_choices(
        &self,
        first: PageKey,
        now_ns: u64,
        ages: SyncAges,
        choices: &mut [Option<bool>],
    ) -> Option<bool> {
        choices.fill(None);
        if !choices.is_empty() && self.files.choices.may_have_lazy(first.ino) {
            let shard = self.files.shard(first.ino).lock();
            for (index, choice) in choices.iter_mut().enumerate() {
                let key = PageKey { block: first.block.plus(index as u64), ..first };
                *choice = shard.states.state(key).and_then(|state| state.is_lazy.then_some(true));
            }
        }
        let last = self.files.choices.last(first.ino, first.generation)?;
        let is_synced = now_ns.saturating_sub(last.synced_ns) < ages.idle_ns;
        if is_synced { last.is_eager.map(|is_eager| !is_eager) } else { Some(true) }
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
        let (mut judged, costs) = (Judged::default(), (costs, ages, now_ns));
        if !self.files.choices.may_have_notes(ino) {
            self.files.choices.note(ino, generation, now_ns, None);
            return judged;
        }
        // In portions: all files of a shard share its lock.
        loop {
            let mut shard = self.files.shard(ino).lock();
            let blocks = shard.states.since_sync(ino, generation, PORTION);
            let mut dirty = Vec::new();
            if !blocks.is_empty() && shard.files.contains_key(&ino) {
                drop(shard);
                let key = |block: &FileBlock| PageKey { ino, generation, block: *block };
                dirty = blocks.iter().map(|block| self.dirty_lines(key(block))).collect();
                shard = self.files.shard(ino).lock();
            }
            self.files.judge(&mut shard, (ino, generation), (&blocks, &dirty), costs, &mut judged);
            if blocks.len() < PORTION {
                break;
            }
        }
        let SyncVerdicts { lazy, eager, .. } = judged.verdicts;
        let is_eager = (lazy + eager > 0).then_some(eager > lazy);
        self.files.choices.note(ino, generation, now_ns, is_eager);
        judged
    }

    /// Notes the last close of a file: writes since the last sync count for no sync that comes when their pages are written
    /// back.
    pub fn note_close(&self, ino: Ino) {
        self.files.note_close(ino);
    }

    /// Whether the last sync of a block made it lazy.
    pub fn is_made_lazy(&self, key: PageKey) -> bool {
        self.files.choices.may_have_lazy(key.ino)
            && self.files.shard(key.ino).lock().states.state(key).is_some_and(|state| state.is_lazy)
    }

    /// Whether a sync made some block eager since the mount.
    #[inline]
    pub fn has_eager(&self) -> bool {
        self.files.has_eager()
    }

    /// Whether a file had a sync less than `ages.idle_ns` ago; `None`: its last sync is not known.
    pub fn is_synced(&self, ino: Ino, generation: u32, now_ns: u64, ages: SyncAges) -> Option<bool> {
        let last = self.files.choices.last(ino, generation)?;
        Some(now_ns.saturating_sub(last.synced_ns) < ages.idle_ns)
    }

    /// Files with a dirty page, and files that were written since their last syncs in blocks with a state.
    pub fn indexed_files(&self) -> usize {
        let of = |shard: &Shard| shard.files.len() + shard.states.chains();
        self.files.shards.iter().map(|shard| of(&shard.lock())).sum()
    }

    /// Dirty lines of a page.
    fn dirty_lines(&self, key: PageKey) -> Lines {
        let shard = self.shard(&key).lock();
        let dirty = shard.find(key).map(|at| shard.header(at)).filter(|header| header.list.is_dirty());
        dirty.map_or(Lines::default(), |header| header.dirty)
    }

    /// The number of states.
    pub fn sync_states(&self) -> u64 {
        self.files.states()
    }

    /// Blocks of a file that their last syncs made lazy.
    pub fn count_made_lazy(&self, ino: Ino, generation: u32) -> u64 {
        match self.files.choices.may_have_lazy(ino) {
            true => self.files.shard(ino).lock().states.count_lazy(ino, generation),
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::block_cache::BlockCache;
    use crate::header::{Lines, PageKey};
    use crate::page::Page;
    use crate::sync_state::{AppendedLines, Judged, LineCosts, SyncAges, WrittenLines};
    use terrace_format::{FileBlock, Ino};
    use terrace_placement::Home;

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
        let write = WrittenLines { lines, direct, is_new: false, is_append: false };
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
        assert_eq!(block_choice(&cache, key(1), 3), None, "its descriptor knows");
        assert_eq!(block_choice(&cache, key(2), 3), Some(true));
        assert_eq!((cache.sync_states(), cache.count_made_lazy(Ino(5), 1), cache.has_eager()), (1, 1, true));
        assert_eq!(cache.judge_sync(Ino(5), 1, 4, COSTS, AGES), Default::default(), "nothing was written");
        (0..3).for_each(|_| write(&cache, 2, Lines(0xff), 5));
        let Judged { verdicts, new } = cache.judge_sync(Ino(5), 1, 6, COSTS, AGES);
        assert_eq!((verdicts.again, verdicts.agreed, new), (1, 1, Vec::new()), "the same choice");
        write(&cache, 2, Lines::ALL, 7);
        let Judged { verdicts, new } = cache.judge_sync(Ino(5), 1, 8, COSTS, AGES);
        assert_eq!((verdicts.again, verdicts.agreed, new), (1, 0, vec![(FileBlock(2), true)]));
        assert_eq!((cache.sync_states(), cache.indexed_files()), (0, 0));
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
        let write =
            |lines, direct, is_new| (FileBlock(1), WrittenLines { lines, direct, is_new, is_append: false });
        let writes = [write(Lines(0xff), 64, true), write(Lines(0xff00), 8, false)];
        cache.note_lines(key(1), writes[..1].iter().copied(), true, 1);
        assert_eq!(cache.judge_sync(Ino(5), 1, 2, COSTS, AGES).new, [(FileBlock(1), true)], "written once");
        cache.note_lines(key(1), writes.into_iter(), true, 3);
        assert_eq!(cache.judge_sync(Ino(5), 1, 4, COSTS, AGES).new, [(FileBlock(1), false)], "appended to");
    }

    #[test]
    fn appends_have_no_states_and_are_lazy_where_seams_cost_much() {
        let cache = cache();
        let append = |block, lines: Lines, is_new| {
            let direct = if is_new { 64 } else { lines.0.count_ones() };
            let write = WrittenLines { lines, direct, is_new, is_append: true };
            cache.note_lines(key(block), [(FileBlock(block), write)].into_iter(), true, 1);
        };
        let choice = || cache.sync_choices(key(99), 2, AGES, &mut []);
        (0..4).for_each(|block| append(block, Lines::ALL, true));
        append(4, Lines(0xffff), true);
        append(4, Lines(0xffff_8000), false);
        assert_eq!((cache.sync_states(), cache.indexed_files()), (0, 0));
        let Judged { verdicts, new } = cache.judge_sync(Ino(5), 1, 2, COSTS, AGES);
        assert_eq!((verdicts.eager, verdicts.lazy, verdicts.lines, new), (5, 0, 4 * 64 + 33, Vec::new()));
        assert_eq!((choice(), cache.has_eager()), (Some(false), false));
        // Records of a log: a line has four of them. Then each line is in two appends.
        append(4, Lines(1 << 40), false);
        (0..8).for_each(|at| append(4, Lines(1 << (40 + at / 4)), false));
        assert_eq!(cache.judge_sync(Ino(5), 1, 2, COSTS, AGES).verdicts.lazy, 1);
        assert_eq!(choice(), Some(true));
        append(5, Lines(0b11), true);
        (1..60).for_each(|at| append(5, Lines(0b11 << at), false));
        assert_eq!(cache.judge_sync(Ino(5), 1, 2, COSTS, AGES).verdicts.lazy, 1);
        append(9, Lines::ALL, true);
        assert_eq!(
            cache.judge_sync(Ino(5), 1, 40_000, COSTS, AGES),
            Default::default(),
            "write-back was first"
        );
    }

    #[test]
    fn an_append_counts_as_its_blocks_one_by_one() {
        for (size, offset, length) in [
            (0_u64, 0_u64, 16_u64 << 10),
            (0, 100, 1),
            (5_000, 5_000, 20_000),
            (5_000, 6_000, 64),
            (4_096, 4_100, 4_092),
        ] {
            let (by_blocks, whole) = (cache(), cache());
            for _ in 0..2 {
                let blocks = offset / 4096..=(offset + length - 1) / 4096;
                let written = blocks.map(|block| {
                    let from = offset.saturating_sub(block * 4096).min(4096) as usize;
                    let lines = Lines::touched(from, (offset + length - block * 4096).min(4096) as usize);
                    let is_new = block * 4096 >= size;
                    let direct = if is_new { 64 } else { lines.0.count_ones() };
                    (FileBlock(block), WrittenLines { lines, direct, is_new, is_append: true })
                });
                by_blocks.note_lines(key(offset / 4096), written, true, 1);
                assert!(whole.note_append(key(0), AppendedLines::behind(size, offset, length), 1));
                let judge = |cache: &BlockCache| cache.judge_sync(Ino(5), 1, 2, COSTS, AGES);
                let judged = judge(&by_blocks);
                assert!(judged.verdicts.lines > 0);
                assert_eq!(judged, judge(&whole), "{length} bytes at {offset} of {size}");
            }
        }
        let cache = cache();
        write(&cache, 1, Lines::ALL, 1);
        assert!(!cache.note_append(key(0), AppendedLines::behind(8_192, 8_192, 1), 1), "a block has a state");
    }

    #[test]
    fn states_of_an_eager_block_take_constant_memory() {
        let cache = cache();
        for at in 0..1_000 {
            write(&cache, 1, Lines::ALL, at);
            (0..3).for_each(|_| write(&cache, 2, Lines(0xff), at));
            cache.judge_sync(Ino(5), 1, at, COSTS, AGES);
        }
        assert_eq!(cache.sync_states(), 1);
        assert!(cache.files.state_bytes() <= 10 << 10, "{}", cache.files.state_bytes());
        for ino in 0..10_000 {
            let write = WrittenLines { lines: Lines::ALL, direct: 64, is_new: true, is_append: true };
            let key = PageKey { ino: Ino(ino), ..key(0) };
            cache.note_lines(key, [(FileBlock(0), write)].into_iter(), true, 1);
        }
        assert_eq!(cache.indexed_files(), 0, "appends, and a lazy block without writes");
        assert!(cache.files.appended() <= 16 * 256, "{}", cache.files.appended());
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
    fn the_last_close_of_a_file_settles_its_writes_and_keeps_lazy_blocks() {
        let cache = cache();
        (0..3).for_each(|_| write(&cache, 1, Lines(0xff), 1));
        cache.judge_sync(Ino(5), 1, 2, COSTS, AGES);
        (0..3).for_each(|_| (1..4).for_each(|block| write(&cache, block, Lines::ALL, 3)));
        assert_eq!(cache.sync_states(), 3);
        cache.note_close(Ino(5));
        assert_eq!((cache.sync_states(), cache.indexed_files()), (1, 0));
        assert_eq!(block_choice(&cache, key(1), 4), Some(true));
        write(&cache, 2, Lines::ALL, 5);
        let Judged { verdicts, new } = cache.judge_sync(Ino(5), 1, 6, COSTS, AGES);
        assert_eq!((verdicts.lines, new), (64, vec![(FileBlock(2), true)]), "writes since the close");
        let append =
            || cache.note_append(PageKey { ino: Ino(6), ..key(0) }, AppendedLines::behind(0, 0, 9), 1);
        assert!(append());
        cache.note_close(Ino(6));
        assert_eq!(cache.judge_sync(Ino(6), 1, 6, COSTS, AGES), Default::default());
    }

    #[test]
    fn a_sync_judges_a_closed_file_until_its_pages_are_written_back() {
        for is_written_back in [false, true] {
            let cache = cache();
            write(&cache, 1, Lines::ALL, 1);
            cache.add_dirty(key(1), Home::Pm, (Lines::ALL, Lines::ALL), Page::zeroed(), 1);
            cache.note_close(Ino(5));
            assert_eq!((cache.sync_states(), cache.dirty_pages()), (1, 1));
            if is_written_back {
                cache.drop_dirty(key(1)).unwrap();
                assert_eq!((cache.sync_states(), cache.indexed_files()), (0, 0));
            }
            let judged = cache.judge_sync(Ino(5), 1, 2, COSTS, AGES);
            assert_eq!(judged.verdicts.eager, u64::from(!is_written_back));
            assert_eq!(judged.verdicts.copied_twice, if is_written_back { 0 } else { 64 });
        }
    }

    #[test]
    fn a_write_after_the_last_close_keeps_the_states_of_the_file() {
        let cache = cache();
        cache.add_dirty(key(1), Home::Pm, (Lines::ALL, Lines::ALL), Page::zeroed(), 1);
        write(&cache, 1, Lines::ALL, 1);
        cache.note_close(Ino(5));
        write(&cache, 1, Lines::ALL, 1);
        cache.drop_dirty(key(1)).unwrap();
        assert_eq!(cache.sync_states(), 1);
    }

    #[test]
    fn a_sync_without_blocks_makes_a_file_lazy_when_it_was_long_ago() {
        let cache = cache();
        cache.judge_sync(Ino(5), 1, 1, COSTS, AGES);
        assert_eq!(cache.sync_choices(key(1), 2, AGES, &mut []), None);
        assert_eq!(cache.sync_choices(key(1), 1 + 5_000, AGES, &mut []), Some(true));
    }

    #[test]
    fn a_file_without_a_sync_for_long_is_lazy_again() {
        let cache = cache();
        write(&cache, 1, Lines::ALL, 1);
        cache.judge_sync(Ino(5), 1, 2, COSTS, AGES);
        assert_eq!(cache.is_synced(Ino(5), 1, 2 + 4_999, AGES), Some(true));
        assert_eq!(cache.is_synced(Ino(5), 1, 2 + 5_000, AGES), Some(false));
        assert_eq!(cache.is_synced(Ino(5), 2, 3, AGES), None);
        assert_eq!(cache.sync_choices(key(1), 2 + 4_999, AGES, &mut []), Some(false));
        assert_eq!(cache.sync_choices(key(1), 2 + 5_000, AGES, &mut []), Some(true));
        let another = PageKey { generation: 2, ..key(1) };
        assert_eq!(cache.sync_choices(another, 3, AGES, &mut []), None, "another file of the inode");
    }

    #[test]
    fn lines_of_an_old_ghost_count_as_written_back() {
        let cache = cache();
        write(&cache, 1, Lines::ALL, 1);
        let verdicts = cache.judge_sync(Ino(5), 1, 40_000, COSTS, AGES).verdicts;
        assert_eq!((verdicts.lazy, verdicts.eager), (1, 0));
    }

    #[test]
    fn states_of_idle_files_go_before_states_of_a_busy_file() {
        let cache = cache();
        for ino in (0..1_600).filter(|ino| ino % 16 != 5) {
            let write = WrittenLines { lines: Lines(1), direct: 1, is_new: false, is_append: false };
            cache.note_lines(
                PageKey { ino: Ino(ino), ..key(0) },
                [(FileBlock(0), write)].into_iter(),
                true,
                1,
            );
        }
        (0..50).for_each(|round| (0..900).for_each(|block| write(&cache, block, Lines(1), 2 + round)));
        cache.judge_sync(Ino(5), 1, 99, COSTS, AGES);
        let judged = cache.judge_sync(Ino(5), 1, 99, COSTS, AGES);
        assert_eq!(judged, Default::default());
        (0..900).for_each(|block| write(&cache, block, Lines(1), 100));
        assert!(cache.judge_sync(Ino(5), 1, 101, COSTS, AGES).new.len() > 880);
    }

    #[test]
    fn a_single_file_may_have_all_states() {
        let cache = cache();
        (0..1 << 10).for_each(|at| write(&cache, at, Lines(1), at));
        assert_eq!(cache.sync_states(), 1 << 10);
    }

    #[test]
    fn a_file_has_no_states_of_an_earlier_file_of_the_inode() {
        let cache = cache();
        (0..3).for_each(|_| write(&cache, 1, Lines(0xff), 1));
        cache.judge_sync(Ino(5), 1, 2, COSTS, AGES);
        assert_eq!((block_choice(&cache, key(1), 3), cache.count_made_lazy(Ino(5), 1)), (Some(true), 1));
        let next = PageKey { generation: 2, ..key(1) };
        assert_eq!(block_choice(&cache, next, 3), None);
        let written = WrittenLines { lines: Lines::ALL, direct: 64, is_new: true, is_append: false };
        cache.note_lines(next, [(FileBlock(1), written)].into_iter(), true, 4);
        assert_eq!(
            (cache.count_made_lazy(Ino(5), 1), cache.count_made_lazy(Ino(5), 2), cache.indexed_files()),
            (0, 0, 1)
        );
        assert_eq!(cache.judge_sync(Ino(5), 2, 5, COSTS, AGES).new, [(FileBlock(1), true)]);
        assert_eq!(cache.sync_states(), 0, "the old state is gone");
        (0..2_000).for_each(|at| write(&cache, at, Lines(1), 6 + at));
        assert!(cache.sync_states() <= 1 << 10);
    }

    #[test]
    fn states_are_limited_and_the_latest_writes_stay() {
        let cache = cache();
        for at in 0..5_000 {
            write(&cache, at, Lines(1), at);
        }
        assert!(cache.sync_states() <= 1 << 10, "{}", cache.sync_states());
        let states = cache.sync_states();
        let Judged { verdicts, new } = cache.judge_sync(Ino(5), 1, 5_000, COSTS, AGES);
        assert_eq!((verdicts.eager, new.len() as u64, cache.sync_states()), (states, states, 0));
        assert!(new.contains(&(FileBlock(4_999), true)));
        assert_eq!(cache.is_synced(Ino(6), 1, 5_000, AGES), None);
        let next = Ino(5 + (1 << 14));
        cache.judge_sync(next, 1, 6_000, COSTS, AGES);
        assert_eq!(cache.is_synced(Ino(5), 1, 6_000, AGES), None, "another file has its place");
    }
}
