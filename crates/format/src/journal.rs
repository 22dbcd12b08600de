//! The journal device of a tier 0 in DRAM (medium `journaled`): its layout.
//!
//! ```text
//! block 0     anchor, copy 0
//! block 1, 2  no content: trials of durable writes
//! block 256   anchor, copy 1
//! block 512   table of page checksums, copy 0; behind it copy 1
//! then        home: the pages of the image
//! then        log: a ring of batches, to the end of the device
//! ```
//! The newest sound anchor names the batch from which the log counts and the table in use. The image is home with
//! the entries of these batches applied in order. Tables and home begin at multiples of 1 MiB.

mod anchor;
mod batch;
mod table;

pub use anchor::{ANCHOR_MAGIC, Anchor, RefusedAnchor};
pub use batch::{
    BATCH_HEADER_BYTES, BatchHeader, ENTRY_HEADER_BYTES, Entry, EntryKind, MAX_BATCH_BYTES, entries,
    entry_bytes,
};
pub use table::{TABLE_ENTRIES, decode_table, encode_table, page_checksum};

use crate::address::{BLOCK_SIZE, DeviceBlock};
use crate::checkpoint::FAR;

/// The copies of the anchor. They are written in turns.
pub const ANCHOR_COPIES: [DeviceBlock; 2] = [DeviceBlock(0), DeviceBlock(256)];
/// First of two blocks without content, for trials of durable writes.
pub const TRIAL_BLOCKS: (DeviceBlock, u64) = (DeviceBlock(1), 2);
/// First block of the first table.
const FIRST_TABLE: u64 = 512;
/// Blocks of 1 MiB.
const ALIGN_BLOCKS: u64 = 256;
/// The smallest log: two of the largest batches, and as much for the batches of a home round.
pub const MIN_LOG_BYTES: u64 = 4 * MAX_BATCH_BYTES;

/// Addresses on a journal device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    image_bytes: u64,
    log_bytes: u64,
}

impl Layout {
    /// A layout for an image and a log of whole blocks; `None` for a size that is zero, too small or too large.
    pub fn new(image_bytes: u64, log_bytes: u64) -> Option<Layout> {
        let is_whole = |bytes: u64| bytes.is_multiple_of(BLOCK_SIZE) && bytes < FAR;
        let fits =
            is_whole(image_bytes) && is_whole(log_bytes) && image_bytes > 0 && log_bytes >= MIN_LOG_BYTES;
        fits.then_some(Layout { image_bytes, log_bytes })
    }

    /// The layout whose log takes the rest of a device; `None` where too little is left.
    pub fn filling(device_blocks: u64, image_bytes: u64) -> Option<Layout> {
        let smallest = Layout::new(image_bytes, MIN_LOG_BYTES)?;
        let rest = device_blocks.checked_sub(smallest.log().0)?;
        Layout::new(image_bytes, rest.checked_mul(BLOCK_SIZE)?)
    }

    /// Bytes of the image.
    pub fn image_bytes(&self) -> u64 {
        self.image_bytes
    }

    /// Bytes of the log.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// Pages of the image.
    pub fn pages(&self) -> u64 {
        self.image_bytes / BLOCK_SIZE
    }

    /// Blocks of a table.
    pub fn table_blocks(&self) -> u64 {
        self.pages().div_ceil(TABLE_ENTRIES as u64)
    }

    /// First block of a table, copy 0 or 1.
    pub fn table(&self, copy: usize) -> DeviceBlock {
        assert!(copy < 2, "table {copy} of two");
        DeviceBlock(FIRST_TABLE + copy as u64 * self.table_blocks())
    }

    /// First block of the home of the image.
    pub fn home(&self) -> DeviceBlock {
        DeviceBlock((FIRST_TABLE + 2 * self.table_blocks()).next_multiple_of(ALIGN_BLOCKS))
    }

    /// First block of the log.
    pub fn log(&self) -> DeviceBlock {
        DeviceBlock((self.home().0 + self.pages()).next_multiple_of(ALIGN_BLOCKS))
    }

    /// The block of the log at a position, and the blocks from there to the end of the ring. Positions only grow.
    pub fn log_block(&self, position: u64) -> (DeviceBlock, u64) {
        assert!(position.is_multiple_of(BLOCK_SIZE), "position {position} inside a block of the log");
        let within = position % self.log_bytes;
        (DeviceBlock(self.log().0 + within / BLOCK_SIZE), (self.log_bytes - within) / BLOCK_SIZE)
    }

    /// Blocks of the whole device.
    pub fn total_blocks(&self) -> u64 {
        self.log().0 + self.log_bytes / BLOCK_SIZE
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)] // a test may panic
    use super::*;

    #[test]
    fn the_parts_of_a_layout_do_not_overlap() {
        for pages in [1, 255, 256, 1020, 1021, 1 << 18] {
            let layout = Layout::new(pages * BLOCK_SIZE, MIN_LOG_BYTES).unwrap();
            assert!(layout.table(0).0 > ANCHOR_COPIES[1].0);
            assert!(layout.table(0).0 + layout.table_blocks() <= layout.table(1).0);
            assert!(layout.table(1).0 + layout.table_blocks() <= layout.home().0);
            assert!(layout.home().0 + layout.pages() <= layout.log().0);
            assert_eq!(Layout::filling(layout.total_blocks(), layout.image_bytes()), Some(layout));
            assert_eq!(Layout::filling(layout.total_blocks() - 1, layout.image_bytes()), None);
        }
    }

    #[test]
    fn the_log_is_a_ring() {
        let layout = Layout::new(BLOCK_SIZE, MIN_LOG_BYTES).unwrap();
        let blocks = MIN_LOG_BYTES / BLOCK_SIZE;
        assert_eq!(layout.log_block(0), (layout.log(), blocks));
        assert_eq!(layout.log_block(MIN_LOG_BYTES * 3 - BLOCK_SIZE), (layout.log().plus(blocks - 1), 1));
        assert_eq!(layout.log_block(MIN_LOG_BYTES * 3), (layout.log(), blocks));
    }

    #[test]
    fn impossible_sizes_have_no_layout() {
        for (image, log) in
            [(0, MIN_LOG_BYTES), (100, MIN_LOG_BYTES), (4096, 0), (FAR, MIN_LOG_BYTES), (4096, FAR)]
        {
            assert_eq!(Layout::new(image, log), None);
        }
    }
}
