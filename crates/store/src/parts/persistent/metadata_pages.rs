//! State of the demotion and fetching of metadata pages (design C1).

use crate::parts::mode::MetadataMoves;
use std::collections::VecDeque;
use std::sync::Arc;
use terrace_catalog::PageCopy;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// Catalog leaves that an open for writing fetches: the extents of a file of 200 MiB at least. Half a second
/// on a disk.
pub(crate) const MOST_LEAVES: u32 = 64;

/// An open fetches leaves only while metadata takes less of PM than a part in `METADATA_PM_DIVISOR`.
pub(crate) const METADATA_PM_DIVISOR: u64 = 4;

/// State of the demotion and fetching of metadata pages.
pub struct MetadataPages {
    /// Metadata pages can be demoted in this mount.
    pub possible: bool,
    /// Pages are demoted by policy; otherwise at most as many as were fetched, when a fetch finds no room in
    /// PM.
    pub allowed: bool,
    /// Pages are demoted as soon as they are unused, even while PM has room: for tests.
    pub eager: bool,
    /// Where the clock hand stands.
    pub hand: Mutex<Hand>,
    /// Page pins of all operations, and their limit.
    pins: AtomicU64,
    most_pins: u64,
    /// Since when data cannot be demoted although it should: nanoseconds plus one; 0 while it can.
    stuck_since_ns: AtomicU64,
    /// Leaves that opens fetched in this turn of the clock hand.
    pub brought: AtomicU64,
    /// Pages moved since mount.
    pub lowered: AtomicU64,
    /// Pages fetched since the mount.
    pub fetched: AtomicU64,
    /// Copies that readers made because PM had no room, the last ones.
    pub copies: Mutex<VecDeque<Arc<PageCopy>>>,
    /// Copies made since mount.
    pub copied: AtomicU64,
}

/// The clock hand over PM blocks.
#[derive(Default)]
pub struct Hand {
    /// The next block.
    pub next: u64,
    /// Metadata pages seen in this turn, in the turn before.
    pub seen: u64,
    /// Metadata pages seen in the turn before.
    pub last_turn: u64,
}

impl MetadataPages {
    /// `possible`: the pool has the feature and a device, and may be changed.
    pub fn new(possible: bool, moves: MetadataMoves, blocks: u64) -> MetadataPages {
        MetadataPages {
            possible,
            allowed: possible && moves != MetadataMoves::Never,
            eager: moves == MetadataMoves::Always,
            hand: Mutex::default(),
            pins: AtomicU64::new(0),
            most_pins: blocks / 4,
            stuck_since_ns: AtomicU64::new(0),
            brought: AtomicU64::new(0),
            lowered: AtomicU64::new(0),
            fetched: AtomicU64::new(0),
            copies: Mutex::default(),
            copied: AtomicU64::new(0),
        }
    }
}

impl MetadataPages {
    /// Notes whether the demotion of data is stuck. Returns for how many nanoseconds it has been.
    pub fn data_is_stuck_for(&self, is_stuck: bool, now_ns: u64) -> u64 {
        let before = self.stuck_since_ns.load(Ordering::Relaxed);
        let since = if before == 0 { now_ns + 1 } else { before };
        self.stuck_since_ns.store(if is_stuck { since } else { 0 }, Ordering::Relaxed);
        (now_ns + 1).saturating_sub(since)
    }

    /// Counts a pin of an operation; false when operations hold as many as they may.
    pub(crate) fn take_pin(&self) -> bool {
        if self.pins.load(Ordering::Relaxed) >= self.most_pins {
            return false;
        }
        self.pins.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Ends pins of an operation.
    pub(crate) fn give_pins(&self, count: usize) {
        let before = self.pins.fetch_sub(count as u64, Ordering::Relaxed);
        assert!(before >= count as u64, "{count} of {before} page pins end (P1)");
    }

    /// Pins that operations hold.
    pub fn held_pins(&self) -> u64 {
        self.pins.load(Ordering::Relaxed)
    }

    /// The number of copies kept for later readers, each with an I/O pin of its device location.
    pub fn kept_copies(&self) -> u64 {
        self.copies.lock().len() as u64
    }

    /// The number of pages that may be demoted now.
    pub fn may_move(&self) -> u64 {
        let (fetched, lowered) = (self.fetched.load(Ordering::Relaxed), self.lowered.load(Ordering::Relaxed));
        match (self.possible, self.allowed) {
            (false, _) => 0,
            (true, true) => u64::MAX,
            (true, false) => fetched.saturating_sub(lowered),
        }
    }
}
