//! Choices of a check.

/// Choices of a check.
#[derive(Default, Clone, Copy)]
pub struct Options<'a> {
    /// Read every cold block and compare its CRC32C.
    pub read_cold: bool,
    /// Devices whose paths the user gave: `repair` may write a header to them even if the old header is lost
    /// whole.
    pub given: &'a [usize],
    /// Called with the units of work done and the units in all.
    pub progress: Option<&'a dyn Fn(u64, u64)>,
}
