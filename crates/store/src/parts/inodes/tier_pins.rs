//! Volatile knowledge of tier pins.

use terrace_runtime::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

/// The volatile knowledge of tier pins.
pub struct Pins {
    /// PM blocks marked as pinned: as counted when victims were picked last, and marked since.
    pub kept: AtomicU64,
    /// A pin was changed or taken away: marks are to be found anew.
    pub changed: AtomicBool,
    /// The policy does not look for victims before this moment, in monotonic nanoseconds.
    pub rest_until_ns: AtomicU64,
    /// Whether a file may be pinned to a lower tier: not known, no, yes.
    pub below: AtomicU8,
}

pub(crate) const UNKNOWN: u8 = 0;

/// No file is pinned to a lower tier.
pub const NONE: u8 = 1;

/// Files may be pinned to lower tiers.
pub const SOME: u8 = 2;

impl Pins {
    /// Nothing is known.
    pub(crate) fn new() -> Pins {
        Pins {
            kept: AtomicU64::new(0),
            changed: AtomicBool::new(false),
            below: AtomicU8::new(UNKNOWN),
            rest_until_ns: AtomicU64::new(0),
        }
    }
}
