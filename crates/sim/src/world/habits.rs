//! The memory of the choice of operations: files that are used again.

use terrace_reference::Id;

/// The files that the next operations prefer.
#[derive(Debug, Default)]
pub struct Habits {
    /// A file that is touched more often than the rest.
    pub hot: Option<Id>,
    /// The end of the last read.
    pub last_read: Option<(Id, u64)>,
    /// The end of the last write.
    pub last_write: Option<(Id, u64)>,
}
