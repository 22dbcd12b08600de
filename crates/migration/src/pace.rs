//! The pace at which PM fills, and the view that the policy gets of PM.

use crate::migration::Migration;
use std::time::Duration;
use terrace_placement::Observation;
use terrace_runtime::sync::atomic::Ordering;
use terrace_store::steering::learn::with_flows;

/// How often the policy is asked ([AC-BPFS] section 3.1).
pub const POLL: Duration = Duration::from_millis(10);

/// Pause after a failure.
pub(crate) const BACK_OFF: Duration = Duration::from_secs(1);

/// How far ahead the policy sees: what a group takes on a slow disk.
const AHEAD: Duration = Duration::from_millis(100);

/// How fast use of PM grows.
#[derive(Default)]
pub struct Pace {
    /// When and how many blocks had come into PM, when last looked at.
    last: Option<(u64, u64)>,
    /// Negative while more is removed than comes. Without the sign files that come and go would be a stream that goes on.
    blocks_per_s: i64,
}

impl Pace {
    /// Takes notice of how many blocks have come into PM until now, those that left again included, promoted ones not.
    fn observe(&mut self, now_ns: u64, come: u64) {
        let (begin_ns, before) = *self.last.get_or_insert((now_ns, come));
        let passed_ns = now_ns.saturating_sub(begin_ns);
        if passed_ns < POLL.as_nanos() as u64 / 2 {
            return;
        }
        let grown = (i128::from(come) - i128::from(before)) * 1_000_000_000 / i128::from(passed_ns);
        // Three quarters of the past: neither does one pause end a stream nor one burst make one.
        let pace = (3 * i128::from(self.blocks_per_s) + grown) / 4;
        self.blocks_per_s = i64::try_from(pace).unwrap_or_default();
        self.last = Some((now_ns, come));
    }
}

/// What the policy sees.
pub fn observe(migration: &Migration) -> Observation {
    let usage = migration.store.persistent.blocks().usage();
    // Victims already taken will be free soon.
    let leaving = migration.store.pressure.in_flight();
    let free = usage.free + usage.quarantined + usage.unknown + leaving;
    let mut pace = migration.pace.lock();
    // Until the table was read, what is found in it is not growth.
    if usage.unknown == 0 {
        let there = usage.total - usage.free - usage.quarantined;
        // What is promoted is no arrival: it stops by itself when room gets short, and must push nothing out.
        let left = migration.store.pressure.moved().left.load(Ordering::Relaxed);
        let promoted = migration.store.pressure.moved().promoted.load(Ordering::Relaxed);
        let come = (there + left).saturating_sub(promoted);
        pace.observe(migration.store.clock.monotonic_ns(), come);
    }
    let arriving_blocks = pace.blocks_per_s.max(0) as u64 * AHEAD.as_millis() as u64 / 1000;
    let (total_blocks, free_blocks) = (usage.total, free.min(usage.total));
    with_flows(
        &migration.store,
        Observation { total_blocks, free_blocks, arriving_blocks, ..Observation::default() },
    )
}
