//! The limits of the daemon's process: descriptors, file sizes and locked memory.

use crate::failure::{Failure, Outcome};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::SIGXFSZ;
use std::sync::Arc;

/// Descriptors that a daemon needs when many requests wait at once.
const DESCRIPTORS: u64 = 256;
/// Descriptors without which the daemon could not end in order.
const FEWEST_DESCRIPTORS: u64 = 64;

/// Raises the limits of descriptors, of file sizes and of locked memory as far as the system allows. A warning when few
/// descriptors are left.
pub(crate) fn raise_limits() -> Outcome<Option<String>> {
    // Otherwise a write to a tier beyond the file size limit of the mounting shell would end the daemon.
    let unlimited = Rlimit { current: None, maximum: None };
    if setrlimit(Resource::Fsize, unlimited).is_err() {
        let maximum = getrlimit(Resource::Fsize).maximum;
        let _ = setrlimit(Resource::Fsize, Rlimit { current: maximum, maximum });
    }
    // If the limit cannot be raised, a write beyond it must fail instead of ending the process.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    // A tier 0 in DRAM is locked in memory. Its opening warns where the limit is too low.
    let mut limit = getrlimit(Resource::Memlock);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Memlock, limit);
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let raised = setrlimit(Resource::Nofile, limit);
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if now < FEWEST_DESCRIPTORS {
        let text = format!(
            "only {now} open files are allowed, and a mount needs {FEWEST_DESCRIPTORS}; raise the limit (ulimit -Hn)"
        );
        return Err(Failure::new(text));
    }
    Ok((raised.is_err() || now < DESCRIPTORS).then(|| {
        format!("only {now} files may be open: with many requests at once some wait; raise the limit (ulimit -Hn) to {DESCRIPTORS}")
    }))
}
