//! Demotion by policy: which blocks leave PM.

pub(crate) mod coldest;
pub(crate) mod kept;
pub(crate) mod queue;
pub(crate) mod victims;
