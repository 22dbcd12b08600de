//! A block's bytes in DRAM.

use std::sync::Arc;
use terrace_format::BLOCK_SIZE;
use terrace_media::PageMemory;
use terrace_media::block::{AlignedBlock, Buffer};
use terrace_media::page_memory::OwnPage;

const SIZE: usize = BLOCK_SIZE as usize;

/// A page: a part of the buffer that a device read filled, or memory of its own.
#[derive(Clone)]
pub struct Page(Memory);

#[derive(Clone)]
enum Memory {
    Shared { buffer: Arc<Buffer>, index: usize },
    Own(Arc<OwnPage>),
}

impl Page {
    /// The `index`-th block of a buffer; `None` beyond its end.
    pub fn new(buffer: Arc<Buffer>, index: usize) -> Option<Page> {
        (index < buffer.len()).then_some(Page(Memory::Shared { buffer, index }))
    }

    /// A page of zeros of its own.
    pub fn zeroed() -> Page {
        Page(Memory::Own(Arc::new(PageMemory::of_process().zeroed())))
    }

    /// A page of its own with this content.
    pub fn copy(content: &[u8; SIZE]) -> Page {
        Page(Memory::Own(Arc::new(PageMemory::of_process().copy(content))))
    }

    /// This page with memory of its own: a copy, if it lies in a shared buffer.
    pub fn alone(&self) -> Page {
        match &self.0 {
            Memory::Own(_) => self.clone(),
            Memory::Shared { .. } => Page::copy(self.bytes()),
        }
    }

    /// The block's bytes.
    pub fn bytes(&self) -> &[u8; SIZE] {
        const EMPTY: &AlignedBlock = &AlignedBlock([0; SIZE]);
        match &self.0 {
            Memory::Own(page) => page.bytes(),
            Memory::Shared { buffer, index } => &buffer.get(*index).unwrap_or(EMPTY).0,
        }
    }

    /// The bytes, for changes. A page whose memory is shared becomes a copy first, so no other holder sees
    /// the change.
    pub fn bytes_mut(&mut self) -> &mut [u8; SIZE] {
        if matches!(self.0, Memory::Shared { .. }) {
            *self = Page::copy(self.bytes());
        }
        match &mut self.0 {
            Memory::Own(page) => Arc::make_mut(page).bytes_mut(),
            Memory::Shared { .. } => unreachable!("it has just become a page of its own"),
        }
    }
}
