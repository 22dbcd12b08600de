//! An inode with references, for accounts.

use terrace_format::Ino;

/// References to an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Referenced {
    /// The inode.
    pub ino: Ino,
    /// Lookups that were not forgotten.
    pub lookups: u32,
    /// Opens that were not released.
    pub opens: u32,
}
