//! Counts of copies that stayed in DRAM.

use terrace_format::BLOCK_SIZE;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// The counts of kept copies that status shows.
#[derive(Default)]
pub struct Kept {
    blocks: AtomicU64,
    /// When copies were first wanted: nanoseconds since mount, plus one; 0 is never.
    first: AtomicU64,
}

impl Kept {
    /// Notes that copies are wanted, the first time.
    pub fn wanted(&self, since_mount_ns: u64) {
        let first = since_mount_ns.saturating_add(1);
        let _ = self.first.compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes that a copy of a block stayed.
    pub(crate) fn note_kept(&self) {
        self.blocks.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes of copies that stayed.
    pub fn bytes(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed) * BLOCK_SIZE
    }

    /// Seconds since the mount when copies were first wanted.
    pub fn first_seconds(&self) -> Option<f64> {
        let first = self.first.load(Ordering::Relaxed);
        first.checked_sub(1).map(|since_mount_ns| since_mount_ns as f64 / 1e9)
    }
}
