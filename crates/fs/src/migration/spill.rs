//! Moves between lower tiers by policy: a tier that is nearly full gives its coldest files to the next ones.
//!
//! Nothing is kept while nothing is due. Then all files are gone through in bounded pieces, those used longest ago are
//! remembered, by the times in their inodes, and moved in groups (`between.rs`: open, linked and locked files as any)
//! until the tier has room again. Done in the thread of moves by hand, between its jobs; each call is one bounded piece.
//! M6: when nothing below has room or a device fails, the report says so and the next attempt waits. Files that are
//! pinned to the tier stay.

use super::Destination;
use super::between::{FileId, MovingGroup};
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::types::Wait;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;
use terrace_catalog::SpaceTotals;
use terrace_format::inode::{SLOTS_PER_PAGE, flag};
use terrace_format::{FileBlock, Ino, TierId};
use terrace_placement::spill;
use terrace_runtime::interleave;

/// How often the tiers are looked at.
const PERIOD: Duration = Duration::from_secs(1);
/// Pause after a failure.
const BACK_OFF: Duration = Duration::from_secs(10);
/// Inode slots looked at in one piece.
const SLOTS: u64 = 512;
/// Files remembered by one walk.
const FILES: usize = 256;
/// Files looked at for one group.
const OF_GROUP: usize = 64;

/// When a file was used last, by its times; then which.
type Coldness = (i64, Ino, u32);

/// Where it is.
#[derive(Debug, Default)]
enum Phase {
    #[default]
    Idle,
    /// Walks over the files; has the coldest so far, the warmest of them on top.
    Looking(TierId, Ino, BinaryHeap<Coldness>),
    /// Moves them, the coldest first, from a block of the first of them on.
    Moving(TierId, VecDeque<FileId>, FileBlock, u64),
}

/// The state between pieces.
#[derive(Debug, Default)]
pub(super) struct Spill {
    phase: Phase,
    due_ns: u64,
}

impl Fs {
    /// Does a piece; true when there is more to do now.
    pub(super) fn spill_step(&self, spill: &mut Spill) -> bool {
        let now = self.clock.monotonic_ns();
        if now < spill.due_ns {
            return false;
        }
        match self.spill_piece(std::mem::take(&mut spill.phase)) {
            Ok(Phase::Idle) => spill.due_ns = now + PERIOD.as_nanos() as u64,
            Ok(phase) => {
                spill.phase = phase;
                return true;
            }
            Err(error) => {
                let reason = format!("a lower tier is nearly full and gives nothing to the next: {error}");
                if self.migration.spill_reason.lock().replace(reason).is_none() {
                    tracing::warn!("a lower tier is nearly full and gives nothing to the next: {error}");
                }
                spill.due_ns = now + BACK_OFF.as_nanos() as u64;
            }
        }
        false
    }

    fn spill_piece(&self, phase: Phase) -> FsResult<Phase> {
        match phase {
            Phase::Idle => Ok(self.begin_spill()),
            Phase::Looking(tier, from, mut coldest) => {
                let slots = self.numbers.lock().pages * SLOTS_PER_PAGE;
                let end = Ino(slots.min(from.0 + SLOTS));
                for ino in (from.0..end.0).map(Ino) {
                    coldest.extend(self.coldness(ino, tier)?);
                    if coldest.len() > FILES {
                        coldest.pop();
                    }
                }
                if end.0 < slots {
                    return Ok(Phase::Looking(tier, end, coldest));
                }
                let files = coldest.into_sorted_vec();
                let files = files.into_iter().map(|(_, ino, generation)| FileId { ino, generation });
                Ok(Phase::Moving(tier, files.collect(), FileBlock(0), 0))
            }
            Phase::Moving(tier, files, from, moved) => self.spill_group(tier, files, from, moved),
        }
    }

    /// Looks for a tier that is nearly full and has another below it.
    fn begin_spill(&self) -> Phase {
        let tiers = self.devices.tiers();
        // A policy that never demotes moves nothing here either.
        let moves = self.policy.threshold_percent(&self.observe()).is_some();
        let found = tiers.split_last().filter(|_| moves && self.devices.space.is_loaded());
        let mut upper = found.map(|(_, upper)| upper.iter()).into_iter().flatten();
        let full = upper.find(|tier| {
            let totals = self.totals_of(**tier);
            spill::is_nearly_full(totals.total, totals.free)
        });
        match full {
            Some(tier) => Phase::Looking(*tier, Ino(1), BinaryHeap::new()),
            None => {
                *self.migration.spill_reason.lock() = None;
                Phase::Idle
            }
        }
    }

    fn totals_of(&self, tier: TierId) -> SpaceTotals {
        self.devices.space.totals_now(&self.devices.of_tier(tier))
    }

    /// When a file that may have something on a tier was used last. One that cannot be read is left out.
    fn coldness(&self, ino: Ino, tier: TierId) -> FsResult<Option<Coldness>> {
        let found = self.with_pages(Wait::Allowed, || {
            let _guard = self.locks.read(ino);
            let inode = self.load(ino)?;
            let kept = self.pin_of(&inode)? == Some(tier.0);
            Ok((inode, kept))
        });
        match found {
            Ok((inode, kept)) if inode.slot.is_regular() && inode.slot.has(flag::HAS_COLD) && !kept => {
                let used = inode.slot.mtime.get().max(inode.slot.atime.get());
                Ok(Some((used, ino, inode.slot.generation.get())))
            }
            Err(error) if self.wal.is_stopped() => Err(error),
            _ => Ok(None),
        }
    }

    /// Moves a group of what the coldest files have on a tier.
    fn spill_group(
        &self,
        tier: TierId,
        mut files: VecDeque<FileId>,
        mut from: FileBlock,
        moved: u64,
    ) -> FsResult<Phase> {
        let (to, totals) = (Destination::Below(tier), self.totals_of(tier));
        let left = spill::blocks_to_spill(totals.total, totals.free).min(self.group_blocks) as usize;
        let mut group = MovingGroup::default();
        for _ in 0..OF_GROUP {
            let Some(file) = files.front().filter(|_| group.blocks.len() < left) else { break };
            match self.collect_below(*file, from, left, to, &mut group)? {
                Some(next) => from = next,
                None => {
                    files.pop_front();
                    from = FileBlock(0);
                }
            }
        }
        interleave::point("spill:between-rounds");
        let mut trouble = None;
        let done = self.move_between(group, to, &mut trouble)?;
        if done > 0 {
            *self.migration.spill_reason.lock() = None;
        }
        let moved = moved + done;
        match (left, files.is_empty(), trouble) {
            (0, ..) => Ok(Phase::Idle),
            (_, false, _) => Ok(Phase::Moving(tier, files, from, moved)),
            (_, true, Some(error)) if moved == 0 => Err(error),
            // All that was remembered has gone, and more is to go: look again.
            (_, true, _) if moved > 0 => Ok(Phase::Looking(tier, Ino(1), BinaryHeap::new())),
            // What is left there has newer copies in PM, or is pinned.
            (_, true, _) => Err(FsError::WouldBlock),
        }
    }
}
