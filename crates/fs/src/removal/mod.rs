//! Removal of the content of files that have lost their last name.

pub(crate) mod log_freed;
pub(crate) mod orphans;
