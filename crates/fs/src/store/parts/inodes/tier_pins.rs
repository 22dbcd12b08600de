//! TODO header of store/parts/inodes/tier_pins.rs

use terrace_runtime::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

/// What is known of pins; volatile.
pub(crate) struct Pins {
    /// PM blocks marked as kept, as counted when victims were picked last, and those marked since.
    pub kept: AtomicU64,
    /// A pin was changed or taken away: marks are to be found anew.
    pub changed: AtomicBool,
    /// The policy does not look for victims before this moment, in monotonic nanoseconds.
    pub(crate) rest_until_ns: AtomicU64,
    /// Whether something may be pinned to a lower tier: not known, no, yes.
    pub(crate) below: AtomicU8,
}

pub(crate) const UNKNOWN: u8 = 0;

pub(crate) const NONE: u8 = 1;

pub(crate) const SOME: u8 = 2;

impl Pins {
    pub fn new() -> Pins {
        Pins {
            kept: AtomicU64::new(0),
            changed: AtomicBool::new(false),
            below: AtomicU8::new(UNKNOWN),
            rest_until_ns: AtomicU64::new(0),
        }
    }
}
