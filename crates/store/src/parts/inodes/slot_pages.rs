//! Addresses of inode pages that were used lately: volatile, a fixed table.

use terrace_format::PmBlock;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// The last known locations of inode pages: a word each, by the low bits of the index. A page moves under the
/// locks of all its inodes, and each caller holds the lock of such an inode.
pub struct InodePages(Vec<AtomicU64>);

const CACHED_PAGES: u64 = 1 << 12;

impl InodePages {
    /// No address is remembered.
    pub(crate) fn new() -> InodePages {
        InodePages((0..CACHED_PAGES).map(|_| AtomicU64::new(0)).collect())
    }

    #[inline]
    fn word(&self, index: u64) -> &AtomicU64 {
        &self.0[(index % CACHED_PAGES) as usize]
    }

    /// The address of a page of the inode file, if it is remembered.
    #[inline]
    pub fn get(&self, index: u64) -> Option<PmBlock> {
        let word = self.word(index).load(Ordering::Relaxed);
        (word != 0 && word >> 32 == index).then_some(PmBlock(word & 0xffff_ffff))
    }

    /// Remembers the address of a page.
    pub fn put(&self, index: u64, page: PmBlock) {
        if page.0 <= u64::from(u32::MAX) {
            self.word(index).store(index << 32 | page.0, Ordering::Relaxed);
        }
    }

    /// The page moves.
    pub fn forget(&self, index: u64) {
        self.word(index).store(0, Ordering::Relaxed);
    }
}
