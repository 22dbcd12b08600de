//! Bounds on what one action may do: a mistake that spins is found, not waited for.
//!
//! Whatever waits in the engine passes a point (`terrace_runtime::interleave`) each time round; so many in one action
//! is a violation. Counted for the calling thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use terrace_runtime::interleave;

/// Times that operations of a device may be stalled in one action.
const MOST_STALLS: u64 = 2_000;
/// Rounds of emptying PM, and of waiting for others to do so, in one action.
const MOST_DRAIN_ROUNDS: u64 = 20_000;
/// Times that any other point may be passed in one action.
const MOST_TIMES: u64 = 200_000;

thread_local! {
    static PASSED: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// An action begins.
pub fn begin() {
    PASSED.with_borrow_mut(BTreeMap::clear);
}

/// A point is passed.
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

/// Only counts at points, where nothing else runs in the middle.
pub fn only_count() {
    begin();
    interleave::set_hook(Some(Rc::new(passed)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_spins_is_found() {
        only_count();
        let spin = || (0..u64::MAX).for_each(|_| interleave::point("device:stalled"));
        let found = crate::caught(spin);
        interleave::set_hook(None);
        assert!(found.is_err_and(|text| text.contains("does not end")));
        begin();
        (0..MOST_STALLS).for_each(|_| passed("device:stalled"));
        begin();
        (0..MOST_STALLS).for_each(|_| passed("device:stalled"));
    }
}
