//! Steering as in the engine (crates/store: steering, parts/steering), but with tables of unlimited size,
//! which forget no file history. Predictors and decision are the code of crates/placement.

use std::collections::HashMap;
use std::ops::Range;
use terrace_format::BLOCK_SIZE;
use terrace_placement::decision::{Room, WriteSeen, write_home};
use terrace_placement::read_frequency::ReadFrequency;
use terrace_placement::synchronicity::Synchronicity;
use terrace_placement::write_size::{Before, Entry};
use terrace_placement::{Home, Parameters};

/// Blocks of the region of a write entry, as a power of two, as in the engine.
const REGION_SHIFT: u32 = 4;

/// The file history of the machine.
#[derive(Debug, Default, Clone)]
pub(crate) struct FileMemory {
    synchronicity: Synchronicity,
    reads: ReadFrequency,
    run: (Entry, u64),
    entries: HashMap<u64, Entry>,
    size: u64,
}

impl FileMemory {
    fn entry_after(&self, range: &Range<u64>, size: u64, parameters: &Parameters) -> Entry {
        let (first, end) = (range.start * BLOCK_SIZE, range.end * BLOCK_SIZE);
        let place = (range.start, end > size, first < size);
        let replaced = || self.entries.get(&(range.start >> REGION_SHIFT)).copied();
        Entry::after(Before::of(place, self.run, replaced), end - first, parameters)
    }

    /// The home of a write to blocks of a file of `size` bytes.
    pub fn home(&self, range: &Range<u64>, size: u64, room: Room, parameters: &Parameters) -> Home {
        let bytes = (range.end - range.start) * BLOCK_SIZE;
        if bytes < parameters.large_min && room != Room::Hardly {
            return Home::Pm;
        }
        let entry = self.entry_after(range, size, parameters);
        let seen = WriteSeen { durable: false, synchronicity: self.synchronicity, entry, room };
        write_home(&seen, parameters)
    }

    /// Notes a write; `sync`: with O_SYNC.
    pub fn wrote(&mut self, range: &Range<u64>, size: u64, sync: bool, parameters: &Parameters) {
        let entry = self.entry_after(range, size, parameters);
        for region in range.start >> REGION_SHIFT..=(range.end - 1) >> REGION_SHIFT {
            self.entries.insert(region, entry);
        }
        self.run = (entry, range.end);
        self.reads.wrote();
        self.size = size.max(range.end * BLOCK_SIZE);
        match sync {
            true => self.synchronicity.wrote_durably(),
            false => self.synchronicity.wrote((range.end - range.start) as u32, parameters),
        }
    }

    pub fn read(&mut self, bytes: u64, size: u64) {
        self.reads.read(bytes);
        self.size = size;
    }

    pub fn synced(&mut self, parameters: &Parameters) {
        self.synchronicity.synced(parameters);
    }

    pub fn is_read_dominated(&self) -> bool {
        self.reads.is_dominated(self.size, Parameters::PUBLISHED.read_times)
    }
}
