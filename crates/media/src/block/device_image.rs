//! Contents of a simulated device: sparse images, and what a crash may leave of them.
//!
//! Invariants (the failure model): until flushed, each 512-byte sector of each write independently
//! survives a crash or not; of several unflushed writes to one sector the last that survives is
//! found. Flushed sectors always survive.

use super::AlignedBlock;
use crate::crash::Choice;
use std::collections::HashMap;
use std::sync::Arc;
use terrace_format::{BLOCK_SIZE, DeviceBlock};

/// Bytes that a device writes whole.
pub(crate) const SECTOR_BYTES: usize = 512;
const BLOCK_SECTORS: usize = BLOCK_SIZE as usize / SECTOR_BYTES;

/// A device's contents; blocks that were never written are zeros. Cheap to clone.
#[derive(Clone)]
pub struct DeviceImage {
    pub(crate) blocks: u64,
    /// Shared until written.
    pub(crate) content: Arc<HashMap<u64, Arc<AlignedBlock>>>,
    /// Exclusive or over all blocks.
    hash: u64,
}

impl DeviceImage {
    /// A device of `blocks` zero blocks.
    pub fn zeroed(blocks: u64) -> DeviceImage {
        DeviceImage { blocks, content: Arc::default(), hash: 0 }
    }

    /// From bytes, rounded up to a block.
    pub fn from_bytes(bytes: &[u8]) -> DeviceImage {
        let mut image = DeviceImage::zeroed((bytes.len() as u64).div_ceil(BLOCK_SIZE));
        for (number, chunk) in bytes.chunks(BLOCK_SIZE as usize).enumerate() {
            if chunk.iter().any(|byte| *byte != 0) {
                let mut block = AlignedBlock::zeroed();
                block.0[..chunk.len()].copy_from_slice(chunk);
                image.put(number as u64, Arc::new(block));
            }
        }
        image
    }

    /// All bytes, the unwritten ones included.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; (self.blocks * BLOCK_SIZE) as usize];
        for (number, block) in self.content.iter() {
            let start = (number * BLOCK_SIZE) as usize;
            if let Some(target) = bytes.get_mut(start..start + BLOCK_SIZE as usize) {
                target.copy_from_slice(&block.0);
            }
        }
        bytes
    }

    /// Blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// A hash of the content; blocks of zeros count as not written. Images that differ share it by accident only.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Replaces one block.
    pub(crate) fn put(&mut self, block: u64, content: Arc<AlignedBlock>) {
        assert!(block < self.blocks, "block {block} of {}", self.blocks);
        let content_hash = block_hash(block, &content);
        let old = Arc::make_mut(&mut self.content).insert(block, content);
        self.hash ^= content_hash ^ old.map_or(0, |old| block_hash(block, &old));
    }

    /// The content of a block; zeros if it was never written.
    pub fn block(&self, block: DeviceBlock) -> AlignedBlock {
        match self.content.get(&block.0) {
            Some(content) => AlignedBlock::clone(content),
            None => AlignedBlock::zeroed(),
        }
    }

    /// Replaces one block, to damage an image on purpose.
    pub fn set_block(&mut self, block: DeviceBlock, content: AlignedBlock) {
        self.put(block.0, Arc::new(content));
    }
}

/// The part of an image's hash that one block adds.
fn block_hash(number: u64, block: &AlignedBlock) -> u64 {
    if block.0 == [0; BLOCK_SIZE as usize] {
        return 0;
    }
    let mut parts = [number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15), 1, 2, 3];
    for words in block.0.as_chunks::<8>().0.chunks(parts.len()) {
        for (part, word) in parts.iter_mut().zip(words) {
            *part = (*part ^ u64::from_le_bytes(*word)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29);
        }
    }
    let mix = |hash: u64, part: &u64| {
        (hash ^ part ^ (hash >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb).rotate_left(17)
    };
    parts.iter().fold(0, mix)
}

/// A block that was written and not flushed.
#[derive(Clone)]
pub(crate) struct Unflushed {
    pub(crate) block: u64,
    pub(crate) content: Arc<AlignedBlock>,
    /// Written before a flush that failed: no later flush covers it (design M1).
    pub(crate) abandoned: bool,
}

/// All contents of a device that a crash at this moment may leave.
#[derive(Clone)]
pub struct DeviceSnapshot {
    /// Events of the clock that had begun.
    pub event: u64,
    pub(crate) durable: DeviceImage,
    pub(crate) unflushed: Vec<Unflushed>,
}

impl DeviceSnapshot {
    /// Block writes whose fate is undecided.
    pub fn unflushed_count(&self) -> usize {
        self.unflushed.len()
    }

    /// All unflushed writes lost.
    pub fn image_none(&self) -> DeviceImage {
        self.durable.clone()
    }

    /// All unflushed writes kept.
    pub fn image_all(&self) -> DeviceImage {
        self.image(&mut |_, _| true)
    }

    /// Keeps sector `sector` (0 to 7) of unflushed write `index` (oldest first) where `keep` says so.
    pub fn image(&self, keep: &mut dyn FnMut(usize, usize) -> bool) -> DeviceImage {
        let mut image = self.durable.clone();
        for (index, write) in self.unflushed.iter().enumerate() {
            let mut mask = 0u32;
            for sector in 0..BLOCK_SECTORS {
                mask |= u32::from(keep(index, sector)) << sector;
            }
            if mask == (1 << BLOCK_SECTORS) - 1 {
                image.put(write.block, Arc::clone(&write.content));
            } else if mask != 0 {
                let mut block = image.block(DeviceBlock(write.block));
                let parts = block.0.chunks_mut(SECTOR_BYTES).zip(write.content.0.chunks(SECTOR_BYTES));
                for (sector, (to, from)) in parts.enumerate() {
                    if mask & (1 << sector) != 0 {
                        to.copy_from_slice(from);
                    }
                }
                image.put(write.block, Arc::new(block));
            }
        }
        image
    }

    /// An image that a crash may leave, chosen by the seed: equal seeds give equal images. A third of the
    /// seeds tears blocks; the rest keeps or loses each block whole.
    pub fn image_random(&self, seed: u64) -> DeviceImage {
        let mut choice = Choice::new(seed);
        let tears = choice.below(3) == 0;
        // The share of unflushed writes that survive differs between images: from almost none to almost all.
        let kept = choice.below(9);
        let mut whole = (usize::MAX, false);
        self.image(&mut |index, _| {
            if tears {
                return choice.below(8) < kept;
            }
            if whole.0 != index {
                whole = (index, choice.below(8) < kept);
            }
            whole.1
        })
    }
}
