//! Pools whose block table is damaged, and with it the cuckoo table where that is the file map.

use super::metadata_words::geometry;
use std::ops::Range;
use std::sync::Arc;
use terrace_engine::{Engine, MountOptions, PolicyKind, Simulation, read_superblock};
use terrace_format::cuckoo_map::Buckets;
use terrace_format::map_kind::MapKind;
use terrace_format::table::Owner;
use terrace_format::{FileBlock, Geometry, Ino, PmBlock, PmOffset};
use terrace_media::PmMedium;
use terrace_media::block::Times;
use terrace_media::pm::Access;
use terrace_testkit::SimulatedPool;

const BLOCK: u64 = 4096;
/// Bytes of an entry in both tables.
const ENTRY: u64 = 16;

/// How entries are damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damage {
    /// A line of a page whose checksum is known cannot be read: no entry of the page is believed.
    Page,
    /// A line of another page cannot be read.
    Line,
    /// Owner words are such as cannot be.
    Word,
}

/// Blocks move only when a test moves them.
pub(crate) fn quiet() -> MountOptions {
    MountOptions { policy: Some(PolicyKind::STATIC), ..MountOptions::default() }
}

/// A pool whose tables are damaged.
pub(crate) struct Damaged {
    pub pool: SimulatedPool,
    /// Owner words of the blocks with a lost entry.
    pub lost: Vec<u64>,
    /// Words that were replaced.
    pub words: Vec<(PmOffset, u64)>,
}

/// Where entries are damaged: around one at `found`, in a table at `table`.
fn around(table: Range<PmOffset>, found: PmOffset, damage: Damage) -> impl Iterator<Item = PmOffset> {
    let unit = if damage == Damage::Page { BLOCK } else { 64 };
    let begin = found.0 / unit * unit;
    let lost = begin.max(table.start.0)..(begin + unit).min(table.end.0);
    lost.step_by(ENTRY as usize).map(PmOffset)
}

impl Damaged {
    /// Ends a mount and damages the entries of a block of a file.
    pub fn new(pool: SimulatedPool, fs: Arc<Engine>, damage: Damage, ino: Ino, block: u64) -> Damaged {
        let pool = if damage == Damage::Page {
            fs.unmount().unwrap();
            pool
        } else {
            fs.sync().unwrap();
            pool.copied()
        };
        drop(fs);
        let geometry = geometry(&pool);
        let mut damaged = Damaged { pool, lost: Vec::new(), words: Vec::new() };
        let owner = Owner::File { ino, block: FileBlock(block), unwritten: false }.encode();
        for table in tables(&damaged.pool, &geometry) {
            let entries = (table.start.0..table.end.0).step_by(ENTRY as usize).map(PmOffset);
            let word = |at: PmOffset| damaged.pool.pm.load_u64(at).unwrap();
            let found = entries.into_iter().find(|at| word(*at) >> 1 == owner >> 1).unwrap();
            let words: Vec<_> = around(table, found, damage).map(|at| (at, word(at))).collect();
            damaged.lost.extend(words.iter().map(|(_, word)| *word));
            if damage == Damage::Word {
                for (at, _) in &words {
                    damaged.pool.pm.write(*at, &77u64.to_le_bytes()).unwrap();
                }
                damaged.words.extend(words);
            } else {
                damaged.pool.pm.poison_for(found.0..found.0 + ENTRY, Access::Reads, Times::Forever);
            }
        }
        damaged
    }

    /// Whether an entry of a block of a file is lost.
    pub fn has_lost(&self, ino: Ino) -> bool {
        let is_of_file =
            |word: &u64| matches!(Owner::decode(*word), Some(Owner::File { ino: of, .. }) if of == ino);
        self.lost.iter().any(is_of_file)
    }

    /// Whether an entry of a block is lost.
    pub fn is_lost(&self, ino: Ino, block: u64) -> bool {
        let word = Owner::File { ino, block: FileBlock(block), unwritten: false }.encode() >> 1;
        self.lost.iter().any(|lost| lost >> 1 == word)
    }

    /// Mounts, and lets the scan of the table end.
    pub fn mount(&self) -> Arc<Engine> {
        let fs = self.pool.mount_with(quiet());
        fs.run_background(1000);
        fs
    }

    /// The entries can be read again.
    pub fn heal(&self) {
        self.pool.pm.clear_poison();
        let geometry = geometry(&self.pool);
        for (at, word) in &self.words {
            if self.pool.pm.load_u64(*at).unwrap() == 77 {
                self.pool.pm.write(*at, &word.to_le_bytes()).unwrap();
                // A mount has covered the page with the wrong word.
                let sum = geometry.checksum_word(PmBlock(at.0 / BLOCK));
                self.pool.pm.write(sum, &[0; 8]).unwrap();
            }
        }
    }
}

/// The block table, and behind it the cuckoo table of a pool that has one.
fn tables(pool: &SimulatedPool, geometry: &Geometry) -> Vec<Range<PmOffset>> {
    let slots = geometry.first_pool_block()..PmBlock(geometry.block_count());
    let mut tables = vec![geometry.table_entry(slots.start)..geometry.table_entry(slots.end)];
    if geometry.map == MapKind::Cuckoo {
        let buckets = Buckets::new(read_superblock(&*pool.pm, false).unwrap().0.hash_key, geometry);
        tables.push(buckets.line(0)..buckets.line(buckets.count()));
    }
    tables
}
