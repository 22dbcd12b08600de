//! A set of block numbers with a summary level: finds the lowest member or run quickly.
//!
//! Invariant: no run of at least `LENGTHS[i]` members begins in a word below `cursors[i]`. What is taken low leaves holes there
//! of one or two members; a search that met them all again was a tenth of what a mail server's turn takes.

/// The run lengths that have a cursor: no run of that length begins in a word below its cursor.
const LENGTHS: [u64; 11] = [2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32];
/// Words with members that one search looks at. Bounded: a badly fragmented pool must not make a write scan all of it.
const MOST_WORDS: usize = 64;

/// Members are 1 bits; a summary bit says that its word has members.
#[derive(Debug)]
pub struct Bitmap {
    words: Vec<u64>,
    summary: Vec<u64>,
    /// No summary word below this one has members.
    hint: usize,
    cursors: [usize; LENGTHS.len()],
    count: u64,
}

impl Bitmap {
    /// An empty set over `0..bits`.
    pub fn new(bits: u64) -> Bitmap {
        let words = bits.div_ceil(64) as usize;
        let summary = vec![0; words.div_ceil(64)];
        Bitmap { words: vec![0; words], summary, hint: 0, cursors: [words; LENGTHS.len()], count: 0 }
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
        self.note_run(bit);
    }

    /// Keeps the invariant of the cursors when `bit` has become a member.
    fn note_run(&mut self, bit: u64) {
        let (word, at) = ((bit / 64) as usize, bit % 64);
        let members = self.words[word];
        let mut length = u64::from((members >> at).trailing_ones());
        if at + length == 64 {
            length += self.words.get(word + 1).map_or(0, |next| u64::from(next.trailing_ones()));
        }
        // The longest of `LENGTHS` with this bit in it reaches no further down than into the word before.
        let mut before = u64::from((members << (63 - at)).leading_ones()) - 1;
        if before == at && word > 0 {
            before += u64::from(self.words[word - 1].leading_ones());
        }
        length += before;
        let begins = ((bit - before) / 64) as usize;
        for (cursor, _) in self.cursors.iter_mut().zip(LENGTHS).take_while(|(_, least)| *least <= length) {
            *cursor = (*cursor).min(begins);
        }
    }

    /// Takes a given member out; false when the bit is no member.
    pub fn take(&mut self, bit: u64) -> bool {
        let member = self.words[(bit / 64) as usize] & 1 << (bit % 64) != 0;
        if member {
            self.remove(bit);
        }
        member
    }

    /// Takes the lowest member.
    pub fn take_lowest(&mut self) -> Option<u64> {
        let bit = self.lowest()?;
        self.remove(bit);
        Some(bit)
    }

    fn lowest(&mut self) -> Option<u64> {
        let word = self.first_word(self.hint * 64)?;
        Some(word as u64 * 64 + u64::from(self.words[word].trailing_zeros()))
    }

    /// Takes up to `most` consecutive members: of the first run of at least `enough`, else of a shorter one.
    pub fn take_run(&mut self, most: u64, enough: u64) -> Option<(u64, u64)> {
        let enough = enough.min(most);
        let known = LENGTHS.partition_point(|length| *length <= enough);
        let shorter = LENGTHS[..known].iter().copied().enumerate().rev();
        // The requested length first, then the next shorter lengths.
        let asked = known.checked_sub(1).map(|index| (index, enough));
        for (index, wanted) in asked.into_iter().chain(shorter.filter(|(_, length)| *length < enough)) {
            if let Some((start, length)) = self.find_run(index, most, wanted) {
                self.remove_run(start, length);
                return Some((start, length));
            }
        }
        let start = self.lowest()?;
        let (start, length) = self.longest_in(start, most);
        self.remove_run(start, length);
        Some((start, length))
    }

    /// The first run of at least `wanted` members, which is at least `LENGTHS[index]`; no longer than `most`.
    fn find_run(&mut self, index: usize, most: u64, wanted: u64) -> Option<(u64, u64)> {
        let mut from = self.cursors[index].max(self.hint * 64);
        let mut none_yet = true;
        for _ in 0..MOST_WORDS {
            let Some(word) = self.first_word(from) else {
                if none_yet {
                    self.cursors[index] = self.words.len();
                }
                break;
            };
            let start = word as u64 * 64 + u64::from(self.words[word].trailing_zeros());
            let run = self.longest_in(start, most);
            none_yet &= run.1 < LENGTHS[index];
            if none_yet {
                self.cursors[index] = word + 1;
            }
            if run.1 >= wanted {
                return Some(run);
            }
            from = word + 1;
        }
        None
    }

    /// The longest run that starts in the word of `start`, a member, at `start` or later (it may reach into later
    /// words), the first of several; no longer than `most`.
    fn longest_in(&self, start: u64, most: u64) -> (u64, u64) {
        let word = (start / 64) as usize;
        let members = self.words[word] & (u64::MAX << (start % 64));
        let first = u64::from((members >> (start % 64)).trailing_ones());
        if first >= most {
            return (start, most);
        }
        if start % 64 + first == 64 {
            return (start, (first + self.leading_in(word + 1, most - first)).min(most));
        }
        // Bits at which `length` members begin, for one length after the other: holes are many and runs short where this
        // takes time.
        let (mut begins, mut left, mut length) = (members, members, 0);
        while left != 0 && length < most {
            begins = left;
            length += 1;
            left &= left >> 1;
        }
        let mut best = (word as u64 * 64 + u64::from(begins.trailing_zeros()), length);
        let last = u64::from(members.leading_ones());
        if last > 0 && length < most {
            let run = (last + self.leading_in(word + 1, most.saturating_sub(last))).min(most);
            if run > length {
                best = (word as u64 * 64 + 64 - last, run);
            }
        }
        best
    }

    /// Counts the members that follow each other from the first bit of a word on. The count may stop at
    /// `enough`.
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
    fn a_set_gives_its_lowest_member_first_and_the_longest_run_up_to_the_wish() {
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

    /// The runs of members: first member and length.
    fn runs(members: &std::collections::BTreeSet<u64>) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for bit in members {
            match runs.last_mut() {
                Some((start, length)) if *start + *length == *bit => *length += 1,
                _ => runs.push((*bit, 1)),
            }
        }
        runs
    }

    /// Against sets of numbers, with holes everywhere.
    #[test]
    fn runs_are_of_members_and_as_long_as_can_be() {
        // A small set, whose words fit into one search; a large set, whose words do not.
        against_sets(4096, 20_000, true);
        against_sets(1 << 16, 1500, false);
    }

    fn against_sets(bits: u64, rounds: u64, exhaustive: bool) {
        let (mut set, mut expected) = (Bitmap::new(bits), std::collections::BTreeSet::new());
        for bit in (0..bits).filter(|bit| !exhaustive && bit % 3 != 0) {
            expected.insert(bit);
            set.insert(bit);
        }
        let mut next = random(7);
        for round in 0..rounds {
            let first = next(bits);
            for bit in first..(first + next(if round % 5 == 0 { 200 } else { 5 })).min(bits) {
                if expected.insert(bit) {
                    set.insert(bit);
                }
            }
            let (most, before) = (1 + next(if round % 3 == 0 { 150 } else { 6 }), runs(&expected));
            for (index, least) in LENGTHS.into_iter().enumerate() {
                let below = |run: &&(u64, u64)| run.1 >= least && run.0 < set.cursors[index] as u64 * 64;
                assert_eq!(before.iter().find(below), None, "of {least} members");
            }
            let enough = 1 + next(most);
            let Some((start, length)) = set.take_run(most, enough) else {
                assert!(expected.is_empty());
                continue;
            };
            let longest = before.iter().map(|run| run.1).max().unwrap_or(0);
            let next_to_it = LENGTHS.into_iter().rfind(|length| *length <= longest.min(enough)).unwrap_or(1);
            let least = if longest >= enough { enough } else { next_to_it };
            assert!(!exhaustive || length >= least, "{length} of {enough}, there are {longest}");
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

    /// A few members far apart are inserted and removed in every way: summary and hint lose no member.
    #[test]
    fn sparse_sets_lose_no_member() {
        let bits = 1 << 18;
        let (mut set, mut expected) = (Bitmap::new(bits), std::collections::BTreeSet::new());
        let mut next = random(11);
        for _ in 0..20_000 {
            let bit = next(bits);
            match next(8) {
                0..=3 => {
                    if expected.insert(bit) {
                        set.insert(bit);
                    }
                }
                4 => assert_eq!(set.take(bit), expected.remove(&bit)),
                5 => {
                    let member = expected.range(bit..).next().copied().unwrap_or(bit);
                    assert_eq!(set.take(member), expected.remove(&member), "{member}");
                }
                6 => assert_eq!(set.take_lowest(), expected.pop_first()),
                _ => {
                    let run = set.take_run(4, 2).map_or(0..0, |(start, length)| start..start + length);
                    assert_eq!(run.is_empty(), expected.is_empty());
                    run.for_each(|bit| assert!(expected.remove(&bit), "{bit} is no member"));
                }
            }
            assert_eq!(set.count(), expected.len() as u64);
        }
        assert!(expected.len() > 1000, "more is put in than taken out");
    }

    /// The first run of the requested length wins, not the longest run.
    #[test]
    fn the_first_run_of_enough_members_is_taken() {
        let taken = |members: &[std::ops::Range<u64>], most, enough| {
            let mut set = Bitmap::new(256);
            members.iter().cloned().flatten().for_each(|bit| set.insert(bit));
            set.take_run(most, enough)
        };
        assert_eq!(taken(&[0..2, 64..72], 8, 2), Some((0, 2)), "the next word has a longer one");
        assert_eq!(taken(&[0..2, 63..65], 3, 2), Some((0, 2)), "as long as the run that leaves the word");
        assert_eq!(
            taken(&[0..2, 62..66], 8, 2),
            Some((62, 4)),
            "of the runs that begin in a word the longest"
        );
        assert_eq!(taken(&[0..2, 63..65], 8, 3), Some((0, 2)), "none is long enough");
        assert_eq!(taken(&[0..1, 3..4, 130..133], 8, 3), Some((130, 3)));
    }

    /// A write must not wait until all of a fragmented set is searched; the next search goes on behind it.
    #[test]
    fn a_search_looks_at_64_words_and_the_next_goes_on_there() {
        let mut set = Bitmap::new(64 * 300);
        (0..300).for_each(|word| set.insert(word * 64 + 5));
        set.insert(127 * 64 + 6);
        // A run below that is gone again: the search begins there.
        set.insert(6);
        assert!(set.take(6));
        assert_eq!(set.take_run(2, 2), Some((5, 1)), "no run in the first 64 words");
        assert_eq!(set.take_run(2, 2), Some((127 * 64 + 5, 2)), "in the last of the next 64");
    }

    /// A search for a run that begins above finds none there, and the only member stays known.
    #[test]
    fn a_search_in_an_empty_part_forgets_no_lower_member() {
        let mut set = Bitmap::new(4 * 4096);
        [5, 2 * 4096, 2 * 4096 + 1].into_iter().for_each(|bit| set.insert(bit));
        assert!(set.take(2 * 4096) && set.take(2 * 4096 + 1));
        assert_eq!(set.take_run(2, 2), Some((5, 1)));
    }

    /// Numbers below a bound, the same for the same seed.
    fn random(mut state: u64) -> impl FnMut(u64) -> u64 {
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        }
    }
}
