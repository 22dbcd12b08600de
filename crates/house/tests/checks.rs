//! The checks of the house over the sources of the whole workspace. A failure names the places to mend.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::sync::LazyLock;
use terrace_house::checks::{CHECKS, dead_limits};
use terrace_house::house::House;

static HOUSE: LazyLock<House> = LazyLock::new(|| House::read().expect("the sources can be parsed"));

#[track_caller]
fn judge(name: &str) {
    let check = CHECKS.iter().find(|check| check.name == name).expect("the check is listed");
    let verdict = check.judge(&HOUSE);
    verdict.hints.iter().for_each(|hint| println!("{hint}"));
    assert!(verdict.failures.is_empty(), "{}:\n{}", check.sentence, verdict.failures.join(""));
}

#[test]
fn cited_rules() {
    judge("cited_rules");
}

#[test]
fn arrows() {
    judge("arrows");
}

#[test]
fn circles() {
    judge("circles");
}

#[test]
fn sizes() {
    judge("sizes");
}

#[test]
fn words() {
    judge("words");
}

#[test]
fn names() {
    judge("names");
}

#[test]
fn unsafe_code() {
    judge("unsafe_code");
}

#[test]
fn asserts() {
    judge("asserts");
}

#[test]
fn widths() {
    judge("widths");
}

#[test]
fn limits_belong_to_figures() {
    let dead = dead_limits(&HOUSE);
    assert!(dead.is_empty(), "no figure has these limits of limits.toml any more: {dead:?}");
}
