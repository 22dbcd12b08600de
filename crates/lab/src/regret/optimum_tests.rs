//! The bounds against exhaustive search on small traces, and against every policy on random traces.

use super::*;
use crate::regret::candidates::CANDIDATES;
use crate::regret::replay::run;
use std::collections::HashMap;
use terrace_bench::trace::{Event, Kind};
use terrace_bench::workload::numbers::Picks;
use terrace_format::{BLOCK_SIZE, Ino};

fn setup(pm_blocks: u64, dram_blocks: u64) -> Setup {
    Setup::new(pm_blocks, dram_blocks, "sata").unwrap()
}

/// Reads and writes of at most `longest` blocks of two files of `blocks`, fsyncs, and truncations.
fn events(picks: &mut Picks, count: u64, blocks: u64, longest: u64) -> Vec<Event> {
    let event = |picks: &mut Picks| {
        let ino = Ino(5 + picks.below(2));
        let first = picks.below(blocks);
        let length = (1 + picks.below(longest)).min(blocks - first);
        let (kind, offset) = match picks.below(16) {
            0 => (Kind::Fsync, 0),
            1 => (Kind::Truncate, first * BLOCK_SIZE),
            2 => (Kind::Unlink, 0),
            3..=8 => (Kind::Write, first * BLOCK_SIZE),
            _ => (Kind::Read, first * BLOCK_SIZE),
        };
        let length = if kind == Kind::Read || kind == Kind::Write { length * BLOCK_SIZE } else { 0 };
        let sync = kind == Kind::Write && picks.below(4) == 0;
        Event { offset, length: length as u32, sync, ..Event::bare(kind, ino) }
    };
    (0..count).map(|_| event(picks)).collect()
}

fn steps(picks: &mut Picks, count: u64, blocks: u64, longest: u64) -> Steps {
    let populated = picks.below(count) as usize;
    Steps::of(&events(picks, count, blocks, longest), populated, 1_000_000_000)
}

/// Least wait for reads and stores, by search over all ways to keep at most `k` blocks with promotion on
/// demand.
fn search(steps: &Steps, setup: &Setup) -> u64 {
    let k = (setup.pm_blocks + setup.dram_blocks) as u32;
    let prices = Prices::of(setup);
    let mut best: HashMap<u32, u64> = HashMap::from([(0, 0)]);
    let mut existing = 0u32;
    for (index, step) in steps.list.iter().enumerate() {
        let measured = index >= steps.measured_from;
        let named = steps.ids(step).iter().fold(0u32, |mask, id| mask | 1 << id);
        if index == steps.measured_from {
            best = HashMap::from([(0, 0)]);
        }
        existing = if step.act == Act::Drop { existing & !named } else { existing | named };
        let mut next: HashMap<u32, u64> = HashMap::new();
        for (fast, cost) in best {
            let cost = cost + if measured { price(steps, index, fast, &prices) } else { 0 };
            for kept in subsets((fast | named) & existing).filter(|set| set.count_ones() <= k) {
                let known = next.entry(kept).or_insert(u64::MAX);
                *known = cost.min(*known);
            }
        }
        best = next;
    }
    best.into_values().min().unwrap()
}

/// The price of a step if the blocks of `fast` are in fast memory.
fn price(steps: &Steps, index: usize, fast: u32, prices: &Prices) -> u64 {
    let ids = steps.ids(&steps.list[index]);
    if ids.is_empty() {
        return 0;
    }
    match steps.list[index].act {
        Act::Read => {
            let missed = |id: &u32| fast & 1 << id == 0;
            let hits = ids.iter().filter(|id| !missed(id)).count() as u64;
            let runs =
                ids.chunk_by(|a, b| missed(a) == missed(b)).filter(|run| missed(&run[0])).count() as u64;
            let below = ids.len() as u64 - hits;
            let missed_ns = transfer_ns(1, prices.device.read_bytes_per_s);
            prices.read_ns(hits) + runs * prices.device.read_latency_ns + below * missed_ns
        }
        Act::Write { sync } => prices.write_ns(ids.len() as u64, sync),
        _ => 0,
    }
}

fn subsets(of: u32) -> impl Iterator<Item = u32> {
    (0..=of).filter(move |set| set & !of == 0)
}

#[test]
fn the_demand_bound_is_never_above_the_search_and_equal_with_one_weight() {
    let picks = &mut Picks::new(11);
    let mut below = 0;
    for round in 0..300 {
        let longest = 1 + round % 3;
        let steps = steps(picks, 14, 4, longest);
        if steps.blocks() > 9 {
            continue;
        }
        for k in [0, 1, 2, 3] {
            let setup = setup(k, 0);
            let (bound, least) = (bound(&steps, &setup), search(&steps, &setup));
            let reads_ns = bound.floor_ns + Intervals::of(&steps, &Prices::of(&setup)).all_missed_ns;
            let demand = reads_ns - bound.keepable_ns;
            assert!(demand <= least, "round {round}, {k} blocks: {demand} > {least}");
            assert!(bound.priced_ns >= bound.demand_ns, "round {round}, {k} blocks");
            assert!(
                bound.priced_ns <= least.max(bound.any_ns),
                "round {round}, {k} blocks: {bound:?} > {least}"
            );
            assert!(longest > 1 || demand == least, "round {round}, {k} blocks: {demand} < {least}");
            below += u64::from(demand < least);
            assert!(bound.kept_ns <= bound.keepable_ns && bound.any_ns <= bound.demand_ns);
            assert!(bound.schedule_ns >= bound.priced_ns, "round {round}, {k} blocks: {bound:?}");
        }
    }
    assert!(below > 0, "requests of several blocks share a latency: the search must see that");
}

/// Least number of versions written to the device, by search: after each step fast memory holds at most `k`
/// written versions.
fn search_drains(steps: &Steps, k: u32) -> u64 {
    let mut best: HashMap<u32, u64> = HashMap::from([(0, 0)]);
    for step in &steps.list[steps.measured_from..] {
        let named = steps.ids(step).iter().fold(0u32, |mask, id| mask | 1 << id);
        let mut next: HashMap<u32, u64> = HashMap::new();
        for (above, cost) in best {
            let all = match step.act {
                Act::Write { .. } => above | named,
                Act::Drop => above & !named,
                _ => above,
            };
            for kept in subsets(all).filter(|set| set.count_ones() <= k) {
                let known = next.entry(kept).or_insert(u64::MAX);
                *known = (cost + u64::from((all & !kept).count_ones())).min(*known);
            }
        }
        best = next;
    }
    best.into_values().min().unwrap()
}

#[test]
fn the_fewest_versions_written_back_match_the_search() {
    let picks = &mut Picks::new(12);
    for round in 0..300 {
        let steps = steps(picks, 14, 4, 1 + round % 3);
        if steps.blocks() > 9 {
            continue;
        }
        for k in 0..4 {
            let drains = bound(&steps, &setup(k, 0)).drains;
            assert_eq!(drains, search_drains(&steps, k as u32), "round {round}, {k} blocks");
        }
    }
}

/// A policy below the bound would prove the bound wrong.
#[test]
fn no_policy_beats_the_bound() {
    let picks = &mut Picks::new(13);
    for round in 0..60 {
        let steps = steps(picks, 400, 60, 1 + round % 20);
        for (pm, dram) in [(1, 0), (4, 4), (16, 8), (200, 200)] {
            let setup = setup(pm, dram);
            let bound = bound(&steps, &setup);
            for candidate in &CANDIDATES {
                let waits = run(&steps, setup, candidate);
                let name = candidate.name;
                let total = waits.total_ns();
                assert!(total >= bound.any_ns, "round {round}, {pm}+{dram}, {name}: {waits:?} {bound:?}");
                let asked = waits.blocks_up == 0;
                assert!(
                    !asked || total >= bound.priced_ns,
                    "round {round}, {pm}+{dram}, {name}: {waits:?} {bound:?}"
                );
                assert!(waits.blocks_missed + waits.blocks_up >= bound.misses, "round {round}, {name}");
            }
        }
    }
}

/// By hand: three blocks read in turn, room for two. The first reads of all three miss; then, by Belady's
/// rule, two of six reads miss.
#[test]
fn a_loop_larger_than_fast_memory_misses_by_beladys_rule() {
    let read = |block: u64| Event {
        offset: block * BLOCK_SIZE,
        length: BLOCK_SIZE as u32,
        ..Event::bare(Kind::Read, Ino(5))
    };
    let write = Event { length: 3 * BLOCK_SIZE as u32, ..Event::bare(Kind::Write, Ino(5)) };
    let events: Vec<Event> = [write].into_iter().chain((0..9).map(|turn| read(turn % 3))).collect();
    let bound = bound(&Steps::of(&events, 1, 0), &setup(2, 0));
    assert_eq!((bound.misses, bound.drains), (5, 0));
    // 80 µs of latency and 8,192 ns of transfer; from DRAM 100 ns and 163 ns.
    assert_eq!(bound.demand_ns, 4 * (100 + 163) + 5 * (80_000 + 8192));
    // Two blocks stay: of their six reads only the first of each misses.
    assert_eq!(bound.fixed_ns, bound.demand_ns);
}
