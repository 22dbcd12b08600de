//! How far a read goes beyond what was asked for.

use crate::parts::dram::read_ahead::Holder;
use crate::store::Store;
use crate::types::BlockRange;
use terrace_format::Ino;
use terrace_runtime::interleave;

/// The window to fetch for a missing block; none when a worker had it and it has come.
pub(crate) fn window_of(store: &Store, ino: Ino, range: BlockRange) -> Option<BlockRange> {
    match store.dram.read_ahead().holder(ino, range.first) {
        Holder::Nobody => {}
        // Not what comes behind it: that is queued or under way by itself.
        Holder::Caller(queued) => return Some(BlockRange::new(range.first, queued.end)),
        // What a simulator runs meanwhile on the same thread would wait for ever.
        Holder::Worker if interleave::active() => {}
        Holder::Worker if store.dram.read_ahead().wait_for(ino, range.first) => return None,
        // Alone what was asked for: it may lie on another device than what the worker waits for.
        Holder::Worker => return Some(range),
    }
    Some(BlockRange::new(range.first, store.dram.read_ahead().missed(ino, range)))
}
