//! TODO header of store/parts/pressure/memory_source.rs

use std::fmt::Debug;

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
