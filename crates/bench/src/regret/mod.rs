//! Regret: how far policies are from what could have been done had the future been known (row regret).
//!
//! A recorded trace becomes steps over blocks (steps.rs). They are replayed through the code of crates/placement on a
//! machine of costs (machine.rs, background.rs, steer.rs), and the offline optimum of the same machine is computed
//! (optimum.rs). Everything here is a pure function of the trace and the setup.

mod background;
mod list;
pub(crate) mod machine;
pub(crate) mod optimum;
mod steer;
pub(crate) mod steps;
