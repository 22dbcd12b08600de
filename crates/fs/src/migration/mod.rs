//! Decides what moves between tiers, and when.

pub(crate) mod clock;
pub(crate) mod demote;
pub(crate) mod metadata;
pub(crate) mod migration;
pub(crate) mod pace;
pub(crate) mod planner;
pub(crate) mod promote;
pub(crate) mod report;
pub(crate) mod requested;
pub(crate) mod space;
pub(crate) mod spill;
#[cfg(test)]
mod tests;
pub(crate) mod worker;
