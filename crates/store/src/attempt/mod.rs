//! Attempts: an operation runs again until nothing is lacking.

pub mod log_space;
pub mod provide;
pub mod run;
pub mod with_pages;
