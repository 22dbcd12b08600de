//! The offline optimum: the least wait of the machine's thread (replay.rs) if the whole trace is known
//! beforehand.
//!
//! There are two lower bounds, for two kinds of policies. Fast memory is PM and DRAM together, `k` blocks. A
//! request costs the price of the cheaper memory (a durable write the price of PM); demotion is free. At the
//! beginning all blocks are cold, as for the policies. *Demand*: a block is promoted only when the
//! application reads it. Then a read of a block is a miss unless fast memory kept the block without a break
//! since its previous use. So each read of a block, except the first use, has an interval; at most `k` kept
//! intervals overlap; and the cost is the floor plus the weights of the reads whose interval is not kept. The
//! weight is the transfer of the block and its part of one latency of the request. (A request that misses
//! some of its blocks waits a whole latency for each missed run, which is no less.) With equal weights
//! Belady's rule finds the largest number of intervals of which at most `k` overlap: when too many overlap,
//! the interval with the last end is given up. Unequal weights are cut into layers: Σ wᵢxᵢ = Σ over layers of
//! thickness × kept intervals of at least this weight, and Belady's rule bounds the kept intervals of each
//! layer. The result is an upper bound of the saved time, and exact if all weights are equal.
//! [`Bound::kept_ns`], the saving of a feasible schedule, beside [`Bound::keepable_ns`] shows the gap. *Any*,
//! for policies that also promote unread blocks: a block that is not kept must still pass the device's single
//! bus before it is read. A written version must pass the bus too, unless it is kept until it is overwritten,
//! removed, or the trace ends (intervals again, packed by the same rule). All these transfers must fit into
//! the time of the trace.
//!
//! The demand bound is the larger of the two. *Fixed* is no bound but the usual reference of regret: the best
//! choice, in hindsight, of `k` blocks that stay in fast memory from their first use on, while the remaining
//! blocks are never kept. Policies may do better.

use super::setup::{DRAM, Setup, THINK_NS, transfer_ns};
use super::steps::{Act, Steps};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use terrace_media::speed::Speed;

/// Most layers of weight; weights inside a layer are rounded up, which can only lower the bound on waits.
const LAYERS: usize = 24;

/// The bounds of a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Bound {
    /// Least wait of a policy that promotes blocks on demand only.
    pub demand_ns: u64,
    /// Least wait of any policy at all.
    pub any_ns: u64,
    /// Wait of the best fixed choice of blocks.
    pub fixed_ns: u64,
    /// Cost of PM and DRAM if no read ever missed.
    pub floor_ns: u64,
    /// Least blocks read from the device, and written to it.
    pub misses: u64,
    pub drains: u64,
    /// Upper bound of the time that kept blocks can save, and the time that a feasible schedule saves: the
    /// optimum saves a time between the two.
    pub keepable_ns: u64,
    pub kept_ns: u64,
    /// As `demand_ns`, but with the upper bound of savings from prices: no less than `demand_ns`, and nearer
    /// to the optimum.
    pub priced_ns: u64,
    /// Wait of the feasible schedule if the bus has room for its transfers: no less than the optimum.
    /// `missed_after` has the blocks that the schedule misses, by their last use: none, a read, a write.
    pub schedule_ns: u64,
    pub missed_after: [u64; 3],
}

/// The time from one step to another during which a block must stay in fast memory to save a transfer.
#[derive(Debug, Clone, Copy)]
struct Interval {
    from: usize,
    until: usize,
    /// Time saved if the interval is kept.
    weight_ns: u64,
    /// Whether the interval begins with a write.
    written: bool,
}

/// The trace's intervals, in the order of their ends.
#[derive(Default)]
struct Intervals {
    /// From each use of a block to its next read.
    reads: Vec<Interval>,
    /// From each write of a block to the end of the written version.
    versions: Vec<Interval>,
    /// Number of measured steps, plus one for the state before the first step.
    end: usize,
    floor_ns: u64,
    /// Cost beyond the floor if all reads missed.
    all_missed_ns: u64,
    /// Reads of blocks not used before: all missed.
    first_reads: u64,
    /// Weights of each block's intervals.
    by_block: Vec<u64>,
}

/// The costs of requests.
pub(super) struct Prices {
    pm: Speed,
    pub(super) device: Speed,
}

impl Prices {
    pub(super) fn of(setup: &Setup) -> Prices {
        Prices { pm: setup.pm, device: setup.device }
    }

    /// Least cost of a read of `blocks` blocks in fast memory. Concave: a part of a request costs at least
    /// its share.
    pub(super) fn read_ns(&self, blocks: u64) -> u64 {
        let of = |speed: &Speed| speed.read_latency_ns + blocks * transfer_ns(1, speed.read_bytes_per_s);
        if blocks == 0 { 0 } else { of(&self.pm).min(of(&DRAM)) }
    }

    /// Least cost of a write of `blocks` blocks.
    pub(super) fn write_ns(&self, blocks: u64, sync: bool) -> u64 {
        let of = |speed: &Speed| speed.write_latency_ns + blocks * transfer_ns(1, speed.write_bytes_per_s);
        let durable = of(&self.pm).min(of(&self.device));
        match (blocks, sync) {
            (0, _) => 0,
            (_, true) => durable,
            (_, false) => durable.min(of(&DRAM)),
        }
    }

    /// Least cost of a missed block in a request of `blocks` blocks, beyond the block's share of the
    /// request's cost in fast memory.
    fn weight_ns(&self, blocks: u64) -> u64 {
        let blocks = blocks.max(1);
        let part = self.device.read_latency_ns / blocks + transfer_ns(1, self.device.read_bytes_per_s);
        part.saturating_sub(self.read_ns(blocks).div_ceil(blocks))
    }
}

impl Intervals {
    fn of(steps: &Steps, prices: &Prices) -> Intervals {
        let mut found = Intervals { by_block: vec![0; steps.blocks()], ..Intervals::default() };
        let mut used: Vec<Option<(usize, bool)>> = vec![None; steps.blocks()];
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
                let version = version.map(|from| Interval { from, until: at, weight_ns: 1, written: true });
                match step.act {
                    Act::Read if at > 0 => {
                        found.all_missed_ns += weight_ns;
                        if let Some((from, written)) = used[id].replace((at, false)) {
                            found.reads.push(Interval { from, until: at, weight_ns, written });
                            found.by_block[id] += weight_ns;
                        } else {
                            found.first_reads += 1;
                        }
                    }
                    Act::Write { .. } if at > 0 => {
                        found.versions.extend(version);
                        (used[id], written[id]) = (Some((at, true)), Some(at));
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
        found.versions.extend(open.map(|from| Interval { from, until: end, weight_ns: 1, written: true }));
        found.end = end;
        found
    }
}

/// Intervals that are kept.
#[derive(Debug, Default)]
struct Packed {
    count: u64,
    weight_ns: u64,
    /// Kept intervals that begin with a write.
    written: u64,
}

/// Keeps intervals of which at most `k` overlap; when more overlap, the interval with the smallest `rank` is
/// given up. Gives sums of the kept intervals. Intervals that only touch do not overlap.
fn pack<R: Ord>(intervals: &[Interval], end: usize, k: u64, rank: impl Fn(&Interval) -> R) -> Packed {
    let mut begins: Vec<Vec<u32>> = vec![Vec::new(); end + 1];
    let mut ends: Vec<Vec<u32>> = vec![Vec::new(); end + 1];
    for (number, interval) in (0..).zip(intervals) {
        begins[interval.from].push(number);
        ends[interval.until].push(number);
    }
    let mut gone = vec![false; intervals.len()];
    let mut heap = BinaryHeap::new();
    let (mut open, mut kept) = (0, Packed::default());
    for at in 0..=end {
        for number in &ends[at] {
            if !gone[*number as usize] {
                let interval = &intervals[*number as usize];
                (open, kept.count) = (open - 1, kept.count + 1);
                kept.weight_ns += interval.weight_ns;
                kept.written += u64::from(interval.written);
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
    kept
}

/// Belady's rule: the most intervals of which at most `k` overlap.
fn most(intervals: &[Interval], end: usize, k: u64) -> u64 {
    pack(intervals, end, k, |interval| Reverse(interval.until)).count
}

/// No choice of intervals of which at most `k` overlap has a larger weight.
fn most_weight(intervals: &[Interval], end: usize, k: u64) -> u64 {
    let weights: BTreeSet<u64> = intervals.iter().map(|interval| interval.weight_ns).collect();
    let weights: Vec<u64> = weights.into_iter().collect();
    // The top of each layer; every weight inside a layer counts as the top.
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

/// Prices are counted in this fraction of a nanosecond, as integers, so sums are exact.
const PARTS: u64 = 64;
/// Rounds of the improvement of prices.
const ROUNDS: usize = 400;

/// No choice of intervals of which at most `k` overlap has a larger weight. The proof uses a price for a
/// block of fast memory at each step. For any prices a choice saves at most the excess of its intervals'
/// weights over their prices, plus the price of `k` blocks at all steps (duality of linear programming; the
/// least such sum equals the largest weight, because the matrix of overlaps is totally unimodular). Prices
/// follow the subgradient, with steps of [Polyak] ("Minimization of unsmooth functionals", 1969) towards
/// `kept_ns`, the saving of a feasible schedule.
fn most_weight_by_price(intervals: &[Interval], end: usize, k: u64, kept_ns: u64) -> u64 {
    let mut prices = vec![0.0_f64; end + 1];
    let (mut best, mut best_prices) = (f64::MAX, prices.clone());
    let mut scale = 1.0;
    let mut since = 0;
    for _ in 0..ROUNDS {
        let sums = sums(&prices);
        let mut load = vec![0_i64; end + 2];
        let mut sum = k as f64 * sums[end + 1];
        for it in intervals {
            let beyond = it.weight_ns as f64 - (sums[it.until] - sums[it.from]);
            if beyond > 0.0 {
                sum += beyond;
                load[it.from] += 1;
                load[it.until] -= 1;
            }
        }
        since += 1;
        if sum < best {
            (best, since) = (sum, 0);
            best_prices.clone_from(&prices);
        } else if since >= 10 {
            (scale, since) = (scale / 2.0, 0);
            prices.clone_from(&best_prices);
            continue;
        }
        let mut open = 0;
        let over: Vec<f64> = load[..=end]
            .iter()
            .zip(&prices)
            .map(|(change, price)| {
                open += change;
                let over = (open - k as i64) as f64;
                // A price of zero must not fall.
                if over < 0.0 && *price <= 0.0 { 0.0 } else { over }
            })
            .collect();
        let norm: f64 = over.iter().map(|it| it * it).sum();
        if norm == 0.0 || sum <= kept_ns as f64 {
            break;
        }
        let step = scale * (sum - kept_ns as f64) / norm;
        prices.iter_mut().zip(&over).for_each(|(price, over)| *price = (*price + step * over).max(0.0));
    }
    let exact: Vec<u64> = best_prices.iter().map(|price| (price * PARTS as f64) as u64).collect();
    by_prices(intervals, k, &exact).min(u128::from(u64::MAX)) as u64
}

/// For each step the sum of the prices before it.
fn sums(prices: &[f64]) -> Vec<f64> {
    let mut sum = 0.0;
    let mut all = vec![0.0];
    all.extend(prices.iter().map(|price| {
        sum += price;
        sum
    }));
    all
}

/// The bound from prices in fractions of a nanosecond, rounded up.
fn by_prices(intervals: &[Interval], k: u64, prices: &[u64]) -> u128 {
    let mut sums = vec![0_u128];
    for price in prices {
        sums.push(sums[sums.len() - 1] + u128::from(*price));
    }
    let places = u128::from(k) * sums[sums.len() - 1];
    let beyond = intervals
        .iter()
        .map(|it| u128::from(it.weight_ns * PARTS).saturating_sub(sums[it.until] - sums[it.from]));
    (places + beyond.sum::<u128>()).div_ceil(u128::from(PARTS))
}

/// Computes the bounds.
pub(crate) fn bound(steps: &Steps, setup: &Setup) -> Bound {
    let prices = Prices::of(setup);
    let k = setup.pm_blocks + setup.dram_blocks;
    let found = Intervals::of(steps, &prices);
    let (reads, versions, end) = (&found.reads, &found.versions, found.end);
    let keepable_ns = most_weight(reads, end, k).min(found.all_missed_ns);
    let by_end = pack(reads, end, k, |interval| Reverse(interval.until));
    let by_weight = pack(reads, end, k, |it| (it.weight_ns, Reverse(it.until)));
    let kept = if by_end.weight_ns > by_weight.weight_ns { by_end } else { by_weight };
    let misses = found.first_reads + reads.len() as u64 - most(reads, end, k);
    let drains = versions.len() as u64 - most(versions, end, k);
    let device = setup.device;
    let bus_ns =
        misses * transfer_ns(1, device.read_bytes_per_s) + drains * transfer_ns(1, device.write_bytes_per_s);
    let think_ns = THINK_NS * (steps.list.len() - steps.measured_from) as u64;
    let any_ns = found.floor_ns.max(bus_ns.saturating_sub(think_ns));
    let demand_ns = (found.floor_ns + found.all_missed_ns - keepable_ns).max(any_ns);
    let by_price_ns = most_weight_by_price(reads, end, k, kept.weight_ns).min(keepable_ns);
    let priced_ns = (found.floor_ns + found.all_missed_ns - by_price_ns).max(any_ns);
    let schedule_ns = (found.floor_ns + found.all_missed_ns - kept.weight_ns).max(any_ns);
    let written = reads.iter().filter(|it| it.written).count() as u64;
    let read = reads.len() as u64 - written;
    let missed_after = [found.first_reads, read - (kept.count - kept.written), written - kept.written];
    let mut by_block = found.by_block;
    by_block.sort_unstable_by_key(|weight_ns| Reverse(*weight_ns));
    let stay_ns: u64 = by_block.iter().take(k as usize).sum();
    let fixed_ns = (found.floor_ns + found.all_missed_ns - stay_ns).max(any_ns);
    Bound {
        demand_ns,
        any_ns,
        fixed_ns,
        floor_ns: found.floor_ns,
        misses,
        drains,
        keepable_ns,
        kept_ns: kept.weight_ns,
        priced_ns,
        schedule_ns,
        missed_after,
    }
}

#[cfg(test)]
#[path = "optimum_tests.rs"]
mod tests;
