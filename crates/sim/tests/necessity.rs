//! Every ordering point is needed by some history: left out, or a `persist` weakened to `order`, the explorer fails.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, clippy::disallowed_methods)]

use std::sync::atomic::{AtomicUsize, Ordering};
use terrace_runtime::sync::Mutex;
use terrace_sim::mistakes::Budget;
use terrace_sim::necessity::{changes, need, points};

#[test]
#[ignore = "runs for minutes; the report of docs/crash-consistency.md"]
fn every_ordering_point_is_needed() {
    let points = points();
    // `TERRACE_POINT=mkfs` looks at some.
    let only = std::env::var("TERRACE_POINT").unwrap_or_default();
    let points: Vec<_> = points.into_iter().filter(|point| point.to_string().contains(&only)).collect();
    let all: Vec<_> = points.iter().flat_map(|p| changes(*p).into_iter().map(|c| (*p, c))).collect();
    println!("{} ordering points", points.len());
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    let work = || {
        while let Some((point, change)) = all.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            let need = need(point, change, Budget { histories: 2, operations: 2000 });
            match need.found {
                Some(found) => {
                    println!("{point} {change:?}: {} states, {} | {}", found.states, found.how, found.what)
                }
                None => {
                    println!("{point} {change:?}: NOT NEEDED");
                    missed.lock().push(format!("{point} {change:?}"));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    let missed = missed.into_inner();
    assert!(missed.is_empty(), "nothing needs: {}", missed.join(", "));
}
