//! The registry of checks, and their judgement by the limits.

use crate::figure::{Bound, Figure};
use crate::house::House;
use crate::limits::{Standing, rewritten};
use crate::{asserts, circles, floors, names, rules, sizes, unsafe_code, widths, words};
use std::collections::BTreeSet;

/// A check: its section in `limits.toml`, a sentence, and the function that measures.
pub struct Check {
    /// Section of the limits.
    pub name: &'static str,
    /// Its purpose.
    pub sentence: &'static str,
    measure: fn(&House) -> Vec<Figure>,
}

const fn check(name: &'static str, sentence: &'static str, measure: fn(&House) -> Vec<Figure>) -> Check {
    Check { name, sentence, measure }
}

/// All checks.
pub const CHECKS: [Check; 9] = [
    check("cited_rules", "cited rules exist, and rules are cited", rules::figures),
    check("arrows", "dependencies, imports and calls point down", floors::figures),
    check("circles", "files of a crate that need each other", circles::figures),
    check("sizes", "functions, files, structs and types above a size", sizes::figures),
    check(
        "words",
        "vague sentences; `cargo run -p terrace-house -- words FILE` lists those of a file",
        words::figures,
    ),
    check(
        "names",
        "vague names of tests; `cargo run -p terrace-house -- names FILE` lists those of a file",
        names::figures,
    ),
    check("unsafe_code", "unsafe where it may be, and explained", unsafe_code::figures),
    check("asserts", "asserts per 1,000 lines", asserts::figures),
    check("widths", "lines of prose above 130 characters", widths::figures),
];

/// Offenders that a failure shows.
const SHOWN: usize = 10;

/// The judgement of one check.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Figures beyond their limits, with the worst places.
    pub failures: Vec<String>,
    /// Limits that could be tightened.
    pub hints: Vec<String>,
}

impl Check {
    /// Measures the figures.
    pub fn figures(&self, house: &House) -> Vec<Figure> {
        (self.measure)(house)
    }

    /// Measures the figures and compares them with their limits.
    pub fn judge(&self, house: &House) -> Verdict {
        let mut verdict = Verdict::default();
        for figure in self.figures(house) {
            let limit = house.limits.limit(self.name, &figure.name);
            let side = if figure.bound == Bound::AtMost { "at most" } else { "at least" };
            let line = format!("{} {} is {}, limit {side} {limit}", self.name, figure.name, figure.value);
            match house.limits.standing(self.name, &figure) {
                Standing::Broken => verdict.failures.push(format!("{line}\n{}", worst(&figure, SHOWN))),
                Standing::Better => {
                    verdict.hints.push(format!("{line}: cargo run -p terrace-house -- tighten"))
                }
                Standing::Kept => {}
            }
        }
        verdict
    }
}

/// Limits that no figure has, because the crate or folder is gone.
pub fn dead_limits(house: &House) -> Vec<String> {
    let figures =
        CHECKS.iter().flat_map(|check| check.figures(house).into_iter().map(move |found| (check, found)));
    let alive: BTreeSet<String> =
        figures.map(|(check, found)| format!("{} {}", check.name, found.name)).collect();
    let limits = house.limits.checks.iter();
    let names =
        limits.flat_map(|(check, limits)| limits.keys().map(move |figure| format!("{check} {figure}")));
    names.filter(|name| !alive.contains(name)).collect()
}

/// The text of `limits.toml` with each limit that a figure betters set to the figure. No limit is loosened.
pub fn tightened(house: &House, text: &str) -> String {
    let is_better =
        |check: &Check, figure: &Figure| house.limits.standing(check.name, figure) == Standing::Better;
    let figures =
        CHECKS.iter().flat_map(|check| check.figures(house).into_iter().map(move |figure| (check, figure)));
    let better: Vec<(&Check, Figure)> = figures.filter(|(check, figure)| is_better(check, figure)).collect();
    rewritten(text, |check, name| {
        let found = better.iter().find(|(better, figure)| better.name == check && figure.name == name);
        found.map(|(_, figure)| figure.value)
    })
}

/// The worst places of a figure, one in a line.
pub fn worst(figure: &Figure, count: usize) -> String {
    let line = |(place, text): (&str, &str)| format!("    {place}: {text}\n");
    let offenders = figure.worst.iter().take(count).map(|offender| (&*offender.place, &*offender.text));
    offenders.map(line).collect()
}

/// Every figure with its limit, and the `count` worst places of each.
pub fn table(house: &House, count: usize) -> String {
    let mut table = String::new();
    for check in &CHECKS {
        table += &format!("{}: {}\n", check.name, check.sentence);
        for figure in check.figures(house) {
            let limit = house.limits.limit(check.name, &figure.name);
            let note = match house.limits.standing(check.name, &figure) {
                Standing::Broken => "BROKEN",
                Standing::Better => "could be tightened",
                Standing::Kept => "",
            };
            let is_idle = figure.value == 0.0 && limit == 0.0 && check.name == "circles";
            if !is_idle {
                table +=
                    format!("  {:<28}{:>8} limit {limit:>8} {note}", figure.name, figure.value).trim_end();
                table += "\n";
                table += &worst(&figure, count);
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;

    fn house(limits: &str) -> House {
        let page = format!("{}\n", "x".repeat(131));
        let mut house = House::fixture(&[("docs/a.md", &page)], "");
        house.limits = Limits::parse(limits).expect("it is sound");
        house
    }

    fn judge(limits: &str) -> Verdict {
        CHECKS.iter().find(|check| check.name == "widths").expect("it is listed").judge(&house(limits))
    }

    #[test]
    fn a_figure_beyond_its_limit_names_the_place() {
        let failures = judge("").failures;
        assert_eq!(failures, ["widths docs is 1, limit at most 0\n    docs/a.md:1: 131 characters\n"]);
    }

    #[test]
    fn a_loose_limit_is_a_hint_and_a_dead_one_is_found() {
        let verdict = judge("[widths]\ndocs = 2");
        assert_eq!((verdict.failures.len(), verdict.hints.len()), (0, 1));
        assert_eq!(dead_limits(&house("[widths]\ndocs = 2\ncellar = 1")), ["widths cellar"]);
    }

    #[test]
    fn limits_are_tightened_and_never_loosened() {
        let tightened = |limits: &str| tightened(&house(limits), limits);
        assert_eq!(tightened("[widths]\ndocs = 2\n"), "[widths]\ndocs = 1\n");
        assert_eq!(tightened("[widths]\ndocs = 0\n"), "[widths]\ndocs = 0\n");
    }
}
