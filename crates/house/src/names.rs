//! Names of tests. A name with an indefinite word (`what_is_held_goes_with_its_holder`) is no title: the word stands
//! where a subject belongs.
//!
//! The list is shorter than that of [`crate::words`]: `it`, `one` or `all` may follow a subject. Share of such names
//! among the tests inside `src` of commit 01880eb and of redb, in percent; redb has a newer version here.
//!
//! | | independent script | this file |
//! |---|---|---|
//! | engine, 12 crates | 31 | 30.6 |
//! | `fs` alone | 48 | 51.6 |
//! | redb (4.6.0 here) | 0 | 2.1 |

use crate::facts::Facts;
use crate::figure::{Figure, Offender};
use crate::house::House;
use crate::words::{OPENINGS, percent};
use std::collections::BTreeMap;

/// Words that make a name vague.
const INDEFINITE: [&str; 16] = [
    "what",
    "who",
    "whom",
    "whose",
    "which",
    "that",
    "those",
    "they",
    "them",
    "their",
    "others",
    "nothing",
    "something",
    "anything",
    "everything",
    "none",
];

/// For each group the share of names with an indefinite word, and the number of names with a wrong first word.
pub(crate) fn figures(house: &House) -> Vec<Figure> {
    let mut groups: BTreeMap<&str, Names> = BTreeMap::new();
    for file in &house.files {
        groups.entry(house.group(&file.source)).or_default().add(&file.source.path, &file.facts);
    }
    let figures = |(group, names): (&str, Names)| {
        let share = percent(names.vague.len(), names.all);
        let (vague, openings) = (names.vague, names.openings);
        [
            Figure::at_most(format!("{group}_percent"), share, vague),
            Figure::count(format!("{group}_openings"), openings),
        ]
    };
    groups.into_iter().flat_map(figures).collect()
}

/// Names of tests in some files.
#[derive(Default)]
pub(crate) struct Names {
    /// The number of all tests.
    pub all: usize,
    /// Names with an indefinite word.
    pub vague: Vec<Offender>,
    /// Names that begin with `what`, `who`, `those` or `one`.
    pub openings: Vec<Offender>,
}

impl Names {
    /// Adds the tests of a file.
    pub fn add(&mut self, path: &str, facts: &Facts) {
        self.all += facts.tests.len();
        let is_vague = |name: &str| name.split('_').any(|word| INDEFINITE.contains(&word));
        let is_opening = |name: &str| name.split('_').next().is_some_and(|word| OPENINGS.contains(&word));
        for (line, name) in &facts.tests {
            let offender = || Offender::new(path, *line, name);
            self.vague.extend(is_vague(name).then(offender));
            self.openings.extend(is_opening(name).then(offender));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vague_names_are_counted() {
        let text = "#[test]\nfn what_is_held_goes() {}\n#[test]\nfn a_block_moves() {}\n#[test]\nfn nothing_else() {}\n#[test]\nfn spill_skips_files() {}";
        let figures = figures(&House::fixture(&[("crates/a/tests/b.rs", text)], ""));
        assert_eq!((figures[0].name.as_str(), figures[0].value), ("tests_percent", 50.0));
        assert_eq!((figures[1].name.as_str(), figures[1].value), ("tests_openings", 1.0));
        assert_eq!(figures[1].worst, [Offender::new("crates/a/tests/b.rs", 2, "what_is_held_goes")]);
    }
}
