//! The memory of the machine, as a mount sees it.

use std::fmt::Debug;

/// The reserve is all memory divided by this.
const RESERVE: u64 = 8;

/// The largest reserve.
const MOST_RESERVE_BYTES: u64 = 4 << 30;

/// The cache may have the memory above the reserve, divided by this.
const SHARE: u64 = 2;

/// Memory of the machine, or of a control group with a limit that this process is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All memory.
    pub total_bytes: u64,
    /// Memory that programs can still take, pages that the kernel would drop for them included.
    pub available_bytes: u64,
}

/// A source of figures about memory.
pub trait MemorySource: Debug + Send + Sync {
    /// The figures of every limit of this process, in any order. Empty if they cannot be read.
    fn look(&self) -> Vec<Memory>;
}

impl Memory {
    /// Bytes that stay free.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        (self.total_bytes / RESERVE).min(MOST_RESERVE_BYTES)
    }

    /// The share of a cache that holds `held_bytes` now.
    pub(crate) fn share_bytes(&self, held_bytes: u64) -> u64 {
        let without = self.available_bytes.saturating_add(held_bytes).min(self.total_bytes);
        without.saturating_sub(self.reserve_bytes()) / SHARE
    }
}
