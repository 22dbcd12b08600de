//! Removal of the content of files that have lost their last name.

pub mod log_freed;
pub mod orphans;
pub mod passes;
pub mod steps;
