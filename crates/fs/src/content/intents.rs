//! Truncation intents (design T7): ranges that are gone for readers and writers and are removed in
//! bounded transactions, after the next mount too.
//!
//! T7, decision 0002: an operation that wants to use a range again finishes the intents that overlap it
//! instead of splitting them, so that an inode rarely has more than one.

use terrace_catalog::intent;
use terrace_catalog::intent::Intent;
use terrace_format::Ino;
use terrace_format::inode::flag;
use terrace_runtime::interleave;
use terrace_store::attempt::run::{large_record, run_attempts};
use terrace_store::change::removal::{lock_piece, next_piece, stage_piece};
use terrace_store::change::staged::Staged;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::{load, log_slot};
use terrace_store::lookup::intents::intents_of;
use terrace_store::operation::op::Op;
use terrace_store::operation::progress::TURN_PIECES;
use terrace_store::parts::inodes::removal_queue::Job;
use terrace_store::store::Store;
use terrace_store::types::{BlockRange, WHOLE_FILE, Wait};

/// Finishes the intents of an inode that overlap a range, piece by piece.
pub fn clear_intent(store: &Store, wait: Wait, ino: Ino, range: BlockRange) -> FsResult<()> {
    loop {
        match clear_intent_turn(store, wait, ino, range) {
            Err(FsError::Unfinished) => {}
            ended => return ended,
        }
    }
}

/// A turn of [`clear_intent`].
///
/// # Errors
/// `Unfinished`; as transactions.
pub fn clear_intent_turn(store: &Store, wait: Wait, ino: Ino, range: BlockRange) -> FsResult<()> {
    let mut op = Op::reclaiming(wait);
    interleave::point("intent:begun");
    for _ in 0..TURN_PIECES {
        if !intent_piece(store, &mut op, ino, range)? {
            return Ok(());
        }
        interleave::point("intent:between-pieces");
    }
    Err(FsError::Unfinished)
}

/// A turn of removing what an operation that has succeeded left behind an intent. What fails is the reclaimer's: the
/// range is gone for everybody already.
///
/// # Errors
/// `Unfinished` alone.
pub(crate) fn drain_intents(store: &Store, wait: Wait, ino: Ino) -> FsResult<()> {
    match clear_intent_turn(store, wait, ino, WHOLE_FILE) {
        Err(FsError::Unfinished) => return Err(FsError::Unfinished),
        Err(error) => {
            tracing::debug!("removing a cut off range of inode {ino} is left to the reclaimer: {error}");
            store.inodes.removals().push(Job::Intents(ino));
        }
        Ok(()) => {}
    }
    Ok(())
}

/// Removes a piece of an intent; false if no intent overlaps the range.
fn intent_piece(store: &Store, op: &mut Op, ino: Ino, range: BlockRange) -> FsResult<bool> {
    run_attempts(store, op, large_record(store), |reservation, op| {
        let _guard = store.inodes.locks().write(ino);
        let inode = match load(store, ino) {
            Err(FsError::Stale) => return Ok(false),
            other => other?,
        };
        let intents = intents_of(store, &inode)?;
        let Some(intent) = intents.iter().find(|intent| intent.overlaps(&range)) else {
            return Ok(false);
        };
        let piece = next_piece(store, op, &inode, *intent)?;
        let mut shards = lock_piece(store, ino, &piece);
        let mut staged = Staged::new(store, None, false);
        let mut slot = inode.slot;
        stage_piece(store, &inode, &piece, &mut shards, &mut staged)?;
        intent::remove(&mut shards, &mut staged.tx, ino, intent.first)?;
        if !piece.complete {
            let generation = slot.generation.get();
            intent::put(
                &mut shards,
                &mut staged.tx,
                ino,
                Intent { first: piece.end(), end: intent.end, generation },
            )?;
        } else if intents.len() == 1 {
            slot.flags = (slot.flags.get() & !flag::HAS_INTENT).into();
        }
        staged.unlink_emptied(&mut shards)?;
        slot.blocks = slot.blocks.get().saturating_add_signed(staged.blocks_delta).into();
        log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
        staged.commit(reservation)?;
        Ok(true)
    })
}
