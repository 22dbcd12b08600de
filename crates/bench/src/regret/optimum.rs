//! The offline optimum: the least that the thread of the machine (machine.rs) can wait, known the whole trace.
//!
//! Two bounds, each below what any policy of its kind can reach. Fast memory is PM and DRAM together, `k` blocks, each
//! request at the price of the cheaper of the two (a durable write at that of PM); moves down are free. At the beginning
//! all data is below, as for the policies.
//!
//! *Demand*: a block comes up only by a read of the application that names it. A read of a block is then a miss unless
//! the block was kept in fast memory since it was read or written before, all the time. So there is an interval for
//! each read but the first of a block, at most `k` intervals overlap, and the cost is the floor plus the weights of
//! reads without a kept interval: a missed
//! block costs its transfer and its part of one latency of the request. (A request that misses some of its blocks waits
//! a whole latency for each run of them: no less.) With equal weights the largest number of intervals of which no more
//! than `k` overlap is found by Belady's rule: when too many overlap, the one that ends last goes. With unequal weights
//! the weights are cut into layers: Σ wᵢxᵢ = Σ over layers of thickness × kept intervals that are at least as heavy, and
//! each layer by itself can keep no more than Belady's rule gives it. That bounds the sum, and equals it with one weight;
//! [`Bound::kept_ns`] beside [`Bound::keepable_ns`] shows how far a schedule that exists is from it.
//!
//! *Any*, for policies that also bring up what was not asked for: what is not kept must still pass the device's one bus
//! before it is read, and each written version that is not kept until it is overwritten, removed, or the trace ends must
//! pass it downwards (intervals again, packed by the same rule). All that must fit into the time that passes.
//!
//! The demand bound is the larger of the two.
//!
//! *Fixed* is no bound but what regret is usually taken against: the best choice of `k` blocks that stay in fast memory
//! from their first use on, in hindsight, while all others are never kept. Policies may do better.

use super::machine::{DRAM, Setup, THINK_NS, transfer_ns};
use super::steps::{Act, Steps};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use terrace_media::speed::Speed;

/// Most layers of weight; finer differences are rounded up, which can only lower the bound.
const LAYERS: usize = 24;

/// The bounds of a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Bound {
    /// Least wait of any policy that moves blocks up on demand.
    pub demand_ns: u64,
    /// Least wait of any policy at all.
    pub any_ns: u64,
    /// Wait of the best fixed choice of blocks.
    pub fixed_ns: u64,
    /// What PM or DRAM cost if nothing ever missed.
    pub floor_ns: u64,
    /// Least blocks read from the device, and written to it.
    pub misses: u64,
    pub drains: u64,
    /// Upper bound of what keeping blocks can save, and what one schedule saves: the optimum is between.
    pub keepable_ns: u64,
    pub kept_ns: u64,
}

/// A block that would have to stay from one step to another.
#[derive(Debug, Clone, Copy)]
struct Interval {
    from: usize,
    until: usize,
    /// What that saves.
    weight_ns: u64,
}

/// The trace's intervals, in the order of their ends.
#[derive(Default)]
struct Intervals {
    /// From each access of a block to the next read of it.
    reads: Vec<Interval>,
    /// From each write of a block to its end.
    versions: Vec<Interval>,
    /// Steps, the state before the first one included.
    end: usize,
    floor_ns: u64,
    /// What all reads would cost if all missed, beyond the floor.
    all_missed_ns: u64,
    /// Reads of blocks not used before: all missed.
    first_reads: u64,
    /// Weights of each block's intervals.
    by_block: Vec<u64>,
}

/// What requests cost.
pub(super) struct Prices {
    pm: Speed,
    pub(super) device: Speed,
}

impl Prices {
    pub(super) fn of(setup: &Setup) -> Prices {
        Prices { pm: setup.pm, device: setup.device }
    }

    /// A read of so many blocks of fast memory, at least. Concave: a part costs at least its share of the whole.
    pub(super) fn read_ns(&self, blocks: u64) -> u64 {
        let of = |speed: &Speed| speed.read_latency_ns + blocks * transfer_ns(1, speed.read_bytes_per_s);
        if blocks == 0 { 0 } else { of(&self.pm).min(of(&DRAM)) }
    }

    /// A write of so many, at least.
    pub(super) fn write_ns(&self, blocks: u64, sync: bool) -> u64 {
        let of = |speed: &Speed| speed.write_latency_ns + blocks * transfer_ns(1, speed.write_bytes_per_s);
        let durable = of(&self.pm).min(of(&self.device));
        match (blocks, sync) {
            (0, _) => 0,
            (_, true) => durable,
            (_, false) => durable.min(of(&DRAM)),
        }
    }

    /// A missed block of a request of so many, at least, beyond its share of the whole request's price in fast memory.
    fn weight_ns(&self, blocks: u64) -> u64 {
        let blocks = blocks.max(1);
        let part = self.device.read_latency_ns / blocks + transfer_ns(1, self.device.read_bytes_per_s);
        part.saturating_sub(self.read_ns(blocks).div_ceil(blocks))
    }
}

impl Intervals {
    fn of(steps: &Steps, prices: &Prices) -> Intervals {
        let mut found = Intervals { by_block: vec![0; steps.blocks()], ..Intervals::default() };
        let mut used: Vec<Option<usize>> = vec![None; steps.blocks()];
        let mut written: Vec<Option<usize>> = vec![None; steps.blocks()];
        for (index, step) in steps.list.iter().enumerate() {
            // The state before the first measured step is 0.
            let at = (index + 1).saturating_sub(steps.measured_from);
            let ids = steps.ids(step);
            let blocks = ids.len() as u64;
            let weight_ns = prices.weight_ns(blocks);
            for id in ids.iter().map(|id| *id as usize) {
                let version = match step.act {
                    Act::Read => None,
                    _ => written[id].take(),
                };
                let version = version.map(|from| Interval { from, until: at, weight_ns: 1 });
                match step.act {
                    Act::Read if at > 0 => {
                        found.all_missed_ns += weight_ns;
                        if let Some(from) = used[id].replace(at) {
                            found.reads.push(Interval { from, until: at, weight_ns });
                            found.by_block[id] += weight_ns;
                        } else {
                            found.first_reads += 1;
                        }
                    }
                    Act::Write { .. } if at > 0 => {
                        found.versions.extend(version);
                        (used[id], written[id]) = (Some(at), Some(at));
                    }
                    Act::Drop => {
                        found.versions.extend(version);
                        used[id] = None;
                    }
                    _ => {}
                }
            }
            if at > 0 {
                found.floor_ns += match step.act {
                    Act::Read => prices.read_ns(blocks),
                    Act::Write { sync } => prices.write_ns(blocks, sync),
                    _ => 0,
                };
            }
        }
        let end = steps.list.len() + 1 - steps.measured_from.min(steps.list.len());
        let open = written.into_iter().flatten();
        found.versions.extend(open.map(|from| Interval { from, until: end, weight_ns: 1 }));
        found.end = end;
        found
    }
}

/// Keeps intervals of which at most `k` overlap; when there are more, the one with the least of `rank` goes. Gives the
/// number kept and their weight. Intervals that only touch do not overlap.
fn pack<R: Ord>(intervals: &[Interval], end: usize, k: u64, rank: impl Fn(&Interval) -> R) -> (u64, u64) {
    let mut begins: Vec<Vec<u32>> = vec![Vec::new(); end + 1];
    let mut ends: Vec<Vec<u32>> = vec![Vec::new(); end + 1];
    for (number, interval) in (0..).zip(intervals) {
        begins[interval.from].push(number);
        ends[interval.until].push(number);
    }
    let mut gone = vec![false; intervals.len()];
    let mut heap = BinaryHeap::new();
    let (mut open, mut count, mut weight_ns) = (0, 0, 0);
    for at in 0..=end {
        for number in &ends[at] {
            if !gone[*number as usize] {
                (open, count) = (open - 1, count + 1);
                weight_ns += intervals[*number as usize].weight_ns;
            }
        }
        for number in &begins[at] {
            heap.push((Reverse(rank(&intervals[*number as usize])), *number));
            open += 1;
        }
        while open > k {
            let Some((_, number)) = heap.pop() else { break };
            let over = intervals[number as usize].until <= at;
            if !over {
                gone[number as usize] = true;
                open -= 1;
            }
        }
    }
    (count, weight_ns)
}

/// Belady's rule: the most intervals of which at most `k` overlap.
fn most(intervals: &[Interval], end: usize, k: u64) -> u64 {
    pack(intervals, end, k, |interval| Reverse(interval.until)).0
}

/// No choice of intervals of which at most `k` overlap has a larger weight.
fn most_weight(intervals: &[Interval], end: usize, k: u64) -> u64 {
    let weights: BTreeSet<u64> = intervals.iter().map(|interval| interval.weight_ns).collect();
    let weights: Vec<u64> = weights.into_iter().collect();
    // The top of each layer; weights inside of it count as its top.
    let tops: Vec<u64> =
        weights.chunks(weights.len().div_ceil(LAYERS).max(1)).filter_map(|it| it.last().copied()).collect();
    let (mut sum, mut below) = (0, 0);
    for top in tops {
        let heavy: Vec<Interval> = intervals.iter().filter(|it| it.weight_ns > below).copied().collect();
        sum += (top - below) * most(&heavy, end, k);
        below = top;
    }
    sum
}

/// Computes the bounds.
pub(crate) fn bound(steps: &Steps, setup: &Setup) -> Bound {
    let prices = Prices::of(setup);
    let k = setup.pm_blocks + setup.dram_blocks;
    let found = Intervals::of(steps, &prices);
    let (reads, versions, end) = (&found.reads, &found.versions, found.end);
    let keepable_ns = most_weight(reads, end, k).min(found.all_missed_ns);
    let (_, by_end) = pack(reads, end, k, |interval| Reverse(interval.until));
    let (_, by_weight) = pack(reads, end, k, |it| (it.weight_ns, Reverse(it.until)));
    let misses = found.first_reads + reads.len() as u64 - most(reads, end, k);
    let drains = versions.len() as u64 - most(versions, end, k);
    let device = setup.device;
    let bus_ns =
        misses * transfer_ns(1, device.read_bytes_per_s) + drains * transfer_ns(1, device.write_bytes_per_s);
    let think_ns = THINK_NS * (steps.list.len() - steps.measured_from) as u64;
    let any_ns = found.floor_ns.max(bus_ns.saturating_sub(think_ns));
    let demand_ns = (found.floor_ns + found.all_missed_ns - keepable_ns).max(any_ns);
    let kept_ns = by_end.max(by_weight);
    let mut by_block = found.by_block;
    by_block.sort_unstable_by_key(|weight_ns| Reverse(*weight_ns));
    let stay_ns: u64 = by_block.iter().take(k as usize).sum();
    let fixed_ns = (found.floor_ns + found.all_missed_ns - stay_ns).max(any_ns);
    Bound { demand_ns, any_ns, fixed_ns, floor_ns: found.floor_ns, misses, drains, keepable_ns, kept_ns }
}

#[cfg(test)]
#[path = "optimum_tests.rs"]
mod tests;
