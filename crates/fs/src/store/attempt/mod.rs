//! Attempts: an operation runs again until nothing is lacking.

pub(crate) mod provide;
pub(crate) mod run;
pub(crate) mod with_pages;
