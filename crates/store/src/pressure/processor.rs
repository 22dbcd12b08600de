//! Background work offers the processor to requests.

use crate::store::Store;
use terrace_runtime::thread;

/// With so many times as many free blocks as those below which writers are slowed, nothing is urgent.
const AT_EASE: u64 = 5;

/// Lets others have the processor, unless PM gets short of what this thread makes: the scheduler takes an offer for the
/// rest of a time slice, so that beside busy request threads a worker that always offers gets little of it. No lock
/// may be held.
pub fn offer_processor(store: &Store) {
    if is_at_ease(store) {
        thread::offer_processor();
    }
}

/// Whether PM has room enough for work that makes more to take second place.
pub fn is_at_ease(store: &Store) -> bool {
    store.persistent.blocks().free_hint() >= store.pressure.throttle_below().saturating_mul(AT_EASE)
}
