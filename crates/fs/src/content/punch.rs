//! Holes: a range is removed in one transaction, or by an intent (T7).

use crate::content::intents::drain_intents;
use crate::content::truncate::remove_range;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_store::attempt::run::{large_record, run_attempts};
use terrace_store::change::finish::finish_change;
use terrace_store::change::stage_block::stage;
use terrace_store::change::staged::Staged;
use terrace_store::error::FsResult;
use terrace_store::inode::load::load_regular;
use terrace_store::lookup::intents::refuse_intents;
use terrace_store::lookup::newest::is_dirty_in;
use terrace_store::operation::op::Op;
use terrace_store::operation::progress::Progress;
use terrace_store::store::Store;
use terrace_store::types::segment::Segment;
use terrace_store::types::{BlockRange, FILE_END, Wait};

/// A turn of making a hole: whole blocks are removed, the edges become zeros.
pub fn punch(
    store: &Store,
    ino: Ino,
    offset: u64,
    length: u64,
    progress: &mut Progress,
    wait: Wait,
) -> FsResult<()> {
    if progress.begun {
        return drain_intents(store, wait, ino);
    }
    let mut op = Op::reclaiming(wait).in_turns();
    let left = run_attempts(store, &mut op, large_record(store), |reservation, op| {
        let claim = store.persistent.blocks().claim(2, op.purpose)?;
        let _guard = store.inodes.locks().write(ino);
        let inode = load_regular(store, ino)?;
        let mut staged = Staged::new(store, Some(claim), true);
        let end = offset + length;
        let first = offset.next_multiple_of(BLOCK_SIZE);
        let last = if end >= inode.size() {
            end.next_multiple_of(BLOCK_SIZE)
        } else {
            end / BLOCK_SIZE * BLOCK_SIZE
        };
        let edges = if first > last || end <= first {
            [(offset, end), (end, end)]
        } else {
            [(offset, first), (last.max(first), end.max(last))]
        };
        for (from, to) in edges {
            // Bytes past the end of the file need no zeros.
            let to = to.min(inode.size());
            let mut to = to;
            if from < to && is_dirty_in(store, &inode, FileBlock(from / BLOCK_SIZE)) {
                staged.zero_dirty.push((from, to));
                // A crash drops the page and shows the copy on a medium, which therefore gets zeros up to the
                // durable size.
                to = to.min(inode.durable_size());
            }
            if from < to {
                let zeros = Segment { offset: from, length: to - from, data: None };
                stage(store, op, &inode, zeros, &mut staged)?;
            }
        }
        let range =
            BlockRange::new(FileBlock(first / BLOCK_SIZE), FileBlock(last / BLOCK_SIZE).min(FILE_END));
        if range.is_empty() {
            finish_change(store, reservation, &inode, inode.slot, staged)?;
            return Ok(false);
        }
        refuse_intents(store, &inode, range)?;
        remove_range(store, op, reservation, &inode, inode.slot, range, staged)
    })?;
    progress.begun = true;
    if left { drain_intents(store, wait, ino) } else { Ok(()) }
}
