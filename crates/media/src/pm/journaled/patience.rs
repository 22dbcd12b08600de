//! Attempts after an error of the journal device (J12): a cable, a controller or a network below may come back.

use super::log::Log;
use crate::MediaError;
use std::time::Duration;
use terrace_runtime::Clock;

/// Attempts go on so long after the first error.
const LONGEST: Duration = Duration::from_secs(5);
/// Pause before the second attempt; each later pause is twice as long, up to a limit.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(500)];

/// The attempts at an operation.
pub(super) struct Patience<'a> {
    clock: &'a dyn Clock,
    /// The first error.
    since_ns: Option<u64>,
    pause: Duration,
}

impl<'a> Patience<'a> {
    pub fn new(clock: &'a dyn Clock) -> Patience<'a> {
        Patience { clock, since_ns: None, pause: PAUSES[0] }
    }

    /// After an error: rests, and says whether another attempt is due.
    pub fn pause(&mut self) -> bool {
        let now_ns = self.clock.monotonic_ns();
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        if u128::from(now_ns.saturating_sub(since_ns)) >= LONGEST.as_nanos() {
            return false;
        }
        self.clock.sleep(self.pause);
        self.pause = (2 * self.pause).min(PAUSES[1]);
        true
    }
}

/// Tries an operation of home again for a while after an error.
pub(super) fn patiently(log: &Log, attempt: impl Fn() -> Result<(), MediaError>) -> Result<(), MediaError> {
    let mut patience = Patience::new(&*log.clock);
    loop {
        match attempt() {
            Err(error) if log.refuse_if_failed().is_err() || !patience.pause() => return Err(error),
            Err(error) => tracing::warn!(%error, "a home round failed; it is tried again"),
            Ok(()) => return Ok(()),
        }
    }
}
