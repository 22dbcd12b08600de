//! The image: the content of tier 0 in DRAM, with the bits of its dirty pages behind it and the locks of its pages (J1).
//!
//! Invariant: a page is locked from the reservation of a store until the image has the bytes. So a thread that takes each lock
//! once has waited for every store with an earlier place.

use super::dirty::DirtyPages;
use super::kept::Kept;
use crate::pm::{PmMedium, RamPm};
use crate::{MediaError, OpenError};
use std::fs::File;
use terrace_format::{BLOCK_SIZE, PmOffset};
use terrace_runtime::sync::{IN_MODELS, Mutex, MutexGuard};

/// Locks of pages. A page takes the lock of its number modulo this.
pub(super) const PAGE_LOCKS: usize = if IN_MODELS { 2 } else { 64 };

/// A lock on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct PageLock(Mutex<()>);

pub(super) struct Image {
    /// The memory, with the dirty bits behind the content.
    pub memory: RamPm,
    /// The dirty bits.
    pub dirty: DirtyPages,
    /// The last parts of the memory.
    pub kept: Kept,
    bytes: u64,
    locks: Box<[PageLock; PAGE_LOCKS]>,
}

impl Image {
    /// An image of `bytes` zeros; if `resident`, in large pages and locked in memory, or with the reason against the lock.
    pub fn new(bytes: u64, resident: bool) -> Result<(Image, Option<std::io::Error>), OpenError> {
        let size = Image::memory_bytes(bytes);
        let (memory, unlocked) =
            if resident { RamPm::resident(size)? } else { (RamPm::anonymous(size)?, None) };
        Ok((Self::with(memory, bytes), unlocked))
    }

    /// The image of `bytes` in the memory file of an image; if `resident`, as [`Self::new`].
    pub fn of_memory(
        file: File,
        bytes: u64,
        resident: bool,
    ) -> Result<(Image, Option<std::io::Error>), OpenError> {
        let (memory, unlocked) = RamPm::of_sealed(file, Image::memory_bytes(bytes), resident)?;
        Ok((Self::with(memory, bytes), unlocked))
    }

    fn with(memory: RamPm, bytes: u64) -> Image {
        let pages = bytes / BLOCK_SIZE;
        let locks = Box::new(std::array::from_fn(|_| PageLock::default()));
        let dirty = DirtyPages::new(bytes, pages);
        let kept = Kept::new(bytes + DirtyPages::bytes(pages), pages);
        Image { memory, dirty, kept, bytes, locks }
    }

    /// Bytes of memory for an image of `bytes` bytes.
    pub fn memory_bytes(bytes: u64) -> u64 {
        let pages = bytes / BLOCK_SIZE;
        bytes + DirtyPages::bytes(pages) + Kept::bytes(pages)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// An error unless the whole range lies in the image.
    #[inline]
    pub fn check(&self, offset: PmOffset, length: usize) -> Result<(), MediaError> {
        self.memory.check(offset, length as u64, self.bytes)
    }

    pub fn lock_page(&self, page: u64) -> MutexGuard<'_, ()> {
        self.locks[page as usize % PAGE_LOCKS].0.lock()
    }

    /// Locks all pages: each store waits.
    pub fn lock_all(&self) -> Vec<MutexGuard<'_, ()>> {
        self.locks.iter().map(|page| page.0.lock()).collect()
    }

    /// Waits for every store whose place was reserved before this call.
    pub fn wait_for_stores(&self) {
        self.locks.iter().for_each(|page| drop(page.0.lock()));
    }

    /// Marks a page as dirty.
    #[inline]
    pub fn mark(&self, page: u64) {
        self.dirty.mark(&self.memory, page);
    }

    /// Stores bytes inside one page, whose lock the caller holds, and marks it.
    pub fn store_in_page(&self, at: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.mark(at.0 / BLOCK_SIZE);
        self.memory.store(at, bytes)
    }

    /// Whether a page is dirty.
    pub fn has_dirty_pages(&self) -> bool {
        !self.dirty.list(&self.memory, 0, 1).is_empty()
    }
}
