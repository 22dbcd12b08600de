//! Files of a pool with a layout score ([HashFS] section 4): the part of blocks that follow their predecessor in PM.
//!
//! The allocator is the pool's. Where a block is not to follow, blocks of another file are put between, so the next block
//! lies elsewhere, in a line of its own of the block table. The other file takes part in the map and in the load of the
//! pool. Maps that choose the places of blocks themselves have no layout; their pools get the same number of blocks of the
//! other file.

use super::contestant::Contestant;
use super::picks::Picks;
use super::pool::{BarePool, Opening};
use std::path::Path;
use terrace_bench::failure::Outcome;
use terrace_format::{BLOCK_SIZE, FileBlock};
use terrace_map::Cursor;
use terrace_map::file_map::MapInode;

/// Blocks that an insertion maps at most while files are made.
const MOST_AT_ONCE: u64 = 64;
/// Blocks of the other file between two runs: at least a line of the block table.
pub(crate) const LEAST_BETWEEN: u64 = 4;
/// The other file's blocks by the last of these at most; and blocks of pages, by blocks of files.
const MOST_BETWEEN: u64 = 6;
const PAGES_BY_BLOCKS: f64 = 0.03;
/// Blocks beside: the root, pages of slots, the reserve.
const BESIDE_BLOCKS: u64 = 8 << 10;
/// The layout score of all rows that do not say another, an average of file systems in use ([HashFS] section 4).
pub(crate) const SCORE: f64 = 0.85;
/// Bytes of a block in the fixed area: entry and checksum word, with the log.
const FIXED_BYTES: u64 = 24 + 64;

/// The files of a pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) files: u64,
    /// Blocks of each file.
    pub(crate) blocks: u64,
    /// Blocks that are left out, over all files.
    pub(crate) holes: u64,
    /// Blocks that are inserted later.
    pub(crate) later: u64,
    /// Layout score.
    pub(crate) score: f64,
    /// The part of the pool that is in use once all blocks are inserted.
    pub(crate) load: f64,
    /// Whether the other file fills the pool up to the load before anything is measured.
    pub(crate) filled: bool,
    /// Bytes of the pool, where they do not follow from the blocks and the load.
    pub(crate) pm_bytes: Option<u64>,
}

impl Layout {
    /// Files that fill half of a pool.
    pub(crate) fn new(files: u64, blocks: u64) -> Layout {
        Layout { files, blocks, holes: 0, later: 0, score: SCORE, load: 0.5, filled: false, pm_bytes: None }
    }

    /// Bytes of a pool for these files.
    pub(crate) fn pm_bytes(&self) -> u64 {
        if let Some(bytes) = self.pm_bytes {
            return bytes;
        }
        let own = (self.files * self.blocks + self.later) as f64;
        let between = own * (1.0 - self.score) * (LEAST_BETWEEN + MOST_BETWEEN) as f64 / 2.0;
        let used = own + between + own * PAGES_BY_BLOCKS;
        let blocks = (used / self.load) as u64 + BESIDE_BLOCKS;
        (blocks * (BLOCK_SIZE + FIXED_BYTES)).next_multiple_of(2 << 20)
    }
}

/// Files in a pool, and the state of the operations on them.
pub(crate) struct Files {
    pub(crate) pool: BarePool,
    pub(crate) layout: Layout,
    pub(crate) inodes: Vec<MapInode>,
    /// As the lock of the inodes would own it.
    pub(crate) cursor: Cursor,
    other: MapInode,
    /// Whether the map chooses the places of blocks.
    has_no_layout: bool,
    /// The end of the other file.
    other_end: u64,
    /// The end of each file.
    pub(crate) ends: Vec<u64>,
    /// Blocks that are absent: file and block.
    pub(crate) holes: Vec<(usize, u64)>,
    pub(crate) picks: Picks,
}

impl Files {
    /// Makes a pool with the files.
    ///
    /// # Errors
    /// The pool's.
    pub(crate) fn create(
        path: &Path,
        map: &Contestant,
        layout: Layout,
        seed: u64,
        opening: Opening,
    ) -> Outcome<Files> {
        let pool = BarePool::create(path, layout.pm_bytes(), map, seed, opening)?;
        let mut inodes = pool.inodes(layout.files + 1)?;
        let other = inodes.pop().ok_or("no inode")?;
        let ends = vec![0; inodes.len()];
        let mut files = Files {
            pool,
            layout,
            inodes,
            cursor: Cursor::default(),
            other,
            has_no_layout: map.kind.is_table(),
            other_end: 0,
            ends,
            holes: Vec::new(),
            picks: Picks::new(seed),
        };
        files.make()?;
        Ok(files)
    }

    fn make(&mut self) -> Outcome<()> {
        let Layout { files, blocks, holes, filled, load, .. } = self.layout;
        let every = (files * blocks).checked_div(holes).unwrap_or(u64::MAX).max(2);
        let mut number = 0;
        for file in 0..self.inodes.len() {
            while self.ends[file] < blocks {
                let (first, before_hole) = (self.ends[file], every - 1 - number % every);
                let run = if self.is_hole(file, first) {
                    self.holes.push((file, first));
                    1
                } else {
                    let (run, is_parted) = self.run((blocks - first).min(before_hole));
                    self.pool.insert(&self.inodes[file], FileBlock(first), run as usize)?;
                    if is_parted {
                        self.put_between_runs()?;
                    }
                    if filled && (is_parted || self.has_no_layout || first + run == blocks) {
                        self.fill_along((number + run) as f64 / (files * blocks) as f64)?;
                    }
                    run
                };
                self.ends[file] += run;
                number += run;
            }
        }
        // Holes are taken in an order of no pattern.
        for last in (1..self.holes.len()).rev() {
            let other = self.picks.below(last as u64 + 1) as usize;
            self.holes.swap(last, other);
        }
        while filled && self.pool.load() < load {
            self.put_between(MOST_AT_ONCE)?;
        }
        Ok(())
    }

    /// Lets the load of the pool rise with the part of the files that is made: a table gives places near their homes to
    /// blocks that come early.
    fn fill_along(&mut self, made: f64) -> Outcome<()> {
        let Layout { files, blocks, holes, load, .. } = self.layout;
        let own = (files * blocks - holes) as f64;
        let wanted = self.pool.total() as f64 * load - own * (1.0 + PAGES_BY_BLOCKS);
        while (self.other_end as f64) < made * wanted - MOST_AT_ONCE as f64 {
            self.put_between(MOST_AT_ONCE)?;
        }
        Ok(())
    }

    /// The length of the next run of blocks that follow one another, at most `most`; and whether the block behind it is not
    /// to follow.
    fn run(&mut self, most: u64) -> (u64, bool) {
        let most = most.clamp(1, MOST_AT_ONCE);
        for length in 1..=most {
            if !self.picks.happens(self.layout.score) {
                return (length, true);
            }
        }
        (most, false)
    }

    /// Keeps the next block away from its predecessor as often as the layout score wants.
    ///
    /// # Errors
    /// The pool's.
    pub(crate) fn part(&mut self) -> terrace_wal::Result<()> {
        if self.picks.happens(self.layout.score) {
            return Ok(());
        }
        self.put_between_runs()
    }

    fn put_between_runs(&mut self) -> terrace_wal::Result<()> {
        let count = LEAST_BETWEEN + self.picks.below(MOST_BETWEEN - LEAST_BETWEEN + 1);
        self.put_between(count)
    }

    fn put_between(&mut self, count: u64) -> terrace_wal::Result<()> {
        self.pool.insert(&self.other, FileBlock(self.other_end), count as usize)?;
        self.other_end += count;
        Ok(())
    }

    /// Whether a block was left out.
    pub(crate) fn is_hole(&self, file: usize, block: u64) -> bool {
        let Layout { files, blocks, holes, .. } = self.layout;
        let every = (files * blocks).checked_div(holes).unwrap_or(u64::MAX).max(2);
        let number = file as u64 * blocks + block;
        number % every == every - 1 && number / every < holes
    }

    /// Continues in the pool as it is after a mount whose scan of the block table has not begun.
    ///
    /// # Errors
    /// The pool's.
    pub(crate) fn unscanned(self, map: &Contestant) -> Outcome<Files> {
        Ok(Files { pool: self.pool.unscanned(map)?, ..self })
    }

    /// The part of the blocks of the first file that follow their predecessors.
    ///
    /// # Errors
    /// The pool's.
    #[cfg(test)]
    fn measured_score(&self) -> terrace_wal::Result<f64> {
        let mut found: Vec<Option<terrace_map::Mapping>> = vec![None; self.layout.blocks as usize];
        self.pool.map().lookup_run(&self.inodes[0], FileBlock(0), &mut found)?;
        let blocks: Vec<_> = found.iter().flatten().map(|mapping| mapping.block).collect();
        let follow = blocks.windows(2).filter(|pair| pair[0].0 + 1 == pair[1].0).count();
        Ok(follow as f64 / (blocks.len().max(2) - 1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::contestant::{level_hash, page_cached, registered};
    use std::collections::BTreeSet;

    fn files(map: &Contestant, layout: Layout) -> (Files, tempfile::TempDir) {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let made = Files::create(&directory.path().join("pm"), map, layout, 3, Opening::Bare).unwrap();
        (made, directory)
    }

    #[test]
    fn blocks_follow_one_another_as_often_as_the_score_says() {
        for map in registered().filter(|map| !map.kind.is_table()) {
            for score in [0.0, 0.7, 1.0] {
                let (files, _directory) = files(&map, Layout { score, ..Layout::new(1, 6000) });
                let found = files.measured_score().unwrap();
                assert!((found - score).abs() < 0.03, "{}: {found} for {score}", map.name);
            }
        }
    }

    #[test]
    fn every_map_gets_its_load_its_blocks_and_its_holes() {
        for map in registered().chain(page_cached()).chain([level_hash()]) {
            let layout = Layout { holes: 40, load: 0.95, filled: true, ..Layout::new(3, 500) };
            let (files, _directory) = files(&map, layout);
            assert_eq!(files.holes.len(), 40, "{}", map.name);
            let (load, mut places) = (files.pool.load(), BTreeSet::new());
            assert!((0.95..0.97).contains(&load), "{}: {load}", map.name);
            for (file, inode) in files.inodes.iter().enumerate() {
                for block in 0..500 {
                    let found = files.pool.map().lookup(inode, FileBlock(block)).unwrap();
                    assert_eq!(found.is_none(), files.holes.contains(&(file, block)), "{}", map.name);
                    assert!(
                        found.is_none_or(|found| places.insert(found.block)),
                        "{}: a block twice",
                        map.name
                    );
                }
            }
        }
    }
}
