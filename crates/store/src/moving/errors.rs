//! Operations of demotion, and errors that end a whole group.

use crate::error::FsError;
use crate::operation::op::Op;
use crate::store::Store;
use crate::types::Wait;
use terrace_blocks::Purpose;
use terrace_format::keys::MAX_EXTENT_BLOCKS;
use terrace_wal::Error;

/// An operation that demotes, with demotion's share of the reserve (P1).
pub fn demoting() -> Op {
    Op { purpose: Purpose::Demotion, ..Op::new(Wait::Allowed) }
}

/// An operation that writes pages back with demotion's share of the reserve: their blocks were promised, and a map or an old
/// last block may need one more.
pub fn writing_back(wait: Wait) -> Op {
    Op { wait, writes_back: true, ..demoting() }
}

/// Blocks installed in one transaction: on the smallest lanes 32, at 48 bytes a block.
pub fn install_limit(store: &Store) -> usize {
    (store.persistent.wal().max_record() / 128).clamp(8, MAX_EXTENT_BLOCKS as usize)
}

/// Whether what follows would fail as well.
pub fn concerns_all_files(store: &Store, error: &FsError) -> bool {
    store.persistent.wal().is_stopped() || matches!(error, FsError::Engine(Error::NoSpace(_)))
}
