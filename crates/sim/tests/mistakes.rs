//! The explorer finds every mistake of a list that was written before it (terrace_runtime::planted). Prints
//! the number of states until each finding.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::sync::atomic::{AtomicUsize, Ordering};
use terrace_format::map_kind::MapKind;
use terrace_runtime::planted::{MISTAKES, Mistake};
use terrace_runtime::sync::Mutex;
use terrace_sim::drivers::mistakes::{Budget, find, find_with_map};
use terrace_sim::drivers::run::Wrong;

/// `TERRACE_MISTAKE=name` searches for this mistake alone.
#[allow(clippy::disallowed_methods)]
fn only() -> Option<String> {
    std::env::var("TERRACE_MISTAKE").ok()
}

/// `TERRACE_PART=1/3` searches for every third mistake, beginning with the second; `make test` takes another third for each
/// commit.
#[allow(clippy::disallowed_methods)]
fn part() -> (usize, usize) {
    let part = std::env::var("TERRACE_PART").unwrap_or_else(|_| "0/1".into());
    let (first, step) = part.split_once('/').unwrap();
    (first.parse().unwrap(), step.parse().unwrap())
}

#[test]
fn every_planted_mistake_is_found() {
    let known = |only: &String| MISTAKES.iter().any(|(_, name, _)| name == only);
    assert!(only().is_none_or(|only| known(&only)), "no such mistake");
    let (first, step) = if only().is_some() { (0, 1) } else { part() };
    assert!(first < step, "no such part");
    let next = AtomicUsize::new(first);
    let missed = Mutex::new(Vec::new());
    let work = || {
        while let Some((mistake, name, _)) = MISTAKES.get(next.fetch_add(step, Ordering::Relaxed)) {
            if only().is_some_and(|only| only != *name) {
                continue;
            }
            let wrong = Wrong { mistake: Some(*mistake), ..Wrong::default() };
            match find(wrong, Budget { histories: 6, operations: 2000, singles: true }) {
                Some(found) => println!(
                    "{name}: {} states, {} operations: {} | {}",
                    found.states, found.operations, found.how, found.what
                ),
                None => {
                    println!("{name}: NOT FOUND");
                    missed.lock().push(*name);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    let missed = missed.into_inner();
    assert!(missed.is_empty(), "not found: {}", missed.join(", "));
}

/// The same search finds no violation in the unchanged engine. The test `systematic` explores single
/// operations more closely.
#[test]
fn no_violation_is_found_without_a_planted_mistake() {
    let found = find(Wrong::default(), Budget { histories: 1, operations: 2000, singles: false });
    assert!(found.is_none(), "{found:?}");
}

/// The search above ends with the map `hashfs-linear`.
#[test]
fn mistakes_of_maps_are_found_with_each_of_these_maps() {
    let budget = Budget { histories: 6, operations: 2000, singles: false };
    let find_one = |mistake, map| {
        let found = find_with_map(Wrong { mistake, ..Wrong::default() }, map, budget);
        println!("{mistake:?} {map:?}: {found:?}");
        found
    };
    for map in MapKind::ALL.iter().copied().filter(|map| map.has_reach()) {
        for mistake in
            [Mistake::PresenceBeforeCommit, Mistake::ProbeEndsAtFreeSlot, Mistake::ReachAfterInsert]
        {
            assert!(find_one(Some(mistake), map).is_some(), "{mistake:?} is not found with {map:?}");
        }
    }
    let found = find_one(None, MapKind::Clustered);
    assert!(found.is_none(), "{found:?}");
}
