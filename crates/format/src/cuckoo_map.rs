//! Cuckoo map of all files: buckets of entries in an area between checksum words and pool (docs/format.md "Cuckoo map").
//!
//! ```text
//! area      buckets of four entries, a line each; zeros to the end of their last block; a block of 64 lines, the stash
//! entry     owner word as in the block table (0: free),
//!           PM block | blocks of its run before it << 48 | blocks of its run behind it << 52
//! ```
//! A key, inode and file block, has two buckets by the two halves of its keyed hash; its entry lies in either, or, where
//! both were full and no entry could be moved, in the stash.
//!
//! A run is a row of file blocks that lie in a row of PM blocks, all written or all unwritten; it does not cross a multiple
//! of 16 file blocks. Each of its entries tells the run.

use crate::address::{BLOCK_SIZE, FileBlock, Ino, LINE_SIZE, MAX_FILE_BLOCK, PmBlock, PmOffset};
use crate::geometry::Geometry;
use crate::table::Owner;
use terrace_simd::hash::{HashKey, hash, hash_run};

/// Entries of a bucket.
pub const BUCKET_ENTRIES: usize = 4;
/// Blocks of the longest run; a run lies between two multiples of it.
pub const RUN_BLOCKS: u64 = 16;
/// Lines of the stash.
pub const STASH_LINES: u64 = BLOCK_SIZE / LINE_SIZE;
/// Most moves that free a place.
pub const MAX_MOVES: usize = 32;

/// Buckets that a search for moves looks at.
const MAX_LOOKS: usize = 2048;
/// Lines of a block.
const BLOCK_LINES: u64 = BLOCK_SIZE / LINE_SIZE;
const PLACE_BITS: u32 = 48;
const COUNT_MASK: u64 = RUN_BLOCKS - 1;

const _: () = assert!(BUCKET_ENTRIES as u64 * 16 == LINE_SIZE);

/// The two words of an entry.
pub type Words = [u64; 2];
/// The entries of a line.
pub type Line = [Words; BUCKET_ENTRIES];

/// A block of a file, and its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The file.
    pub ino: Ino,
    /// The block of the file.
    pub block: FileBlock,
    /// The PM block.
    pub place: PmBlock,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
    /// Blocks of its run before it.
    pub before: u8,
    /// Blocks of its run behind it.
    pub behind: u8,
}

impl Entry {
    /// The words of the entry.
    pub fn encode(&self) -> Words {
        let Entry { ino, block, place, unwritten, before, behind } = *self;
        debug_assert!(self.is_possible() && block <= MAX_FILE_BLOCK, "{self:?}");
        let counts = u64::from(before) << PLACE_BITS | u64::from(behind) << (PLACE_BITS + 4);
        [Owner::File { ino, block, unwritten }.encode(), place.0 | counts]
    }

    /// Decodes two words; `None` for a free place, and for words that are no entry.
    #[inline]
    pub fn decode([word, second]: Words) -> Option<Entry> {
        let Some(Owner::File { ino, block, unwritten }) = Owner::decode(word) else { return None };
        let count = |shift: u32| (second >> shift & COUNT_MASK) as u8;
        let entry = Entry {
            ino,
            block,
            place: PmBlock(second & ((1 << PLACE_BITS) - 1)),
            unwritten,
            before: count(PLACE_BITS),
            behind: count(PLACE_BITS + 4),
        };
        (second >> (PLACE_BITS + 8) == 0 && block <= MAX_FILE_BLOCK && entry.is_possible()).then_some(entry)
    }

    /// Whether the run ends at multiples of 16 file blocks, the largest file block and the first PM block.
    #[inline]
    fn is_possible(&self) -> bool {
        let within = self.block.0 % RUN_BLOCKS;
        u64::from(self.before) <= within
            && u64::from(self.behind) < RUN_BLOCKS - within
            && self.block.0 + u64::from(self.behind) <= MAX_FILE_BLOCK.0
            && self.place.0 >= u64::from(self.before)
    }

    /// The words of a key, whatever its place: equal above the lowest bit.
    #[inline]
    pub fn key(ino: Ino, block: FileBlock) -> u64 {
        Owner::File { ino, block, unwritten: false }.encode() >> 1
    }
}

/// Whether the words are those of a free place.
#[inline]
pub fn is_free(words: &Words) -> bool {
    *words == [0; 2]
}

/// The lines of a cuckoo map: numbers and addresses of buckets, and of the stash behind them.
#[derive(Debug, Clone)]
pub struct Buckets {
    key: HashKey,
    area: PmOffset,
    count: u64,
}

impl Buckets {
    /// The buckets of a pool; `key` is the superblock's hash key.
    pub fn new(key: [u8; 16], geometry: &Geometry) -> Buckets {
        let count = geometry.map_buckets();
        assert!(count >= 2 && count >> 32 == 0, "{count} buckets");
        Buckets { key: HashKey::new(key), area: geometry.map_offset(), count }
    }

    /// Buckets, which are the first lines.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The lines of the stash.
    pub fn stash(&self) -> std::ops::Range<u64> {
        let first = self.count.next_multiple_of(BLOCK_LINES);
        first..first + STASH_LINES
    }

    /// The lines that hold entries: buckets, then the stash.
    pub fn lines(&self) -> impl Iterator<Item = u64> + use<> {
        (0..self.count).chain(self.stash())
    }

    /// The address of a line.
    #[inline]
    pub fn line(&self, number: u64) -> PmOffset {
        self.area.plus(number * LINE_SIZE)
    }

    /// The two buckets of a key; they differ.
    #[inline]
    pub fn pair(&self, ino: Ino, block: FileBlock) -> [u64; 2] {
        self.of_hash(hash(&self.key, ino.0 as u32, block.0 as u32))
    }

    /// The buckets of consecutive file blocks from `first` on; at most [`RUN_BLOCKS`] of them.
    pub fn pairs(&self, ino: Ino, first: FileBlock, out: &mut [[u64; 2]]) {
        let mut hashes = [0; RUN_BLOCKS as usize];
        let (hashes, _) = hashes.split_at_mut(out.len());
        hash_run(&self.key, ino.0 as u32, first.0 as u32, hashes);
        out.iter_mut().zip(hashes).for_each(|(pair, hash)| *pair = self.of_hash(*hash));
    }

    #[inline]
    fn of_hash(&self, hash: u64) -> [u64; 2] {
        let bucket = |half: u64| (half * self.count) >> 32;
        let (first, second) = (bucket(hash >> 32), bucket(hash & 0xffff_ffff));
        if second != first {
            return [first, second];
        }
        [first, if first + 1 == self.count { 0 } else { first + 1 }]
    }

    /// Whether an entry may lie in a line: in a bucket of its key, or in the stash.
    pub fn is_home(&self, entry: &Entry, line: u64) -> bool {
        self.pair(entry.ino, entry.block).contains(&line) || self.stash().contains(&line)
    }
}

/// The place of an entry: line, and number in it.
pub type Slot = (u64, usize);

/// A move of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Where it lies.
    pub from: Slot,
    /// A free place, or one that the move before has freed.
    pub to: Slot,
}

/// A bucket that a search has come to: by the entry in `slot` of the bucket of number `from` in the search.
struct Visit {
    line: u64,
    from: usize,
    slot: usize,
    moves: usize,
}

/// The moves that free a place in one of the two buckets of a key, in their order: found breadth-first, so they are as few
/// as possible, and at most [`MAX_MOVES`]. Empty where a place is free already; `None` if none was found. Entries that
/// are damaged, or lie where they may not, stay.
///
/// # Errors
/// Those of `read`.
pub fn find_moves<E>(
    buckets: &Buckets,
    pair: [u64; 2],
    read: &mut dyn FnMut(u64) -> Result<Line, E>,
) -> Result<Option<Vec<Move>>, E> {
    let mut seen: std::collections::HashSet<u64> = pair.into_iter().collect();
    let mut visits: Vec<Visit> =
        pair.into_iter().map(|line| Visit { line, from: usize::MAX, slot: 0, moves: 0 }).collect();
    let mut next = 0;
    while let Some(Visit { line, moves, .. }) = visits.get(next) {
        let (line, moves) = (*line, *moves);
        let entries = read(line)?;
        if let Some(free) = entries.iter().position(is_free) {
            return Ok(Some(path(&visits, next, free)));
        }
        let full = visits.len() >= MAX_LOOKS || moves == MAX_MOVES;
        for (slot, words) in entries.iter().enumerate().filter(|_| !full) {
            let Some(entry) = Entry::decode(*words) else { continue };
            let other = match buckets.pair(entry.ino, entry.block) {
                [first, second] if first == line => second,
                [first, second] if second == line => first,
                _ => continue,
            };
            if seen.insert(other) {
                visits.push(Visit { line: other, from: next, slot, moves: moves + 1 });
            }
        }
        next += 1;
    }
    Ok(None)
}

/// The moves to the free place `free` of a visited bucket, that into it first.
fn path(visits: &[Visit], last: usize, free: usize) -> Vec<Move> {
    let mut moves = Vec::new();
    let (mut at, mut free) = (last, free);
    while let Some(visit) = visits.get(at)
        && let Some(from) = visits.get(visit.from)
    {
        moves.push(Move { from: (from.line, visit.slot), to: (visit.line, free) });
        (at, free) = (visit.from, visit.slot);
    }
    assert!(moves.len() <= MAX_MOVES, "{} moves for a place", moves.len());
    moves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map_kind::MapKind;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    const KEY: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    fn geometry(pm_size: u64) -> Geometry {
        let chosen = Geometry::choose(pm_size, 16).and_then(|geometry| geometry.with_map(MapKind::Cuckoo));
        chosen.unwrap_or_else(|e| unreachable!("{e}"))
    }

    fn entry(ino: u64, block: u64, place: u64) -> Entry {
        Entry {
            ino: Ino(ino),
            block: FileBlock(block),
            place: PmBlock(place),
            unwritten: false,
            before: 0,
            behind: 0,
        }
    }

    /// The rows of docs/format.md.
    #[test]
    fn entries_of_the_format_page() {
        let rows = [
            (entry(1, 0, 23), [0x2_0000_0000, 0x17]),
            (Entry { before: 3, behind: 12, ..entry(2, 19, 0x1234) }, [0x4_0000_0026, 0x00c3_0000_0000_1234]),
            (
                Entry { unwritten: true, before: 14, ..entry(0x7fff_feff, 0xffff_fffe, 0xffff_ffff) },
                [0xffff_fdff_ffff_fffd, 0x000e_0000_ffff_ffff],
            ),
        ];
        for (entry, words) in rows {
            assert_eq!(entry.encode(), words, "{entry:?}");
            assert_eq!(Entry::decode(words), Some(entry));
            assert_eq!(words[0] >> 1, Entry::key(entry.ino, entry.block));
        }
    }

    #[test]
    fn random_words_are_an_entry_or_refused() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut sound = 0;
        for _ in 0..200_000 {
            let second = rng.random::<u64>() & if rng.random_bool(0.5) { (1 << 56) - 1 } else { u64::MAX };
            let words = [rng.random(), second];
            if let Some(entry) = Entry::decode(words) {
                sound += 1;
                assert_eq!(entry.encode(), words, "{entry:?}");
                let first = entry.block.0 - u64::from(entry.before);
                let last = entry.block.0 + u64::from(entry.behind);
                assert_eq!(first / RUN_BLOCKS, last / RUN_BLOCKS, "{entry:?}");
                assert!(last <= MAX_FILE_BLOCK.0 && entry.place.0 >= u64::from(entry.before));
            }
        }
        assert!(sound > 10_000, "{sound} entries");
        let good = Entry { before: 1, behind: 1, ..entry(3, 17, 40) }.encode();
        assert!(Entry::decode(good).is_some());
        for (word, bits) in [(0, u64::MAX << 33), (1, 2 << 48), (1, 15 << 52), (1, 1 << 56), (1, 1 << 63)] {
            let mut damaged = good;
            damaged.iter_mut().skip(word).take(1).for_each(|word| *word |= bits);
            assert_eq!(Entry::decode(damaged), None, "word {word}, {bits:#x}");
        }
        assert!(Entry::decode([0; 2]).is_none() && is_free(&[0; 2]) && !is_free(&[0, 1]));
    }

    /// The rows of docs/format.md: buckets in a pool of 2 MiB.
    #[test]
    fn buckets_of_the_format_page() {
        let buckets = Buckets::new(KEY, &geometry(2 << 20));
        assert_eq!((buckets.count(), buckets.stash()), (130, 192..256));
        let rows = [(1, 0, [29, 0]), (2, 0x1234_5678, [105, 36]), (0x7fff_feff, 255, [17, 91])];
        for (ino, block, pair) in rows {
            assert_eq!(buckets.pair(Ino(ino), FileBlock(block)), pair, "inode {ino:#x}, block {block:#x}");
        }
    }

    #[test]
    fn a_full_pm_is_a_load_of_95_percent() {
        for size in [2 << 20, 8 << 20, 64 << 20, (1 << 30) + 4096, 1 << 40, (16 << 40) - 4096] {
            let geometry = geometry(size);
            let pool = geometry.block_count() - geometry.first_pool_block().0;
            let entries = geometry.map_buckets() * BUCKET_ENTRIES as u64;
            assert!(pool * 100 <= entries * 95, "{size}: {pool} blocks, {entries} entries");
            assert!(pool * 1000 >= entries * 930, "{size}: {pool} blocks, {entries} entries");
            let buckets = Buckets::new(KEY, &geometry);
            let end = buckets.line(buckets.stash().end);
            assert_eq!(end, geometry.first_pool_block().offset(), "{size}: the area ends at the pool");
            assert!(geometry.map_offset() >= geometry.checksums_offset());
        }
    }

    #[test]
    fn buckets_computed_together_equal_single_buckets() {
        for size in [2 << 20, 1 << 32] {
            let buckets = Buckets::new(KEY, &geometry(size));
            let mut pairs = [[0; 2]; 16];
            for first in [0, 16, 4096, 0xffff_ffe0] {
                buckets.pairs(Ino(77), FileBlock(first), &mut pairs);
                for (block, pair) in (first..).zip(pairs) {
                    assert_eq!(pair, buckets.pair(Ino(77), FileBlock(block)));
                    assert!(pair[0] != pair[1] && pair.iter().all(|line| *line < buckets.count()));
                }
            }
        }
    }

    /// A table in memory, filled by moves to the last place of a full PM.
    #[allow(clippy::indexing_slicing)] // places that the search gave
    fn fill(size: u64, seed: u64) -> (usize, usize) {
        let geometry = geometry(size);
        let buckets = Buckets::new(KEY, &geometry);
        let pool = geometry.block_count() - geometry.first_pool_block().0;
        let mut lines: BTreeMap<u64, Line> = BTreeMap::new();
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut most, mut stashed) = (0, 0);
        for place in 0..pool {
            let new = entry(rng.random_range(1..1000), rng.random_range(0..1 << 30), place);
            let pair = buckets.pair(new.ino, new.block);
            let mut read = |line| Ok::<_, Infallible>(lines.get(&line).copied().unwrap_or_default());
            let Ok(moves) = find_moves(&buckets, pair, &mut read);
            let Some(moves) = moves else {
                stashed += 1;
                continue;
            };
            most = most.max(moves.len());
            for Move { from, to } in &moves {
                let words = std::mem::take(&mut lines.entry(from.0).or_default()[from.1]);
                let entry = Entry::decode(words).unwrap_or_else(|| unreachable!("an entry at {from:?}"));
                assert!(buckets.is_home(&entry, to.0), "{entry:?} is moved to {to:?}");
                assert!(is_free(&lines.entry(to.0).or_default()[to.1]), "{to:?} is free");
                lines.entry(to.0).or_default()[to.1] = words;
            }
            let free = pair.iter().find_map(|line| {
                let slot = lines.entry(*line).or_default().iter().position(is_free)?;
                Some((*line, slot))
            });
            let Some((line, slot)) = free else { unreachable!("no place in {pair:?} after {moves:?}") };
            lines.entry(line).or_default()[slot] = new.encode();
        }
        let held = lines.values().flatten().filter(|words| !is_free(words)).count();
        assert_eq!(held + stashed, pool as usize, "an entry was lost");
        (most, stashed)
    }

    #[test]
    fn moves_make_room_to_the_last_block_of_pm() {
        for seed in 0..20 {
            let (_, stashed) = fill(2 << 20, seed);
            assert!(stashed <= 2, "seed {seed}: {stashed} of the smallest pool have no place");
        }
        for seed in 0..2 {
            let (most, stashed) = fill(256 << 20, seed);
            assert_eq!(stashed, 0, "seed {seed}");
            assert!((2..=12).contains(&most), "seed {seed}: {most} moves");
        }
    }

    /// Damage makes neither an endless search nor a move of a damaged entry.
    #[test]
    fn a_search_moves_no_damaged_entry() {
        let buckets = Buckets::new(KEY, &geometry(2 << 20));
        for words in [[u64::MAX; 2], [0, 1], entry(1, 0, 5).encode()] {
            let mut looks = 0;
            let found = find_moves(&buckets, [3, 4], &mut |_| {
                looks += 1;
                Ok::<_, Infallible>([words; BUCKET_ENTRIES])
            });
            assert_eq!(found, Ok(None), "{words:x?}");
            assert_eq!(looks, 2, "{words:x?}");
        }
    }
}
