//! Memory of the machine, as a mount is told of it.

use std::fmt::Debug;

/// The divisor of all memory that gives the reserve.
const RESERVE: u64 = 8;

/// The largest reserve.
const MOST_RESERVE_BYTES: u64 = 4 << 30;

/// The cache has one part of so many of what is above it.
const SHARE: u64 = 2;

/// Memory of the machine, or of a control group with a limit that this process is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total_bytes: u64,
    /// What programs can still have of it, what the kernel would drop for them included.
    pub available_bytes: u64,
}

/// Where to see how much memory there is.
pub trait MemorySource: Debug + Send + Sync {
    /// Everything that limits this process, in whatever order. Nothing where it cannot be seen.
    fn look(&self) -> Vec<Memory>;
}

impl Memory {
    /// Bytes of it that stay free.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        (self.total_bytes / RESERVE).min(MOST_RESERVE_BYTES)
    }

    /// What a cache may have that has `held_bytes` now.
    pub(crate) fn share_bytes(&self, held_bytes: u64) -> u64 {
        let without = self.available_bytes.saturating_add(held_bytes).min(self.total_bytes);
        without.saturating_sub(self.reserve_bytes()) / SHARE
    }
}
