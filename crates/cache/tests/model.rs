//! Clean and dirty pages against a naive model, with a budget that nothing exceeds.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use terrace_cache::{
    BlockCache, DirtyPage, Dropped, Installed, LEAST_ADJUSTABLE_BYTES, Lines, Page, PageKey,
};
use terrace_format::{FileBlock, Ino};
use terrace_media::block::AlignedBlock;
use terrace_placement::Home;

const FOREVER: u64 = 1 << 60;

fn key(ino: u64, block: u64) -> PageKey {
    PageKey { ino: Ino(ino), generation: ino as u32 + 10, block: FileBlock(block) }
}

fn page(byte: u8) -> Page {
    let mut page = Page::zeroed();
    page.bytes_mut().fill(byte);
    page
}

#[derive(Clone, Copy)]
struct Clean {
    byte: u8,
    version: u64,
    touches: u32,
}

#[derive(Clone, Copy)]
struct Dirty {
    byte: u8,
    birth: u64,
    version: u64,
    home: Home,
    /// Valid ones, and dirty ones.
    lines: (Lines, Lines),
    in_flight: bool,
    since: u64,
    written: u64,
}

/// A cache, and the pages that it must have.
struct CacheAndModel {
    cache: BlockCache,
    clean: BTreeMap<PageKey, Clean>,
    dirty: BTreeMap<PageKey, Dirty>,
    copies: Vec<DirtyPage>,
    now: u64,
    newest: u64,
    random: u64,
}

impl CacheAndModel {
    fn next(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn key(&mut self) -> PageKey {
        // Two of the files share a shard of the index of dirty blocks.
        let ino = [1, 2, 3, 17][self.next(4) as usize];
        key(ino, self.next(100))
    }

    /// Birth and version of a page that has just been written. Asserts that the version is new.
    fn written(&mut self, key: PageKey) -> (u64, u64) {
        let (birth, version) = self.cache.state_of(key).unwrap();
        assert!(version > self.newest);
        self.newest = version;
        (birth, version)
    }

    fn change_clean(&mut self) {
        let (key, version, byte) = (self.key(), self.next(3), self.next(256) as u8);
        match self.next(8) {
            0..=3 => {
                let asked = self.next(2) == 0;
                self.cache.insert(key, version, page(byte), asked, self.now);
                if !self.dirty.contains_key(&key) {
                    self.clean.insert(key, Clean { byte, version, touches: u32::from(asked) });
                }
            }
            4 => {
                self.cache.remove(key);
                self.clean.remove(&key);
            }
            5 => {
                let to = FileBlock(key.block.0 + self.next(40));
                self.cache.remove_range(key.ino, key.generation, key.block, to);
                self.clean.retain(|at, _| at.ino != key.ino || !(key.block..to).contains(&at.block));
            }
            6 => {
                self.cache.renew(key, version, page(byte));
                if let Some(clean) = self.clean.get_mut(&key) {
                    (clean.version, clean.byte) = (version, byte);
                }
            }
            _ => {
                let to = self.next(3);
                self.cache.carry(key, version, to);
                if let Some(clean) = self.clean.get_mut(&key).filter(|clean| clean.version == version) {
                    clean.version = to;
                }
            }
        }
    }

    fn ask(&mut self) {
        let (key, version) = (self.key(), self.next(3));
        let same = self.clean.get(&key).copied().filter(|clean| clean.version == version);
        assert_eq!(self.cache.holds(key, version), same.is_some_and(|clean| clean.touches > 0));
        let found =
            self.cache.get(key, version, self.now).map(|found| (found.page.bytes()[77], found.touches));
        assert_eq!(found, same.map(|clean| (clean.byte, clean.touches + 1)));
        match self.clean.get_mut(&key) {
            Some(clean) if same.is_some() => clean.touches += 1,
            _ => drop(self.clean.remove(&key)),
        }
    }

    fn change_dirty(&mut self) {
        let (key, byte, reborn) = (self.key(), self.next(256) as u8, self.next(3) == 0);
        let (now, known) = (self.now, self.dirty.get(&key).copied());
        match (self.next(5), known) {
            (0, _) => {
                let dropped = known.map(|known| Dropped { home: known.home, dirty: known.lines.1 });
                assert_eq!(self.cache.drop_dirty(key), dropped);
                self.dirty.remove(&key);
            }
            (_, None) => {
                let change = |_: &mut [u8; 4096]| panic!("not dirty");
                assert_eq!(self.cache.change_dirty(key, (Lines(1), Lines(1)), reborn, now, change), None);
                let home = if reborn { Home::Pm } else { Home::Block };
                let (valid, dirty) = if reborn { (Lines(0b110), Lines(2)) } else { (Lines::ALL, Lines(4)) };
                self.cache.add_dirty(key, home, (valid, dirty), page(byte), now);
                self.clean.remove(&key);
                let (birth, version) = self.written(key);
                assert_eq!(birth, version);
                let lines = (valid, dirty);
                let new =
                    Dirty { byte, birth, version, home, lines, in_flight: false, since: now, written: now };
                self.dirty.insert(key, new);
            }
            (_, Some(old)) => {
                let written = Lines(1 << self.next(64));
                let change = |bytes: &mut [u8; 4096]| bytes.fill(byte);
                let before = self.cache.change_dirty(key, (written, written), reborn, now, change);
                assert_eq!(before, Some(old.lines.1), "the dirty lines before");
                let lines = (old.lines.0.union(written), old.lines.1.union(written));
                let (birth, version) = self.written(key);
                assert_eq!(birth, if reborn { version } else { old.birth });
                let in_flight = old.in_flight && !reborn;
                self.dirty.insert(key, Dirty { byte, birth, version, lines, in_flight, written: now, ..old });
            }
        }
    }

    /// Copies dirty pages, marks the copies in flight, and installs them in a random order.
    fn write_back(&mut self) {
        match self.next(4) {
            0 => {
                let key = self.key();
                self.copies.extend(self.cache.dirty(key));
            }
            1 if !self.copies.is_empty() => {
                let at = self.next(self.copies.len() as u64) as usize;
                let on = self.next(3) > 0;
                let copies = &self.copies[at..(at + 3).min(self.copies.len())];
                self.cache.mark_in_flight(copies, on);
                for copy in copies {
                    if let Some(dirty) = self.dirty.get_mut(&copy.key).filter(|now| now.birth == copy.birth) {
                        dirty.in_flight = on;
                    }
                }
            }
            _ if !self.copies.is_empty() => {
                let at = self.next(self.copies.len() as u64) as usize;
                let copy = self.copies.swap_remove(at);
                self.install(&copy);
            }
            _ => {}
        }
    }

    fn install(&mut self, copy: &DirtyPage) {
        let outcome = match copy.home {
            Home::Block => self.cache.installed(copy, 2, self.now),
            Home::Pm => self.cache.installed_in_pm(copy, self.now),
        };
        match self.dirty.get(&copy.key).copied().filter(|now| now.birth == copy.birth) {
            None => assert_eq!(outcome, Installed::Clean),
            Some(dirty) if dirty.version != copy.version => {
                assert_eq!(outcome, Installed::Dirty);
                let (birth, version) = self.cache.state_of(copy.key).unwrap();
                assert!(birth > self.newest && version == dirty.version);
                self.newest = birth;
                let now = Dirty { birth, in_flight: false, since: self.now, ..dirty };
                self.dirty.insert(copy.key, now);
            }
            Some(dirty) => {
                assert_eq!(outcome, Installed::Clean);
                self.dirty.remove(&copy.key);
                if copy.home == Home::Pm {
                    return;
                }
                self.clean.insert(copy.key, Clean { byte: dirty.byte, version: 2, touches: 1 });
            }
        }
    }

    fn compare(&mut self) {
        let key = self.key();
        assert_eq!(self.cache.bytes(), self.clean.len() as u64 * 4096);
        assert!(self.cache.held_bytes() >= self.cache.bytes());
        assert_eq!(self.cache.dirty_pages(), self.dirty.len() as u64);
        assert_eq!(self.cache.dirty_bytes(), self.dirty.len() as u64 * 4096);
        for home in [Home::Block, Home::Pm] {
            let pages = self.dirty.values().filter(|dirty| dirty.home == home).count() as u64;
            assert_eq!(self.cache.dirty_pages_of(home), pages);
        }
        let shown = self.cache.dirty(key);
        let lines = shown.as_ref().map(|page| (page.valid, page.dirty));
        assert_eq!(lines, self.dirty.get(&key).map(|dirty| dirty.lines));
        let shown = shown.map(|d| (d.page.bytes()[4095], d.birth, d.version, d.home, d.in_flight));
        let expected = self.dirty.get(&key).map(|d| (d.byte, d.birth, d.version, d.home, d.in_flight));
        assert_eq!(shown, expected);
        assert_eq!(self.cache.state_of(key), self.dirty.get(&key).map(|d| (d.birth, d.version)));
        let clean = self.clean.keys().filter(|at| at.ino == key.ino).count() as u64;
        assert_eq!(self.cache.count_file(key.ino, key.generation), clean);
        assert_eq!(self.cache.count_file(key.ino, key.generation + 1), 0);
        self.compare_files(key.ino);
    }

    fn compare_files(&mut self, ino: Ino) {
        let (from, to) = (FileBlock(self.next(100)), FileBlock(self.next(110)));
        let of_file = |at: &&PageKey| at.ino == ino;
        let blocks: Vec<FileBlock> = self.dirty.keys().filter(of_file).map(|at| at.block).collect();
        let within: Vec<_> = blocks.iter().copied().filter(|b| (from..to).contains(b)).collect();
        assert_eq!(self.cache.count_dirty(ino), blocks.len() as u64);
        assert_eq!(self.cache.next_dirty(ino, from, to), within.first().copied());
        assert_eq!(self.cache.dirty_blocks(ino, from, to, usize::MAX), within);
        assert_eq!(self.cache.dirty_blocks(ino, from, to, 2), within[..within.len().min(2)]);
        let mut files: Vec<Ino> = self.dirty.keys().map(|at| at.ino).collect();
        files.dedup();
        assert_eq!(self.cache.dirty_files(), files);
        let cutoff = self.now.saturating_sub(self.next(300));
        let mut aged: BTreeMap<Ino, (u64, FileBlock)> = BTreeMap::new();
        for (at, dirty) in self.dirty.iter().filter(|(_, dirty)| dirty.since <= cutoff) {
            let entry = aged.entry(at.ino).or_insert((dirty.since, at.block));
            entry.0 = entry.0.min(dirty.since);
        }
        let mut aged: Vec<_> = aged.into_iter().map(|(ino, (since, block))| (since, ino, block)).collect();
        aged.sort_unstable();
        let aged: Vec<_> = aged.into_iter().map(|(_, ino, block)| (ino, block)).collect();
        assert_eq!(self.cache.aged(cutoff), aged);
        for home in [Home::Block, Home::Pm] {
            let is_idle = |at: &PageKey, dirty: &Dirty| at.ino != ino && !dirty.in_flight;
            let idle = self.dirty.iter().filter(|(at, dirty)| dirty.home == home && is_idle(at, dirty));
            let oldest = idle.min_by_key(|(_, dirty)| dirty.written).map(|(at, _)| *at);
            assert_eq!(self.cache.least_recently_written(home, |other| other != ino), oldest);
            let is_due =
                |at: &PageKey, dirty: &Dirty| at.ino == ino && at.block >= from && dirty.since <= cutoff;
            let mut due = self.dirty.iter().filter(|(at, dirty)| dirty.home == home && is_due(at, dirty));
            let first = due.next().map(|(at, _)| at.block);
            assert_eq!(self.cache.first_of_home(ino, home, from, cutoff), first);
        }
    }
}

#[test]
fn cached_pages_equal_the_model() {
    let mut model = CacheAndModel {
        cache: BlockCache::new(64 << 20, FOREVER),
        clean: BTreeMap::new(),
        dirty: BTreeMap::new(),
        copies: Vec::new(),
        now: 1,
        newest: 0,
        random: 5,
    };
    for _ in 0..8_000 {
        model.now += 1;
        match model.next(10) {
            0..=2 => model.change_clean(),
            3..=4 => model.ask(),
            5..=6 => model.change_dirty(),
            _ => model.write_back(),
        }
        model.compare();
    }
}

#[test]
fn a_page_read_ahead_expires_in_time_unless_asked_for() {
    let cache = BlockCache::new(1 << 20, 100);
    let add = |block, asked, now| cache.insert(key(1, block), 1, page(1), asked, now);
    (0..3).for_each(|block| add(block, false, 50));
    add(3, true, 50);
    assert!(cache.get(key(1, 0), 1, 149).is_some(), "asked for in time");
    assert!(cache.get(key(1, 1), 1, 150).is_none(), "too late");
    assert_eq!(cache.bytes(), 3 * 4096);
    // Expired pages are dropped by the next insertion, or in the background.
    add(4, false, 149);
    assert_eq!(cache.bytes(), 4 * 4096);
    add(5, true, 150);
    assert_eq!(cache.bytes(), 4 * 4096);
    assert!(!cache.give_back(248));
    assert_eq!(cache.bytes(), 4 * 4096);
    assert!(!cache.give_back(249));
    assert_eq!(cache.bytes(), 3 * 4096);
    assert!([0, 3, 5].iter().all(|block| cache.get(key(1, *block), 1, 10_000).is_some()));
}

#[test]
fn a_budget_counts_whole_pages_and_a_budget_below_a_page_keeps_no_page() {
    for pages in [1, 5, 1023, 1024, 2048] {
        assert_eq!(BlockCache::new(pages * 4096 + 4095, 1).budget_bytes(), pages * 4096);
    }
    assert_eq!(LEAST_ADJUSTABLE_BYTES, 64 << 20);
    let cache = BlockCache::new(LEAST_ADJUSTABLE_BYTES, 1);
    assert_eq!(cache.budget_bytes(), 64 << 20);
    cache.set_budget(128 << 20);
    assert_eq!(cache.budget_bytes(), 128 << 20);
    let cache = BlockCache::new(4095, 1);
    cache.insert(key(1, 1), 1, page(1), true, 0);
    assert_eq!((cache.bytes(), cache.budget_bytes()), (0, 0));
    cache.add_dirty(key(1, 1), Home::Block, (Lines::ALL, Lines::ALL), page(1), 0);
    let copy = cache.dirty(key(1, 1)).unwrap();
    assert_eq!(cache.installed(&copy, 1, 0), Installed::Clean);
    assert_eq!((cache.bytes(), cache.dirty_pages()), (0, 0));
}

#[test]
fn a_page_of_a_buffer_becomes_one_of_its_own_when_it_is_changed() {
    let mut blocks = vec![AlignedBlock::zeroed(); 2];
    blocks[1].0.fill(7);
    let buffer = Arc::new(blocks);
    assert!(Page::new(Arc::clone(&buffer), 2).is_none());
    let mut one = Page::new(Arc::clone(&buffer), 1).unwrap();
    let (other, alone) = (one.clone(), one.alone());
    one.bytes_mut()[0] = 9;
    assert_eq!((one.bytes()[0], one.bytes()[1]), (9, 7));
    assert_eq!((other.bytes()[0], alone.bytes()[0], buffer[1].0[0]), (7, 7, 7));
    let mut copy = one.clone();
    copy.bytes_mut()[0] = 10;
    assert_eq!((one.bytes()[0], copy.bytes()[0]), (9, 10));
}

#[test]
fn touched_lines_are_the_lines_with_a_byte_of_the_range() {
    for (from, to) in [(0, 1), (0, 64), (0, 65), (64, 128), (100, 1000), (4032, 4096), (4000, 9000)] {
        let expected = (0..64).filter(|line| line * 64 < to && from < (line + 1) * 64);
        let expected = expected.fold(0, |lines, line| lines | 1 << line);
        assert_eq!(Lines::touched(from, to).0, expected, "{from}..{to}");
    }
    assert_eq!(Lines(0b0110).union(Lines(0b0011)), Lines(0b0111));
    assert_eq!(Lines(0b0110).intersection(Lines(0b0011)), Lines(0b0010));
    assert!(Lines(0b0110).contains(Lines(0b0010)) && !Lines(0b0110).contains(Lines(0b0011)));
}

#[test]
fn a_range_is_cut_where_lines_of_the_set_begin_and_end() {
    let cut = |lines: u64, from, to| Lines(lines).cut(from, to).collect::<Vec<_>>();
    assert_eq!(cut(0b0110, 10, 200), [(10..64, false), (64..192, true), (192..200, false)]);
    assert_eq!(cut(0b0110, 70, 100), [(70..100, true)]);
    assert_eq!(cut(u64::MAX, 0, 4096), [(0..4096, true)]);
    assert_eq!(cut(0, 5, 4096), [(5..4096, false)]);
    assert_eq!(cut(1 << 63, 0, 4096), [(0..4032, false), (4032..4096, true)]);
    assert_eq!(cut(1, 64, 64), []);
}

#[test]
fn pages_of_files_with_any_number_are_kept_apart() {
    let cache = BlockCache::new(1 << 20, 1);
    for ino in [15, 16, 255, 256, 5000, 1 << 30] {
        cache.add_dirty(key(ino, 3), Home::Block, (Lines::ALL, Lines::ALL), page(ino as u8), 0);
        assert_eq!(cache.next_dirty(Ino(ino), FileBlock(0), FileBlock(9)), Some(FileBlock(3)));
    }
    assert_eq!(cache.dirty_files(), [15, 16, 255, 256, 5000, 1 << 30].map(Ino));
}

#[test]
fn repeated_marks_count_a_page_in_flight_once() {
    let cache = BlockCache::new(64 << 20, 1);
    for block in 0..200 {
        cache.add_dirty(key(1, block), Home::Pm, (Lines::ALL, Lines::ALL), page(1), block);
    }
    let copies: Vec<DirtyPage> = (0..70).map(|block| cache.dirty(key(1, block)).unwrap()).collect();
    assert_eq!(cache.in_flight_pages(), 0);
    for _ in 0..2 {
        cache.mark_in_flight(&copies, true);
        assert_eq!(cache.in_flight_pages(), 70);
    }
    assert!(cache.dirty(key(1, 3)).is_some_and(|page| page.in_flight && page.home == Home::Pm));
    for _ in 0..2 {
        cache.mark_in_flight(&copies[1..], false);
        assert_eq!(cache.in_flight_pages(), 1);
    }
}
