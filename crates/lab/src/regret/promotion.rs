//! Promotion by the rules of the engine: of touched blocks into PM, and of read-dominated files into PM and into
//! DRAM.

use super::blocks::Location;
use super::candidates::Copies;
use super::machine::Machine;
use super::work::Kind;
use terrace_placement::decision::{ReadRule, read_rule};

/// Promotions in a step, and most waiting promotions.
const PROMOTED_AT_ONCE: usize = 64;
const PROMOTIONS: usize = 1024;
/// Blocks of a group promoted into DRAM and into PM, and the least free room in DRAM for such a group.
const GROUP_TO_DRAM_BLOCKS: u64 = 512;
const GROUP_TO_PM_BLOCKS: u64 = 64;
const LEAST_ROOM_BLOCKS: u64 = 16;
/// Files examined in a step.
const EXAMINED_FILES: usize = 256;

impl Machine<'_> {
    /// A cold block was read for the `touches`-th time.
    pub(super) fn want_promotion(&mut self, id: u32, touches: u32) {
        // With copies by worth in both memories the first touch already asks for a promotion.
        let promotes = self.copies == Copies::Both || self.policy.promotes(touches);
        let wanted = promotes && self.work.promotions.len() < PROMOTIONS;
        if wanted && !self.belongs_in_dram(id) {
            self.work.promotions.push_back((id, self.blocks.location(id).version));
        }
    }

    /// Promotes touched blocks while PM has room.
    pub(super) fn promote_some(&mut self) {
        for _ in 0..PROMOTED_AT_ONCE {
            // At least one free block is required even in a PM of a few blocks.
            if !self.keeps_copies() && self.blocks.free_pm() < (2 * self.setup.throttle_mark()).max(1) {
                self.work.promotions.clear();
                return;
            }
            let Some((id, version)) = self.work.promotions.pop_front() else { return };
            let location = self.blocks.location(id);
            let is_below = location.version == version && location.is_cold();
            if is_below && (!self.keeps_copies() || self.displaces(id)) {
                self.promote(id);
            }
        }
    }

    /// The next read-dominated file, and the block at which the scan continues.
    fn next_read_dominated(&mut self, which: usize) -> Option<(usize, usize)> {
        let (mut file, block) = self.work.cursors[which];
        if block > 0 && self.histories.files.get(file).is_some_and(|it| it.is_read_dominated()) {
            return Some((file, block));
        }
        for _ in 0..EXAMINED_FILES.min(self.histories.files.len()) {
            file = (file + 1) % self.histories.files.len();
            if self.histories.files[file].is_read_dominated() {
                return Some((file, 0));
            }
        }
        self.work.cursors[which] = (file, 0);
        None
    }

    /// At most `most` blocks of the file at the cursor for which `fits` holds; the cursor moves behind the
    /// last block examined.
    fn gather(&mut self, which: usize, most: u64, fits: impl Fn(&Location) -> bool) -> Vec<u32> {
        let Some((file, from)) = self.next_read_dominated(which) else { return Vec::new() };
        let steps = self.steps;
        let (mut found, mut at) = (Vec::new(), from);
        while at < steps.files[file].len() && (found.len() as u64) < most {
            let id = steps.files[file][at];
            if fits(&self.blocks.location(id)) {
                found.push(id);
            }
            at += 1;
        }
        self.work.cursors[which] = (file, if at < steps.files[file].len() { at } else { 0 });
        found
    }

    /// Begins a promotion of read-dominated files into DRAM.
    pub(super) fn begin_to_dram(&mut self) -> bool {
        let rule = read_rule(true, true, self.histories.idle());
        let room = self.blocks.dram_room();
        if !self.policy.follows_reads() || rule != ReadRule::ToDram || room < LEAST_ROOM_BLOCKS {
            return false;
        }
        let victims = self.gather(0, room.min(GROUP_TO_DRAM_BLOCKS), |location| {
            location.pm && location.read > 0 && !location.leaving
        });
        self.demote(Kind::ToDram, victims)
    }

    /// Begins a promotion of read-dominated files into PM, as far as the threshold of equation (1) has room.
    pub(super) fn begin_to_pm(&mut self) {
        let rule = read_rule(true, false, self.histories.idle());
        if !self.policy.follows_reads() || rule != ReadRule::ToPm || !self.work.promotions.is_empty() {
            return;
        }
        let seen = self.observe();
        let percent = u64::from(self.policy.threshold_percent(&seen).unwrap_or(0));
        let limit = seen.total_blocks * percent / 100;
        if self.blocks.empty_pm() < GROUP_TO_PM_BLOCKS
            || limit.saturating_sub(seen.used_blocks() + seen.arriving_blocks) < GROUP_TO_PM_BLOCKS
        {
            return;
        }
        let cold = self.gather(1, GROUP_TO_PM_BLOCKS, Location::is_cold);
        self.waits.blocks_up += cold.len() as u64;
        self.begin_reading(Kind::ToPm, &cold);
    }
}
