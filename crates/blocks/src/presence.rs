//! The blocks of files that PM holds, in memory: of each inode its pieces of 128 blocks with exact bits.
//!
//! A block table that is the file map can tell where a block is, not that it is nowhere, nor which blocks a file has.
//!
//! Invariant: when the table has been read and nothing is under way, a bit is set exactly where the table has an entry. A
//! bit is set before the entry is stored, and cleared after it is gone. A bit in doubt is the exception: after a failed
//! change the table could not be asked whether it has the entry.
//!
//! Lock order: a shard's lock and the lock of the doubts are last locks.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use terrace_format::{FileBlock, Ino};
use terrace_runtime::sync::RwLock;

const SHARDS: usize = 64;
/// Blocks of a piece.
const PIECE_BLOCKS: u64 = 128;

/// 128 blocks of a file.
#[derive(Debug, Clone, Copy)]
struct Piece {
    number: u32,
    bits: [u64; 2],
}

/// The pieces of a file, ascending; most files have one.
#[derive(Debug)]
enum Pieces {
    One(Piece),
    Many(Vec<Piece>),
}

impl Pieces {
    fn all(&self) -> &[Piece] {
        match self {
            Pieces::One(piece) => std::slice::from_ref(piece),
            Pieces::Many(pieces) => pieces,
        }
    }

    /// The bits of a piece, which is added when it is missing.
    fn bits(&mut self, number: u32) -> &mut [u64; 2] {
        if let Pieces::One(piece) = *self
            && piece.number != number
        {
            *self = Pieces::Many(vec![piece]);
        }
        match self {
            Pieces::One(piece) => &mut piece.bits,
            Pieces::Many(pieces) => {
                let at = pieces.partition_point(|piece| piece.number < number);
                if pieces.get(at).is_none_or(|piece| piece.number != number) {
                    pieces.insert(at, Piece { number, bits: [0; 2] });
                }
                &mut pieces[at].bits
            }
        }
    }
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

type Shard = HashMap<u32, Pieces, BuildHasherDefault<InoHasher>>;

/// The blocks of all files that PM holds.
#[derive(Debug)]
pub struct Presence {
    shards: Vec<RwLock<Shard>>,
    /// Blocks in doubt, until the next mount. A failing medium makes doubts, so the set is small.
    doubts: RwLock<HashSet<(Ino, FileBlock)>>,
}

impl Default for Presence {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::new(Shard::default())).collect();
        Presence { shards, doubts: RwLock::default() }
    }
}

/// The piece of a block, the word in it, and the bit in that.
fn place(block: FileBlock) -> (u32, usize, u64) {
    let within = block.0 % PIECE_BLOCKS;
    ((block.0 / PIECE_BLOCKS) as u32, (within / 64) as usize, 1 << (within % 64))
}

impl Presence {
    fn shard(&self, ino: Ino) -> &RwLock<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Whether PM holds a block.
    pub fn contains(&self, ino: Ino, block: FileBlock) -> bool {
        let (number, word, bit) = place(block);
        let shard = self.shard(ino).read();
        let Some(pieces) = shard.get(&(ino.0 as u32)) else { return false };
        let pieces = pieces.all();
        let at = pieces.partition_point(|piece| piece.number < number);
        pieces.get(at).is_some_and(|piece| piece.number == number && piece.bits[word] & bit != 0)
    }

    /// Adds a block that may be there: nobody could tell.
    pub fn doubt(&self, ino: Ino, block: FileBlock) {
        self.doubts.write().insert((ino, block));
        self.insert(ino, block);
    }

    /// Whether a block must be in the table: its bit is set, and the block is not in doubt.
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
        let (number, word, bit) = place(block);
        let mut shard = self.shard(ino).write();
        if !condition() {
            return false;
        }
        let pieces = shard.entry(ino.0 as u32).or_insert_with(|| Pieces::One(Piece { number, bits: [0; 2] }));
        let bits = pieces.bits(number);
        let is_new = bits[word] & bit == 0;
        bits[word] |= bit;
        is_new
    }

    /// Takes a block out; false if it was not there.
    pub fn remove(&self, ino: Ino, block: FileBlock) -> bool {
        let (number, word, bit) = place(block);
        let mut shard = self.shard(ino).write();
        let Some(pieces) = shard.get_mut(&(ino.0 as u32)) else { return false };
        let Ok(at) = pieces.all().binary_search_by_key(&number, |piece| piece.number) else { return false };
        let (was_there, is_empty) = match pieces {
            Pieces::One(piece) => clear(&mut piece.bits, word, bit),
            Pieces::Many(all) => {
                let (was_there, is_empty) = clear(&mut all[at].bits, word, bit);
                if is_empty {
                    all.remove(at);
                }
                (was_there, all.is_empty())
            }
        };
        if is_empty {
            shard.remove(&(ino.0 as u32));
        }
        was_there
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
        let full = out.len() + most;
        let shard = self.shard(ino).read();
        let pieces = shard.get(&(ino.0 as u32)).map_or(&[][..], Pieces::all);
        let first = place(from).0;
        let begin = pieces.partition_point(|piece| piece.number < first);
        for piece in &pieces[begin..] {
            let start = u64::from(piece.number) * PIECE_BLOCKS;
            for (word, mut bits) in (0..).zip(piece.bits) {
                while bits != 0 {
                    let block = FileBlock(start + 64 * word + u64::from(bits.trailing_zeros()));
                    bits &= bits - 1;
                    if block >= to {
                        return None;
                    }
                    if block >= from {
                        if out.len() == full {
                            return Some(block);
                        }
                        out.push(block);
                    }
                }
            }
        }
        None
    }
}

/// Clears a bit: whether it was set, and whether the piece is empty now.
fn clear(bits: &mut [u64; 2], word: usize, bit: u64) -> (bool, bool) {
    let was_set = bits[word] & bit != 0;
    bits[word] &= !bit;
    (was_set, *bits == [0; 2])
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
            let block = rng.random_range(0..6u64) * 1000 + rng.random_range(0..140);
            let (key, file, at) = ((ino, block), Ino(ino), FileBlock(block));
            match rng.random_range(0..3) {
                0 => assert_eq!(presence.insert(file, at), model.insert(key)),
                1 => assert_eq!(presence.remove(file, at), model.remove(&key)),
                _ => {}
            }
            assert_eq!(presence.contains(file, at), model.contains(&key));
            assert_eq!(presence.requires(file, at), model.contains(&key));
            let mut of_file = model.range((ino, block)..(ino, 9000)).map(|(_, block)| FileBlock(*block));
            let mut found = Vec::new();
            let next = presence.list(file, (at, FileBlock(9000)), 3, &mut found);
            assert_eq!(found, of_file.by_ref().take(3).collect::<Vec<_>>());
            assert_eq!(next, of_file.next());
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
