//! A block's bytes in DRAM.

use std::sync::Arc;
use terrace_format::BLOCK_SIZE;
use terrace_media::block::{AlignedBlock, Buffer};

/// A page inside a buffer that one device read filled, or in one of its own.
#[derive(Clone)]
pub struct Page {
    buffer: Arc<Buffer>,
    index: usize,
}

impl Page {
    /// The `index`-th block of a buffer; `None` beyond its end.
    pub fn new(buffer: Arc<Buffer>, index: usize) -> Option<Page> {
        (index < buffer.len()).then_some(Page { buffer, index })
    }

    /// A page of zeros in a buffer of its own.
    pub fn zeroed() -> Page {
        Page { buffer: Arc::new(vec![AlignedBlock::zeroed()]), index: 0 }
    }

    /// This page in a buffer of its own.
    pub fn alone(&self) -> Page {
        if self.buffer.len() == 1 {
            return self.clone();
        }
        Page { buffer: Arc::new(vec![AlignedBlock(*self.bytes())]), index: 0 }
    }

    /// Whether it keeps more than twice the bytes in DRAM that anybody has use for.
    pub(crate) fn is_wasteful(&self) -> bool {
        self.buffer.len() > 2 * Arc::strong_count(&self.buffer)
    }

    /// The block's bytes.
    pub fn bytes(&self) -> &[u8; BLOCK_SIZE as usize] {
        const EMPTY: &AlignedBlock = &AlignedBlock([0; BLOCK_SIZE as usize]);
        &self.buffer.get(self.index).unwrap_or(EMPTY).0
    }

    /// The bytes to change. What others hold of this page stays as it is: then this becomes a copy.
    pub fn bytes_mut(&mut self) -> &mut [u8; BLOCK_SIZE as usize] {
        if self.buffer.len() != 1 || self.index != 0 || Arc::get_mut(&mut self.buffer).is_none() {
            let copy = AlignedBlock(*self.bytes());
            self.buffer = Arc::new(vec![copy]);
            self.index = 0;
        }
        &mut Arc::make_mut(&mut self.buffer)[0].0
    }
}
