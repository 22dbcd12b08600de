//! A block's bytes in DRAM, and the buffers that hold them.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use terrace_format::BLOCK_SIZE;
use terrace_media::block::{AlignedBlock, Buffer};
use terrace_runtime::sync::Mutex;

/// Buffers kept for the next read: memory that was given back to the system costs a fault for each of its pages.
const KEPT: usize = 8;

/// Buffers of one size, to use again.
pub struct Buffers {
    blocks: usize,
    idle: Mutex<Vec<Buffer>>,
}

impl Buffers {
    /// None yet, of so many blocks each.
    pub fn new(blocks: usize) -> Arc<Buffers> {
        Arc::new(Buffers { blocks, idle: Mutex::default() })
    }

    /// A buffer for a read of `blocks`: one that was used before, whatever is in it, where most of it is needed; else
    /// one of just that size.
    pub fn take(self: &Arc<Buffers>, blocks: usize) -> Shared {
        if blocks > self.blocks || blocks * 4 < self.blocks * 3 {
            return vec![AlignedBlock::zeroed(); blocks].into();
        }
        let idle = self.idle.lock().pop();
        let buffer = idle.unwrap_or_else(|| vec![AlignedBlock::zeroed(); self.blocks]);
        Shared { buffer, home: Some(Arc::clone(self)) }
    }

    fn put(&self, buffer: Buffer) {
        let mut idle = self.idle.lock();
        if idle.len() < KEPT {
            idle.push(buffer);
        }
    }
}

/// A buffer that pages share. It goes back to where it is from with the last of them.
pub struct Shared {
    buffer: Buffer,
    home: Option<Arc<Buffers>>,
}

impl Clone for Shared {
    fn clone(&self) -> Shared {
        self.buffer.clone().into()
    }
}

impl From<Buffer> for Shared {
    fn from(buffer: Buffer) -> Shared {
        Shared { buffer, home: None }
    }
}

impl Deref for Shared {
    type Target = [AlignedBlock];
    fn deref(&self) -> &[AlignedBlock] {
        &self.buffer
    }
}

impl DerefMut for Shared {
    fn deref_mut(&mut self) -> &mut [AlignedBlock] {
        &mut self.buffer
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.put(std::mem::take(&mut self.buffer));
        }
    }
}

/// A page inside a buffer that one device read filled, or in one of its own.
#[derive(Clone)]
pub struct Page {
    buffer: Arc<Shared>,
    index: usize,
}

impl Page {
    /// The `index`-th block of a buffer; `None` beyond its end.
    pub fn new(buffer: Arc<Shared>, index: usize) -> Option<Page> {
        (index < buffer.len()).then_some(Page { buffer, index })
    }

    /// A page in a buffer of its own.
    pub fn of(block: AlignedBlock) -> Page {
        Page { buffer: Arc::new(Shared::from(vec![block])), index: 0 }
    }

    /// A page of zeros in a buffer of its own.
    pub fn zeroed() -> Page {
        Page::of(AlignedBlock::zeroed())
    }

    /// This page in a buffer of its own.
    pub fn alone(&self) -> Page {
        if self.buffer.len() == 1 {
            return self.clone();
        }
        Page { buffer: Arc::new(vec![AlignedBlock(*self.bytes())].into()), index: 0 }
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
            *self = Page::of(AlignedBlock(*self.bytes()));
        }
        &mut Arc::make_mut(&mut self.buffer).buffer[0].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_with_its_last_page_and_small_reads_get_their_own() {
        let buffers = Buffers::new(8);
        let large = Arc::new(buffers.take(7));
        let (first, last) = (Page::new(Arc::clone(&large), 0), Page::new(large, 6));
        drop(first);
        assert_eq!(buffers.idle.lock().len(), 0);
        drop(last);
        assert_eq!(buffers.idle.lock().len(), 1);
        assert_eq!((buffers.take(8).len(), buffers.take(5).len(), buffers.take(9).len()), (8, 5, 9));
        assert_eq!(buffers.idle.lock().len(), 1);
    }
}
