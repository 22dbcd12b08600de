//! The background work of the machine, in the bus time that the foreground leaves: demotion, write-back,
//! promotion of touched blocks, and promotion of read-dominated files into PM and into DRAM. A single group
//! at a time, chosen by the rules of the engine.

use super::copies::{Copies, Memory};
use super::machine::{Machine, transfer_ns};
use terrace_placement::decision::{ReadRule, read_rule};
use terrace_placement::temperature::{Portion, Times, coldest};
use terrace_placement::threshold::Flow;
use terrace_placement::{Idle, Observation, VictimOrder};

/// Time between two questions to the policy while no movement is under way.
const POLL_NS: u64 = 10_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// The time of arrivals for which the policy wants free blocks.
const AHEAD_NS: u64 = 100_000_000;
/// Ticks after which a dirty page is written back.
const OLD_TICKS: u32 = 2500;
/// Promotions in a step, and most waiting promotions.
const PROMOTED_AT_ONCE: usize = 64;
const PROMOTIONS: usize = 1024;
/// Blocks of a group promoted into DRAM and into PM, and the least free room in DRAM for such a group.
const TO_DRAM: u64 = 512;
const UP: u64 = 64;
const LEAST_ROOM: u64 = 16;
/// Files examined in a step.
const LOOKS: usize = 256;

/// A movement under way.
#[derive(Debug)]
pub(super) struct Group {
    pub left_ns: u64,
    kind: Kind,
    /// Blocks, and their versions at the beginning of the movement.
    blocks: Vec<(u32, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Demote,
    WriteBack,
    ToDram,
    Up,
}

/// The growth of PM use.
#[derive(Debug, Default)]
pub(super) struct Pace {
    last_ns: u64,
    in_pm: u64,
    /// Negative while more blocks are removed than arrive.
    blocks_per_s: i64,
    /// Blocks that left PM since the last observation, and blocks promoted since then. Promotions do not
    /// count as growth: they stop when PM gets short.
    left: u64,
    pub(super) raised: u64,
}

impl Machine<'_> {
    /// Lets time pass; during the first `bus_ns` the foreground has the bus.
    pub(super) fn advance(&mut self, ns: u64, bus_ns: u64) {
        let end = self.now_ns + ns;
        self.now_ns += bus_ns.min(ns);
        loop {
            match &mut self.group {
                Some(group) => {
                    let part = group.left_ns.min(end - self.now_ns);
                    self.now_ns += part;
                    group.left_ns -= part;
                    if group.left_ns > 0 {
                        break;
                    }
                    self.complete();
                    self.next_poll_ns = self.now_ns;
                }
                None if self.next_poll_ns > end => break,
                None => {
                    self.now_ns = self.now_ns.max(self.next_poll_ns);
                    self.next_poll_ns = self.now_ns + POLL_NS;
                    self.poll();
                }
            }
        }
        self.now_ns = end;
    }

    fn poll(&mut self) {
        while self.now_ns / SECOND_NS > self.seconds {
            self.seconds += 1;
            let flow = self.flow.since(&self.flow_before);
            self.flow_before = self.flow;
            self.window.second(flow);
        }
        self.promote_some();
        let seen = self.observe();
        let wanted = self.policy.blocks_to_demote(&seen);
        let begun = self.begin_write_back() || (wanted > 0 && self.begin_demotion(wanted));
        if !begun && !self.begin_to_dram() {
            self.begin_up();
        }
    }

    fn observe(&mut self) -> Observation {
        let in_pm = self.used_pm();
        let passed = self.now_ns - self.pace.last_ns;
        if passed >= POLL_NS / 2 {
            let (now, before) = (in_pm + self.pace.left, self.pace.in_pm + self.pace.raised);
            let rate = (i128::from(now) - i128::from(before)) * i128::from(SECOND_NS) / i128::from(passed);
            let blocks_per_s =
                i64::try_from((3 * i128::from(self.pace.blocks_per_s) + rate) / 4).unwrap_or_default();
            self.pace = Pace { last_ns: self.now_ns, in_pm, blocks_per_s, left: 0, raised: 0 };
        }
        let Flow { pm_read, pm_written, .. } = self.window.decayed();
        Observation {
            total_blocks: self.setup.pm_blocks,
            free_blocks: self.free_pm(),
            arriving_blocks: self.pace.blocks_per_s.max(0) as u64 * AHEAD_NS / SECOND_NS,
            pm_read_bytes: pm_read,
            pm_written_bytes: pm_written,
        }
    }

    fn begin(&mut self, kind: Kind, ids: &[u32], latency_ns: u64, bytes_per_s: u64) -> bool {
        if ids.is_empty() {
            return false;
        }
        let left_ns = latency_ns + transfer_ns(ids.len() as u64, bytes_per_s);
        let blocks = ids.iter().map(|id| (*id, self.places[*id as usize].version)).collect();
        self.group = Some(Group { left_ns, kind, blocks });
        true
    }

    fn begin_down(&mut self, kind: Kind, ids: &[u32]) -> bool {
        let device = self.setup.device;
        let begun = self.begin(kind, ids, device.write_latency_ns, device.write_bytes_per_s);
        self.waits.blocks_down += ids.len() as u64;
        begun
    }

    fn complete(&mut self) {
        let Some(group) = self.group.take() else { return };
        for (id, version) in group.blocks {
            let place = self.places[id as usize];
            let same = place.version == version;
            match group.kind {
                Kind::Demote if same && place.pm && self.keeps_copies() => {
                    let place = &mut self.places[id as usize];
                    (place.below, place.leaving) = (true, false);
                    self.kept[Memory::Pm as usize].put(id);
                    self.pace.left += 1;
                }
                Kind::Demote | Kind::ToDram if same && place.pm => {
                    self.places[id as usize].below = true;
                    self.sink(id, group.kind == Kind::ToDram);
                }
                Kind::WriteBack if same => self.written_back(id),
                Kind::Up if same && !place.pm && place.below && self.has_empty_place() => self.raise(id),
                // The block was written or removed meanwhile.
                _ => self.places[id as usize].leaving = false,
            }
        }
    }

    /// Drops a PM block whose cold copy is valid.
    fn sink(&mut self, id: u32, to_dram: bool) {
        let counted = !self.kept[Memory::Pm as usize].holds(id);
        self.leave_pm(id);
        self.pace.left += u64::from(counted);
        if to_dram || self.belongs_in_dram(id) {
            self.keep_clean(id);
        }
    }

    /// Demotes victims: a victim with a valid cold copy is dropped at once, the remaining victims move as a
    /// group.
    fn take_down(&mut self, kind: Kind, victims: Vec<u32>) -> bool {
        let (clean, dirty): (Vec<u32>, Vec<u32>) =
            victims.into_iter().partition(|id| self.places[*id as usize].below);
        clean.iter().for_each(|id| self.sink(*id, kind == Kind::ToDram));
        dirty.iter().for_each(|id| self.places[*id as usize].leaving = true);
        self.begin_down(kind, &dirty) || !clean.is_empty()
    }

    fn begin_demotion(&mut self, wanted: u64) -> bool {
        let wanted = wanted.clamp(1, self.setup.group_blocks) as usize;
        let mut victims = match self.policy.victims() {
            VictimOrder::LeastRecentlyUsed => Vec::new(),
            order => self.coldest(wanted, order),
        };
        if victims.is_empty() {
            let places = &self.places;
            let used = |id: &u32| places[*id as usize].written.max(places[*id as usize].read);
            victims = self.in_pm.iter().filter(|id| self.is_movable(*id)).collect();
            victims.sort_unstable_by_key(|id| (used(id), *id));
            victims.truncate(wanted);
        }
        self.take_down(Kind::Demote, victims)
    }

    fn is_movable(&self, id: u32) -> bool {
        !self.places[id as usize].leaving && !self.kept[Memory::Pm as usize].holds(id)
    }

    /// The victims that the engine would choose (`Engine::pick_coldest`).
    fn coldest(&self, wanted: usize, order: VictimOrder) -> Vec<u32> {
        let now = self.tick();
        let mut files = vec![Times::default(); self.steps.files.len()];
        let movable = || self.in_pm.iter().filter(|id| self.is_movable(*id));
        let file_of = |id: u32| self.steps.places[id as usize].0;
        let used = |id: u32| order.tick(self.places[id as usize].written, self.places[id as usize].read);
        movable().for_each(|id| files[file_of(id) as usize].add(used(id)));
        let some = (0..).zip(&files).filter(|(_, times)| times.blocks > 0);
        let mut chosen: Vec<Option<(usize, Portion)>> = vec![None; files.len()];
        for (rank, (file, portion)) in
            coldest(some, wanted as u64, (now, self.parameters.whole_after())).into_iter().enumerate()
        {
            chosen[file as usize] = Some((rank, portion));
        }
        let mut found = Vec::new();
        for id in movable() {
            if let Some((rank, portion)) = chosen[file_of(id) as usize]
                && portion.holds(used(id))
            {
                found.push((rank, used(id), id));
            }
        }
        found.sort_unstable();
        found.truncate(wanted);
        found.into_iter().map(|(_, _, id)| id).collect()
    }

    pub(super) fn dirty_limit(&self) -> u64 {
        self.setup.dirty_blocks()
    }

    /// Begins a write-back of the file written longest ago: from 95 % of the limit on until 80 %, and for old
    /// dirty pages.
    fn begin_write_back(&mut self) -> bool {
        let (dirty, limit) = (self.dirty.len() as u64 * 100, self.dirty_limit());
        self.draining = if self.draining { dirty > limit * 80 } else { dirty > limit * 95 };
        let due = |id: u32| self.tick().saturating_sub(self.places[id as usize].written) >= OLD_TICKS;
        match self.dirty.oldest() {
            Some(oldest) if self.draining || due(oldest) => self.write_back_around(oldest),
            _ => false,
        }
    }

    fn write_back_around(&mut self, id: u32) -> bool {
        let steps = self.steps;
        let own = steps.files[steps.places[id as usize].0 as usize].iter().copied();
        let most = self.setup.group_blocks as usize;
        let ids: Vec<u32> = own.filter(|id| self.dirty.holds(*id)).take(most).collect();
        self.begin_down(Kind::WriteBack, &ids)
    }

    /// The thread waits for the end of the group under way.
    fn wait_for_group(&mut self) {
        let left_ns = self.group.as_ref().map_or(0, |group| group.left_ns);
        self.waits.room_ns += left_ns;
        self.advance(left_ns, 0);
    }

    /// Waits until PM has a free block; false when the policy never frees PM.
    pub(super) fn make_pm_room(&mut self) -> bool {
        while self.free_pm() == 0 {
            if self.group.is_some() {
                self.wait_for_group();
            } else if self.policy.threshold_percent(&Observation::default()).is_none()
                || !self.begin_demotion(64)
            {
                return false;
            }
        }
        true
    }

    /// Waits until the limit of dirty pages has room for `pages` more.
    pub(super) fn make_dirty_room(&mut self, pages: u64) {
        while self.dirty.len() as u64 + pages > self.dirty_limit() {
            if self.group.is_some() {
                self.wait_for_group();
            } else if !self.dirty.oldest().is_some_and(|oldest| self.write_back_around(oldest)) {
                break;
            }
        }
    }

    pub(super) fn belongs_in_dram(&self, id: u32) -> bool {
        let file = self.steps.places[id as usize].0;
        self.policy.follows_reads()
            && self.window.idle() != Idle::Pm
            && self.files[file as usize].is_read_dominated()
    }

    /// A cold block was read for the `touches`-th time.
    pub(super) fn want_promotion(&mut self, id: u32, touches: u32) {
        // With copies by worth in both memories the first touch already asks for a promotion.
        let promotes = self.copies == Copies::Both || self.policy.promotes(touches);
        let wanted = promotes && self.promotions.len() < PROMOTIONS;
        if wanted && !self.belongs_in_dram(id) {
            self.promotions.push_back((id, self.places[id as usize].version));
        }
    }

    fn promote_some(&mut self) {
        for _ in 0..PROMOTED_AT_ONCE {
            // At least one free block is required even in a PM of a few blocks.
            if !self.keeps_copies() && self.free_pm() < (2 * self.slow_below()).max(1) {
                self.promotions.clear();
                return;
            }
            let Some((id, version)) = self.promotions.pop_front() else { return };
            let place = self.places[id as usize];
            let is_below = place.version == version && place.below && !place.pm;
            if is_below && (!self.keeps_copies() || self.displaces(id)) {
                self.raise(id);
            }
        }
    }

    /// The next read-dominated file, and the block at which the scan continues.
    fn next_read_dominated(&mut self, which: usize) -> Option<(usize, usize)> {
        let (mut file, block) = self.cursors[which];
        if block > 0 && self.files.get(file).is_some_and(|it| it.is_read_dominated()) {
            return Some((file, block));
        }
        for _ in 0..LOOKS.min(self.files.len()) {
            file = (file + 1) % self.files.len();
            if self.files[file].is_read_dominated() {
                return Some((file, 0));
            }
        }
        self.cursors[which] = (file, 0);
        None
    }

    /// At most `most` blocks of the file at the cursor for which `fits` holds; the cursor moves behind the
    /// last block examined.
    fn gather(&mut self, which: usize, most: u64, fits: impl Fn(&Self, u32) -> bool) -> Vec<u32> {
        let Some((file, from)) = self.next_read_dominated(which) else { return Vec::new() };
        let steps = self.steps;
        let (mut found, mut at) = (Vec::new(), from);
        while at < steps.files[file].len() && (found.len() as u64) < most {
            let id = steps.files[file][at];
            if fits(self, id) {
                found.push(id);
            }
            at += 1;
        }
        self.cursors[which] = (file, if at < steps.files[file].len() { at } else { 0 });
        found
    }

    /// Begins a promotion of read-dominated files into DRAM.
    fn begin_to_dram(&mut self) -> bool {
        let rule = read_rule(true, true, self.window.idle());
        let room = self.dram_room();
        if !self.policy.follows_reads() || rule != ReadRule::ToDram || room < LEAST_ROOM {
            return false;
        }
        let victims = self.gather(0, room.min(TO_DRAM), |machine, id| {
            let place = machine.places[id as usize];
            place.pm && place.read > 0 && !place.leaving
        });
        self.take_down(Kind::ToDram, victims)
    }

    /// Begins a promotion of read-dominated files into PM, as far as the threshold of equation (1) has room.
    fn begin_up(&mut self) -> bool {
        let rule = read_rule(true, false, self.window.idle());
        if !self.policy.follows_reads() || rule != ReadRule::ToPm || !self.promotions.is_empty() {
            return false;
        }
        let seen = self.observe();
        let percent = u64::from(self.policy.threshold_percent(&seen).unwrap_or(0));
        let limit = seen.total_blocks * percent / 100;
        let places = self.setup.pm_blocks - self.in_pm.len() as u64;
        if places < UP || limit.saturating_sub(seen.used_blocks() + seen.arriving_blocks) < UP {
            return false;
        }
        let cold = self.gather(1, UP, |machine, id| {
            let place = machine.places[id as usize];
            place.below && !place.pm
        });
        let device = self.setup.device;
        self.begin(Kind::Up, &cold, device.read_latency_ns, device.read_bytes_per_s);
        self.waits.blocks_up += cold.len() as u64;
        self.group.is_some()
    }
}
