//! Space below PM copies: when no lower tier has room, the stale cold copies of blocks that are in PM are
//! given up (design P1: "cold space hidden by full masks is reclaimed before ENOSPC").
//!
//! Safe at any crash: the PM copy is the newest content, and it is not touched (S1, I3).

use super::copy::Candidate;
use super::job::is_damage;
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::Attempt;
use crate::types::BlockRange;
use crate::write::Staged;
use terrace_catalog::{DeviceRun, cold_map};
use terrace_format::inode::flag;

impl Fs {
    /// Frees the cold copies beneath some candidates; returns how many device blocks became free. What lies beneath a
    /// partial block is needed.
    pub(super) fn drop_shadowed(&self, candidates: &[Candidate<'_>]) -> FsResult<u64> {
        let mut count = 0;
        for whole in candidates.split(|candidate| !candidate.lines.is_full()) {
            for file in whole.chunk_by(|a, b| a.ino == b.ino) {
                match self.by_pieces(file, |reservation, piece| self.drop_piece(reservation, piece)) {
                    Ok(dropped) => count += dropped,
                    Err(error) if is_damage(&error) && !self.is_for_all(&error) => {
                        self.hold_back(file, &error)
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(count)
    }

    /// Damage of a file keeps its blocks where they are, and no others (I8).
    pub(super) fn hold_back(&self, candidates: &[Candidate<'_>], error: &FsError) {
        tracing::debug!("blocks of inode {} stay in PM: {error}", candidates.first().map_or(0, |c| c.ino.0));
        candidates.iter().for_each(|candidate| self.refuse(candidate.pm));
    }

    fn drop_piece(&self, reservation: terrace_wal::Reservation<'_>, piece: &[Candidate<'_>]) -> Attempt<u64> {
        let range = BlockRange::new(piece[0].block, piece[0].block.plus(piece.len() as u64));
        let _guard = self.locks.write(piece[0].ino);
        let Some(inode) = self.load_same(&piece[0])? else { return Ok(0) };
        if !inode.slot.has(flag::HAS_COLD) || self.unchanged(&inode, piece.iter())?.contains(&false) {
            return Ok(0);
        }
        let extents = self.cold_extents(inode.ino, range)?;
        if extents.is_empty() {
            return Ok(0);
        }
        // What is about to lose its cold copy is not clean any more.
        piece.iter().for_each(|c| self.blocks.descriptor(c.pm).set_clean(false));
        let mut shards = self.lock_shards(inode.ino, extents.iter().map(DeviceRun::from));
        let mut staged = Staged::new(self, None, false);
        self.cold_versions.bump(inode.ino, range);
        for gone in extents.iter().filter_map(|extent| extent.slice(range.first, range.end)) {
            self.cache.remove_range(inode.ino, inode.slot.generation.get(), gone.first, gone.end());
        }
        let mut freed = Vec::new();
        cold_map::cut(&mut shards, &mut staged.tx, inode.ino, range.first, range.end, &mut freed)?;
        let mut count = 0;
        for (device, start, length) in freed {
            count += length;
            self.stage_device_free(DeviceRun { device, start, length }, &mut shards, &mut staged)?;
        }
        staged.unlink_emptied(&mut shards)?;
        staged.commit(reservation)?;
        Ok(count)
    }
}
