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

/// Tick of victims that are queued or being moved: they are not picked again. Whoever uses such a block makes it
/// young again, as any other; picked twice it would be skipped at the commit.
pub const LEAVING: u32 = MARKS;
