//! A PM block that is to leave.

use terrace_blocks::MARKS;
use terrace_format::{FileBlock, Ino, PmBlock};

/// A PM block of a file that is to be demoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Victim {
    /// The file.
    pub ino: Ino,
    /// The file block.
    pub block: FileBlock,
    /// The PM block that is to become free.
    pub pm: PmBlock,
}

/// The tick that marks queued victims and victims under way, so that they are not picked again. A use of such
/// a block makes it young again; if it is then picked twice, the commit skips it.
pub const LEAVING: u32 = MARKS;
