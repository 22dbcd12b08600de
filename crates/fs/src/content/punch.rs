//! TODO header of content/punch.rs

use crate::content::intents::drain_intents;
use crate::content::truncate::remove_range;
use crate::store::attempt::run::{large_record, run_attempts};
use crate::store::change::finish::finish_change;
use crate::store::change::stage_block::stage;
use crate::store::change::staged::Staged;
use crate::store::error::FsResult;
use crate::store::inode::load::load_regular;
use crate::store::lookup::intents::refuse_intents;
use crate::store::lookup::newest::is_dirty_in;
use crate::store::operation::op::Op;
use crate::store::operation::progress::Progress;
use crate::store::store::Store;
use crate::store::types::segment::Segment;
use crate::store::types::{BlockRange, FILE_END, Wait};
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};

/// A turn of making a hole: whole blocks are removed, the edges become zeros.
pub(crate) fn punch(
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
            // Past the end nothing needs zeros.
            let to = to.min(inode.size());
            let mut to = to;
            if from < to && is_dirty_in(store, &inode, FileBlock(from / BLOCK_SIZE)) {
                staged.zero_dirty.push((from, to));
                // What lies below the page is what a crash leaves.
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
