//! Which home a write gets, and what the predictors learn.

pub(crate) mod choose_home;
pub(crate) mod learn;
pub(crate) mod read_dominated;
