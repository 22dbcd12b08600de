//! Removing blocks from files: truncate, punch hole, and the bounded pieces that both and the reclaimer
//! are made of (design T7, S4).

use crate::content::intents::drain_intents;
use terrace_catalog::intent;
use terrace_catalog::intent::Intent;
use terrace_format::address::MAX_FILE_SIZE;
use terrace_format::inode::flag;
use terrace_format::keys::MAX_INTENTS;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_store::attempt::run::{large_record, run_attempts};
use terrace_store::change::dirty::dirty_without_place;
use terrace_store::change::finish::finish_change;
use terrace_store::change::removal::{bump_removed, lock_piece, next_piece, stage_piece};
use terrace_store::change::staged::{Staged, kill_set_id};
use terrace_store::change::tail::stage_raised;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::capability::expect_no_capability;
use terrace_store::inode::load::load_regular;
use terrace_store::lookup::intents::{intents_of, refuse_intents};
use terrace_store::operation::need::{Attempt, Need};
use terrace_store::operation::op::Op;
use terrace_store::operation::progress::Progress;
use terrace_store::store::Store;
use terrace_store::types::inode::Inode;
use terrace_store::types::{BlockRange, FILE_END, WHOLE_FILE, Wait};

/// A turn of setting a file's size.
///
/// # Errors
/// EFBIG, EISDIR, EINVAL, ENOSPC (extending), EIO; `Unfinished`.
pub fn truncate(
    store: &Store,
    ino: Ino,
    size: u64,
    kill: bool,
    progress: &mut Progress,
    wait: Wait,
) -> FsResult<()> {
    if progress.begun {
        return drain_intents(store, wait, ino);
    }
    if size > MAX_FILE_SIZE {
        return Err(FsError::TooLarge);
    }
    let mut op = Op::reclaiming(wait).in_turns();
    let left = run_attempts(store, &mut op, large_record(store), |reservation, op| {
        // The old last block may need zeros in a new block when the file grows.
        let claim = store.persistent.blocks().claim(1, op.purpose)?;
        let _guard = store.inodes.locks().write(ino);
        let inode = load_regular(store, ino)?;
        if kill {
            expect_no_capability(store, &inode)?;
        }
        let mut staged = Staged::new(store, Some(claim), true);
        let mut slot = inode.slot;
        if kill {
            kill_set_id(&mut slot);
        }
        staged.visible = Some(size);
        if size >= inode.size() {
            // Behind what is only in DRAM the end is durable when that is.
            if inode.size() == inode.durable_size() {
                stage_raised(store, op, &inode, size, &mut staged)?;
                slot.size = size.into();
            }
            finish_change(store, reservation, &inode, slot, staged)?;
            return Ok(false);
        }
        slot.size = inode.durable_size().min(size).into();
        staged.zero_dirty.push((size, size.next_multiple_of(BLOCK_SIZE)));
        let range = BlockRange::new(FileBlock(size.div_ceil(BLOCK_SIZE)), FILE_END);
        refuse_intents(store, &inode, range)?;
        // The block that the new end cuts keeps its bytes past the end: the transaction that raises the size
        // again clears them (S5).
        remove_range(store, op, reservation, &inode, slot, range, staged)
    })?;
    progress.begun = true;
    if left { drain_intents(store, wait, ino) } else { Ok(()) }
}

/// Commits a removal: whole if a record holds it, else as an intent. True if pieces are left to remove.
pub fn remove_range(
    store: &Store,
    op: &Op,
    reservation: terrace_wal::Reservation<'_>,
    inode: &Inode,
    mut slot: terrace_format::inode::InodeSlot,
    range: BlockRange,
    mut staged: Staged<'_>,
) -> Attempt<bool> {
    let piece = next_piece(store, op, inode, range)?;
    staged.drop_dirty = Some(range);
    staged.placed += dirty_without_place(store, inode, range)? as i64;
    // The intents are read before the shards are locked: they lie in such a shard.
    let waiting = intents_of(store, inode)?.len();
    let mut shards = lock_piece(store, inode.ino, &piece);
    if piece.complete {
        stage_piece(store, inode, &piece, &mut shards, &mut staged)?;
        staged.unlink_emptied(&mut shards)?;
        finish_change(store, reservation, inode, slot, staged)?;
        return Ok(false);
    }
    // The earlier intents wait for the reclaimer, which met an error: finish them first.
    if waiting >= MAX_INTENTS {
        return Err(Need::ClearIntent { ino: inode.ino, range: WHOLE_FILE }.into());
    }
    // Reads treat the range as gone from now on.
    bump_removed(store, inode, range, &[]);
    slot.flags = (slot.flags.get() | flag::HAS_INTENT).into();
    let generation = slot.generation.get();
    intent::put(
        &mut shards,
        &mut staged.tx,
        inode.ino,
        Intent { first: range.first, end: range.end, generation },
    )?;
    finish_change(store, reservation, inode, slot, staged)?;
    Ok(true)
}
