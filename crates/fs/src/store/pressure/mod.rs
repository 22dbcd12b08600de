//! How full PM is, and who waits for it.

pub(crate) mod buffer;
pub(crate) mod ending;
pub(crate) mod pm_space;
pub(crate) mod processor;
