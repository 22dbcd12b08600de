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

/// The fuzz targets are a workspace of their own: a new dependency between crates must reach its lock file too, else
/// they no longer build.
#[test]
fn lock_file_of_the_fuzz_targets_is_current() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cargo = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version", "1", "--manifest-path", "fuzz/Cargo.toml"])
        .current_dir(root)
        .output()
        .expect("cargo runs");
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
}
