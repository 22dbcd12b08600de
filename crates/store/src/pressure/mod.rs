//! How full PM is, and who waits for it.

pub mod buffer;
pub mod ending;
pub mod pm_space;
pub mod processor;
