//! A group of pages that a round of write-back tried ([`rounds`](super::rounds)).

use crate::write_back::file::blocks_with;
use crate::write_back::group::Written;
use terrace_format::{FileBlock, Ino};
use terrace_placement::Home;
use terrace_store::error::{FsError, FsResult};
use terrace_store::store::Store;
use terrace_wal::Error;

/// A group that was tried.
pub(super) struct Tried {
    /// `None`: the inode could not be read.
    pub(super) home: Option<Home>,
    /// The first block that was looked at, and that behind the last.
    pub(super) first: FileBlock,
    pub(super) end: FileBlock,
    pub(super) result: FsResult<Written>,
}

impl Tried {
    pub(super) fn is_progress(&self) -> bool {
        self.result.as_ref().is_ok_and(|written| !written.blocks.is_empty())
    }

    /// The failure of pages of the group.
    pub(super) fn failure(&self) -> Option<FsError> {
        match &self.result {
            Ok(written) => written.failed.as_ref().map(|(_, error)| error.clone()),
            Err(FsError::Stale | FsError::WouldBlock | FsError::Engine(Error::NoSpace(_))) => None,
            Err(error) => Some(error.clone()),
        }
    }

    /// Whether a page of the group needs a device.
    pub(super) fn is_blocked(&self) -> bool {
        matches!(self.result, Err(FsError::WouldBlock))
    }
}

/// Tries the group that is to hold a block: `write` gets its home and its blocks.
pub(super) fn try_group(
    store: &Store,
    ino: Ino,
    block: FileBlock,
    write: impl FnOnce(Home, &[FileBlock]) -> FsResult<Written>,
) -> Tried {
    let (home, blocks, result) = match blocks_with(store, ino, block) {
        Ok((home, blocks)) => (Some(home), blocks.clone(), write(home, &blocks)),
        Err(error) => (None, Vec::new(), Err(error)),
    };
    let last = match &result {
        Ok(Written { failed: Some((last, _)), .. }) => Some(*last),
        _ => blocks.last().copied(),
    };
    let first = blocks.first().copied().unwrap_or(block);
    Tried { home, first, end: last.unwrap_or(block).plus(1), result }
}
