//! Free PM space, back-pressure on writers, and the processor time of background work.

pub mod buffer;
pub mod ending;
pub mod pm_space;
pub mod processor;
