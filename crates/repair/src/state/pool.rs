//! The pool as a repair sees it: the media, which it only reads, under an overlay of all changes.
//!
//! Invariants: no function here writes a medium, all changes go to the overlay. A line that already has the wanted
//! bytes does not enter the overlay.

use terrace_check::checker::Node;
use terrace_check::overlay::Overlay;
use terrace_check::{PoolView, checksums};
use terrace_format::address::LINE_SIZE;
use terrace_format::superblock::Superblock;
use terrace_format::table::{Entry, Owner};
use terrace_format::{BLOCK_SIZE, DeviceBlock, Geometry, PmBlock, PmOffset};
use terrace_media::block::AlignedBlock;

/// A block of PM.
pub(crate) type Bytes = Box<[u8; BLOCK_SIZE as usize]>;

/// Media, superblock and changes.
pub(crate) struct Pool<'a> {
    pub view: &'a PoolView,
    pub superblock: Superblock,
    pub geometry: Geometry,
    pub overlay: Overlay,
    /// Bytes of the overlay changed in this round.
    pub changed: bool,
}

impl<'a> Pool<'a> {
    pub fn new(view: &'a PoolView, superblock: Superblock, overlay: Overlay) -> Pool<'a> {
        Pool { view, superblock, geometry: superblock.geometry(), overlay, changed: false }
    }

    /// Reads PM as it will be after the changes; false when it cannot be read.
    pub fn read(&self, offset: PmOffset, into: &mut [u8]) -> bool {
        self.overlay.read(&self.view.pm, offset, into).is_ok()
    }

    /// The checksum of a page no longer covers it: from here on its bytes change.
    pub fn open_checksum(&mut self, page: PmBlock) {
        checksums::open(&mut self.overlay, &self.geometry, page.offset(), 1);
    }

    /// The owner of a block whose entry has the checksum of its data instead of a mask.
    pub fn checksummed(&self, entry: &[u8; 16]) -> Option<Owner> {
        let entry = Entry::decode(Entry::words(entry)).filter(|_| self.superblock.has_data_checksums())?;
        entry.checksum.map(|_| entry.owner)
    }

    /// Whether a block may be handed out.
    pub fn in_pool(&self, block: u64) -> bool {
        block >= self.geometry.first_pool_block().0 && block < self.geometry.block_count()
    }

    /// A word of PM; `None` when it cannot be read.
    pub fn word(&self, offset: PmOffset) -> Option<u64> {
        let mut word = [0; 8];
        self.read(offset, &mut word).then(|| u64::from_le_bytes(word))
    }

    /// A block of the pool; `None` when it cannot be read or lies outside.
    pub fn block(&self, block: u64) -> Option<Bytes> {
        let mut bytes = Box::new([0; BLOCK_SIZE as usize]);
        if !self.in_pool(block) {
            return None;
        }
        self.read(PmBlock(block).offset(), bytes.as_mut_slice()).then_some(bytes)
    }

    /// The words of a radix node.
    pub fn node(&self, block: u64) -> Option<Node> {
        let bytes = self.block(block)?;
        Some(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// Puts bytes into the overlay, a line at a time, and only lines that change.
    pub fn put(&mut self, offset: PmOffset, bytes: &[u8]) {
        let end = offset.0 + bytes.len() as u64;
        assert!(end <= self.geometry.pm_size, "a change beyond PM at {offset}");
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let take = (LINE_SIZE - at.0 % LINE_SIZE).min(rest.len() as u64) as usize;
            let (piece, tail) = rest.split_at(take);
            let mut there = [0; 64];
            let (there, _) = there.split_at_mut(take);
            if !self.read(at, there) || there != piece {
                self.overlay.write(at, piece);
                checksums::open(&mut self.overlay, &self.geometry, at, piece.len());
                self.changed = true;
            }
            (at, rest) = (at.plus(take as u64), tail);
        }
    }

    /// Blocks of a device, as the superblock says.
    pub fn device_blocks(&self, device: usize) -> u64 {
        self.superblock.device_rows().get(device).map_or(0, |row| row.blocks.get())
    }

    /// A block of a lower tier; `None` when it cannot be read.
    pub fn device_block(&self, device: usize, block: u64) -> Option<Box<[u8; 4096]>> {
        let medium = self.view.block.get(device)?.as_ref()?;
        if block >= medium.blocks() {
            return None;
        }
        let mut content = vec![AlignedBlock::zeroed()];
        medium.read(DeviceBlock(block), &mut content).ok()?;
        content.pop().map(|block| Box::new(block.0))
    }
}
