//! A set of block numbers with a summary level: finds the lowest member or run quickly.

/// Members are 1 bits; a summary bit says that its word has members.
#[derive(Debug)]
pub struct Bitmap {
    words: Vec<u64>,
    summary: Vec<u64>,
    /// No summary word below this one has members.
    hint: usize,
    count: u64,
}

impl Bitmap {
    /// An empty set over `0..bits`.
    pub fn new(bits: u64) -> Bitmap {
        let words = bits.div_ceil(64) as usize;
        Bitmap { words: vec![0; words], summary: vec![0; words.div_ceil(64)], hint: 0, count: 0 }
    }

    /// Number of members.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds a member.
    pub fn insert(&mut self, bit: u64) {
        let word = (bit / 64) as usize;
        debug_assert!(self.words[word] & (1 << (bit % 64)) == 0, "block {bit} is already free");
        self.words[word] |= 1 << (bit % 64);
        self.summary[word / 64] |= 1 << (word % 64);
        self.hint = self.hint.min(word / 64);
        self.count += 1;
    }

    /// Takes the lowest member.
    pub fn take_lowest(&mut self) -> Option<u64> {
        let word = self.first_word(self.hint * 64)?;
        let bit = word as u64 * 64 + u64::from(self.words[word].trailing_zeros());
        self.remove(bit);
        Some(bit)
    }

    /// Takes up to `most` consecutive members: the first run of at least `enough`, else the lowest run.
    pub fn take_run(&mut self, most: u64, enough: u64) -> Option<(u64, u64)> {
        let mut from = self.hint * 64;
        let mut best: Option<(u64, u64)> = None;
        // Bounded: a badly fragmented pool must not make a write scan all of it.
        for _ in 0..64 {
            let Some(word) = self.first_word(from) else { break };
            let start = word as u64 * 64 + u64::from(self.words[word].trailing_zeros());
            let run = self.longest_in(start, most);
            if best.is_none_or(|(_, length)| run.1 > length) {
                best = Some(run);
            }
            if run.1 >= enough {
                break;
            }
            from = ((run.0 + run.1) / 64) as usize + 1;
        }
        let (start, length) = best?;
        self.remove_run(start, length);
        Some((start, length))
    }

    /// The longest run that starts in the word of `start`, a member, at `start` or later (it may reach into later
    /// words), the first of several; no longer than `most`.
    fn longest_in(&self, start: u64, most: u64) -> (u64, u64) {
        let word = (start / 64) as usize;
        let mut members = self.words[word] & (u64::MAX << (start % 64));
        let mut best = (start, 0);
        while members != 0 {
            let first = members.trailing_zeros();
            let length = (members >> first).trailing_ones();
            let mut run = u64::from(length);
            if first + length == 64 {
                members = 0;
                run += self.leading_in(word + 1, most.saturating_sub(run));
            } else {
                members &= u64::MAX << (first + length);
            }
            let run = run.min(most);
            if run > best.1 {
                best = (word as u64 * 64 + u64::from(first), run);
            }
            if run >= most {
                break;
            }
        }
        best
    }

    /// How many members follow one another from the first bit of a word on; at least `enough` where there are so many.
    fn leading_in(&self, mut word: usize, enough: u64) -> u64 {
        let mut run = 0;
        while run < enough
            && let Some(members) = self.words.get(word)
        {
            run += u64::from(members.trailing_ones());
            if *members != u64::MAX {
                break;
            }
            word += 1;
        }
        run
    }

    /// Takes members that follow one another out, a word at a time.
    fn remove_run(&mut self, start: u64, length: u64) {
        let (mut bit, end) = (start, start + length);
        while bit < end {
            let word = (bit / 64) as usize;
            let count = (64 - bit % 64).min(end - bit);
            self.words[word] &= !((u64::MAX >> (64 - count)) << (bit % 64));
            if self.words[word] == 0 {
                self.summary[word / 64] &= !(1 << (word % 64));
            }
            bit += count;
        }
        self.count -= length;
    }

    fn remove(&mut self, bit: u64) {
        let word = (bit / 64) as usize;
        self.words[word] &= !(1 << (bit % 64));
        if self.words[word] == 0 {
            self.summary[word / 64] &= !(1 << (word % 64));
        }
        self.count -= 1;
    }

    fn first_word(&mut self, from: usize) -> Option<usize> {
        let mut index = from / 64;
        let mut mask = u64::MAX << (from % 64);
        while index < self.summary.len() {
            let members = self.summary[index] & mask;
            if members != 0 {
                return Some(index * 64 + members.trailing_zeros() as usize);
            }
            if index == self.hint && self.summary[index] == 0 {
                self.hint += 1;
            }
            mask = u64::MAX;
            index += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_first_and_runs() {
        let mut set = Bitmap::new(100_000);
        for bit in [5, 70, 71, 72, 9_000, 99_999] {
            set.insert(bit);
        }
        assert_eq!(set.take_run(8, 3), Some((70, 3)));
        assert_eq!(set.take_lowest(), Some(5));
        assert_eq!(set.take_lowest(), Some(9_000));
        set.insert(1);
        assert_eq!(set.take_lowest(), Some(1));
        assert_eq!(set.take_run(4, 4), Some((99_999, 1)));
        assert_eq!((set.take_lowest(), set.count()), (None, 0));
    }

    #[test]
    fn runs_cross_words_and_respect_most() {
        let mut set = Bitmap::new(1024);
        (0..1024).for_each(|bit| set.insert(bit));
        assert_eq!(set.take_run(256, 64), Some((0, 256)));
        assert_eq!(set.take_run(600, 600), Some((256, 600)));
        assert_eq!(set.take_run(600, 64), Some((856, 168)));
        assert_eq!(set.count(), 0);
    }

    /// Against sets of numbers, with holes everywhere.
    #[test]
    fn runs_are_of_members_and_as_long_as_can_be() {
        let (mut set, mut expected) = (Bitmap::new(4096), std::collections::BTreeSet::new());
        let mut random = 7_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..20_000 {
            let first = next(4096);
            for bit in first..(first + next(200)).min(4096) {
                if expected.insert(bit) {
                    set.insert(bit);
                }
            }
            let most = 1 + next(150);
            let Some((start, length)) = set.take_run(most, 1 + next(most)) else {
                assert!(expected.is_empty());
                continue;
            };
            assert!((1..=most).contains(&length), "{length} of {most}");
            for bit in start..start + length {
                assert!(expected.remove(&bit), "{bit} was not free");
            }
            assert_eq!(set.count(), expected.len() as u64);
            // As long as it can be: the next one is not free, or the run is as long as was asked for.
            assert!(length == most || !expected.contains(&(start + length)), "{start}+{length} of {most}");
        }
        while let Some(bit) = set.take_lowest() {
            assert_eq!(expected.pop_first(), Some(bit));
        }
        assert!(expected.is_empty());
    }
}
