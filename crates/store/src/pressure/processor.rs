//! Background work offers the processor to requests.

use crate::store::Store;
use terrace_runtime::thread;

/// Background work is not urgent while the free PM blocks are at least `YIELD_ABOVE_THROTTLE_TIMES` times the throttle mark.
const YIELD_ABOVE_THROTTLE_TIMES: u64 = 5;

/// Offers the processor to other threads, unless free PM blocks, which this thread provides, run short: the
/// scheduler takes the rest of the time slice, so that a worker that always offers gets little time beside
/// busy request threads. No lock may be held.
pub fn offer_processor(store: &Store) {
    if is_at_ease(store) {
        thread::offer_processor();
    }
}

/// Whether PM has so much room that the work that frees PM blocks can go behind requests.
pub fn is_at_ease(store: &Store) -> bool {
    store.persistent.blocks().free_hint()
        >= store.pressure.throttle_below().saturating_mul(YIELD_ABOVE_THROTTLE_TIMES)
}
