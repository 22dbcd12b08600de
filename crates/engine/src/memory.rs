//! The cache of clean pages has a share of the free memory of the machine, and gives it back when programs
//! need it.
//!
//! A reserve of the available memory stays free, and the cache may have half of the memory above it: the
//! other half is for the page cache of the kernel and for programs. When a program takes memory, the budget
//! falls: half of the taken bytes come from the cache, and all of them once the reserve is touched. Several
//! mounts share in this way without knowing of each other.
//!
//! Dirty pages have a limit of their own (`buffer=`) and are never dropped for memory.

use crate::engine::Engine;
use crate::memory_source::{Memory, MemorySource};
use std::sync::{Arc, Weak};
use std::time::Duration;
use terrace_runtime::{Next, Step};

/// The highest rate at which programs can take memory: several processors that zero pages.
const TAKEN_BYTES_PER_S: u64 = 16 << 30;

/// The next look comes before programs can have taken half of the reserve, within these bounds.
const SHORTEST: Duration = Duration::from_millis(20);

const LONGEST: Duration = Duration::from_secs(1);

/// The budget of a cache that holds `held_bytes` now and may always have `least_bytes`.
fn budget(memory: &[Memory], held_bytes: u64, least_bytes: u64) -> u64 {
    let share = memory.iter().map(|memory| memory.share_bytes(held_bytes)).min();
    share.unwrap_or(0).max(least_bytes)
}

/// The largest budget that this machine allows.
pub fn most(memory: &[Memory]) -> u64 {
    memory.iter().map(|memory| memory.share_bytes(memory.total_bytes)).min().unwrap_or(0)
}

/// The time until the next look.
fn pause(memory: &[Memory], held_bytes: u64, least_bytes: u64) -> Duration {
    if held_bytes <= least_bytes {
        // The cache has no more than its least size, so a look could free no memory.
        return LONGEST;
    }
    let left = |memory: &Memory| memory.available_bytes.saturating_sub(memory.reserve_bytes() / 2);
    let left_bytes = memory.iter().map(left).min().unwrap_or(0);
    let time = Duration::from_millis(left_bytes / (TAKEN_BYTES_PER_S / 1000));
    time.clamp(SHORTEST, LONGEST)
}

fn follow_memory(engine: &Engine, source: &dyn MemorySource) -> Next {
    let (memory, least_bytes) = (source.look(), engine.least_cache_bytes);
    engine.store.dram.cache().set_budget(budget(
        &memory,
        engine.store.dram.cache().held_bytes(),
        least_bytes,
    ));
    if engine.store.dram.cache().give_back(engine.store.clock.monotonic_ns()) {
        return Next::Again;
    }
    Next::After(pause(&memory, engine.store.dram.cache().held_bytes(), least_bytes))
}

/// Background step: looks at the memory, and drops some pages if the cache is above its budget.
pub struct MemoryStep {
    engine: Weak<Engine>,
    source: Arc<dyn MemorySource>,
}

impl MemoryStep {
    pub fn new(engine: &Arc<Engine>, source: &Arc<dyn MemorySource>) -> MemoryStep {
        MemoryStep { engine: Arc::downgrade(engine), source: Arc::clone(source) }
    }
}

impl Step for MemoryStep {
    fn name(&self) -> &'static str {
        "terrace-memory"
    }

    fn step(&mut self) -> Next {
        self.engine.upgrade().map_or(Next::Done, |engine| follow_memory(&engine, &*self.source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const LEAST: u64 = 64 << 20;

    fn memory(total: u64, available: u64) -> Memory {
        Memory { total_bytes: total, available_bytes: available }
    }

    #[test]
    fn the_budget_is_half_of_the_memory_above_the_reserve() {
        let machine = |available| [memory(24 * GIB, available)];
        assert_eq!(budget(&machine(23 * GIB), 0, LEAST), 10 * GIB);
        // The budget stays the same when the cache has taken its share.
        assert_eq!(budget(&machine(13 * GIB), 10 * GIB, LEAST), 10 * GIB);
        // A program takes 6 GiB, then all memory but 3 GiB, then all but 1 GiB.
        assert_eq!(budget(&machine(7 * GIB), 10 * GIB, LEAST), 7 * GIB);
        assert_eq!(budget(&machine(3 * GIB), GIB, LEAST), GIB / 2);
        assert_eq!(budget(&machine(GIB), GIB, LEAST), LEAST);
        assert_eq!(budget(&machine(0), 2 * GIB, LEAST), LEAST);
        // The tightest limit counts, and a machine that shows no figures counts as one without memory.
        let both = [machine(23 * GIB)[0], memory(GIB, GIB)];
        assert_eq!(budget(&both, 0, LEAST), (GIB - GIB / 8) / 2);
        assert_eq!(budget(&[], 10 * GIB, LEAST), LEAST);
        assert_eq!(most(&both), (GIB - GIB / 8) / 2);
        assert_eq!(most(&machine(0)), (24 - 3) * GIB / 2);
        assert_eq!(budget(&[memory(1 << 50, 1 << 50)], u64::MAX, LEAST), ((1 << 50) - 4 * GIB) / 2);
    }

    #[test]
    fn looks_are_more_frequent_the_less_memory_is_left() {
        let pause = |available, held| pause(&[memory(24 * GIB, available)], held, LEAST);
        assert_eq!(pause(23 * GIB, GIB), LONGEST);
        assert_eq!(pause(GIB, LEAST), LONGEST, "nothing to give");
        assert_eq!(pause(GIB, GIB), SHORTEST);
        let times = [3 * GIB, 6 * GIB, 12 * GIB].map(|available| pause(available, GIB));
        assert!(times.is_sorted() && times[0] > SHORTEST && times[0] < Duration::from_millis(100));
    }
}
