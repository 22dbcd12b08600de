//! The differences between pool and reference that a comparison accepts at present.

use terrace_reference::Torn;

/// The accepted differences. The default accepts none.
#[derive(Debug, Default)]
pub struct Tolerance {
    /// Until background work has ended more blocks may be in use than the reference says.
    pub lenient: bool,
    /// The bytes that the crash may have torn.
    pub torn: Option<Torn>,
    /// A mount after a crash is being judged: files with waiting writes are taken over as the mount shows
    /// them.
    pub settling: bool,
    /// A tier pin that files may have besides the reference's, while a job changes tier pins.
    pub pins_unsure: Option<Option<u8>>,
}
