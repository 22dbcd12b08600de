//! Runs of equal bits in words. Free PM blocks ([`crate::bitmap`], a set bit is a free block) and the chunks of lower
//! tiers (terrace-space, a clear bit is a free block) are searched by this code.
//!
//! Bit `b` is bit `b % 64` of word `b / 64`. Invariant: a bit past the last word is neither set nor clear. A run ends
//! there, a count leaves it out, and a change does nothing to it. `SET` chooses runs of set bits or of clear bits.

/// Bits that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Run {
    /// The first bit.
    pub start: u64,
    /// Bits.
    pub length: u64,
}

impl Run {
    /// A run of `length` bits from `start` on.
    #[inline]
    pub const fn new(start: u64, length: u64) -> Run {
        Run { start, length }
    }

    /// The bit behind the last bit.
    #[inline]
    pub const fn end(self) -> u64 {
        self.start.saturating_add(self.length)
    }
}

/// The words that a run touches, each with the mask of its bits in it.
#[inline]
fn masks(run: Run) -> impl Iterator<Item = (usize, u64)> {
    let (mut at, end) = (run.start, run.end());
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let count = (64 - at % 64).min(end - at);
        let found = ((at / 64) as usize, (u64::MAX >> (64 - count)) << (at % 64));
        at += count;
        Some(found)
    })
}

/// Sets the bits of a run.
#[inline]
pub fn set(words: &mut [u64], run: Run) {
    for (index, mask) in masks(run) {
        let Some(word) = words.get_mut(index) else { return };
        *word |= mask;
    }
}

/// Clears the bits of a run, and calls `emptied` with each word of it that has no set bit then.
#[inline]
pub fn clear(words: &mut [u64], run: Run, mut emptied: impl FnMut(usize)) {
    for (index, mask) in masks(run) {
        let Some(word) = words.get_mut(index) else { return };
        *word &= !mask;
        if *word == 0 {
            emptied(index);
        }
    }
}

/// Whether a bit is set.
#[inline]
pub fn is_set(words: &[u64], bit: u64) -> bool {
    words.get((bit / 64) as usize).is_some_and(|word| word >> (bit % 64) & 1 == 1)
}

/// The set bits in a run.
#[inline]
pub fn count_set(words: &[u64], run: Run) -> u64 {
    let found = masks(run).map_while(|(index, mask)| words.get(index).map(|word| word & mask));
    found.map(|bits| u64::from(bits.count_ones())).sum()
}

/// A word in which the bits that are looked for are 1.
#[inline]
const fn wanted<const SET: bool>(word: u64) -> u64 {
    if SET { word } else { !word }
}

/// Set bits, or clear bits, that follow each other from a bit of a word on.
#[inline]
const fn equal_from(word: u64, at: u64, set: bool) -> u64 {
    let rest = word >> at;
    if set {
        return rest.trailing_ones() as u64;
    }
    let (clear, most) = (rest.trailing_zeros() as u64, 64 - at);
    if clear < most { clear } else { most }
}

/// Length of the run that begins at a bit, 0 where the bit is of the other kind.
#[inline]
pub fn length_from<const SET: bool>(words: &[u64], bit: u64) -> u64 {
    let mut end = bit;
    while let Some(word) = words.get((end / 64) as usize) {
        let (at, found) = (end % 64, equal_from(*word, end % 64, SET));
        end += found;
        if at + found < 64 {
            break;
        }
    }
    end - bit
}

/// Length of the run that begins at the first bit of a word. The count may stop at `enough`.
#[inline]
fn length_from_word<const SET: bool>(words: &[u64], mut index: usize, enough: u64) -> u64 {
    let mut length = 0;
    while length < enough
        && let Some(word) = words.get(index)
    {
        let found = equal_from(*word, 0, SET);
        length += found;
        if found < 64 {
            break;
        }
        index += 1;
    }
    length
}

/// Length of the run that ends before a bit.
#[inline]
pub fn length_before<const SET: bool>(words: &[u64], bit: u64) -> u64 {
    let mut start = bit;
    while start > 0 {
        let (index, bits) = ((start - 1) / 64, (start - 1) % 64 + 1);
        let word = words.get(index as usize).map_or(0, |word| wanted::<SET>(*word));
        let found = u64::from((word << (64 - bits)).leading_ones());
        start -= found;
        if found < bits {
            break;
        }
    }
    bit - start
}

/// The run that a bit of the kind lies in, as far as it reaches into the words beside. Without a loop: each free of a PM
/// block asks for it.
#[inline]
pub fn run_near<const SET: bool>(words: &[u64], bit: u64) -> Run {
    let (index, at) = ((bit / 64) as usize, bit % 64);
    let word_at = |index: usize| words.get(index).map_or(0, |word| wanted::<SET>(*word));
    let word = word_at(index);
    let mut behind = u64::from((word >> at).trailing_ones());
    if at + behind == 64 {
        behind += u64::from(word_at(index + 1).trailing_ones());
    }
    let mut before = u64::from((word << (63 - at)).leading_ones().saturating_sub(1));
    if before == at && index > 0 {
        before += u64::from(word_at(index - 1).leading_ones());
    }
    Run::new(bit - before, before + behind)
}

/// The longest run that starts in the word of `start`, a bit of the kind, at `start` or later (it may reach into later
/// words), the first of several; no longer than `most`.
#[inline]
pub fn longest_in_word<const SET: bool>(words: &[u64], start: u64, most: u64) -> Run {
    let word = (start / 64) as usize;
    let members = words.get(word).map_or(0, |word| wanted::<SET>(*word)) & (u64::MAX << (start % 64));
    let first = u64::from((members >> (start % 64)).trailing_ones());
    if first >= most {
        return Run::new(start, most);
    }
    if start % 64 + first == 64 {
        return Run::new(start, (first + length_from_word::<SET>(words, word + 1, most - first)).min(most));
    }
    // Bits at which `length` members begin, for one length after the other: holes are many and runs short where this
    // takes time.
    let (mut begins, mut left, mut length) = (members, members, 0);
    while left != 0 && length < most {
        begins = left;
        length += 1;
        left &= left >> 1;
    }
    let last = u64::from(members.leading_ones());
    if last > 0 && length < most {
        let run = (last + length_from_word::<SET>(words, word + 1, most.saturating_sub(last))).min(most);
        if run > length {
            return Run::new(word as u64 * 64 + 64 - last, run);
        }
    }
    Run::new(word as u64 * 64 + u64::from(begins.trailing_zeros()), length)
}

/// The first run of at least `enough`, else the first of the longest. The count of the first may stop at `enough`.
#[inline]
pub fn first_or_longest<const SET: bool>(words: &[u64], enough: u64) -> Run {
    let (mut best, mut run) = (Run::default(), Run::default());
    for (index, word) in words.iter().enumerate() {
        let (base, mut bit) = (index as u64 * 64, 0);
        while bit < 64 {
            let found = equal_from(*word, bit, SET);
            if run.length == 0 {
                run.start = base + bit;
            }
            run.length += found;
            bit += found;
            if run.length > best.length {
                best = run;
                if run.length >= enough {
                    return best;
                }
            }
            if bit < 64 {
                run.length = 0;
                bit += equal_from(*word, bit, !SET);
            }
        }
    }
    best
}

/// The runs, ascending.
#[inline]
pub fn runs<const SET: bool>(words: &[u64]) -> impl Iterator<Item = Run> {
    let end = words.len() as u64 * 64;
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < end {
            let word = words.get((at / 64) as usize).copied().unwrap_or_default();
            let between = equal_from(word, at % 64, !SET);
            at += between;
            if between == 0 || !at.is_multiple_of(64) {
                let run = Run::new(at, length_from::<SET>(words, at));
                at = run.end();
                return Some(run);
            }
        }
        None
    })
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    /// Numbers at random, the same in each run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % end
        }
    }

    /// Bits in random runs, so that runs lie within words, across words, and over whole words.
    fn random_bits(numbers: &mut Numbers, count: usize) -> Vec<bool> {
        let most = [2, 9, 70, 200][numbers.below(4) as usize];
        let mut bits = Vec::new();
        while bits.len() < count {
            let (value, length) = (numbers.below(2) == 0, 1 + numbers.below(most));
            bits.extend(std::iter::repeat_n(value, length as usize));
        }
        bits.truncate(count);
        bits
    }

    fn words_of(bits: &[bool]) -> Vec<u64> {
        let word = |bits: &[bool]| (0..64).fold(0, |word, bit| word | u64::from(bits[bit]) << bit);
        bits.chunks(64).map(word).collect()
    }

    fn plain_runs(bits: &[bool], kind: bool) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (bit, value) in (0u64..).zip(bits) {
            match runs.last_mut() {
                _ if *value != kind => {}
                Some(run) if run.end() == bit => run.length += 1,
                _ => runs.push(Run::new(bit, 1)),
            }
        }
        runs
    }

    /// The first run of at least `enough`, else the first of the longest.
    fn plain_longest(runs: &[Run], enough: u64) -> Run {
        let longest = runs.iter().copied().rev().max_by_key(|run| run.length).unwrap_or_default();
        runs.iter().copied().find(|run| run.length >= enough).unwrap_or(longest)
    }

    fn compare_runs<const SET: bool>(bits: &[bool], words: &[u64], turn: u64) {
        let plain = plain_runs(bits, SET);
        assert_eq!(runs::<SET>(words).collect::<Vec<_>>(), plain, "{turn}");
        for enough in [1, 2, 5, 64, 65, 128, u64::MAX] {
            let (found, expected) = (first_or_longest::<SET>(words, enough), plain_longest(&plain, enough));
            assert_eq!(found.start, expected.start, "{turn}, {enough}");
            assert!(found.length == expected.length || (enough..expected.length).contains(&found.length));
        }
        for start in (0..bits.len()).filter(|bit| bits[*bit] == SET) {
            let word_end = start as u64 / 64 * 64 + 64;
            let cut =
                |run: &Run| Run::new(run.start.max(start as u64), run.end() - run.start.max(start as u64));
            let inside = |run: &&Run| run.end() > start as u64 && run.start < word_end;
            let candidates: Vec<Run> = plain.iter().filter(inside).map(cut).collect();
            for most in [1, 3, 64, 70, 1000] {
                let of = |run: &Run| Run::new(run.start, run.length.min(most));
                let candidates: Vec<Run> = candidates.iter().map(of).collect();
                let expected = plain_longest(&candidates, u64::MAX);
                assert_eq!(
                    longest_in_word::<SET>(words, start as u64, most),
                    expected,
                    "{turn}, {start}, {most}"
                );
            }
        }
    }

    fn compare_around<const SET: bool>(bits: &[bool], words: &[u64], run: Run) {
        let (from, end) = (run.start as usize, run.end() as usize);
        let before = bits[..from].iter().rev().take_while(|bit| **bit == SET).count() as u64;
        let behind = bits[end..].iter().take_while(|bit| **bit == SET).count() as u64;
        assert_eq!(length_before::<SET>(words, run.start), before);
        assert_eq!(length_from::<SET>(words, run.end()), behind);
        if bits.get(from) == Some(&SET) {
            let all =
                plain_runs(bits, SET).into_iter().find(|all| all.start <= run.start && run.start < all.end());
            let all = all.unwrap_or_default();
            let first = (run.start / 64 * 64).saturating_sub(64);
            let end = all.end().min(run.start / 64 * 64 + 128);
            let start = all.start.max(first);
            assert_eq!(run_near::<SET>(words, run.start), Run::new(start, end - start));
        }
    }

    #[test]
    fn words_are_looked_at_as_a_list_of_bits_would_be() {
        let mut numbers = Numbers(1);
        for turn in 0..600 {
            let count = 64 * (1 + numbers.below(5));
            let bits = random_bits(&mut numbers, count as usize);
            let words = words_of(&bits);
            compare_runs::<true>(&bits, &words, turn);
            compare_runs::<false>(&bits, &words, turn);
            let start = numbers.below(count);
            let run = Run::new(start, numbers.below(count - start + 1));
            let (from, end) = (run.start as usize, run.end() as usize);
            let inside = bits[from..end].iter().filter(|bit| **bit).count() as u64;
            assert_eq!(count_set(&words, run), inside);
            assert!((0..count).all(|bit| is_set(&words, bit) == bits[bit as usize]));
            compare_around::<true>(&bits, &words, run);
            compare_around::<false>(&bits, &words, run);
            let (mut changed, mut plain) = (words.clone(), bits.clone());
            set(&mut changed, run);
            plain[from..end].fill(true);
            assert_eq!(changed, words_of(&plain), "{run:?}");
            let mut emptied = Vec::new();
            clear(&mut changed, run, |word| emptied.push(word));
            plain[from..end].fill(false);
            assert_eq!(changed, words_of(&plain), "{run:?}");
            let touched = (from / 64..end.div_ceil(64)).filter(|word| run.length > 0 && changed[*word] == 0);
            assert_eq!(emptied, touched.collect::<Vec<_>>());
        }
    }

    #[test]
    fn bits_past_the_end_of_a_bitmap_are_neither_set_nor_clear() {
        let words = vec![0; 2];
        assert_eq!(count_set(&words, Run::new(120, 20)), 0);
        assert_eq!((length_before::<false>(&words, 200), length_from::<false>(&words, 128)), (0, 0));
        assert_eq!((length_before::<true>(&words, 200), length_from::<true>(&words, 128)), (0, 0));
        let mut words = vec![0; 2];
        set(&mut words, Run::new(120, u64::MAX));
        assert_eq!(words, [0, 0xff << 56]);
        assert!(is_set(&words, 120) && !is_set(&words, 128));
    }

    #[test]
    fn holes_and_set_bits_are_counted_around_word_borders() {
        let mut words = vec![u64::MAX; 4];
        assert_eq!(first_or_longest::<false>(&words, 1), Run::new(0, 0));
        clear(&mut words, Run::new(60, 70), |_| ());
        for at in [60, 63, 64, 65, 128, 129, 130] {
            let found = (length_before::<false>(&words, at), length_from::<false>(&words, at));
            assert_eq!(found, (at - 60, 130 - at), "{at}");
        }
        assert_eq!((count_set(&words, Run::new(50, 20)), count_set(&words, Run::new(0, 256))), (10, 186));
        clear(&mut words, Run::new(200, 3), |_| ());
        assert_eq!(first_or_longest::<false>(&words, u64::MAX), Run::new(60, 70));
        assert_eq!(first_or_longest::<false>(&words, 2), Run::new(60, 4));
        set(&mut words, Run::new(64, 64));
        assert_eq!(first_or_longest::<false>(&words, 3), Run::new(60, 4));
        assert_eq!(first_or_longest::<false>(&words, 5), Run::new(60, 4));
        clear(&mut words, Run::new(0, 256), |_| ());
        assert_eq!(first_or_longest::<false>(&words, u64::MAX), Run::new(0, 256));
        assert_eq!(runs::<false>(&words).collect::<Vec<_>>(), [Run::new(0, 256)]);
    }
}
