//! The choices of a mount for writes that wait in DRAM, and whether those with home PM do ([HiNFS]).

/// The choices of a mount for writes that wait in DRAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferOptions {
    /// Most dirty pages, in bytes; 0: every write goes to PM.
    pub bytes: u64,
    /// Whether writes with home PM may wait.
    pub lazy: LazyOption,
}

impl BufferOptions {
    /// Room for some bytes; the rest as by default.
    pub fn of(bytes: u64) -> BufferOptions {
        BufferOptions { bytes, ..BufferOptions::default() }
    }
}

impl Default for BufferOptions {
    fn default() -> BufferOptions {
        BufferOptions { bytes: 64 << 20, lazy: LazyOption::default() }
    }
}

/// Whether writes with home PM may wait in DRAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LazyOption {
    /// They may.
    On,
    /// Every write with home PM is in PM when it returns.
    #[default]
    Off,
}

/// Whether writes with home PM may wait in DRAM.
#[derive(Debug)]
pub struct LazyWrites {
    is_on: bool,
}

impl LazyWrites {
    /// By the choices of the mount.
    pub fn new(options: &BufferOptions) -> LazyWrites {
        LazyWrites { is_on: options.lazy == LazyOption::On && options.bytes > 0 }
    }

    /// Whether they may.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on
    }
}
