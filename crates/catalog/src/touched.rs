//! The pages that a transaction writes, as its edits read them.
//!
//! Invariant: a copy holds every store of the transaction to its page.

use smallvec::SmallVec;
use std::cell::OnceCell;
use terrace_format::PmBlock;
use terrace_format::page::PAGE_SIZE;
use terrace_media::PmMedium;
use terrace_wal::{Result, Tx};

/// From this many writes on, a touched page is kept as a copy with the writes applied. Without the copy each
/// read looks through all writes, and an edit in a long transaction costs as much as all edits before it.
const MANY_WRITES: u16 = 12;

/// A page that a transaction writes.
struct TouchedPage {
    block: PmBlock,
    /// The page with the stores of this transaction; made by the first read of the page.
    page: OnceCell<Box<[u8; PAGE_SIZE]>>,
}

/// The pages that a transaction writes.
#[derive(Default)]
pub(crate) struct Touched {
    pages: SmallVec<[TouchedPage; 8]>,
}

impl Touched {
    #[inline]
    fn find(&self, block: PmBlock) -> Option<&TouchedPage> {
        self.pages.iter().find(|touched| touched.block == block)
    }

    /// Whether the transaction writes a page.
    #[inline]
    pub(crate) fn has(&self, block: PmBlock) -> bool {
        self.find(block).is_some()
    }

    /// Reads a page as it will be after `tx`; false, with nothing read, when `tx` does not write it.
    #[inline]
    pub(crate) fn read_page(
        &self,
        tx: &Tx,
        pm: &dyn PmMedium,
        block: PmBlock,
        into: &mut [u8; PAGE_SIZE],
    ) -> Result<bool> {
        let Some(touched) = self.find(block) else {
            return Ok(false);
        };
        if let Some(page) = touched.page.get() {
            *into = **page;
            return Ok(true);
        }
        tx.read(pm, block.offset(), into)?;
        if tx.write_count() >= MANY_WRITES {
            let _ = touched.page.set(Box::new(*into));
        }
        Ok(true)
    }

    /// Notes a write to a page: `bytes` at `at`.
    pub(crate) fn note(&mut self, block: PmBlock, at: usize, bytes: &[u8]) {
        let Some(touched) = self.pages.iter_mut().find(|touched| touched.block == block) else {
            return self.pages.push(TouchedPage { block, page: OnceCell::new() });
        };
        if let Some(page) = touched.page.get_mut()
            && let Some(place) = page.get_mut(at..at + bytes.len())
        {
            place.copy_from_slice(bytes);
        }
    }
}
