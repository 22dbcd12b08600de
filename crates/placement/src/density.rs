//! The worth of a clean copy in fast memory: the waiting time that it saves for the time that it occupies
//! memory, learnt from the later uses of similar copies.
//!
//! [LHD] (Beckmann, Chen, Cidon: "Maximizing Cache Hit Rate by Hit Density", NSDI 2018) ranks by hits per
//! place and time. The best moment to give a copy up follows from an index of [Gittins] ("Bandit Processes
//! and Dynamic Allocation Indices", 1979): for each moment until which a copy could be kept, divide the
//! expected savings by the expected time; the index is the largest quotient. In a loop a block has a low
//! index just after its use, and a high index shortly before its next use; with locality it has a high index
//! at once. Neither publication of the policy has this index, and the engine does not use it: row regret of
//! docs/evaluation.md measures its worth.
//!
//! Time is counted in requested blocks. Blocks are alike ([`Class`]) if their last uses agree in three
//! things: read or write, the approximate size of the request, and the time since the use before.

/// Buckets of ages, four for each power of two.
const AGES: usize = 96;
/// Sizes of requests that make a difference: the most blocks of each size but the last.
const SIZES: [u64; 3] = [1, 6, 24];
/// Intervals between uses that make a difference; the first stands for "no use before".
const INTERVALS: usize = 12;
/// Buckets of ages in an interval.
const COARSE: usize = 6;
const CLASSES: usize = 2 * (SIZES.len() + 1) * INTERVALS;
/// The share of old counts that each call of [`Density::learn`] leaves.
const KEPT: f32 = 0.95;

/// The class of a block's last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Class(u8);

impl Class {
    /// The class of a use by a request of `blocks` blocks, `since` after the use before; `None` if there is
    /// none known.
    pub fn of(read: bool, blocks: u64, since: Option<u64>) -> Class {
        let size = SIZES.iter().position(|most| blocks <= *most).unwrap_or(SIZES.len());
        let interval = since.map_or(0, |since| 1 + (bucket(since) / COARSE).min(INTERVALS - 2));
        Class((usize::from(read) + 2 * (size + (SIZES.len() + 1) * interval)) as u8)
    }

    fn size(self) -> usize {
        usize::from(self.0) / 2 % (SIZES.len() + 1)
    }
}

fn bucket(age: u64) -> usize {
    let age = age.max(1);
    let power = age.ilog2();
    let part = if power >= 2 { age >> (power - 2) } else { age << (2 - power) } & 3;
    (4 * power as usize + part as usize).min(AGES - 1)
}

/// The least age of a bucket.
fn begin(bucket: usize) -> f32 {
    (1u64 << (bucket / 4)) as f32 * (1.0 + (bucket % 4) as f32 / 4.0)
}

/// The lives of the blocks of a class, by age.
#[derive(Debug, Clone, Copy)]
struct Ages {
    /// Uses by age: `reads`, and `ends` (a write, or the removal of the block).
    reads: [f32; AGES],
    ends: [f32; AGES],
    /// Time that blocks spent at each age.
    spent: [f32; AGES],
}

const NO_AGES: Ages = Ages { reads: [0.0; AGES], ends: [0.0; AGES], spent: [0.0; AGES] };

impl Ages {
    /// `blocks` blocks reached this age.
    fn spend(&mut self, age: u64, blocks: f32) {
        let last = bucket(age);
        for at in 0..last {
            self.spent[at] += blocks * (begin(at + 1) - begin(at));
        }
        self.spent[last] += blocks * (age as f32 - begin(last)).max(0.5);
    }

    /// Expected reads for expected time from a bucket on, until the best moment to give up.
    fn index(&self, from: usize) -> f32 {
        let (mut alive, mut reads, mut time, mut best) = (1.0_f32, 0.0, 0.0, 0.0_f32);
        for at in from..AGES - 1 {
            if self.spent[at] <= 0.0 {
                break;
            }
            let (read, end) = (self.reads[at] / self.spent[at], self.ends[at] / self.spent[at]);
            let width = begin(at + 1) - begin(at);
            let rate = read + end;
            let gone = 1.0 - (-rate * width).exp();
            time += alive * if gone > 1e-6 { gone / rate } else { width };
            if gone > 1e-6 {
                reads += alive * gone * read / rate;
            }
            alive *= 1.0 - gone;
            best = best.max(reads / time);
            if alive < 1e-4 {
                break;
            }
        }
        best
    }
}

/// The learnt worth of clean copies.
#[derive(Debug, Clone)]
pub struct Density {
    ages: Vec<Ages>,
    index: Vec<[f32; AGES]>,
    /// The cost of a missed block, by the size of its request.
    weights: [f32; SIZES.len() + 1],
}

impl Density {
    /// Without experience: the least recently used copy has the least worth. The arguments are a device's
    /// latency and the transfer time of a block.
    pub fn new(latency_ns: u64, transfer_ns: u64) -> Density {
        let mut by_age = [0.0; AGES];
        for (at, index) in by_age.iter_mut().enumerate() {
            *index = 1.0 / begin(at);
        }
        let weights = [1, 3, 10, 160].map(|blocks| (latency_ns / blocks + transfer_ns) as f32);
        Density { ages: vec![NO_AGES; CLASSES], index: vec![by_age; CLASSES], weights }
    }

    /// A block of a class was used again at this age (`read`: by a read), or ended.
    pub fn used(&mut self, class: Class, age: u64, read: bool) {
        let ages = &mut self.ages[usize::from(class.0)];
        ages.spend(age, 1.0);
        let counts = if read { &mut ages.reads } else { &mut ages.ends };
        counts[bucket(age)] += 1.0;
    }

    /// Learns from the uses, and from the ages of the blocks that were not used since: `waiting` is a sample
    /// of these blocks, one of `share`.
    pub fn learn(&mut self, waiting: impl Iterator<Item = (Class, u64)>, share: f32) {
        let mut all = self.ages.clone();
        waiting.for_each(|(class, age)| all[usize::from(class.0)].spend(age, share));
        for (number, ages) in all.iter().enumerate() {
            if ages.spent[0] > 0.0 {
                let weight = self.weights[Class(number as u8).size()];
                for at in 0..AGES {
                    self.index[number][at] = ages.index(at) * weight + 1e-6 / begin(at);
                }
            }
        }
        for ages in &mut self.ages {
            for counts in [&mut ages.reads, &mut ages.ends, &mut ages.spent] {
                counts.iter_mut().for_each(|count| *count *= KEPT);
            }
        }
    }

    /// The worth of a copy.
    pub fn of(&self, class: Class, age: u64) -> f32 {
        self.index[usize::from(class.0)][bucket(age)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taught(uses: impl Fn(&mut Density)) -> Density {
        let mut density = Density::new(80_000, 8_192);
        uses(&mut density);
        density.learn(std::iter::empty(), 1.0);
        density
    }

    #[test]
    fn an_age_lies_between_the_bounds_of_its_bucket() {
        for age in [1, 2, 3, 5, 7, 8, 100, 1023, 1024, 1 << 20] {
            let at = bucket(age);
            assert!(begin(at) <= age as f32 && (age as f32) < begin(at + 1), "{age}: {at}");
        }
        assert_eq!(bucket(u64::MAX), AGES - 1);
    }

    #[test]
    fn classes_tell_uses_apart() {
        let all = [
            Class::of(true, 1, None),
            Class::of(false, 1, None),
            Class::of(true, 4, None),
            Class::of(true, 8, None),
            Class::of(true, 256, None),
            Class::of(true, 1, Some(1)),
            Class::of(true, 1, Some(1 << 20)),
        ];
        for (number, class) in all.iter().enumerate() {
            assert!(all[number + 1..].iter().all(|other| other != class), "{number}");
        }
        assert!(usize::from(Class::of(true, u64::MAX, Some(u64::MAX)).0) < CLASSES);
    }

    #[test]
    fn without_experience_the_least_recently_used_copy_has_the_least_worth() {
        let density = Density::new(80_000, 8_192);
        let class = Class::of(true, 1, None);
        assert!(density.of(class, 10) > density.of(class, 100));
    }

    /// A loop of 1000 blocks: what was just used is worth less than what comes round next.
    #[test]
    fn a_loop_makes_the_oldest_worth_most() {
        let class = Class::of(true, 1, Some(1000));
        let density = taught(|it| (0..5000).for_each(|_| it.used(class, 1000, true)));
        assert!(density.of(class, 900) > 2.0 * density.of(class, 1));
        assert!(density.of(class, 1) > 0.0);
    }

    #[test]
    fn removed_and_unread_copies_are_worth_less_than_read_copies() {
        let (read, removed, left) =
            (Class::of(true, 1, None), Class::of(false, 1, None), Class::of(true, 256, None));
        let mut density = Density::new(80_000, 8_192);
        (0..100).for_each(|_| density.used(read, 50, true));
        (0..100).for_each(|_| density.used(removed, 50, false));
        density.learn((0..100).map(|_| (left, 5000)), 1.0);
        let worth = [read, removed, left].map(|class| density.of(class, 10));
        assert!(worth[0] > 100.0 * worth[1] && worth[0] > 100.0 * worth[2], "{worth:?}");
    }

    /// A block of a small request costs most of a latency, one of a large request little more than its transfer.
    #[test]
    fn small_requests_are_worth_more() {
        let (small, large) = (Class::of(true, 1, None), Class::of(true, 256, None));
        let density = taught(|it| {
            (0..100).for_each(|_| it.used(small, 50, true));
            (0..100).for_each(|_| it.used(large, 50, true));
        });
        assert!(density.of(small, 10) > 5.0 * density.of(large, 10));
    }

    #[test]
    fn old_uses_are_forgotten() {
        let class = Class::of(true, 1, None);
        let mut density = taught(|it| (0..1000).for_each(|_| it.used(class, 50, true)));
        let before = density.of(class, 10);
        for _ in 0..100 {
            (0..50).for_each(|_| density.used(class, 50, false));
            density.learn(std::iter::empty(), 1.0);
        }
        assert!(density.of(class, 10) < before / 10.0);
    }
}
