//! The thread of the machine: its operations, step by step.

use super::blocks::Found;
use super::candidates::Candidate;
use super::machine::Machine;
use super::setup::{DRAM, Setup, THINK_NS, transfer_ns};
use super::steps::{Act, Step, Steps};
use super::waits::Waits;
use terrace_format::BLOCK_SIZE;
use terrace_media::speed::Speed;
use terrace_placement::Home;
use terrace_placement::decision::Room;

/// Runs a candidate and gives the waits of the measured part.
pub(crate) fn run(steps: &Steps, setup: Setup, candidate: &Candidate) -> Waits {
    let Some(mut machine) = Machine::new(steps, setup, candidate) else { return Waits::default() };
    for (index, step) in steps.list.iter().enumerate() {
        if index == steps.measured_from {
            machine.begin_measuring();
        }
        machine.step(step);
    }
    machine.waits
}

/// The blocks of a read, by the memory in which they are found.
#[derive(Default)]
struct Reading {
    pm: u64,
    dram: u64,
    /// Blocks that only the device has.
    missed: Vec<u32>,
    /// Blocks that the device transfers: missed blocks, and blocks between them that are read through.
    transferred: u64,
    runs: u64,
}

impl Machine<'_> {
    /// Demotes all data and drops the cache, like `terrace sync --to 1`: every candidate and the optimum
    /// begin the measured part in the same state. The predictors keep their histories.
    fn begin_measuring(&mut self) {
        self.blocks.demote_all();
        self.work.stop();
        self.waits = Waits::default();
    }

    fn step(&mut self, step: &Step) {
        let ids = self.steps.ids(step);
        if self.keeps_copies() {
            self.worth.note(step.act, ids);
            self.worth.learn();
        }
        self.advance(THINK_NS, 0);
        match step.act {
            Act::Read => self.read(step, ids),
            Act::Write { sync } => self.write(step, ids, sync),
            Act::Fsync => self.fsync(step),
            Act::Drop => {
                for id in ids {
                    self.blocks.changed(*id);
                    self.blocks.leave_pm(*id);
                }
            }
            Act::Rest(ns) => self.advance(ns, 0),
        }
    }

    fn read(&mut self, step: &Step, ids: &[u32]) {
        let Reading { pm, dram, missed: cold, transferred, runs } = self.look_up(ids);
        let (fast, slow) = (self.setup.pm, self.setup.device);
        let memory_ns = memory_ns(pm, &fast) + memory_ns(dram, &DRAM);
        let missed = cold.len() as u64;
        let bus_ns = transfer_ns(transferred, slow.read_bytes_per_s);
        let device_ns = runs * slow.read_latency_ns + bus_ns;
        self.waits.memory_ns += memory_ns;
        self.waits.read_ns += device_ns;
        self.waits.latency_ns += device_ns - transfer_ns(missed, slow.read_bytes_per_s);
        self.waits.blocks_missed += missed;
        let bytes = (pm + dram + missed) * BLOCK_SIZE;
        self.histories.files[step.file as usize].read(bytes, step.size);
        self.histories.flow.pm_read += pm * BLOCK_SIZE;
        self.histories.flow.dram_read += (dram + missed) * BLOCK_SIZE;
        self.advance(memory_ns + device_ns, bus_ns);
        for id in cold {
            self.keep_clean(id);
            self.want_promotion(id, 1);
        }
    }

    fn look_up(&mut self, ids: &[u32]) -> Reading {
        let mut reading = Reading::default();
        // Blocks since the last missed block; at the beginning a number that never reads through.
        let mut since = u64::MAX;
        let tick = self.tick();
        for id in ids {
            since = since.saturating_add(1);
            match self.blocks.look_up(*id, tick, self.now_ns) {
                Found::Pm => reading.pm += 1,
                Found::Dirty => reading.dram += 1,
                Found::Kept => {
                    reading.dram += 1;
                    self.want_promotion(*id, self.parameters.touches);
                }
                Found::Cached { touches } => {
                    reading.dram += 1;
                    self.want_promotion(*id, touches);
                }
                Found::Missed(last_use) => {
                    match self.setup.reads_through(since - 1) {
                        true => reading.transferred += since,
                        false => {
                            reading.transferred += 1;
                            reading.runs += 1;
                        }
                    }
                    since = 0;
                    reading.missed.push(*id);
                    self.waits.missed_after[last_use as usize] += 1;
                }
            }
        }
        reading
    }

    fn write(&mut self, step: &Step, ids: &[u32], sync: bool) {
        let steers = self.policy.steers_writes();
        let (free, all) = (self.blocks.free_pm(), self.setup.pm_blocks);
        let room = Room::of(free, all, self.setup.throttle_mark() / 4, &self.parameters);
        let file = &self.histories.files[step.file as usize];
        let home = match sync || !steers {
            true => Home::Pm,
            false => file.home(&step.range, step.size, room, &self.parameters),
        };
        match home {
            Home::Pm => self.write_pm(ids, sync),
            Home::Block => self.write_dram(ids),
        }
        if steers {
            let file = &mut self.histories.files[step.file as usize];
            file.wrote(&step.range, step.size, sync, &self.parameters);
        }
    }

    fn write_pm(&mut self, ids: &[u32], sync: bool) {
        let (mut stored, mut without_room) = (0, Vec::new());
        for id in ids {
            if self.blocks.location(*id).pm || self.make_pm_room() {
                self.blocks.changed_in_pm(*id);
                self.enter_pm(*id);
                stored += 1;
            } else {
                without_room.push(*id);
            }
        }
        self.histories.flow.pm_written += stored * BLOCK_SIZE;
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
            self.blocks.changed(*id);
            self.blocks.leave_pm(*id);
            self.blocks.location_mut(*id).below = true;
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
        if ids.len() as u64 > self.setup.dirty_blocks() {
            return self.write_through(ids);
        }
        self.make_dirty_room(ids.len() as u64);
        let tick = self.tick();
        for id in ids {
            self.blocks.changed(*id);
            self.blocks.leave_pm(*id);
            self.blocks.put_dirty(*id, tick);
        }
        let ns = DRAM.write_latency_ns + transfer_ns(ids.len() as u64, DRAM.write_bytes_per_s);
        self.waits.memory_ns += ns;
        self.advance(ns, 0);
    }

    fn fsync(&mut self, step: &Step) {
        if self.blocks.dirty().len() > 0 {
            let own = self.steps.files[step.file as usize].iter().copied();
            let dirty: Vec<u32> = own.filter(|id| self.blocks.dirty().holds(*id)).collect();
            if !dirty.is_empty() {
                self.device_write(dirty.len() as u64);
            }
            dirty.into_iter().for_each(|id| self.written_back(id));
        }
        self.histories.files[step.file as usize].synced(&self.parameters);
    }
}

/// Time to read `blocks` blocks of PM or DRAM.
fn memory_ns(blocks: u64, speed: &Speed) -> u64 {
    match blocks {
        0 => 0,
        _ => speed.read_latency_ns + transfer_ns(blocks, speed.read_bytes_per_s),
    }
}
