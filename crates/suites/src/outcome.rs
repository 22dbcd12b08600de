//! The outcome of a step: a value, or a failure as a sentence. Steps may wait for the background.

use std::time::Duration;
use terrace_runtime::{Clock, SystemClock};

/// A failure, as a sentence.
pub(crate) type Failure = String;

/// A value, or the sentence that tells the failure.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// A number of the command line or of a model file.
pub(crate) fn number(text: &str) -> Outcome<u64> {
    text.parse().map_err(|_| format!("'{text}' is not a number"))
}

/// Waits until a condition holds, at most some seconds: space is given back in the background.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    let clock = SystemClock::default();
    for _ in 0..100 {
        if condition()? {
            return Ok(());
        }
        clock.sleep(Duration::from_millis(100));
    }
    Err(format!("not within 10 s: {what}"))
}
