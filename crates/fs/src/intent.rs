//! Truncation intents (design T7): ranges that are gone for readers and writers and are removed in
//! bounded transactions, after the next mount too.
//!
//! Deviation from T7, docs/decisions/0002: an operation that wants to use a range again finishes the
//! intents that overlap it instead of splitting them, so that an inode rarely has more than one.

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::{Attempt, Need, Op};
use crate::reclaim_queue::Job;
use crate::slot::{Inode, log_slot};
use crate::truncate::WHOLE_FILE;
use crate::turns::TURN_PIECES;
use crate::types::{BlockRange, Wait};
use crate::write::Staged;
use terrace_catalog::intent::{self, Intent};
use terrace_format::Ino;
use terrace_format::inode::flag;
use terrace_runtime::interleave;

impl Fs {
    /// The ranges of an inode that are gone although blocks may still be mapped.
    pub(crate) fn intents_of(&self, inode: &Inode) -> FsResult<Vec<BlockRange>> {
        if !inode.slot.has(flag::HAS_INTENT) {
            return Ok(Vec::new());
        }
        let shard = self.catalog.read(self.catalog.shard_of(inode.ino.0));
        let found = intent::list(shard.reader(), inode.ino)?;
        Ok(found.iter().map(|intent| BlockRange::new(intent.first, intent.end)).collect())
    }

    /// Fails with a need when an intent overlaps a range that is to be used.
    pub(crate) fn refuse_intents(&self, inode: &Inode, range: BlockRange) -> Attempt<()> {
        match self.intents_of(inode)?.iter().any(|intent| intent.overlaps(&range)) {
            true => Err(Need::ClearIntent { ino: inode.ino, range }.into()),
            false => Ok(()),
        }
    }

    /// Finishes the intents of an inode that overlap a range, piece by piece.
    pub(crate) fn clear_intent(&self, wait: Wait, ino: Ino, range: BlockRange) -> FsResult<()> {
        loop {
            match self.clear_intent_turn(wait, ino, range) {
                Err(FsError::Unfinished) => {}
                ended => return ended,
            }
        }
    }

    /// A turn of [`Self::clear_intent`].
    ///
    /// # Errors
    /// `Unfinished`; as transactions.
    pub(crate) fn clear_intent_turn(&self, wait: Wait, ino: Ino, range: BlockRange) -> FsResult<()> {
        let mut op = Op::reclaiming(wait);
        interleave::point("intent:begun");
        for _ in 0..TURN_PIECES {
            if !self.intent_piece(&mut op, ino, range)? {
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
    pub(crate) fn drain_intents(&self, wait: Wait, ino: Ino) -> FsResult<()> {
        match self.clear_intent_turn(wait, ino, WHOLE_FILE) {
            Err(FsError::Unfinished) => return Err(FsError::Unfinished),
            Err(error) => {
                tracing::debug!("removing a cut off range of inode {ino} is left to the reclaimer: {error}");
                self.reclaim.push(Job::Intents(ino));
            }
            Ok(()) => {}
        }
        Ok(())
    }

    /// Removes one piece of one intent; false when none overlaps the range any more.
    fn intent_piece(&self, op: &mut Op, ino: Ino, range: BlockRange) -> FsResult<bool> {
        self.run(op, self.large_record(), |reservation, op| {
            let _guard = self.locks.write(ino);
            let inode = match self.load(ino) {
                Err(FsError::Stale) => return Ok(false),
                other => other?,
            };
            let intents = self.intents_of(&inode)?;
            let Some(intent) = intents.iter().find(|intent| intent.overlaps(&range)) else {
                return Ok(false);
            };
            let piece = self.next_piece(op, &inode, *intent)?;
            let mut shards = self.lock_piece(ino, &piece);
            let mut staged = Staged::new(self, None, false);
            let mut slot = inode.slot;
            self.stage_piece(&inode, &piece, &mut shards, &mut staged)?;
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
}
