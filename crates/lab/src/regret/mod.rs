//! Regret: the distance of policies from the offline optimum, which knows the future (row regret).
//!
//! A recorded trace becomes steps over blocks (steps.rs). The steps are replayed through the code of
//! crates/placement on a cost machine (machine.rs, background.rs, steer.rs). Two references are computed for
//! the same machine: the offline optimum (optimum.rs), and a replacement that knows the past and has no
//! limits of an engine (past.rs). All results are pure functions of trace and setup.

mod background;
pub(crate) mod breakdown;
pub(crate) mod copies;
mod list;
pub(crate) mod machine;
pub(crate) mod optimum;
pub(crate) mod past;
pub(crate) mod scripts;
mod steer;
pub(crate) mod steps;
