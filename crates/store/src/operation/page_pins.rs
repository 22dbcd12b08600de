//! The page pins of an operation: metadata pages that stay in PM, and copies of metadata pages that stay in
//! DRAM.
//!
//! Invariant: operations together hold at most a quarter of PM ([`MetadataPages`]).

use crate::parts::persistent::metadata_pages::MetadataPages;
use smallvec::SmallVec;
use std::sync::Arc;
use terrace_blocks::BlockPool;
use terrace_catalog::PageCopy;
use terrace_format::{BLOCK_SIZE, PmBlock};

/// The most page pins of an operation; a further page drops all of them.
const MOST_PINS: usize = 64;

/// Copies of metadata pages on lower tiers that stay in DRAM for later readers: 1 MiB.
pub(crate) const MOST_COPIES: usize = 256;

const _: () = assert!(MOST_COPIES as u64 * BLOCK_SIZE == 1 << 20, "all copies together take 1 MiB");

/// Pages that stay in PM, and copies in DRAM, until this is dropped.
#[derive(Default)]
pub struct PagePins {
    of: Option<(Arc<BlockPool>, Arc<MetadataPages>)>,
    held: SmallVec<[PmBlock; 4]>,
    copies: Vec<Arc<PageCopy>>,
}

impl PagePins {
    /// Keeps a page in PM until this is dropped, as far as all operations together may.
    pub fn pin(&mut self, blocks: &Arc<BlockPool>, metadata: &Arc<MetadataPages>, page: PmBlock) {
        if self.held.len() >= MOST_PINS {
            self.release();
        }
        if metadata.take_pin() {
            self.of.get_or_insert_with(|| (Arc::clone(blocks), Arc::clone(metadata)));
            blocks.descriptor(page).pin();
            self.held.push(page);
            let held = self.held.len();
            debug_assert!(held <= MOST_PINS, "an operation holds {held} page pins (P1)");
        }
    }

    /// Keeps a copy in DRAM until this is dropped.
    pub fn keep(&mut self, copy: Arc<PageCopy>) {
        if self.copies.len() >= MOST_PINS {
            self.copies.clear();
        }
        self.copies.push(copy);
    }

    #[inline]
    fn release(&mut self) {
        let held = self.held.len();
        debug_assert!(self.of.is_some() || held == 0, "{held} page pins stay for ever (P1)");
        if let Some((blocks, metadata)) = &self.of {
            metadata.give_pins(self.held.len());
            self.held.drain(..).for_each(|page| blocks.descriptor(page).unpin());
        }
    }
}

impl Drop for PagePins {
    fn drop(&mut self) {
        self.release();
    }
}
