//! The blocks of files that PM holds, in memory: of each inode its block, or its pieces of 128 blocks with
//! exact bits.
//!
//! A block table that is the file map can tell where a block is, not that it is nowhere, nor which blocks a file has.
//!
//! Invariant: when the table has been read and nothing is under way, a bit is set exactly where the table has an entry. A
//! bit is set before the entry is stored, and cleared after it is gone. A bit in doubt is the exception: after a failed
//! change the table could not be asked whether it has the entry.
//!
//! Lock order: a shard's lock and the lock of the doubts are last locks.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::{FileBlock, Ino};
use terrace_runtime::sync::RwLock;
use thin_vec::{ThinVec, thin_vec};

const SHARDS: usize = 64;
/// Blocks of a piece.
const PIECE_BLOCKS: u64 = 128;
/// Pieces of a list.
const MAX_FEW: usize = 64;

/// The bits of a piece.
type Bits = [u32; 4];

/// A piece with its number.
#[derive(Debug, Clone, Copy)]
struct Piece {
    number: u32,
    bits: Bits,
}

/// The blocks of a file that PM holds; most files have one. Each form costs at most 64 bytes for a block, the entry of the
/// shard's table included.
#[derive(Debug)]
enum Blocks {
    One(u32),
    /// Ascending, at most [`MAX_FEW`].
    Few(ThinVec<Piece>),
    /// A list so long that insertions in its middle would cost more than a search.
    #[expect(clippy::box_collection, reason = "a shard's entry is a third smaller for the pointer")]
    Many(Box<BTreeMap<u32, Bits>>),
}

impl Blocks {
    fn bits(&self, number: u32) -> Bits {
        match self {
            Blocks::One(only) => {
                let (piece, word, bit) = place(FileBlock(u64::from(*only)));
                let mut bits = [0; 4];
                bits[word] = if piece == number { bit } else { 0 };
                bits
            }
            Blocks::Few(pieces) => match pieces.binary_search_by_key(&number, |piece| piece.number) {
                Ok(at) => pieces[at].bits,
                Err(_) => [0; 4],
            },
            Blocks::Many(pieces) => pieces.get(&number).copied().unwrap_or_default(),
        }
    }

    /// Changes the bits of a piece; a piece without bits is none.
    fn set_bits(&mut self, number: u32, bits: Bits) {
        if let Blocks::One(only) = *self {
            let piece = place(FileBlock(u64::from(only))).0;
            *self = Blocks::Few(thin_vec![Piece { number: piece, bits: self.bits(piece) }]);
        }
        if let Blocks::Few(pieces) = self
            && pieces.len() == MAX_FEW
            && pieces.binary_search_by_key(&number, |piece| piece.number).is_err()
        {
            *self = Blocks::Many(Box::new(pieces.iter().map(|piece| (piece.number, piece.bits)).collect()));
        }
        match self {
            Blocks::One(_) => {}
            Blocks::Few(pieces) => match pieces.binary_search_by_key(&number, |piece| piece.number) {
                Ok(at) if bits == [0; 4] => _ = pieces.remove(at),
                Ok(at) => pieces[at].bits = bits,
                Err(_) if bits == [0; 4] => {}
                Err(at) => pieces.insert(at, Piece { number, bits }),
            },
            Blocks::Many(pieces) if bits == [0; 4] => _ = pieces.remove(&number),
            Blocks::Many(pieces) => _ = pieces.insert(number, bits),
        }
    }

    fn contains(&self, block: FileBlock) -> bool {
        let (number, word, bit) = place(block);
        self.bits(number)[word] & bit != 0
    }

    /// The bits of a piece that has some.
    fn bits_mut(&mut self, number: u32) -> Option<&mut Bits> {
        match self {
            Blocks::One(_) => None,
            Blocks::Few(pieces) => {
                let at = pieces.binary_search_by_key(&number, |piece| piece.number).ok()?;
                Some(&mut pieces[at].bits)
            }
            Blocks::Many(pieces) => pieces.get_mut(&number),
        }
    }

    /// Adds a block; false if it was there.
    fn insert(&mut self, block: FileBlock) -> bool {
        let (number, word, bit) = place(block);
        if let Some(bits) = self.bits_mut(number) {
            let is_new = bits[word] & bit == 0;
            bits[word] |= bit;
            return is_new;
        }
        let mut bits = self.bits(number);
        let is_new = bits[word] & bit == 0;
        bits[word] |= bit;
        if is_new {
            self.set_bits(number, bits);
        }
        is_new
    }

    /// Takes a block out; false if it was not there.
    fn remove(&mut self, block: FileBlock) -> bool {
        let (number, word, bit) = place(block);
        let mut bits = self.bits(number);
        let was_there = bits[word] & bit != 0;
        bits[word] &= !bit;
        if was_there {
            self.set_bits(number, bits);
        }
        was_there
    }

    fn is_empty(&self) -> bool {
        match self {
            Blocks::One(_) => false,
            Blocks::Few(pieces) => pieces.is_empty(),
            Blocks::Many(pieces) => pieces.is_empty(),
        }
    }

    /// The number of aligned sixteens with a block.
    fn sixteens(&self) -> u64 {
        let of_bits = |bits: &Bits| {
            let halves = bits.iter().flat_map(|word| [word & 0xffff, word >> 16]);
            halves.filter(|half| *half != 0).count() as u64
        };
        match self {
            Blocks::One(_) => 1,
            Blocks::Few(pieces) => pieces.iter().map(|piece| of_bits(&piece.bits)).sum(),
            Blocks::Many(pieces) => pieces.values().map(of_bits).sum(),
        }
    }

    /// The next blocks from `from` on, ascending.
    fn from(&self, from: FileBlock) -> impl Iterator<Item = FileBlock> {
        let first = place(from).0;
        let (only, few, many) = match self {
            Blocks::One(only) => (Some(FileBlock(u64::from(*only))), &[][..], None),
            Blocks::Few(pieces) => {
                let begin = pieces.partition_point(|piece| piece.number < first);
                (None, &pieces[begin..], None)
            }
            Blocks::Many(pieces) => (None, &[][..], Some(pieces.range(first..))),
        };
        let few = few.iter().map(|piece| (piece.number, piece.bits));
        let many = many.into_iter().flatten().map(|(number, bits)| (*number, *bits));
        let of_pieces = few.chain(many).flat_map(|(number, bits)| blocks_of(number, bits));
        only.into_iter().chain(of_pieces).filter(move |block| *block >= from)
    }
}

/// The blocks of a piece, ascending.
fn blocks_of(number: u32, bits: Bits) -> impl Iterator<Item = FileBlock> {
    (0..).zip(bits).flat_map(move |(word, mut bits)| {
        std::iter::from_fn(move || {
            let bit = (bits != 0).then(|| u64::from(bits.trailing_zeros()))?;
            bits &= bits - 1;
            Some(FileBlock(u64::from(number) * PIECE_BLOCKS + 32 * word + bit))
        })
    })
}

/// Inode numbers are spread already by the shards; the multiplication spreads the rest.
#[derive(Debug, Default)]
struct InoHasher(u64);

impl Hasher for InoHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }
    fn write_u32(&mut self, value: u32) {
        self.0 = (self.0 ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

type Shard = HashMap<u32, Blocks, BuildHasherDefault<InoHasher>>;

/// The blocks of all files that PM holds.
#[derive(Debug)]
pub struct Presence {
    shards: Vec<RwLock<Shard>>,
    /// Blocks with a bit that the table could not confirm, until the next mount. Each comes from a medium error.
    doubts: RwLock<HashSet<(Ino, FileBlock)>>,
}

impl Default for Presence {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::new(Shard::default())).collect();
        Presence { shards, doubts: RwLock::default() }
    }
}

/// The piece of a block, the word in it, and the bit in that.
fn place(block: FileBlock) -> (u32, usize, u32) {
    let within = block.0 % PIECE_BLOCKS;
    ((block.0 / PIECE_BLOCKS) as u32, (within / 32) as usize, 1 << (within % 32))
}

impl Presence {
    fn shard(&self, ino: Ino) -> &RwLock<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Whether PM holds a block.
    pub fn contains(&self, ino: Ino, block: FileBlock) -> bool {
        self.shard(ino).read().get(&(ino.0 as u32)).is_some_and(|blocks| blocks.contains(block))
    }

    /// The blocks of a sixteen that PM holds: bit i is block 16 × `sixteen` + i.
    pub fn sixteen(&self, ino: Ino, sixteen: u64) -> u16 {
        assert!(sixteen >> 28 == 0, "file blocks have 32 bits: sixteen {sixteen}");
        let (number, word, bit) = place(FileBlock(sixteen * 16));
        let shard = self.shard(ino).read();
        let bits = shard.get(&(ino.0 as u32)).map_or([0; 4], |blocks| blocks.bits(number));
        (bits[word] >> bit.trailing_zeros()) as u16
    }

    /// Adds a block without knowledge of an entry for it.
    pub fn doubt(&self, ino: Ino, block: FileBlock) {
        self.doubts.write().insert((ino, block));
        self.insert(ino, block);
    }

    /// Whether a block must be in the table: its bit is set and not in doubt.
    pub fn requires(&self, ino: Ino, block: FileBlock) -> bool {
        self.contains(ino, block) && !self.doubts.read().contains(&(ino, block))
    }

    /// Whether PM holds no block of a file.
    pub fn is_empty(&self, ino: Ino) -> bool {
        !self.shard(ino).read().contains_key(&(ino.0 as u32))
    }

    /// Adds a block; false if it was there.
    pub fn insert(&self, ino: Ino, block: FileBlock) -> bool {
        self.insert_if(ino, block, || true)
    }

    /// Adds a block if a condition holds, which is judged under the lock of the file's bits: a change of the block takes
    /// this lock afterwards or has made the condition false.
    pub fn insert_if(&self, ino: Ino, block: FileBlock, condition: impl FnOnce() -> bool) -> bool {
        assert!(block <= MAX_FILE_BLOCK, "block {block} of inode {ino} lies in PM");
        let mut shard = self.shard(ino).write();
        if !condition() {
            return false;
        }
        match shard.entry(ino.0 as u32) {
            Entry::Occupied(mut blocks) => blocks.get_mut().insert(block),
            Entry::Vacant(vacant) => {
                vacant.insert(Blocks::One(block.0 as u32));
                true
            }
        }
    }

    /// Takes a block out; false if it was not there.
    pub fn remove(&self, ino: Ino, block: FileBlock) -> bool {
        let mut shard = self.shard(ino).write();
        let Some(blocks) = shard.get_mut(&(ino.0 as u32)) else { return false };
        // The only block goes with its file.
        let was_there = match blocks {
            Blocks::One(only) => u64::from(*only) == block.0,
            _ => blocks.remove(block),
        };
        if was_there && (matches!(blocks, Blocks::One(_)) || blocks.is_empty()) {
            shard.remove(&(ino.0 as u32));
        }
        was_there
    }

    /// The number of blocks of a file in `from..to` that PM holds.
    pub fn count(&self, ino: Ino, from: FileBlock, to: FileBlock) -> u64 {
        let shard = self.shard(ino).read();
        let blocks = shard.get(&(ino.0 as u32)).map(|blocks| blocks.from(from));
        blocks.map_or(0, |blocks| blocks.take_while(|block| *block < to).count() as u64)
    }

    /// The number of aligned sixteens of all files with a block that PM holds. Looks at all bits.
    pub fn sixteens(&self) -> u64 {
        let of_shard = |shard: &RwLock<Shard>| shard.read().values().map(Blocks::sixteens).sum::<u64>();
        self.shards.iter().map(of_shard).sum()
    }

    /// Appends the next blocks of a file in `from..to` that PM holds, ascending, at most `most`. Gives the block to go on
    /// at; `None` at the end of the range.
    pub fn list(
        &self,
        ino: Ino,
        (from, to): (FileBlock, FileBlock),
        most: usize,
        out: &mut Vec<FileBlock>,
    ) -> Option<FileBlock> {
        let shard = self.shard(ino).read();
        let mut blocks = shard.get(&(ino.0 as u32))?.from(from).take_while(|block| *block < to);
        out.extend(blocks.by_ref().take(most));
        blocks.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    use std::collections::BTreeSet;

    #[test]
    fn random_blocks_are_present_exactly_as_in_a_model() {
        let mut rng = SmallRng::seed_from_u64(5);
        let (presence, mut model) = (Presence::default(), BTreeSet::new());
        for _ in 0..20_000 {
            let ino = rng.random_range(1..5u64);
            let block =
                rng.random_range(0..6u64) * 1000 + rng.random_range(0..if ino == 1 { 2 } else { 140 });
            let (key, file, at) = ((ino, block), Ino(ino), FileBlock(block));
            match rng.random_range(0..3) {
                0 => assert_eq!(presence.insert(file, at), model.insert(key)),
                1 => assert_eq!(presence.remove(file, at), model.remove(&key)),
                _ => {}
            }
            assert_eq!(presence.contains(file, at), model.contains(&key));
            assert_eq!(presence.requires(file, at), model.contains(&key));
            let sixteen = block / 16 * 16..block / 16 * 16 + 16;
            let bits = sixteen.map(|block| u16::from(model.contains(&(ino, block))));
            let bits = bits.rev().fold(0, |bits, bit| bits << 1 | bit);
            assert_eq!(presence.sixteen(file, block / 16), bits);
            let mut of_file = model.range((ino, block)..(ino, 900_000)).map(|(_, block)| FileBlock(*block));
            let mut found = Vec::new();
            let next = presence.list(file, (at, FileBlock(900_000)), 3, &mut found);
            assert_eq!(found, of_file.by_ref().take(3).collect::<Vec<_>>());
            assert_eq!(next, of_file.next());
            let end = 4100.max(block);
            let count = model.range((ino, block)..(ino, end)).count() as u64;
            assert_eq!(presence.count(file, at, FileBlock(end)), count);
            let sixteens: BTreeSet<_> = model.iter().map(|(ino, block)| (ino, block / 16)).collect();
            assert_eq!(presence.sixteens(), sixteens.len() as u64);
            assert_eq!(presence.is_empty(file), model.range((ino, 0)..(ino + 1, 0)).next().is_none());
        }
    }
    #[test]
    fn a_doubtful_block_is_listed_and_not_required() {
        let presence = Presence::default();
        let (ino, block) = (Ino(7), FileBlock(300));
        presence.doubt(ino, block);
        let mut found = Vec::new();
        assert_eq!(presence.list(ino, (FileBlock(0), FileBlock(900)), 9, &mut found), None);
        assert_eq!((found, presence.is_empty(ino)), (vec![block], false));
        assert!(presence.contains(ino, block) && !presence.requires(ino, block));
    }
}
