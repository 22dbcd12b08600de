//! Bounds on the work of one action, so that a mistake that loops for ever becomes a failure.
//!
//! A loop that waits in the engine passes an interleaving point (`terrace_runtime::interleave`) in each
//! round; too many passes in one action are a violation. The counts belong to the calling thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use terrace_runtime::interleave;

/// Stalled operations of a device in one action at most.
const MOST_STALLS: u64 = 2_000;
/// Rounds that empty PM, and rounds that wait for other threads to empty it, in one action at most.
const MOST_DRAIN_ROUNDS: u64 = 20_000;
/// Passes of any other interleaving point in one action at most.
const MOST_TIMES: u64 = 200_000;

thread_local! {
    static PASSED: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// Starts the counts of a new action.
pub fn begin() {
    PASSED.with_borrow_mut(BTreeMap::clear);
}

/// Counts a pass of an interleaving point.
pub fn passed(point: &'static str) {
    let count = PASSED.with_borrow_mut(|passed| {
        let count = passed.entry(point).or_default();
        *count += 1;
        *count
    });
    let most = match point {
        "device:stalled" => MOST_STALLS,
        "drain:between-rounds" | "migration:round" => MOST_DRAIN_ROUNDS,
        _ => MOST_TIMES,
    };
    if count > most {
        begin();
        panic!("{point} {count} times in one action: it does not end");
    }
}

/// Makes interleaving points count their passes and run no operations.
pub fn only_count() {
    begin();
    interleave::set_hook(Some(Rc::new(passed)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_loop_is_found() {
        only_count();
        let spin = || (0..u64::MAX).for_each(|_| interleave::point("device:stalled"));
        let found = crate::findings::caught(spin);
        interleave::set_hook(None);
        assert!(found.is_err_and(|text| text.contains("does not end")));
        begin();
        (0..MOST_STALLS).for_each(|_| passed("device:stalled"));
        begin();
        (0..MOST_STALLS).for_each(|_| passed("device:stalled"));
    }
}
