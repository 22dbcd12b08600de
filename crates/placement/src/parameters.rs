//! What can be set at mount, with the publications' values.

/// Parameters of the predictors (design 5). Each is a mount option of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// A file with fewer blocks than this written between two fsyncs is updated synchronously ([TPFS] section 4).
    pub sync_blocks: u32,
    /// A write whose counter is above this is large and stable ([TPFS] section 4).
    pub large_after: u8,
    /// Bytes below which no write is large, whatever its counter.
    pub large_min: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters { sync_blocks: 1024, large_after: 4, large_min: 64 << 10 }
    }
}
