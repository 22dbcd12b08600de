//! Measures the costs of a line of PM and of DRAM, once after the mount: lazy writes are on where PM is slow (docs/write-buffer.md).
//!
//! Like is measured with like: 4 KiB streamed with a fence, to a claimed block of PM and to anonymous memory, in turns. A
//! cached store against a fenced store would find any PM slow.

use std::sync::{Arc, Weak};
use std::time::Duration;
use terrace_blocks::{Purpose, Target};
use terrace_cache::LineCosts;
use terrace_format::address::LINE_SIZE;
use terrace_format::{BLOCK_SIZE, PmOffset};
use terrace_media::PmMedium;
use terrace_media::pm::RamPm;
use terrace_runtime::{Next, Step};
use terrace_store::parts::dram::lazy_writes::LazyOption;
use terrace_store::store::Store;

/// Samples of a measurement.
const SAMPLES: usize = 101;
/// The pause between measurements, and before another try when PM has no free block.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether the costs are measured in a mount. Not behind a journal: such PM is DRAM, a store that waits would be copied once more,
/// and a crash would lose more than the newest changes (C6).
pub(crate) fn is_wanted(store: &Store) -> bool {
    let options = store.dram.lazy_writes().options();
    let is_asked = !store.mode.read_only && options.has_page() && options.lazy == LazyOption::Auto;
    is_asked && store.persistent.pm().journal_status().is_none()
}

/// Background: the measurements, once in a mount however often the step is made.
pub(crate) struct LineCostStep {
    store: Weak<Store>,
}

impl LineCostStep {
    pub(crate) fn new(store: &Arc<Store>) -> LineCostStep {
        LineCostStep { store: Arc::downgrade(store) }
    }
}

impl Step for LineCostStep {
    fn name(&self) -> &'static str {
        "terrace-costs"
    }

    fn step(&mut self) -> Next {
        let Some(store) = self.store.upgrade() else { return Next::Done };
        if store.dram.lazy_writes().is_measured() {
            return Next::Done;
        }
        match measure(&store) {
            Found::Costs(costs) => store.dram.lazy_writes().note_costs(costs),
            Found::NoBlock => return Next::After(PAUSE),
            Found::Nothing => {
                store.dram.lazy_writes().give_up();
                return Next::Done;
            }
        }
        if store.dram.lazy_writes().is_measured() { Next::Done } else { Next::After(PAUSE) }
    }
}

enum Found {
    Costs(LineCosts),
    /// PM has no free block at present.
    NoBlock,
    /// A medium cannot be used, or the clock does not move.
    Nothing,
}

fn measure(store: &Store) -> Found {
    // With a simulated clock PM is left alone.
    if !does_clock_move(store) {
        return Found::Nothing;
    }
    let Ok(dram) = RamPm::anonymous(BLOCK_SIZE) else { return Found::Nothing };
    let Ok(mut claim) = store.persistent.blocks().claim(1, Purpose::User) else { return Found::NoBlock };
    let Some(block) = claim.take(Target::Page) else { return Found::NoBlock };
    let pm = store.persistent.pm();
    let measured = median_of(store, &[(&dram, PmOffset(0)), (pm, block.offset())]);
    claim.give_back_all();
    let lines = (BLOCK_SIZE / LINE_SIZE) as f64;
    match measured {
        Some([dram_ns, pm_ns]) if dram_ns > 0 && pm_ns > 0 => {
            Found::Costs(LineCosts { dram_ns: dram_ns as f64 / lines, pm_ns: pm_ns as f64 / lines })
        }
        _ => Found::Nothing,
    }
}

/// Whether the clock moves by itself, within less than a sample takes.
fn does_clock_move(store: &Store) -> bool {
    const READINGS: usize = 100;
    let begin = store.clock.monotonic_ns();
    (0..READINGS).any(|_| store.clock.monotonic_ns() > begin)
}

/// The median nanoseconds of a block streamed to each place, with a fence.
fn median_of<const N: usize>(store: &Store, places: &[(&dyn PmMedium, PmOffset); N]) -> Option<[u64; N]> {
    let bytes = [0; BLOCK_SIZE as usize];
    let mut samples = [const { Vec::new() }; N];
    for _ in 0..SAMPLES {
        for ((medium, at), samples) in places.iter().zip(&mut samples) {
            let begin = store.clock.monotonic_ns();
            medium.write_streaming(*at, &bytes).ok()?;
            medium.order();
            samples.push(store.clock.monotonic_ns().saturating_sub(begin));
        }
    }
    Some(samples.map(|mut samples| {
        samples.sort_unstable();
        samples.get(SAMPLES / 2).copied().unwrap_or(0)
    }))
}
