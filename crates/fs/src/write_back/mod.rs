//! Dirty pages on their way to a lower tier, or into PM.

pub(crate) mod file;
pub(crate) mod group;
pub(crate) mod into_pm;
pub(crate) mod steps;
#[cfg(test)]
mod tests;
