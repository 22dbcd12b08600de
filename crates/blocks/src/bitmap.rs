//! A set of block numbers with a summary level: finds the lowest member or run quickly.
//!
//! Invariant: no run of at least `RUN_LENGTHS_BITS[i]` members begins in a word below `cursors[i]`. Low members that are
//! taken leave holes of one or two members there; a search that met all these holes again was a tenth of the time that a
//! mail server's turn takes.

use crate::bits::{self, Run};

/// The run lengths, in bits, that have a cursor: no run of that length begins in a word below its cursor.
const RUN_LENGTHS_BITS: [u64; 11] = [2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32];
/// Words with members that one search looks at. Bounded: a badly fragmented pool must not make a write scan all of it.
const MAX_SEARCHED_WORDS: usize = 64;

/// Members are 1 bits; a summary bit says that its word has members.
#[derive(Debug)]
pub struct Bitmap {
    words: Vec<u64>,
    summary: Vec<u64>,
    /// No summary word below this one has members.
    hint: usize,
    cursors: [usize; RUN_LENGTHS_BITS.len()],
    count: u64,
}

impl Bitmap {
    /// An empty set over `0..bits`.
    pub fn new(bits: u64) -> Bitmap {
        let words = bits.div_ceil(64) as usize;
        let summary = vec![0; words.div_ceil(64)];
        Bitmap { words: vec![0; words], summary, hint: 0, cursors: [words; RUN_LENGTHS_BITS.len()], count: 0 }
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
        // The longest of `RUN_LENGTHS_BITS` with this bit in it reaches no further than into the words beside.
        let run = bits::run_near::<true>(&self.words, bit);
        let begins = (run.start / 64) as usize;
        let with_cursor = self.cursors.iter_mut().zip(RUN_LENGTHS_BITS);
        for (cursor, _) in with_cursor.take_while(|(_, least)| *least <= run.length) {
            *cursor = (*cursor).min(begins);
        }
    }

    /// Whether a bit is a member.
    pub fn contains(&self, bit: u64) -> bool {
        bit / 64 < self.words.len() as u64 && bits::is_set(&self.words, bit)
    }

    /// Takes a given member out; false when the bit is no member.
    pub fn take(&mut self, bit: u64) -> bool {
        let member = bits::is_set(&self.words, bit);
        if member {
            self.remove(bit);
        }
        member
    }

    /// The first member from a bit on.
    pub fn first_from(&mut self, bit: u64) -> Option<u64> {
        let word = (bit / 64) as usize;
        let members = self.words.get(word)? & (u64::MAX << (bit % 64));
        if members != 0 {
            return Some(word as u64 * 64 + u64::from(members.trailing_zeros()));
        }
        let word = self.first_word(word + 1)?;
        Some(word as u64 * 64 + u64::from(self.words[word].trailing_zeros()))
    }

    /// Whether the 16 bits from a multiple of 16 on are all members.
    pub fn has_sixteen(&self, bit: u64) -> bool {
        self.sixteen(bit) == 0xffff
    }

    /// The members among the 16 bits from a multiple of 16 on, the lowest one in bit 0.
    pub fn sixteen(&self, bit: u64) -> u16 {
        assert!(bit.is_multiple_of(16), "group of bits at {bit}");
        self.words.get((bit / 64) as usize).map_or(0, |word| (word >> (bit % 64)) as u16)
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
    pub fn take_run(&mut self, most: u64, enough: u64) -> Option<Run> {
        let enough = enough.min(most);
        let known = RUN_LENGTHS_BITS.partition_point(|length| *length <= enough);
        let shorter = RUN_LENGTHS_BITS[..known].iter().copied().enumerate().rev();
        // The requested length first, then the next shorter lengths.
        let asked = known.checked_sub(1).map(|index| (index, enough));
        for (index, wanted) in asked.into_iter().chain(shorter.filter(|(_, length)| *length < enough)) {
            if let Some(run) = self.find_run(index, most, wanted) {
                self.remove_run(run);
                return Some(run);
            }
        }
        let start = self.lowest()?;
        let run = bits::longest_in_word::<true>(&self.words, start, most);
        self.remove_run(run);
        Some(run)
    }

    /// The first run of at least `wanted` members, which is at least `RUN_LENGTHS_BITS[index]`; no longer than `most`.
    fn find_run(&mut self, index: usize, most: u64, wanted: u64) -> Option<Run> {
        let mut from = self.cursors[index].max(self.hint * 64);
        let mut none_yet = true;
        for _ in 0..MAX_SEARCHED_WORDS {
            let Some(word) = self.first_word(from) else {
                if none_yet {
                    self.cursors[index] = self.words.len();
                }
                break;
            };
            let start = word as u64 * 64 + u64::from(self.words[word].trailing_zeros());
            let run = bits::longest_in_word::<true>(&self.words, start, most);
            none_yet &= run.length < RUN_LENGTHS_BITS[index];
            if none_yet {
                self.cursors[index] = word + 1;
            }
            if run.length >= wanted {
                return Some(run);
            }
            from = word + 1;
        }
        None
    }

    /// Takes members that follow one another out, a word at a time.
    fn remove_run(&mut self, run: Run) {
        debug_assert_eq!(bits::count_set(&self.words, run), run.length, "members of {run:?} are taken twice");
        let summary = &mut self.summary;
        bits::clear(&mut self.words, run, |word| summary[word / 64] &= !(1 << (word % 64)));
        self.count -= run.length;
    }

    fn remove(&mut self, bit: u64) {
        let word = (bit / 64) as usize;
        debug_assert!(bits::is_set(&self.words, bit), "block {bit} is taken twice");
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
        assert_eq!(set.take_run(8, 3), Some(Run::new(70, 3)));
        assert_eq!(set.take_lowest(), Some(5));
        assert_eq!(set.take_lowest(), Some(9_000));
        set.insert(1);
        assert_eq!(set.take_lowest(), Some(1));
        assert_eq!(set.take_run(4, 4), Some(Run::new(99_999, 1)));
        assert_eq!((set.take_lowest(), set.count()), (None, 0));
    }

    #[test]
    fn runs_cross_words_and_respect_most() {
        let mut set = Bitmap::new(1024);
        (0..1024).for_each(|bit| set.insert(bit));
        assert_eq!(set.take_run(256, 64), Some(Run::new(0, 256)));
        assert_eq!(set.take_run(600, 600), Some(Run::new(256, 600)));
        assert_eq!(set.take_run(600, 64), Some(Run::new(856, 168)));
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
            for (index, least) in RUN_LENGTHS_BITS.into_iter().enumerate() {
                let below = |run: &&(u64, u64)| run.1 >= least && run.0 < set.cursors[index] as u64 * 64;
                assert_eq!(before.iter().find(below), None, "of {least} members");
            }
            let enough = 1 + next(most);
            let Some(Run { start, length }) = set.take_run(most, enough) else {
                assert!(expected.is_empty());
                continue;
            };
            let longest = before.iter().map(|run| run.1).max().unwrap_or(0);
            let next_to_it =
                RUN_LENGTHS_BITS.into_iter().rfind(|length| *length <= longest.min(enough)).unwrap_or(1);
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
                    let run = set.take_run(4, 2).map_or(0..0, |run| run.start..run.end());
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
            set.take_run(most, enough).map(|run| (run.start, run.length))
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
        assert_eq!(set.take_run(2, 2), Some(Run::new(5, 1)), "no run in the first 64 words");
        assert_eq!(set.take_run(2, 2), Some(Run::new(127 * 64 + 5, 2)), "in the last of the next 64");
    }

    /// A search for a run that begins above finds none there, and the only member stays known.
    #[test]
    fn a_search_in_an_empty_part_forgets_no_lower_member() {
        let mut set = Bitmap::new(4 * 4096);
        [5, 2 * 4096, 2 * 4096 + 1].into_iter().for_each(|bit| set.insert(bit));
        assert!(set.take(2 * 4096) && set.take(2 * 4096 + 1));
        assert_eq!(set.take_run(2, 2), Some(Run::new(5, 1)));
    }

    /// Numbers below a bound, the same for the same seed.
    fn random(mut state: u64) -> impl FnMut(u64) -> u64 {
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        }
    }
}
