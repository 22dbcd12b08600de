//! Every kind of medium error at the accesses of every operation (see terrace_sim::drivers::faults).
//!
//! `TERRACE_ACT=name cargo test -p terrace-sim --test faults` takes the acts whose names contain `name`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, clippy::disallowed_methods)]

use std::sync::atomic::{AtomicUsize, Ordering};
use terrace_runtime::sync::Mutex;
use terrace_sim::drivers::acts::Act;
use terrace_sim::drivers::faults::acts::{acts, acts_upon_waiting};
use terrace_sim::drivers::faults::kinds::{KINDS, Kind, Tried};
use terrace_sim::drivers::faults::{explore, explore_mount, explore_waiting};
use terrace_sim::drivers::run::Wrong;

/// The work that meets the error: an act, or the mount (`None`).
type Case<'a> = (Option<&'a Act>, Kind);

#[test]
fn every_error_at_every_access() {
    let wanted = std::env::var("TERRACE_ACT").unwrap_or_default();
    let acts: Vec<Act> = acts().into_iter().filter(|act| act.name.contains(&wanted)).collect();
    assert!(!acts.is_empty(), "no act is called so: {wanted}");
    let mounts = KINDS.into_iter().filter(|_| wanted.is_empty()).map(|kind| (None, kind));
    let of_acts = |act| KINDS.map(|kind| (Some(act), kind));
    let all: Vec<Case<'_>> = acts.iter().flat_map(of_acts).chain(mounts).collect();
    let next = AtomicUsize::new(0);
    let (total, failed) = (Mutex::new([Tried::default(); KINDS.len()]), Mutex::new(Vec::new()));
    let work = || {
        while let Some((act, kind)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let explored =
                act.map_or_else(|| explore_mount(*kind), |act| explore(act, *kind, Wrong::default()));
            match explored {
                Ok(tried) => {
                    let index = KINDS.iter().position(|other| other == kind).unwrap();
                    total.lock()[index] += tried;
                }
                Err(error) => failed.lock().push(error),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    let (total, failed) = (total.into_inner(), failed.into_inner());
    let mut sum = Tried::default();
    for (kind, tried) in KINDS.iter().zip(total) {
        println!("{kind:?}: {tried:?}");
        sum += tried;
    }
    println!("{sum:?}");
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), all.len(), failed.join("\n"));
    if wanted.is_empty() {
        let idle: Vec<&Kind> =
            KINDS.iter().zip(total).filter(|(_, t)| t.struck == 0).map(|(k, _)| k).collect();
        assert!(idle.is_empty(), "never met: {idle:?}");
        assert!(sum.failed > 0 && sum.stopped > 0 && sum.amid_stall > 0 && sum.damaged > 0, "{sum:?}");
    }
}

/// The same while writes wait in DRAM: acts that make the writes durable, and operations after the writes.
#[test]
fn every_error_while_writes_wait_in_dram() {
    let acts = acts_upon_waiting();
    let kinds = KINDS.into_iter().filter(|kind| *kind != Kind::Lies);
    let all: Vec<(&Act, Kind)> = kinds.flat_map(|kind| acts.iter().map(move |act| (act, kind))).collect();
    let next = AtomicUsize::new(0);
    let (total, failed) = (Mutex::new(Tried::default()), Mutex::new(Vec::new()));
    let work = || {
        while let Some((act, kind)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            match explore_waiting(act, *kind, Wrong::default()) {
                Ok(tried) => *total.lock() += tried,
                Err(error) => failed.lock().push(error),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    let (total, failed) = (total.into_inner(), failed.into_inner());
    println!("{total:?}");
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), all.len(), failed.join("\n"));
    assert!(total.not_durable > 0 && total.stopped > 0 && total.amid_stall > 0, "{total:?}");
}
