//! Space below PM copies: when no lower tier has room, the stale cold copies of blocks that are in PM are
//! given up (design P1: "cold space hidden by full masks is reclaimed before ENOSPC").
//!
//! Safe at any crash: the PM copy is the newest content, and it is not touched (S1, I3).

use super::commit::demoting;
use super::copy::Candidate;
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::types::BlockRange;
use crate::write::Staged;
use smallvec::SmallVec;
use terrace_catalog::{DeviceRun, chunks, cold_map};
use terrace_format::inode::flag;

impl Fs {
    /// Frees the cold copies beneath some candidates; returns how many device blocks became free.
    pub(super) fn drop_shadowed(&self, candidates: &[Candidate<'_>]) -> FsResult<u64> {
        let mut freed = 0;
        let limit = self.install_limit();
        for run in candidates.chunk_by(|a, b| a.ino == b.ino && b.block == a.block.plus(1)) {
            for piece in run.chunks(limit) {
                freed += self.drop_piece(piece)?;
            }
        }
        Ok(freed)
    }

    fn drop_piece(&self, piece: &[Candidate<'_>]) -> FsResult<u64> {
        let range = BlockRange::new(piece[0].block, piece[0].block.plus(piece.len() as u64));
        let mut op = demoting();
        self.run(&mut op, self.large_record(), |reservation, _op| {
            let _guard = self.locks.write(piece[0].ino);
            let inode = match self.load(piece[0].ino) {
                Ok(inode) if inode.slot.has(flag::HAS_COLD) => inode,
                Ok(_) | Err(FsError::Stale) => return Ok(0),
                Err(error) => return Err(error.into()),
            };
            if self.unchanged(&inode, piece.iter())?.contains(&false) {
                return Ok(0);
            }
            let extents = self.cold_extents(inode.ino, range)?;
            if extents.is_empty() {
                return Ok(0);
            }
            // What is about to lose its cold copy is not clean any more.
            piece.iter().for_each(|c| self.blocks.descriptor(c.pm).set_clean(false));
            let mut locks: SmallVec<[u32; 8]> = smallvec::smallvec![self.catalog.shard_of(inode.ino.0)];
            for old in &extents {
                let run = DeviceRun { device: old.device, start: old.start, length: u64::from(old.length) };
                locks.extend(chunks::shards(&self.catalog, run));
            }
            let mut shards = self.catalog.write(&locks);
            let mut staged = Staged::new(self, None, false);
            self.cold_versions.bump(inode.ino, range);
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
        })
    }
}
