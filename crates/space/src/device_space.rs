//! The chunks of one device, in buckets by their largest holes.
//!
//! Invariants:
//! 1. `free` is the sum over the chunks.
//! 2. A chunk is in the bucket of its largest hole, and in no other.
//! 3. A chunk is published once, in ascending order: `next_load` is the first that is not.

use crate::chunk::{Chunk, Content, WHOLE_BUCKET};
use crate::io_pins::IoPins;
use std::collections::BTreeSet;
use terrace_blocks::bits::{self, Run};
use terrace_catalog::DeviceRun;
use terrace_catalog::chunks::{ChunkIndex, Piece, pieces};
use terrace_format::{DeviceId, Lsn};

/// Chunks of a bucket that one search looks at.
pub(crate) const MAX_CANDIDATE_CHUNKS: usize = 32;

/// The space of a device.
pub(crate) struct DeviceSpace {
    pub id: DeviceId,
    /// Blocks, the header included.
    pub blocks: u64,
    pub chunk_blocks: u32,
    pub chunks: Vec<Chunk>,
    /// Numbers of chunks.
    pub buckets: [BTreeSet<u32>; WHOLE_BUCKET + 1],
    /// The first chunk that is not loaded.
    pub next_load: usize,
    /// Free blocks.
    pub free: u64,
}

impl DeviceSpace {
    /// A device of which nothing is loaded.
    pub(crate) fn new(id: DeviceId, blocks: u64, chunk_blocks: u32) -> DeviceSpace {
        let chunks = blocks.saturating_sub(1).div_ceil(u64::from(chunk_blocks));
        DeviceSpace {
            id,
            blocks,
            chunk_blocks,
            chunks: (0..chunks).map(|_| Chunk::unknown()).collect(),
            buckets: Default::default(),
            next_load: 0,
            free: 0,
        }
    }

    /// Leaves the device without any block behind its header.
    pub(crate) fn leave_out(&mut self) {
        assert!(self.next_load == 0 && self.free == 0, "device {} is left out after a load", self.id);
        (self.blocks, self.chunks) = (1, Vec::new());
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.next_load >= self.chunks.len()
    }

    /// A chunk; `None` for a number beyond the device.
    pub(crate) fn chunk(&self, chunk: ChunkIndex) -> Option<&Chunk> {
        self.chunks.get(chunk.0 as usize)
    }

    fn chunk_mut(&mut self, chunk: ChunkIndex) -> Option<&mut Chunk> {
        self.chunks.get_mut(chunk.0 as usize)
    }

    /// Blocks of a chunk: the last may be short.
    pub(crate) fn capacity(&self, chunk: ChunkIndex) -> u64 {
        let before = chunk.0 * u64::from(self.chunk_blocks);
        (self.blocks - 1).saturating_sub(before).min(self.chunk_blocks.into())
    }

    /// A chunk's used bits, those beyond its end set.
    pub(crate) fn words(&self, chunk: ChunkIndex) -> Vec<u64> {
        let count = (self.chunk_blocks as usize).div_ceil(64);
        match self.chunk(chunk).map(|chunk| &chunk.content) {
            Some(Content::Part(words)) => words.to_vec(),
            Some(Content::Free) => {
                let mut words = vec![0; count];
                let capacity = self.capacity(chunk);
                bits::set(&mut words, Run::new(capacity, count as u64 * 64 - capacity));
                words
            }
            _ => vec![u64::MAX; count],
        }
    }

    /// A chunk's used bits with those that are pinned.
    pub(crate) fn words_with_pinned(&self, chunk: ChunkIndex, words: &[u64], pins: &IoPins) -> Vec<u64> {
        pins.with_pinned(self.id, chunk, words, self.chunk_blocks)
    }

    /// Takes over a bitmap of used blocks that was read (empty: wholly free, `None`: damaged). Records below `lsn` were
    /// seen by the read.
    pub(crate) fn publish(&mut self, chunk: ChunkIndex, lsn: Lsn, bitmap: Option<Vec<u64>>) {
        let is_damaged = bitmap.is_none();
        if let Some(place) = self.chunk_mut(chunk) {
            place.loaded = lsn;
            place.content = if is_damaged { Content::Full } else { Content::Free };
        }
        let mut words = self.words(chunk);
        // Still in no bucket: `store` compares with what the chunk was before it was known.
        if let Some(place) = self.chunk_mut(chunk) {
            place.content = Content::Unknown;
        }
        for (word, used) in words.iter_mut().zip(bitmap.unwrap_or_default()) {
            *word |= used;
        }
        self.store(chunk, &words);
    }

    /// The part of a piece that is inside a short chunk.
    fn inside(&self, piece: Piece) -> Run {
        let rest = self.capacity(piece.chunk).saturating_sub(piece.bits.start);
        Run::new(piece.bits.start, piece.bits.length.min(rest))
    }

    /// Marks blocks used.
    pub(crate) fn take(&mut self, piece: Piece) {
        let mut words = self.words(piece.chunk);
        bits::set(&mut words, self.inside(piece));
        self.store(piece.chunk, &words);
    }

    /// Marks blocks free; some of them may be free already.
    pub(crate) fn free(&mut self, piece: Piece) {
        let (run, capacity) = (self.inside(piece), self.capacity(piece.chunk));
        let freed =
            self.chunk_mut(piece.chunk).map(|place| (place.bucket(), place.free_in_part(run, capacity)));
        if let Some((before, Some(freed))) = freed {
            self.free += freed;
            self.rebucket(piece.chunk, before);
            return;
        }
        let mut words = self.words(piece.chunk);
        bits::clear(&mut words, run, |_| ());
        self.store(piece.chunk, &words);
    }

    /// Marks a run free in the chunks whose load has not seen the record that freed it.
    pub(crate) fn free_run(&mut self, run: DeviceRun, lsn: Lsn) {
        for piece in pieces(self.chunk_blocks, run) {
            // An unknown chunk learns of the free when it is loaded. A chunk loaded after the record has seen the
            // free.
            let is_seen = self.chunk(piece.chunk).is_none_or(|chunk| lsn < chunk.loaded);
            if !is_seen {
                self.free(piece);
            }
        }
    }

    /// Takes over a chunk's used bits.
    pub(crate) fn store(&mut self, chunk: ChunkIndex, words: &[u64]) {
        let capacity = self.capacity(chunk);
        let Some(place) = self.chunk_mut(chunk) else {
            return;
        };
        let (bucket, free) = (place.bucket(), place.free);
        place.set_words(words, capacity);
        let now = place.free;
        self.free = self.free - u64::from(free) + u64::from(now);
        self.rebucket(chunk, bucket);
    }

    /// Moves a chunk from the bucket that it was in.
    fn rebucket(&mut self, chunk: ChunkIndex, before: Option<usize>) {
        let after = self.chunk(chunk).and_then(Chunk::bucket);
        if before == after {
            return;
        }
        for (bucket, present) in [(before, false), (after, true)] {
            let Some(set) = bucket.and_then(|bucket| self.buckets.get_mut(bucket)) else {
                continue;
            };
            if present {
                set.insert(chunk.0 as u32);
            } else {
                set.remove(&(chunk.0 as u32));
            }
        }
    }

    /// A hole of `enough` to `want` blocks. Large requests look at whole chunks first and small ones last.
    pub(crate) fn find(&self, want: u64, enough: u64, pins: &IoPins) -> Option<Piece> {
        let log = want.ilog2() as usize;
        let whole = want * 2 >= u64::from(self.chunk_blocks);
        let front = if whole { Some(WHOLE_BUCKET) } else { None };
        let back = if whole { None } else { Some(WHOLE_BUCKET) };
        let smaller = (0..log).rev().filter(|_| enough < want);
        let order = front.into_iter().chain(log..WHOLE_BUCKET).chain(back).chain(smaller);
        let mut best: Option<Piece> = None;
        let candidates = order.filter_map(|bucket| self.buckets.get(bucket));
        for chunk in candidates.flat_map(|set| set.iter().take(MAX_CANDIDATE_CHUNKS)) {
            let chunk = ChunkIndex(u64::from(*chunk));
            if u64::from(self.chunk(chunk)?.largest) < enough {
                continue;
            }
            let words = self.words_with_pinned(chunk, &self.words(chunk), pins);
            let hole = bits::first_or_longest::<false>(&words, want);
            if hole.length >= want {
                return Some(Piece { chunk, bits: Run::new(hole.start, want) });
            }
            if hole.length >= enough && best.is_none_or(|best| hole.length > best.bits.length) {
                best = Some(Piece { chunk, bits: hole });
            }
        }
        best
    }

    /// Where a piece lies on the device.
    pub(crate) fn run_of(&self, piece: Piece) -> DeviceRun {
        piece.on(self.id, self.chunk_blocks)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::chunk::grains;

    /// The largest hole of a chunk is what a look at its bits finds, whatever was freed in whatever order.
    #[test]
    fn frees_keep_count_of_the_largest_hole() {
        const SIZE: u32 = 256;
        let mut device = DeviceSpace::new(DeviceId(0), 1 + 2 * u64::from(SIZE) - 50, SIZE);
        (0..2).for_each(|chunk| device.publish(ChunkIndex(chunk), Lsn(1), Some(Vec::new())));
        let mut state = 7u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (chunk, bit) = (ChunkIndex((state >> 33) % 2), (state >> 40) % 200);
            let (length, used) = (1 + (state >> 50) % 6, state >> 60 < 8);
            let piece = Piece { chunk, bits: Run::new(bit, length) };
            if used {
                device.take(piece)
            } else {
                device.free(piece)
            }
            let words = device.words(chunk);
            let place = device.chunk(chunk).unwrap();
            assert_eq!(u64::from(place.largest), bits::first_or_longest::<false>(&words, u64::MAX).length);
            assert_eq!(u64::from(place.free), 256 - bits::count_set(&words, Run::new(0, 256)));
            assert_eq!(place.grains, grains(&words));
            let bucket = place.bucket();
            assert!(
                bucket.is_none_or(|bucket| device.buckets.get(bucket).unwrap().contains(&(chunk.0 as u32)))
            );
            assert_eq!(device.free, device.chunks.iter().map(|place| u64::from(place.free)).sum::<u64>());
        }
    }
}
