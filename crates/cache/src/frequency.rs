//! Counts of the recent uses of blocks, cached or not. Blocks share the counters; the least of a block's
//! counters counts (a count-min sketch), and all are halved now and then ([TinyLFU]: Einziger, Friedman,
//! Manes, ACM TOS 13(4), 2017). The counts choose the page to drop (`clean.rs`): blocks used often displace
//! blocks used seldom, and neither a scan nor a loop longer than the cache displaces a page.
//!
//! The number of counters follows the pages that a shard has had, not its budget. A counter is chosen by the
//! low bits of a hash. So when the counters double, each new counter begins as a copy of an old one, and no
//! count becomes less.

use crate::header::PageKey;

/// Counters of each block.
const ROWS: u32 = 4;
/// Counters for each page of the shard.
const PER_PAGE: usize = 32;
/// Largest count.
const MOST: u8 = 15;
/// Counters are halved after `PERIOD` uses for each page of the shard.
const PERIOD: usize = 10;

/// The counters of one shard.
pub(crate) struct Frequency {
    counters: Vec<u8>,
    period: usize,
    /// Since the last halving.
    counted: usize,
}

impl Frequency {
    /// For a shard of `pages` pages.
    pub fn new(pages: usize) -> Frequency {
        let counters = vec![0; (pages * PER_PAGE).next_power_of_two()];
        Frequency { counters, period: (pages * PERIOD).max(1), counted: 0 }
    }

    /// Adds counters until they suffice for `pages` pages.
    pub fn grow_to(&mut self, pages: usize) {
        if pages * PERIOD <= self.period {
            return;
        }
        while self.counters.len() < pages * PER_PAGE {
            self.counters.extend_from_within(..);
        }
        self.period = self.counters.len() / PER_PAGE * PERIOD;
    }

    /// Removes the counters that `pages` pages do not need. Two counters that become one keep the larger
    /// count.
    pub fn shrink_to(&mut self, pages: usize) {
        let length = (pages * PER_PAGE).next_power_of_two();
        while self.counters.len() > length {
            let upper = self.counters.split_off(self.counters.len() / 2);
            self.counters.iter_mut().zip(upper).for_each(|(lower, upper)| *lower = upper.max(*lower));
        }
        self.counters.shrink_to_fit();
        self.period = (self.counters.len() / PER_PAGE).max(1) * PERIOD;
        // The next halving is not due for being that of a smaller shard.
        self.counted = self.counted.min(self.period / 2);
    }

    fn places(&self, key: &PageKey) -> [usize; ROWS as usize] {
        let word = key.ino.0 << 32 ^ key.block.0 ^ u64::from(key.generation) << 16;
        let mixed = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        // A shift by a multiple of 16 would cancel one of the rotations: that row had one counter for all blocks.
        [0, 1, 2, 3]
            .map(|row| (mixed.rotate_left(row * 16) ^ mixed >> 24) as usize & (self.counters.len() - 1))
    }

    /// A block was asked for.
    pub fn count(&mut self, key: &PageKey) {
        let places = self.places(key);
        let least = self.of(key);
        for place in places {
            // Only the least counters rise: a larger counter is shared with other blocks, and too large
            // already.
            if self.counters[place] == least && least < MOST {
                self.counters[place] += 1;
            }
        }
        self.counted += 1;
        if self.counted >= self.period {
            self.counters.iter_mut().for_each(|counter| *counter /= 2);
            self.counted = 0;
        }
    }

    /// The recent uses of a block, at most [`MOST`]: never too low, seldom too high.
    pub fn of(&self, key: &PageKey) -> u8 {
        self.places(key).into_iter().map(|place| self.counters[place]).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_format::{FileBlock, Ino};

    #[test]
    fn frequent_pages_are_known_and_forgotten_in_time() {
        let key = |block| PageKey { ino: Ino(7), generation: 3, block: FileBlock(block) };
        let mut frequency = Frequency::new(100);
        (0..100).for_each(|block| frequency.count(&key(block)));
        (0..5).for_each(|_| frequency.count(&key(40)));
        assert_eq!(frequency.of(&key(40)), 6);
        let wrong = (0..100).filter(|block| *block != 40 && frequency.of(&key(*block)) != 1).count();
        assert!(wrong <= 2, "{wrong} of 99 counted too high");
        assert!((1000..1100).filter(|block| frequency.of(&key(*block)) > 0).count() <= 10);
        (0..3000).for_each(|block| frequency.count(&key(10_000 + block)));
        assert!(frequency.of(&key(40)) <= 3, "forgotten in time");
    }

    /// Counters were made for the budget, and each touched block has four somewhere among them: of a cache that may have
    /// 10 GiB they took 128 MiB as soon as it had one.
    #[test]
    fn counters_grow_and_shrink_with_the_pages_and_keep_counts() {
        let key = |block| PageKey { ino: Ino(7), generation: 3, block: FileBlock(block) };
        let mut frequency = Frequency::new(100);
        (0..5).for_each(|_| frequency.count(&key(40)));
        frequency.grow_to(100);
        assert_eq!(frequency.counters.len(), 4096);
        frequency.grow_to(1000);
        assert_eq!((frequency.counters.len(), frequency.of(&key(40))), (32_768, 5));
        (0..1000).for_each(|block| frequency.count(&key(block)));
        let wrong = (0..1000).filter(|block| *block != 40 && frequency.of(&key(*block)) != 1).count();
        assert!(wrong <= 20, "{wrong} of 999 counted too high");
        frequency.shrink_to(100);
        assert_eq!(frequency.counters.len(), 4096);
        assert!(frequency.of(&key(40)) >= 6 && (0..1000).all(|block| frequency.of(&key(block)) >= 1));
        frequency.shrink_to(0);
        frequency.count(&key(40));
        assert!(frequency.of(&key(40)) >= 6);
    }

    #[test]
    fn counters_and_period_follow_the_pages() {
        let shown = |frequency: &Frequency| (frequency.counters.len(), frequency.period);
        let mut frequency = Frequency::new(100);
        assert_eq!(shown(&frequency), (4096, 1000));
        frequency.grow_to(200);
        assert_eq!(shown(&frequency), (8192, 2560));
        frequency.grow_to(256);
        assert_eq!(shown(&frequency), (8192, 2560), "just enough");
        let mut other = Frequency::new(100);
        other.grow_to(256);
        assert_eq!(shown(&other), shown(&frequency));
        let key = PageKey { ino: Ino(7), generation: 3, block: FileBlock(1) };
        (0..900).for_each(|_| frequency.count(&key));
        frequency.shrink_to(20);
        assert_eq!((shown(&frequency), frequency.counted), ((1024, 320), 160));
        frequency.shrink_to(0);
        assert_eq!(shown(&frequency), (1, 10));
    }

    #[test]
    fn counts_have_a_bound_and_are_halved_after_a_period() {
        let key = |block| PageKey { ino: Ino(7), generation: 3, block: FileBlock(block) };
        let mut frequency = Frequency::new(100);
        (0..40).for_each(|_| frequency.count(&key(1)));
        (0..6).for_each(|_| frequency.count(&key(2)));
        assert_eq!((frequency.of(&key(1)), frequency.of(&key(2))), (MOST, 6));
        (0..953).for_each(|_| frequency.count(&key(3)));
        assert_eq!((frequency.of(&key(1)), frequency.of(&key(2))), (MOST, 6), "one before the period ends");
        frequency.count(&key(3));
        assert_eq!((frequency.of(&key(1)), frequency.of(&key(2))), (7, 3));
        // The next period has begun.
        (0..6).for_each(|_| frequency.count(&key(2)));
        assert_eq!(frequency.of(&key(2)), 9);
    }

    /// Broke: one row of the four had a single counter for all keys.
    ///
    /// Keys that differ in one part, near one another or far apart, share as few counters as keys at random do.
    #[test]
    fn counters_are_spread_whatever_the_keys_differ_in() {
        let frequency = Frequency::new(128);
        assert_eq!(frequency.counters.len(), 4096);
        type Make = fn(u64) -> PageKey;
        let kinds: [Make; 6] = [
            |number| PageKey { ino: Ino(7), generation: 3, block: FileBlock(number) },
            |number| PageKey { ino: Ino(7), generation: 3, block: FileBlock(number << 12) },
            |number| PageKey { ino: Ino(number), generation: 3, block: FileBlock(0) },
            |number| PageKey { ino: Ino(number << 8), generation: 3, block: FileBlock(0) },
            |number| PageKey { ino: Ino(7), generation: number as u32, block: FileBlock(0) },
            |number| PageKey { ino: Ino(7), generation: 1, block: FileBlock(number << 16) },
        ];
        for (kind, make) in kinds.iter().enumerate() {
            let places: Vec<_> = (0..4096).map(|number| frequency.places(&make(number))).collect();
            let of_row = |row: usize| places.iter().map(move |places| places[row]);
            for row in 0..ROWS as usize {
                // 2,589 of 4,096 at random.
                let taken = of_row(row).collect::<std::collections::HashSet<_>>().len();
                assert!(taken > 2200, "keys of kind {kind}, row {row}: {taken} counters");
            }
            // Two keys that share a counter in one row do not for that share one in the next.
            let pairs = (0..2000).flat_map(|one| (0..one).map(move |other| (one, other)));
            let both = |(one, other): &(usize, usize)| places[*one][..2] == places[*other][..2];
            let shared = pairs.filter(both).count();
            assert!(shared < 60, "keys of kind {kind}: {shared} pairs share two counters");
        }
    }
}
