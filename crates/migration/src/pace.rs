//! The pace at which PM fills.

use std::time::Duration;

/// The time between two questions to the policy ([AC-BPFS] section 3.1).
pub const POLL: Duration = Duration::from_millis(10);

/// Pause after a failure.
pub(crate) const BACK_OFF: Duration = Duration::from_secs(1);

/// The growth of PM use.
#[derive(Default)]
pub struct Pace {
    /// Time and number of blocks that had come into PM at the last look.
    last: Option<(u64, u64)>,
    /// Negative while more is removed than written: otherwise files written and soon removed would count as a
    /// lasting stream.
    blocks_per_s: i64,
}

impl Pace {
    /// Notes the number of blocks that have come into PM so far, removed ones included, promoted ones not.
    pub(crate) fn observe(&mut self, now_ns: u64, come: u64) {
        let (begin_ns, before) = *self.last.get_or_insert((now_ns, come));
        let passed_ns = now_ns.saturating_sub(begin_ns);
        if passed_ns < POLL.as_nanos() as u64 / 2 {
            return;
        }
        let grown = (i128::from(come) - i128::from(before)) * 1_000_000_000 / i128::from(passed_ns);
        // Three quarters of the past count: a pause does not end a stream, and a burst does not make one.
        let pace = (3 * i128::from(self.blocks_per_s) + grown) / 4;
        self.blocks_per_s = i64::try_from(pace).unwrap_or_default();
        self.last = Some((now_ns, come));
    }

    /// Blocks that are expected to come into PM within a time.
    pub(crate) fn arriving_blocks(&self, within: Duration) -> u64 {
        self.blocks_per_s.max(0) as u64 * within.as_millis() as u64 / 1000
    }
}
