//! Space below PM copies: when no lower tier has room, the stale cold copies of blocks that are in PM are
//! given up (design P1: "cold space hidden by full masks is reclaimed before ENOSPC"). And space in PM when nothing else
//! leaves it: blocks that have a place below can go there, so that a full pool can be written over.
//!
//! Safe at any crash: the PM copy is the newest content, and it is not touched (S1, I3).

use super::copy::Candidate;
use super::plan::{LEAVING, Victim};
use super::{MOST_STARVED, Round};
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
use terrace_runtime::sync::atomic::Ordering;
use terrace_wal::Error;

impl Fs {
    /// Moves PM blocks that have a place below to there, whatever their age; whether PM got, or gets, room by that. For an
    /// operation that found nothing else: it looks at all of PM.
    pub(super) fn shadow_round(&self, op: &mut Op) -> FsResult<bool> {
        // They may be among those that were picked before, behind many that cannot go.
        let queued: Vec<Victim> = self.migration.queue.lock().drain(..).collect();
        self.give_back_victims(&queued);
        let victims = self.pick_shadows(self.demotion_blocks() as usize)?;
        if victims.is_empty() {
            // Others may have them, or have just moved them.
            op.starved += MOST_STARVED / 20;
            let others = self.migration.in_flight.load(Ordering::Acquire) > 0;
            if others {
                self.migration.wait_round(Duration::from_millis(10));
            }
            self.wal.checkpoint()?;
            self.blocks.drain_quarantine();
            let freed = self.blocks.freed_so_far();
            return Ok(std::mem::replace(&mut op.freed_seen, freed) != freed || others);
        }
        let before = self.migration.left_blocks.load(Ordering::Acquire);
        self.migration.in_flight.fetch_add(victims.len() as u64, Ordering::AcqRel);
        let moved = self.move_group(&victims);
        // Others count too: where they took the room below, what they moved left PM.
        match (moved, self.migration.left_blocks.load(Ordering::Acquire) > before) {
            (_, true) | (Ok(Round::Progress | Round::InFlight), _) => Ok(true),
            (Ok(_) | Err(FsError::Engine(Error::NoSpace(_))), false) => Ok(false),
            (Err(error), false) => Err(error),
        }
    }

    /// Some PM blocks that have a place below, by file and block. Files that cannot be read now are left out.
    fn pick_shadows(&self, most: usize) -> FsResult<Vec<Victim>> {
        let fits = self.count_kept(false);
        let mut blocks = Vec::new();
        for pm in (self.blocks.first_block().0..self.blocks.end_block().0).map(PmBlock) {
            let descriptor = self.blocks.descriptor(pm);
            if descriptor.state() == State::Used
                && descriptor.touched() < LEAVING
                && fits(descriptor)
                && let Ok(Owner::File { ino, block, .. }) = self.blocks.owner(pm)
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
        Ok(victims)
    }

    /// Frees the cold copies beneath some candidates; returns how many device blocks became free. What lies beneath a
    /// partial block is needed.
    pub(super) fn drop_shadowed(&self, candidates: &[Candidate<'_>]) -> FsResult<u64> {
        let mut count = 0;
        for whole in candidates.split(|candidate| !candidate.lines.is_full()) {
            count += self.by_pieces(whole, |reservation, piece| self.drop_piece(reservation, piece))?;
        }
        Ok(count)
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
