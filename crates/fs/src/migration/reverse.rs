//! Reverse migration ([TPFS] section 5.4): while PM bandwidth idles, cold blocks of read-dominated files come up.
//!
//! One bounded piece per step: some places of the table of files are looked at, and of one file some blocks are read
//! from below and queued for promotion. Only as far as the utilisation threshold allows, so that it makes nothing go
//! down. An error of a device makes it pause (M6).

use super::BACK_OFF;
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::Op;
use crate::types::{BlockRange, Wait};
use terrace_format::inode::flag;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_placement::decision::{ReadRule, read_rule};

/// Places of the table of files looked at in one step.
const PLACES: usize = 256;
/// Blocks of a file looked at in one step, and of them brought up.
const LOOK: u64 = 512;
const PIECE: u64 = 64;

/// Where the last step stopped.
#[derive(Default)]
pub(super) struct Cursor {
    place: usize,
    pub(super) file: Option<(Ino, u32, FileBlock)>,
    not_before_ns: u64,
}

impl Fs {
    /// Brings up a piece, if the policy and equation (2) ask for it and there is room below the threshold.
    pub(super) fn reverse_round(&self) {
        let idle = self.flows.idle();
        if !self.policy.follows_reads() || read_rule(true, false, idle) != ReadRule::ToPm || self.read_only {
            return;
        }
        let now = self.clock.monotonic_ns();
        // Taken out: no lock is held while a device is read.
        let mut cursor = std::mem::take(&mut *self.migration.reverse.lock());
        self.reverse_piece(&mut cursor, now);
        *self.migration.reverse.lock() = cursor;
    }

    fn reverse_piece(&self, cursor: &mut Cursor, now: u64) {
        if now < cursor.not_before_ns
            || !self.promotions.is_empty()
            || self.pressure.is_stuck()
            || self.pressure.is_draining()
            || self.room_below_threshold() < PIECE
        {
            return;
        }
        let Some((ino, generation, from)) = cursor.file.take().or_else(|| self.next_read_dominated(cursor))
        else {
            return;
        };
        match self.with_pages(Wait::Allowed, || self.bring_up(ino, generation, from)) {
            Ok(next) => cursor.file = next.map(|next| (ino, generation, next)),
            Err(FsError::Stale) => {}
            Err(error) => {
                tracing::debug!("reverse migration of inode {ino}: {error}");
                cursor.not_before_ns = now + BACK_OFF.as_nanos() as u64;
            }
        }
    }

    /// PM blocks that may be used before data has to go down again.
    fn room_below_threshold(&self) -> u64 {
        let seen = self.observe();
        let percent = u64::from(self.policy.threshold_percent(&seen).unwrap_or(0));
        (seen.total_blocks * percent / 100).saturating_sub(seen.used_blocks() + seen.arriving_blocks)
    }

    /// The next read-dominated file, if one is among the next places of the table.
    pub(super) fn next_read_dominated(&self, cursor: &mut Cursor) -> Option<(Ino, u32, FileBlock)> {
        for _ in 0..PLACES.min(self.files.places()) {
            cursor.place = (cursor.place + 1) % self.files.places();
            if let Some((ino, generation)) =
                self.files.read_dominated_at(cursor.place, self.parameters.read_times)
            {
                return Some((ino, generation, FileBlock(0)));
            }
        }
        None
    }

    /// Reads the first cold blocks at or behind `from` and queues them; where to go on, `None` at the end.
    pub(super) fn bring_up(&self, ino: Ino, generation: u32, from: FileBlock) -> FsResult<Option<FileBlock>> {
        let window = BlockRange::new(from, from.plus(LOOK));
        let (found, end) = {
            let _guard = self.locks.read(ino);
            let inode = self.load_regular(ino)?;
            if inode.slot.generation.get() != generation || !inode.slot.has(flag::HAS_COLD) {
                return Ok(None);
            }
            // What is in DRAM is read there: brought up it would leave DRAM, DRAM would idle, and all would go down again.
            let wanted = |block: FileBlock| -> FsResult<bool> {
                let (key, version) = (inode.page_key(block), self.cold_versions.get(ino, block));
                Ok(self.map.lookup(None, &inode.map(), block)?.is_none() && !self.cache.holds(key, version))
            };
            let mut found = None;
            'extents: for extent in self.cold_extents(ino, window)?.iter().filter(|extent| !extent.unwritten)
            {
                let (mut at, end) = (extent.first.max(window.first), extent.end().min(window.end));
                while at < end {
                    let (first, most) = (at, end.min(at.plus(PIECE)));
                    while at < most && wanted(at)? {
                        at = at.plus(1);
                    }
                    if at > first {
                        found = Some(BlockRange::new(first, at));
                        break 'extents;
                    }
                    at = at.plus(1);
                }
            }
            (found, inode.size().div_ceil(BLOCK_SIZE))
        };
        let next = match found {
            Some(range) => {
                let mut op = Op::new(Wait::Allowed);
                self.fetch_cold(&mut op, ino, range)?;
                self.promote_fetched(&mut op, ino, generation);
                range.end
            }
            None => window.end,
        };
        Ok((next.0 < end).then_some(next))
    }
}
