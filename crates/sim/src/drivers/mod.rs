//! Drivers: each chooses histories, cases or errors, runs them on worlds, and answers violations.

pub mod acts;
pub mod copies;
pub mod effort;
pub mod faults;
pub mod fresh;
pub mod generate;
mod journal_images;
pub mod log;
pub mod mistakes;
pub mod necessity;
pub mod run;
pub mod scenes;
pub mod systematic;
