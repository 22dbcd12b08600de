//! Regret: the distance of policies from the offline optimum, which knows the future (row regret).
//!
//! A recorded trace becomes steps over blocks (steps.rs). The steps are replayed through the code of
//! crates/placement on a cost machine (machine.rs and the layers above, up to replay.rs). Two references are
//! computed for the same machine: the offline optimum (optimum.rs), and a replacement that knows the past and
//! has no limits of an engine (past.rs). All results are pure functions of trace and setup.

mod background;
mod blocks;
pub(crate) mod breakdown;
pub(crate) mod candidates;
mod copies;
mod demotion;
mod groups;
mod histories;
mod list;
mod machine;
pub(crate) mod optimum;
pub(crate) mod past;
mod promotion;
pub(crate) mod replay;
pub(crate) mod scripts;
pub(crate) mod setup;
mod steer;
pub(crate) mod steps;
mod victims;
pub(crate) mod waits;
mod work;
mod worth;
