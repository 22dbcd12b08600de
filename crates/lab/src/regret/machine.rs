//! The cost machine for the comparison of policies: PM, DRAM, a device, and a thread that waits for its
//! operations.
//!
//! Time is virtual, so results are exact and repeatable. The cost of an operation is the wait of its thread:
//! latency and transfer of the media in [TPFS table 1], and waits for room. Between operations [`THINK_NS`]
//! pass. The device has a single bus; transfers of the foreground come first, and background movements use
//! the remaining bus time (background.rs). A read with two missed runs also reads the blocks between, if the
//! transfer takes less time than a second latency. Clean copies in DRAM lie in the engine's own cache
//! (crates/cache), except for candidates with another rule (copies.rs). Dirty pages have a budget of their
//! own, as `buffer=` beside `cache=`.
//!
//! Policy, decision tree and predictors are the code of crates/placement, as in the engine. The machine lacks
//! directory histories (a trace has no names), read-ahead, metadata, the reserve, back-pressure, and the cost
//! of calls.

use super::background::{Group, Pace};
use super::copies::{Copies, LastUse, Memory};
use super::list::{Bag, Order};
use super::steer::FileMemory;
use super::steps::{Act, Step, Steps};
use std::collections::VecDeque;
use terrace_cache::{BlockCache, Page, PageKey};
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_media::speed::{Speed, named};
use terrace_placement::decision::Room;
use terrace_placement::density::{Class, Density};
use terrace_placement::threshold::{Flow, Window};
use terrace_placement::{Ablation, Home, Parameters, Policy, make};

/// Time between the end of an operation and the beginning of the next.
pub(crate) const THINK_NS: u64 = 5_000;
/// DRAM in [TPFS table 1].
pub(crate) const DRAM: Speed = Speed {
    read_latency_ns: 100,
    write_latency_ns: 100,
    read_bytes_per_s: 25_000_000_000,
    write_bytes_per_s: 25_000_000_000,
};
/// A tick of temperature.
const TICK_NS: u64 = 10_000_000;

/// Sizes and speeds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub pm_blocks: u64,
    /// DRAM for clean pages and dirty pages; an eighth for dirty pages.
    pub dram_blocks: u64,
    /// Largest group of a background movement.
    pub group_blocks: u64,
    pub pm: Speed,
    pub device: Speed,
}

impl Setup {
    /// A setup with the PM of [TPFS table 1]; `class` is a class of devices.
    pub fn new(pm_blocks: u64, dram_blocks: u64, class: &str) -> Option<Setup> {
        let (pm, device) = (named("pm")?.speed, named(class)?.speed);
        Some(Setup { pm_blocks, dram_blocks, group_blocks: 4096.min(pm_blocks / 4).max(1), pm, device })
    }
}

impl Setup {
    /// Whether a read includes this number of unwanted blocks between two wanted blocks: if their transfer
    /// takes no more time than a second latency.
    pub fn reads_through(&self, blocks: u64) -> bool {
        blocks < 1 << 20 && transfer_ns(blocks, self.device.read_bytes_per_s) <= self.device.read_latency_ns
    }

    /// Most dirty pages: `buffer=` beside `cache=`.
    pub fn dirty_blocks(&self) -> u64 {
        self.dram_blocks / 8
    }

    /// Most clean pages.
    pub fn clean_blocks(&self) -> u64 {
        self.dram_blocks - self.dirty_blocks()
    }
}

/// Time to transfer `blocks` blocks.
pub(crate) fn transfer_ns(blocks: u64, bytes_per_s: u64) -> u64 {
    (u128::from(blocks * BLOCK_SIZE) * 1_000_000_000 / u128::from(bytes_per_s)) as u64
}

/// A policy with its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub name: &'static str,
    /// Of [`terrace_placement::POLICIES`].
    pub policy: u8,
    pub ablation: Ablation,
    pub copies: Copies,
}

const fn candidate(name: &'static str, policy: u8, ablation: Ablation) -> Candidate {
    Candidate { name, policy, ablation, copies: Copies::Engine }
}

const fn proposal(name: &'static str, copies: Copies) -> Candidate {
    Candidate { name, policy: 3, ablation: Ablation::Nothing, copies }
}

/// The compared candidates: the policies, `predictive` with each of its predictors left out, and proposals
/// that the engine does not implement.
pub(crate) const CANDIDATES: [Candidate; 11] = [
    candidate("predictive", 3, Ablation::Nothing),
    candidate("write-only", 4, Ablation::Nothing),
    candidate("anticache", 2, Ablation::Nothing),
    candidate("static", 1, Ablation::Nothing),
    candidate("no synchronicity: all async", 3, Ablation::SynchronicityAsync),
    candidate("no synchronicity: all sync", 3, Ablation::SynchronicitySync),
    candidate("no write size", 3, Ablation::WriteSize),
    candidate("no read frequency", 3, Ablation::ReadFrequency),
    candidate("no temperature", 3, Ablation::Temperature),
    proposal("copies stay in PM", Copies::Pm),
    proposal("copies in PM and DRAM by worth", Copies::Both),
];

/// The locations of a block. The newest content is in PM, else in a dirty page, else in the cold copy.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    pub pm: bool,
    /// The device has the newest content.
    pub below: bool,
    /// Chosen for a movement.
    pub leaving: bool,
    /// Rises with each change of the content.
    pub version: u32,
    /// Ticks of the last write and the last read.
    pub written: u32,
    pub read: u32,
}

/// The waits of the thread, in nanoseconds, and the moved blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Waits {
    /// For PM and DRAM.
    pub memory_ns: u64,
    /// For reads of the device.
    pub read_ns: u64,
    /// For fsync and for writes that go through to the device.
    pub sync_ns: u64,
    /// For room in PM or DRAM.
    pub room_ns: u64,
    /// The part of [`Self::read_ns`] that is no transfer of requested blocks.
    pub latency_ns: u64,
    /// Blocks that the thread read from the device; and the same by their last use: none, a read, a write.
    pub blocks_missed: u64,
    pub missed_after: [u64; 3],
    /// Blocks of read-dominated files promoted into PM; blocks written to the device; touched blocks promoted
    /// into PM.
    pub blocks_up: u64,
    pub blocks_down: u64,
    pub blocks_raised: u64,
}

impl Waits {
    pub fn total_ns(&self) -> u64 {
        self.memory_ns + self.read_ns + self.sync_ns + self.room_ns
    }
}

/// A run of a candidate over a trace.
pub(crate) struct Machine<'a> {
    pub(super) steps: &'a Steps,
    pub(super) setup: Setup,
    pub(super) policy: Box<dyn Policy>,
    pub(super) parameters: Parameters,
    pub(super) now_ns: u64,
    pub(super) places: Vec<Place>,
    /// Blocks in PM, in the order of arrival, which no policy uses.
    pub(super) in_pm: Order,
    /// Clean copies in DRAM: the engine's cache, with one page of zeros for all blocks.
    pub(super) clean: BlockCache,
    zeros: Page,
    /// Dirty pages by last write.
    pub(super) dirty: Order,
    pub(super) files: Vec<FileMemory>,
    pub(super) flow: Flow,
    pub(super) flow_before: Flow,
    pub(super) window: Window,
    pub(super) seconds: u64,
    pub(super) pace: Pace,
    pub(super) group: Option<Group>,
    pub(super) next_poll_ns: u64,
    pub(super) draining: bool,
    pub(super) promotions: VecDeque<(u32, u32)>,
    /// The positions (file, block) of the scans for read-dominated files, for DRAM and for PM.
    pub(super) cursors: [(usize, usize); 2],
    pub(super) waits: Waits,
    pub(super) last_uses: Vec<LastUse>,
    pub(super) copies: Copies,
    /// By [`Memory`]: clean copies that are kept by worth; copies in PM are in `in_pm` too. `follows` has the
    /// next victim, and the worth up to which it goes.
    pub(super) kept: [Bag; 2],
    pub(super) follows: [(u32, f32); 2],
    pub(super) density: Density,
    /// Uses of blocks so far, their number at the last learning, and the last use of each block; 0: none.
    pub(super) used: u64,
    pub(super) learnt_at: u64,
    pub(super) uses: Vec<(u64, Class)>,
    pub(super) random: u64,
}

/// Runs a candidate and gives the waits of the measured part.
pub(crate) fn run(steps: &Steps, setup: Setup, candidate: &Candidate) -> Waits {
    let Some(policy) = make(candidate.policy, 80, &Parameters::PUBLISHED) else { return Waits::default() };
    let blocks = steps.blocks();
    let mut machine = Machine {
        steps,
        setup,
        policy: candidate.ablation.of(policy),
        parameters: candidate.ablation.parameters(Parameters::default()),
        now_ns: 0,
        places: vec![Place::default(); blocks],
        in_pm: Order::new(blocks),
        clean: clean_cache(&setup),
        zeros: Page::zeroed(),
        dirty: Order::new(blocks),
        files: vec![FileMemory::default(); steps.files.len()],
        flow: Flow::default(),
        flow_before: Flow::default(),
        window: Window::default(),
        seconds: 0,
        pace: Pace::default(),
        group: None,
        next_poll_ns: 0,
        draining: false,
        promotions: VecDeque::new(),
        cursors: [(0, 0); 2],
        waits: Waits::default(),
        last_uses: vec![LastUse::None; blocks],
        copies: candidate.copies,
        kept: [Bag::new(blocks), Bag::new(blocks)],
        follows: [(blocks as u32, 0.0); 2],
        density: Density::new(setup.device.read_latency_ns, transfer_ns(1, setup.device.read_bytes_per_s)),
        used: 0,
        learnt_at: 0,
        uses: vec![(0, Class::default()); blocks],
        random: 0x9e37_79b9,
    };
    for (index, step) in steps.list.iter().enumerate() {
        if index == steps.measured_from {
            machine.sink_all();
        }
        machine.step(step);
    }
    machine.waits
}

/// DRAM for clean copies.
fn clean_cache(setup: &Setup) -> BlockCache {
    BlockCache::new(setup.clean_blocks() * BLOCK_SIZE, u64::MAX / 2)
}

impl Machine<'_> {
    /// Demotes all data and drops the cache, like `terrace sync --to 1`: every candidate and the optimum
    /// begin the measured part in the same state. The predictors keep their histories.
    fn sink_all(&mut self) {
        let blocks = self.places.len();
        for place in &mut self.places {
            *place = Place { below: true, version: place.version + 1, ..Place::default() };
        }
        (self.in_pm, self.dirty) = (Order::new(blocks), Order::new(blocks));
        self.kept = [Bag::new(blocks), Bag::new(blocks)];
        self.last_uses.fill(LastUse::None);
        self.clean = clean_cache(&self.setup);
        (self.group, self.pace) = (None, Pace::default());
        self.promotions.clear();
        (self.cursors, self.waits) = ([(0, 0); 2], Waits::default());
    }

    fn step(&mut self, step: &Step) {
        self.learn(step);
        self.advance(THINK_NS, 0);
        match step.act {
            Act::Read => self.read(step),
            Act::Write { sync } => self.write(step, sync),
            Act::Fsync => self.fsync(step),
            Act::Drop => {
                for id in self.steps.ids(step) {
                    self.changed(*id);
                    self.leave_pm(*id);
                }
            }
            Act::Rest(ns) => self.advance(ns, 0),
        }
    }

    pub(super) fn tick(&self) -> u32 {
        1 + (self.now_ns / TICK_NS) as u32
    }
    /// PM blocks in use, without clean blocks, which are dropped when room is needed.
    pub(super) fn used_pm(&self) -> u64 {
        (self.in_pm.len() - self.kept[Memory::Pm as usize].len()) as u64
    }
    pub(super) fn free_pm(&self) -> u64 {
        self.setup.pm_blocks.saturating_sub(self.used_pm())
    }
    /// The key of a block in the engine's cache.
    fn key(&self, id: u32) -> PageKey {
        let (file, block) = self.steps.places[id as usize];
        PageKey { ino: Ino(file.into()), generation: 0, block: FileBlock(block) }
    }
    pub(super) fn drop_clean(&mut self, id: u32) {
        self.kept[Memory::Dram as usize].remove(id);
        self.clean.remove(self.key(id));
    }
    pub(super) fn dram_room(&self) -> u64 {
        if self.copies == Copies::Both {
            return self.setup.clean_blocks().saturating_sub(self.kept[Memory::Dram as usize].len() as u64);
        }
        self.clean.budget_bytes().saturating_sub(self.clean.bytes()) / BLOCK_SIZE
    }
    /// The throttle mark.
    pub(super) fn slow_below(&self) -> u64 {
        self.setup.pm_blocks / 16
    }

    /// Notes a change of the content: the cold copy and the copy in DRAM are outdated.
    fn changed(&mut self, id: u32) {
        self.drop_clean(id);
        self.changed_in_pm(id);
    }

    /// As [`Self::changed`] for a store to PM. A clean page may stay in the engine's cache: when the block
    /// leaves PM the page gets the new content.
    fn changed_in_pm(&mut self, id: u32) {
        if self.copies == Copies::Both {
            self.drop_clean(id);
        }
        self.dirty.remove(id);
        self.kept[Memory::Pm as usize].remove(id);
        self.last_uses[id as usize] = LastUse::Written;
        let place = &mut self.places[id as usize];
        (place.below, place.version) = (false, place.version + 1);
    }

    pub(super) fn leave_pm(&mut self, id: u32) {
        self.in_pm.remove(id);
        self.kept[Memory::Pm as usize].remove(id);
        let place = &mut self.places[id as usize];
        (place.pm, place.leaving) = (false, false);
    }

    pub(super) fn enter_pm(&mut self, id: u32) {
        let tick = self.tick();
        if !self.in_pm.holds(id) && !self.has_empty_place() {
            self.give_up();
        }
        self.in_pm.put(id);
        assert!(self.in_pm.len() as u64 <= self.setup.pm_blocks, "more blocks in PM than it has");
        let place = &mut self.places[id as usize];
        (place.pm, place.leaving, place.written) = (true, false, tick);
    }

    /// Keeps a clean copy in DRAM.
    pub(super) fn keep_clean(&mut self, id: u32) {
        if self.copies == Copies::Both {
            return self.keep_in_dram(id);
        }
        self.clean.insert(self.key(id), 0, self.zeros.clone(), true, self.now_ns);
    }

    fn read(&mut self, step: &Step) {
        let steps = self.steps;
        let (mut pm, mut dram, mut transferred, mut runs) = (0, 0, 0, 0);
        // Blocks since the last missed block; at the beginning a number that never reads through.
        let (mut cold, mut since) = (Vec::new(), u64::MAX);
        let tick = self.tick();
        for id in steps.ids(step) {
            let place = &mut self.places[*id as usize];
            since = since.saturating_add(1);
            if place.pm {
                pm += 1;
                place.read = tick;
                place.leaving = false;
            } else if self.dirty.holds(*id) {
                dram += 1;
            } else if self.kept[Memory::Dram as usize].holds(*id) {
                dram += 1;
                self.want_promotion(*id, self.parameters.touches);
            } else if let Some(found) = self.clean.get(self.key(*id), 0, self.now_ns) {
                dram += 1;
                self.want_promotion(*id, found.touches);
            } else {
                match self.setup.reads_through(since - 1) {
                    true => transferred += since,
                    false => (transferred, runs) = (transferred + 1, runs + 1),
                }
                since = 0;
                cold.push(*id);
                self.waits.missed_after[self.last_uses[*id as usize] as usize] += 1;
            }
            self.last_uses[*id as usize] = LastUse::Read;
        }
        let (fast, slow) = (self.setup.pm, self.setup.device);
        let memory = |blocks: u64, speed: &Speed| match blocks {
            0 => 0,
            _ => speed.read_latency_ns + transfer_ns(blocks, speed.read_bytes_per_s),
        };
        self.waits.memory_ns += memory(pm, &fast) + memory(dram, &DRAM);
        let missed = cold.len() as u64;
        let bus_ns = transfer_ns(transferred, slow.read_bytes_per_s);
        let device_ns = runs * slow.read_latency_ns + bus_ns;
        self.waits.read_ns += device_ns;
        self.waits.latency_ns += device_ns - transfer_ns(missed, slow.read_bytes_per_s);
        self.waits.blocks_missed += missed;
        let bytes = (pm + dram + missed) * BLOCK_SIZE;
        self.files[step.file as usize].read(bytes, step.size);
        self.flow.pm_read += pm * BLOCK_SIZE;
        self.flow.dram_read += (dram + missed) * BLOCK_SIZE;
        self.advance(memory(pm, &fast) + memory(dram, &DRAM) + device_ns, bus_ns);
        for id in cold {
            self.keep_clean(id);
            self.want_promotion(id, 1);
        }
    }

    fn write(&mut self, step: &Step, sync: bool) {
        let steps = self.steps;
        let ids = steps.ids(step);
        let steers = self.policy.steers_writes();
        let (free, all) = (self.free_pm(), self.setup.pm_blocks);
        let room = Room::of(free, all, self.slow_below() / 4, &self.parameters);
        let home = match sync || !steers {
            true => Home::Pm,
            false => self.files[step.file as usize].home(&step.range, step.size, room, &self.parameters),
        };
        match home {
            Home::Pm => self.write_pm(ids, sync),
            Home::Block => self.write_dram(ids),
        }
        if steers {
            self.files[step.file as usize].wrote(&step.range, step.size, sync, &self.parameters);
        }
    }

    fn write_pm(&mut self, ids: &[u32], sync: bool) {
        let (mut stored, mut without_room) = (0, Vec::new());
        for id in ids {
            let there = self.places[*id as usize].pm;
            if there || self.make_pm_room() {
                self.changed_in_pm(*id);
                self.enter_pm(*id);
                stored += 1;
            } else {
                without_room.push(*id);
            }
        }
        self.flow.pm_written += stored * BLOCK_SIZE;
        if stored > 0 {
            let pm = self.setup.pm;
            let ns = pm.write_latency_ns + transfer_ns(stored, pm.write_bytes_per_s);
            self.waits.memory_ns += ns;
            self.advance(ns, 0);
        }
        match without_room.is_empty() {
            true => {}
            false if sync => self.write_through(&without_room),
            false => self.write_dram(&without_room),
        }
    }

    fn write_through(&mut self, ids: &[u32]) {
        for id in ids {
            self.changed(*id);
            self.leave_pm(*id);
            self.places[*id as usize].below = true;
        }
        self.device_write(ids.len() as u64);
    }

    /// The thread waits for a sequential write to the device.
    fn device_write(&mut self, blocks: u64) {
        let device = self.setup.device;
        let bus_ns = transfer_ns(blocks, device.write_bytes_per_s);
        self.waits.sync_ns += device.write_latency_ns + bus_ns;
        self.waits.blocks_down += blocks;
        self.advance(device.write_latency_ns + bus_ns, bus_ns);
    }

    fn write_dram(&mut self, ids: &[u32]) {
        if ids.len() as u64 > self.dirty_limit() {
            return self.write_through(ids);
        }
        self.make_dirty_room(ids.len() as u64);
        for id in ids {
            self.changed(*id);
            self.leave_pm(*id);
            self.dirty.put(*id);
            self.places[*id as usize].written = self.tick();
        }
        let ns = DRAM.write_latency_ns + transfer_ns(ids.len() as u64, DRAM.write_bytes_per_s);
        self.waits.memory_ns += ns;
        self.advance(ns, 0);
    }

    fn fsync(&mut self, step: &Step) {
        let steps = self.steps;
        if self.dirty.len() > 0 {
            let own = steps.files[step.file as usize].iter().copied();
            let dirty: Vec<u32> = own.filter(|id| self.dirty.holds(*id)).collect();
            if !dirty.is_empty() {
                self.device_write(dirty.len() as u64);
            }
            dirty.into_iter().for_each(|id| self.written_back(id));
        }
        self.files[step.file as usize].synced(&self.parameters);
    }

    /// Notes that a dirty page was written back.
    pub(super) fn written_back(&mut self, id: u32) {
        if self.dirty.remove(id) {
            self.places[id as usize].below = true;
            self.keep_clean(id);
        }
    }
}
