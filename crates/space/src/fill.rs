//! The choice of holes to fill: claims for blocks that are written together and find no long run.
//!
//! Claims that follow each other lie side by side, and holes left by overwrites in other chunks grow together before
//! they are filled.

use crate::chunk::{Chunk, GRAINS};
use crate::device_space::DeviceSpace;
use crate::io_pins::IoPins;
use std::collections::BinaryHeap;
use terrace_blocks::bits::{self, Run};
use terrace_catalog::DeviceRun;
use terrace_catalog::chunks::{ChunkIndex, Piece};

/// Chunks chosen at once to be filled.
pub(crate) const MAX_CHOSEN_CHUNKS: usize = 32;

/// The chunks of a device whose holes are being filled.
#[derive(Default)]
pub(crate) struct Filling {
    /// The last is the one at work.
    pub chunks: Vec<ChunkIndex>,
    /// Bits of it before this were looked at.
    pub from: u64,
    /// Holes of less than `1 << grain` blocks are left to grow.
    pub grain: usize,
}

impl Filling {
    /// Claims holes for `want` blocks: first in the chunks that are being filled, then in newly chosen
    /// chunks, last in every chunk.
    pub(crate) fn claim_holes(
        &mut self,
        device: &mut DeviceSpace,
        pins: &IoPins,
        want: u64,
    ) -> Vec<DeviceRun> {
        let (mut runs, mut left) = (Vec::new(), want);
        let mut rest = (0..device.chunks.len() as u64).map(ChunkIndex);
        let mut is_fruitful = true;
        while left > 0 && device.free > 0 {
            let Some(chunk) = self.chunks.last().copied() else {
                // Holes whose blocks are pinned count as holes: a choice may give nothing.
                *self = if is_fruitful { Filling::choose(device) } else { Filling::default() };
                if self.chunks.is_empty() {
                    let has_holes = |at: &ChunkIndex| device.chunk(*at).is_some_and(|chunk| chunk.free > 0);
                    let Some(chunk) = rest.find(has_holes) else { break };
                    *self = Filling { chunks: vec![chunk], from: 0, grain: 0 };
                }
                is_fruitful = false;
                continue;
            };
            let taken = self.fill(device, chunk, pins, left, &mut runs);
            assert!(taken <= left, "{taken} blocks are claimed for {left}");
            left -= taken;
            is_fruitful |= taken > 0;
            if left > 0 {
                self.chunks.pop();
                self.from = 0;
            }
        }
        runs
    }

    /// The next chunks to be filled: of the longest kind of hole of which some chunk has a quarter of the blocks that chunks
    /// have free on average, the chunks with the most; the first of equal ones first. Filling a chunk to its end, and
    /// passing over shorter holes, lets holes grow: of data overwritten at random, half of a device, runs of seven blocks
    /// remain, where filling the emptiest chunk a little leaves less than two.
    fn choose(device: &DeviceSpace) -> Filling {
        let mut most = [0u16; GRAINS];
        for chunk in &device.chunks {
            for (most, of) in most.iter_mut().zip(chunk.grains) {
                *most = (*most).max(of);
            }
        }
        let enough = (device.free / device.chunks.len().max(1) as u64 / 4).max(1);
        let Some(grain) = most.iter().rposition(|most| u64::from(*most) >= enough) else {
            return Filling::default();
        };
        let of = |chunk: &Chunk| chunk.grains.get(grain).copied().unwrap_or(0);
        let mut chosen = BinaryHeap::with_capacity(MAX_CHOSEN_CHUNKS + 1);
        for (index, chunk) in (0..).map(ChunkIndex).zip(&device.chunks) {
            let blocks = of(chunk);
            if u64::from(blocks) < enough {
                continue;
            }
            // The worst on top.
            chosen.push((std::cmp::Reverse(blocks), index));
            if chosen.len() > MAX_CHOSEN_CHUNKS {
                chosen.pop();
            }
        }
        let mut chunks: Vec<_> = chosen.into_sorted_vec();
        chunks.reverse();
        Filling { chunks: chunks.into_iter().map(|(_, chunk)| chunk).collect(), from: 0, grain }
    }

    /// Claims the next holes of the chunk that is being filled, at most `left` blocks; returns how many.
    fn fill(
        &mut self,
        device: &mut DeviceSpace,
        chunk: ChunkIndex,
        pins: &IoPins,
        left: u64,
        runs: &mut Vec<DeviceRun>,
    ) -> u64 {
        let mut words = device.words(chunk);
        let open = device.words_with_pinned(chunk, &words, pins);
        let (from, mut taken) = (self.from, 0);
        for hole in bits::runs::<false>(&open) {
            let (begin, end) = (hole.start.max(from), hole.end());
            // The rest of the hole that the previous claim left is taken even if it is short.
            let is_rest = from > 0 && begin == from;
            if end <= begin || (!is_rest && (end - begin) >> self.grain == 0) {
                continue;
            }
            let claimed = Run::new(begin, (end - begin).min(left - taken));
            bits::set(&mut words, claimed);
            taken += claimed.length;
            self.from = claimed.end();
            runs.push(device.run_of(Piece { chunk, bits: claimed }));
            if taken == left {
                break;
            }
        }
        if taken > 0 {
            device.store(chunk, &words);
        }
        taken
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use terrace_format::{DeviceBlock, DeviceId, Lsn};

    #[test]
    fn claims_take_long_holes_first_and_no_pinned_block() {
        let part = |holes: &[(u64, u64)]| {
            let mut words = vec![u64::MAX; 4];
            holes.iter().for_each(|(bit, length)| bits::clear(&mut words, Run::new(*bit, *length), |_| ()));
            words
        };
        let mut device = DeviceSpace::new(DeviceId(0), 1 + 512, 256);
        let mut filling = Filling::default();
        device.publish(ChunkIndex(0), Lsn(1), Some(part(&[(10, 5), (100, 1)])));
        device.publish(ChunkIndex(1), Lsn(1), Some(part(&[(0, 3), (63, 2), (200, 56)])));
        let run = |start, length| DeviceRun { device: DeviceId(0), start: DeviceBlock(start), length };
        let (mut pins, none) = (IoPins::default(), IoPins::default());
        pins.hold(run(257 + 63, 1));
        let found = filling.claim_holes(&mut device, &pins, 62);
        assert_eq!(found, [run(257 + 200, 56), run(11, 5), run(257, 1)]);
        assert_eq!(device.free, 5);
        // The claim goes on where the last one ended; single blocks are left for the end.
        assert_eq!(filling.claim_holes(&mut device, &pins, 2), [run(258, 2)]);
        assert_eq!(filling.claim_holes(&mut device, &pins, 100), [run(101, 1), run(257 + 64, 1)]);
        assert_eq!(filling.claim_holes(&mut device, &none, 100), [run(257 + 63, 1)]);
        assert_eq!((filling.claim_holes(&mut device, &none, 1), device.free), (vec![], 0));
    }

    /// Data over half of the device, overwritten at random: the runs of what is written stay long.
    #[test]
    fn random_overwrites_leave_long_free_runs() {
        const SIZE: u32 = 1024;
        const CHUNKS: u64 = 32;
        let live = CHUNKS * u64::from(SIZE) / 2;
        let mut device = DeviceSpace::new(DeviceId(0), 1 + CHUNKS * u64::from(SIZE), SIZE);
        let (mut filling, none) = (Filling::default(), IoPins::default());
        (0..CHUNKS).for_each(|chunk| device.publish(ChunkIndex(chunk), Lsn(1), Some(Vec::new())));
        let places = |runs: &[DeviceRun]| -> Vec<u64> {
            runs.iter().flat_map(|run| run.start.0..run.start.0 + run.length).collect()
        };
        let mut place = places(&filling.claim_holes(&mut device, &none, live));
        let (mut state, mut runs, mut blocks) = (7u64, 0, 0);
        for group in 0..6 * live / 256 {
            let claimed = filling.claim_holes(&mut device, &none, 256);
            if group >= 3 * live / 256 {
                runs += claimed.len();
                blocks += 256;
            }
            for new in places(&claimed) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let written = place.get_mut((state >> 33) as usize % live as usize).unwrap();
                let old = std::mem::replace(written, new);
                let chunk = ChunkIndex((old - 1) / u64::from(SIZE));
                device.free(Piece { chunk, bits: Run::new((old - 1) % u64::from(SIZE), 1) });
            }
        }
        // Less than two when the emptiest chunk is filled a little.
        assert!(blocks >= 5 * runs, "{blocks} blocks in {runs} runs");
    }
}
