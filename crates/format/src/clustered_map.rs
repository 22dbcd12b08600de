//! Clustered map of all files: a line for each piece of 16 file blocks, in an area between checksum words and pool
//! (docs/format.md "Clustered map"; a clustered page table: Talluri, Hill, Khalidi, "A New Page Table for 64-bit Address
//! Spaces", SOSP 1995).
//!
//! ```text
//! area      lines, as many as blocks follow the checksum words; zeros to the end of their last block
//! line      owner word of inode and first block of the piece (0: free), 16 values of 28 bits
//! value     PM block | unwritten << 27; 0: not in PM
//! ```
//! Blocks 0 to 7 of a file lie in its slot, so the first eight values of its first piece are 0. A piece lies in a line of its
//! sequence: its home by a keyed hash, then line after line, the first line behind the last. The words behind a key of 0
//! mean nothing.

use crate::address::{FileBlock, Ino, LINE_SIZE, MAX_FILE_BLOCK, PmBlock, PmOffset};
use crate::geometry::{Geometry, MAX_CLUSTERED_BLOCKS};
use crate::inode::DIRECT_BLOCKS;
use crate::table::Owner;
use terrace_simd::hash::{HashKey, hash, hash_run};

/// Blocks of a piece.
pub const PIECE_BLOCKS: u64 = 16;
/// Words of a line: the key, and values.
pub const LINE_WORDS: usize = (LINE_SIZE / 8) as usize;

const PLACE_BITS: u32 = 27;
const VALUE_BITS: usize = 28;
const UNWRITTEN: u32 = 1 << PLACE_BITS;
const VALUE_MASK: u64 = (1 << VALUE_BITS) - 1;

const _: () = assert!(MAX_CLUSTERED_BLOCKS == 1 << PLACE_BITS);
const _: () = assert!(VALUE_BITS * PIECE_BLOCKS as usize == 64 * (LINE_WORDS - 1));
const _: () = assert!(DIRECT_BLOCKS < PIECE_BLOCKS);

/// A block of a file in PM, as a line tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The PM block.
    pub block: PmBlock,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
}

/// A piece of a file: 16 consecutive blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    /// The file.
    pub ino: Ino,
    /// Number of the piece: its first block / 16.
    pub number: u64,
}

impl Piece {
    /// The piece of a block.
    #[inline]
    pub fn of(ino: Ino, block: FileBlock) -> Piece {
        Piece { ino, number: block.0 / PIECE_BLOCKS }
    }

    /// The first block.
    #[inline]
    pub fn first(&self) -> FileBlock {
        FileBlock(self.number * PIECE_BLOCKS)
    }

    /// The key word of its line.
    #[inline]
    pub fn key(&self) -> u64 {
        Owner::File { ino: self.ino, block: self.first(), unwritten: false }.encode()
    }

    /// The piece of a key word; `None` for a free line, and for words that are no key.
    pub fn decode(word: u64) -> Option<Piece> {
        match Owner::decode(word) {
            Some(Owner::File { ino, block, unwritten: false }) if block.0.is_multiple_of(PIECE_BLOCKS) => {
                Some(Piece::of(ino, block)).filter(|_| block <= MAX_FILE_BLOCK)
            }
            _ => None,
        }
    }

    /// The blocks that bits stand for and that a line may map.
    pub fn blocks(&self, bits: u16) -> impl Iterator<Item = FileBlock> + use<> {
        let piece = *self;
        let indexes = (0..PIECE_BLOCKS as usize).filter(move |index| bits >> index & 1 == 1);
        indexes.filter(move |index| piece.has(*index)).map(move |index| piece.first().plus(index as u64))
    }

    /// Numbers of the blocks in the piece that no line may map: those in the slot, and behind the last block of a file.
    #[inline]
    pub fn impossible(&self) -> std::ops::Range<usize> {
        let (first, last) = (self.first().0, self.first().0 + PIECE_BLOCKS - 1);
        match (first < DIRECT_BLOCKS, last > MAX_FILE_BLOCK.0) {
            (true, _) => 0..(DIRECT_BLOCKS - first) as usize,
            (_, true) => (MAX_FILE_BLOCK.0 + 1 - first) as usize..PIECE_BLOCKS as usize,
            _ => 0..0,
        }
    }

    /// Whether a line may map a block of the piece, by its number in the piece: not in the slot, and possible.
    pub fn has(&self, index: usize) -> bool {
        let block = self.first().0 + index as u64;
        (DIRECT_BLOCKS..=MAX_FILE_BLOCK.0).contains(&block)
    }
}

/// The words of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Line(pub [u64; LINE_WORDS]);

impl Line {
    /// A line of a piece without blocks.
    pub fn of(piece: Piece) -> Line {
        let mut line = Line::default();
        line.set_key(piece.key());
        line
    }

    /// The key word.
    #[inline]
    pub fn key(&self) -> u64 {
        let [key, ..] = self.0;
        key
    }

    fn set_key(&mut self, word: u64) {
        let [key, ..] = &mut self.0;
        *key = word;
    }

    /// The word of a value's first bit, and the bit.
    #[inline]
    fn position(index: usize) -> (usize, u32) {
        let bit = VALUE_BITS * (index % PIECE_BLOCKS as usize);
        (1 + bit / 64, (bit % 64) as u32)
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        self.0.get(at).copied().unwrap_or(0)
    }

    /// The block with a number in the piece; `None` where PM has none.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Place> {
        let (at, bit) = Line::position(index);
        let both = u128::from(self.word(at)) | u128::from(self.word(at + 1)) << 64;
        let value = ((both >> bit) as u64 & VALUE_MASK) as u32;
        let place =
            Place { block: PmBlock(u64::from(value & !UNWRITTEN)), unwritten: value & UNWRITTEN != 0 };
        (value != 0).then_some(place)
    }

    /// Maps a block, or none.
    pub fn set(&mut self, index: usize, place: Option<Place>) {
        let value = place.map_or(0, |Place { block, unwritten }| {
            assert!(block.0 < MAX_CLUSTERED_BLOCKS, "PM block {block} in a line of the clustered table");
            block.0 | if unwritten { u64::from(UNWRITTEN) } else { 0 }
        });
        let (at, bit) = Line::position(index);
        let both = u128::from(self.word(at)) | u128::from(self.word(at + 1)) << 64;
        let both = both & !(u128::from(VALUE_MASK) << bit) | u128::from(value) << bit;
        let words = self.0.iter_mut().skip(at).zip([both as u64, (both >> 64) as u64]);
        words.for_each(|(word, new)| *word = new);
    }

    /// Whether it maps no block.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().skip(1).all(|word| *word == 0)
    }

    /// The blocks, by their numbers in the piece.
    pub fn places(&self) -> impl Iterator<Item = (usize, Place)> + '_ {
        (0..PIECE_BLOCKS as usize).filter_map(|index| Some((index, self.get(index)?)))
    }
}

/// The lines of a pool: numbers, addresses and homes.
#[derive(Debug, Clone)]
pub struct Lines {
    key: HashKey,
    area: PmOffset,
    count: u64,
}

impl Lines {
    /// The lines of a pool; `key` is the superblock's hash key.
    pub fn new(key: [u8; 16], geometry: &Geometry) -> Lines {
        let count = geometry.map_lines();
        assert!(count > 0 && count <= MAX_CLUSTERED_BLOCKS, "{count} lines");
        Lines { key: HashKey::new(key), area: geometry.map_offset(), count }
    }

    /// Their number.
    #[inline]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The address of a line.
    #[inline]
    pub fn at(&self, line: u64) -> PmOffset {
        self.area.plus(line * LINE_SIZE)
    }

    #[inline]
    fn of_hash(&self, hash: u64) -> u64 {
        ((hash >> 32) * self.count) >> 32
    }

    /// The line where the search for a piece begins.
    #[inline]
    pub fn home(&self, piece: Piece) -> u64 {
        self.of_hash(hash(&self.key, piece.ino.0 as u32, piece.number as u32))
    }

    /// The homes of at most 16 consecutive pieces.
    pub fn homes(&self, first: Piece, out: &mut [u64]) {
        hash_run(&self.key, first.ino.0 as u32, first.number as u32, out);
        out.iter_mut().for_each(|home| *home = self.of_hash(*home));
    }

    /// The line at a distance from a home; the distance is below the number of lines.
    #[inline]
    pub fn ahead(&self, home: u64, distance: u64) -> u64 {
        let line = home + distance;
        if line < self.count { line } else { line - self.count }
    }

    /// The distance of a line from a home.
    #[inline]
    pub fn distance(&self, home: u64, line: u64) -> u64 {
        if line >= home { line - home } else { line + self.count - home }
    }

    /// The largest reach that a search may have.
    pub fn most_reach(&self) -> u64 {
        self.count.next_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map_kind::MapKind;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    const KEY: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    fn lines(pm_size: u64) -> (Lines, Geometry) {
        let chosen = Geometry::choose(pm_size, 16).and_then(|geometry| geometry.with_map(MapKind::Clustered));
        let geometry = chosen.unwrap_or_else(|e| unreachable!("{e}"));
        (Lines::new(KEY, &geometry), geometry)
    }

    fn place(block: u64, unwritten: bool) -> Option<Place> {
        Some(Place { block: PmBlock(block), unwritten })
    }

    /// The rows of docs/format.md.
    #[test]
    fn lines_of_the_format_page() {
        let mut line = Line::of(Piece::of(Ino(2), FileBlock(19)));
        assert!(line.is_empty());
        line.set(0, place(0x123_4567, false));
        line.set(2, place(1, false));
        line.set(3, place(0x7ff_ffff, true));
        line.set(15, place(0x456_789a, true));
        let words =
            [0x4_0000_0020, 0x0100_0000_0123_4567, 0x0000_ffff_fff0_0000, 0, 0, 0, 0, 0xc567_89a0_0000_0000];
        assert_eq!(line.0, words, "{:#x?}", line.0);
    }

    #[test]
    fn values_of_a_line_are_apart() {
        let mut rng = SmallRng::seed_from_u64(1);
        for _ in 0..2000 {
            let (mut line, mut model) = (Line::of(Piece { ino: Ino(3), number: 5 }), [None; 16]);
            let key = line.key();
            for _ in 0..40 {
                let index = rng.random_range(0..16usize);
                let new = rng.random_bool(0.7).then(|| Place {
                    block: PmBlock(rng.random_range(1..MAX_CLUSTERED_BLOCKS)),
                    unwritten: rng.random(),
                });
                line.set(index, new);
                model.iter_mut().skip(index).take(1).for_each(|place| *place = new);
                assert!((0..16).map(|index| line.get(index)).eq(model), "{line:x?}");
                assert_eq!((line.key(), line.is_empty()), (key, model.iter().all(Option::is_none)));
            }
        }
    }

    #[test]
    fn a_key_is_the_word_of_the_first_block_of_a_piece() {
        for block in [0, 15, 16, 0x1234_5678, MAX_FILE_BLOCK.0] {
            let piece = Piece::of(Ino(0x7fff_feff), FileBlock(block));
            assert_eq!(Piece::decode(piece.key()), Some(piece));
            assert!(piece.has((block % 16) as usize) == (block >= 8));
            assert_eq!(Piece::decode(piece.key() | 1), None, "an unwritten block is no key");
            assert_eq!(Piece::decode(piece.key() + 2), None, "block {block} is not the first");
        }
        assert!(!Piece::of(Ino(1), MAX_FILE_BLOCK).has(15), "a block behind the last of a file");
        for number in [0, 1, MAX_FILE_BLOCK.0 / 16 - 1, MAX_FILE_BLOCK.0 / 16] {
            let piece = Piece { ino: Ino(1), number };
            assert!((0..16).filter(|index| !piece.has(*index)).eq(piece.impossible()), "{piece:?}");
        }
        assert!([0, 1, u64::MAX].iter().all(|word| Piece::decode(*word).is_none()));
    }

    /// The rows of docs/format.md: homes in a pool of 2 MiB.
    #[test]
    fn homes_of_the_format_page() {
        let (lines, _) = lines(2 << 20);
        assert_eq!(lines.count(), 493);
        let found = [(1, 0), (2, 0x1234_5678), (0x7fff_feff, 255)]
            .map(|(ino, block)| lines.home(Piece::of(Ino(ino), FileBlock(block))));
        assert_eq!(found, [111, 3, 159]);
    }

    #[test]
    fn each_block_of_the_pool_has_a_line() {
        for size in [2 << 20, 8 << 20, (1 << 30) + 4096, 512 << 30] {
            let (lines, geometry) = lines(size);
            let pool = geometry.block_count() - geometry.first_pool_block().0;
            assert!(lines.count() > pool, "{size}: {} lines, {pool} blocks", lines.count());
            let end = lines.at(lines.count());
            assert!(end <= geometry.first_pool_block().offset(), "{size}: the area ends before the pool");
        }
        let large = Geometry::choose((512 << 30) + 4096, 16).and_then(|g| g.with_map(MapKind::Clustered));
        assert!(large.is_err_and(|why| why.contains("512 GiB")), "PM of more blocks than values have");
    }

    #[test]
    fn a_sequence_has_each_line_once() {
        let (lines, _) = lines(2 << 20);
        let mut homes = [0; 16];
        lines.homes(Piece { ino: Ino(7), number: 100 }, &mut homes);
        for (number, home) in (100..).zip(homes) {
            assert_eq!(home, lines.home(Piece { ino: Ino(7), number }));
            let passed: std::collections::BTreeSet<u64> =
                (0..lines.count()).map(|distance| lines.ahead(home, distance)).collect();
            assert_eq!(passed.len() as u64, lines.count());
            assert!((0..lines.count()).all(|far| lines.distance(home, lines.ahead(home, far)) == far));
        }
    }
}
