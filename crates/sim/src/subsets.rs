//! The choice of crash images of a moment.
//!
//! A moment with up to eight undecided lines gets all subsets: each line old or newest, or in any of its
//! states if the states are no more. A moment with more lines gets samples that favour known ways of losing
//! data (the traps in regression tests of PM file systems): no line or every line (a missing last flush or
//! fence), a single line (a commit mark before its data, a record that outruns its predecessors), every line
//! except one (an edge line that was not written back, one replica of two), prefixes and suffixes in the
//! order of the stores (log entries out of order), and random choices.

use terrace_media::pm::CrashSnapshot;

/// Random numbers for choices: splitmix64.
pub struct Random(pub u64);

impl Random {
    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }
}

/// The states of the undecided lines of one image.
pub type Choice = Vec<usize>;
/// The newest state of a line.
pub const NEWEST: usize = usize::MAX;

/// All subsets, if the lines are few.
pub fn all_subsets(pm: &CrashSnapshot, lines: u32) -> Option<Vec<Choice>> {
    let bound = 1usize << lines;
    let radixes: Vec<usize> = pm.pending.iter().map(|line| line.state_count()).collect();
    let mixed = radixes.iter().try_fold(1usize, |n, radix| n.checked_mul(*radix).filter(|n| *n <= bound));
    if mixed.is_none() && radixes.len() > lines as usize {
        return None;
    }
    let radix = |line: usize| if mixed.is_some() { radixes[line] } else { 2 };
    let count: usize = (0..radixes.len()).map(radix).product();
    let choice = |mut number: usize| {
        let digits = (0..radixes.len()).map(|line| {
            let digit = number % radix(line);
            number /= radix(line);
            if mixed.is_none() && digit == 1 { NEWEST } else { digit }
        });
        digits.collect()
    };
    Some((0..count).map(choice).collect())
}

/// A sample of choices, for moments with many lines.
pub fn some_subsets(pm: &CrashSnapshot, samples: usize, seed: u64) -> Vec<Choice> {
    let lines = pm.pending.len();
    let mut by_age: Vec<usize> = (0..lines).collect();
    by_age.sort_by_key(|line| pm.pending[*line].first_event());
    let mut choices = vec![vec![0; lines], vec![NEWEST; lines]];
    let mut random = Random(seed);
    let each = (samples / 6).clamp(1, lines);
    for turn in 0..each {
        // A random place in each part of the lines.
        let at = (turn * lines + random.below(lines)) / each;
        let with = |kept: &dyn Fn(usize) -> bool| {
            let mut choice = vec![0; lines];
            (0..lines).filter(|rank| kept(*rank)).for_each(|rank| choice[by_age[rank]] = NEWEST);
            choice
        };
        choices.push(with(&|rank| rank == at));
        choices.push(with(&|rank| rank != at));
        choices.push(with(&|rank| rank < at));
        choices.push(with(&|rank| rank >= at));
    }
    choices.extend((0..samples.saturating_sub(4 * each)).map(|_| any_states(pm, &mut random)));
    choices
}

/// A random choice: each line in any state, or old or newest with a bias that belongs to the image.
pub fn any_states(pm: &CrashSnapshot, random: &mut Random) -> Choice {
    let (torn, kept) = (random.below(2) == 1, random.below(9));
    let state = |count: usize, random: &mut Random| match torn && random.below(2) == 0 {
        true => random.below(count),
        false if random.below(8) < kept => NEWEST,
        false => 0,
    };
    pm.pending.iter().map(|line| state(line.state_count(), random)).collect()
}
