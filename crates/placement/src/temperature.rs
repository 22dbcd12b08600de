//! Temperature ([TPFS] section 5.2): the choice of write-cold files, and of the part of each file to demote.
//!
//! Times are ticks of 10 ms. Files are compared by the logarithm of the age of their average, so small
//! differences do not change the order.

use std::cmp::Reverse;

/// Ticks in a second.
pub const TICKS_PER_SECOND: u32 = 100;

/// The logarithmic bucket of an age: 0 is the youngest, 32 the oldest.
pub fn bucket(now: u32, at: u32) -> u32 {
    (u64::from(now.saturating_sub(at)) + 1).ilog2()
}

/// The times of a file's blocks in PM, summed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    sum: u64,
    oldest: u32,
    /// Blocks.
    pub blocks: u64,
    /// The latest.
    pub newest: u32,
}

impl Default for Times {
    fn default() -> Times {
        Times { sum: 0, oldest: u32::MAX, blocks: 0, newest: 0 }
    }
}

impl Times {
    /// Adds a block.
    pub fn add(&mut self, at: u32) {
        self.sum += u64::from(at);
        self.blocks += 1;
        self.newest = self.newest.max(at);
        self.oldest = self.oldest.min(at);
    }

    /// Whether none of the blocks is older than their average.
    pub fn is_even(&self) -> bool {
        self.oldest >= self.average()
    }

    /// amtime or artime; zero of no blocks.
    pub fn average(&self) -> u32 {
        self.sum.checked_div(self.blocks).unwrap_or(0) as u32
    }

    /// The part of the file to demote: the whole file when it was not used for `whole_after` ticks.
    pub fn portion(&self, now: u32, whole_after: u32) -> Portion {
        if now.saturating_sub(self.newest) >= whole_after {
            Portion::Whole
        } else {
            Portion::OlderThan(self.average())
        }
    }
}

/// The part of a write-cold file to demote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Portion {
    /// The whole file.
    Whole,
    /// Blocks written before this tick, the file's average.
    OlderThan(u32),
}

impl Portion {
    /// Whether a block written at `at` is part of it.
    pub fn holds(&self, at: u32) -> bool {
        match self {
            Portion::Whole => true,
            Portion::OlderThan(average) => at < *average,
        }
    }
}

/// The files that give about `wanted` blocks, the coldest first, and the part of each to demote. Files are
/// ordered by the logarithm of the age of their average; files of equal age by number, which demotes
/// neighbours together and makes every run equal. A file whose blocks were all written at once and lately has
/// no older part, and is left out. For `whole_after` see [`Times::portion`].
pub fn coldest<'a>(
    files: impl IntoIterator<Item = (u64, &'a Times)>,
    wanted: u64,
    (now, whole_after): (u32, u32),
) -> Vec<(u64, Portion)> {
    let with_age = |(file, times): (u64, &'a Times)| (Reverse(bucket(now, times.average())), file, times);
    let mut order: Vec<_> = files.into_iter().map(with_age).collect();
    order.sort_unstable_by_key(|(age, file, _)| (*age, *file));
    let (mut chosen, mut blocks) = (Vec::new(), 0);
    for (_, file, times) in order {
        if blocks >= wanted {
            break;
        }
        let portion = times.portion(now, whole_after);
        blocks += match portion {
            Portion::Whole => times.blocks,
            Portion::OlderThan(_) if times.is_even() => continue,
            // At least one block is older than the average, and mostly half of the blocks are.
            Portion::OlderThan(_) => (times.blocks / 2).max(1),
        };
        chosen.push((file, portion));
    }
    chosen
}

/// The temperature of a file as a word for the user. A file is hot if its latest use is less than
/// `whole_after` ago. A block promoted by a read has the time of the promotion as both of its times.
pub fn word((now, whole_after): (u32, u32), written: u32, read: u32) -> &'static str {
    let lately = |at: u32| at > 0 && now.saturating_sub(at) < whole_after;
    match (lately(written), lately(read)) {
        (true, is_read) if !is_read || written > read => "write-hot",
        (_, true) => "read-hot",
        _ => "cold",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE_AFTER: u32 = 30 * TICKS_PER_SECOND;

    #[test]
    fn buckets_are_logarithmic() {
        let ages = [0, 1, 2, 3, 7, 1023, u32::MAX];
        assert_eq!(ages.map(|age| bucket(age, 0)), [0, 1, 1, 2, 3, 10, 32]);
        assert_eq!(bucket(5, 9), 0, "a time ahead counts as now");
    }

    #[test]
    fn an_untouched_file_goes_whole_and_another_in_part() {
        let mut times = Times::default();
        [100, 200, 600].iter().for_each(|at| times.add(*at));
        assert_eq!((times.average(), times.newest, times.blocks), (300, 600, 3));
        assert_eq!(times.portion(600 + WHOLE_AFTER, WHOLE_AFTER), Portion::Whole);
        assert_eq!(times.portion(700, 100), Portion::Whole);
        let part = times.portion(700, 101);
        assert_eq!(part, Portion::OlderThan(300));
        assert!(part.holds(200) && !part.holds(300) && !part.holds(600));
        let mut even = Times::default();
        (0..9).for_each(|_| even.add(50));
        assert!(even.is_even() && !times.is_even());
        assert!(!even.portion(60, WHOLE_AFTER).holds(50), "written all at once: no part is older");
    }

    #[test]
    fn words() {
        let now = 10 * WHOLE_AFTER;
        assert_eq!(
            [(now, 0), (1, now - 5), (1, 1)].map(|(written, read)| word((now, WHOLE_AFTER), written, read)),
            ["write-hot", "read-hot", "cold"]
        );
    }

    /// `terrace where` called a file write-hot that was only read since it was made.
    #[test]
    fn the_latest_use_of_a_hot_file_names_it() {
        let now = 10 * WHOLE_AFTER;
        let after = |written, read| word((now, WHOLE_AFTER), now - written, now - read);
        assert_eq!([after(500, 20), after(20, 20), after(20, 500)], ["read-hot", "read-hot", "write-hot"]);
        assert_eq!(after(20, 2 * WHOLE_AFTER), "write-hot");
    }
}
