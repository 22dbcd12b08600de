//! Space below PM copies: when no lower tier has room, the stale cold copies of blocks that are in PM are
//! given up (design P1: "cold space hidden by full masks is reclaimed before ENOSPC").
//!
//! Safe at any crash: the PM copy is the newest content, and it is not touched (S1, I3).

use super::MOST_STARVED;
use super::copy::Candidate;
use super::plan::{LEAVING, Victim};
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::{Attempt, Op};
use crate::types::BlockRange;
use crate::write::Staged;
use std::time::Duration;
use terrace_blocks::State;
use terrace_catalog::{DeviceRun, cold_map};
use terrace_format::PmBlock;
use terrace_format::inode::flag;
use terrace_format::table::Owner;

impl Fs {
    /// Writes PM blocks that hide a place below to there, whatever their age: the last room that a full pool has for what is
    /// written over. Whether PM got, or gets, free blocks by that.
    pub(super) fn shadow_round(&self, op: &mut Op) -> FsResult<bool> {
        // They may be among those that were picked before, behind many that cannot go.
        let queued: Vec<Victim> = self.migration.victims.take_all();
        self.give_back_victims(&queued);
        let freed_before = self.blocks.freed_so_far();
        let victims = self.pick_shadows(self.demotion_blocks() as usize);
        op.starved += MOST_STARVED / 50;
        let mut freed = 0;
        if !victims.is_empty() {
            self.pressure.begin_group(victims.len());
            // Last blocks that are in use leave too.
            let moved = self.pressure.pressed(|| self.move_to_places(&victims));
            self.give_back_victims(&victims);
            self.pressure.end_group(victims.len());
            self.pressure.round_done();
            freed = moved?;
        }
        let others = self.pressure.in_flight() > 0;
        if freed == 0 && others {
            self.pressure.wait_round(Duration::from_millis(10));
        }
        self.wal.checkpoint()?;
        self.blocks.drain_quarantine();
        // Others count too: they may have moved what was to be picked here.
        Ok(freed > 0 || others || self.blocks.freed_so_far() != freed_before)
    }

    /// Writes victims to the places below that they hide; gives how many PM blocks that freed.
    fn move_to_places(&self, victims: &[Victim]) -> FsResult<u64> {
        let mut trouble = None;
        let candidates = self.look_at(victims, &mut trouble);
        let (clean, rest): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|c| c.clean);
        let mut freed = self.evict_clean(clean, &mut trouble)?;
        let whole = rest.into_iter().filter(|candidate| !candidate.unwritten).collect();
        let mut whole = self.complete(whole, &mut trouble);
        self.complete_in_pm(&mut whole)?;
        freed += self.write_all_in_place(whole, &mut trouble);
        match trouble {
            Some(error) if freed == 0 && self.concerns_all_files(&error) => Err(error),
            _ => Ok(freed),
        }
    }

    /// Some PM blocks that have a place below, by file and block. Files that cannot be read now are left out.
    fn pick_shadows(&self, most: usize) -> Vec<Victim> {
        let mut blocks = Vec::new();
        for pm in (self.blocks.first_block().0..self.blocks.end_block().0).map(PmBlock) {
            let descriptor = self.blocks.descriptor(pm);
            if descriptor.state() == State::Used
                && descriptor.touched() < LEAVING
                && let Ok(Owner::File { ino, block, unwritten: false }) = self.blocks.owner(pm)
            {
                blocks.push(Victim { ino, block, pm });
            }
        }
        blocks.sort_unstable();
        let mut victims: Vec<Victim> = Vec::new();
        for of_inode in blocks.chunk_by(|a, b| a.ino == b.ino) {
            let ino = of_inode[0].ino;
            let _guard = self.locks.read(ino);
            if !self.load(ino).is_ok_and(|inode| inode.slot.has(flag::HAS_COLD)) {
                continue;
            }
            let shard = self.catalog.read(self.catalog.shard_of(ino.0));
            let has_place =
                |victim: &&Victim| matches!(cold_map::lookup(shard.reader(), ino, victim.block), Ok(Some(_)));
            victims.extend(of_inode.iter().filter(has_place).take(most - victims.len()));
            if victims.len() == most {
                break;
            }
        }
        victims.iter().for_each(|victim| self.blocks.descriptor(victim.pm).touch_read(LEAVING));
        victims
    }

    /// Frees the cold copies beneath some candidates; returns how many device blocks became free. What lies beneath a
    /// partial block is needed.
    pub(super) fn drop_shadowed(&self, candidates: &[Candidate<'_>]) -> FsResult<u64> {
        let mut count = 0;
        for whole in candidates.split(|candidate| !candidate.lines.is_full()) {
            for file in whole.chunk_by(|a, b| a.ino == b.ino) {
                match self.by_pieces(file, |reservation, piece| self.drop_piece(reservation, piece)) {
                    Ok(dropped) => count += dropped,
                    Err(error) if error.concerns_one_file() && !self.concerns_all_files(&error) => {
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
