//! Demotion by policy: which blocks leave PM.

pub mod coldest;
pub mod kept;
pub mod queue;
pub mod victims;
