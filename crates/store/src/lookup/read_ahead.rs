//! How far a read goes beyond what was asked for.

use crate::parts::dram::read_ahead::Holder;
use crate::store::Store;
use crate::types::BlockRange;
use terrace_format::Ino;
use terrace_runtime::interleave;

/// The window to fetch for a missing block. None if a worker was fetching the window and has ended: the block
/// is looked up again.
pub(crate) fn window_of(store: &Store, ino: Ino, range: BlockRange) -> Option<BlockRange> {
    match store.dram.read_ahead().holder(ino, range.first) {
        Holder::Nobody => {}
        // Ends with the queued piece: later pieces are queued or under way by themselves.
        Holder::Caller(queued) => return Some(BlockRange::new(range.first, queued.end)),
        // Under a simulator the worker runs on this thread, so a wait for it would never end.
        Holder::Worker if interleave::active() => {}
        Holder::Worker if store.dram.read_ahead().wait_for(ino, range.first) => return None,
        // The wait took too long. Only the requested blocks are fetched: they may lie on a sound device while
        // the worker hangs on a stalled one.
        Holder::Worker => return Some(range),
    }
    Some(BlockRange::new(range.first, store.dram.read_ahead().missed(ino, range)))
}
