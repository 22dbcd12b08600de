//! Regret: how far policies are from what could have been done had the future been known (row regret).
//!
//! A recorded trace becomes steps over blocks (steps.rs). They are replayed through the code of crates/placement on a
//! machine of costs (machine.rs, background.rs, steer.rs), and the offline optimum of the same machine is computed
//! (optimum.rs), beside what the past is worth without an engine's limits (past.rs). Everything here is a pure function of the trace and the setup.

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
