//! Which home a write gets, and what the predictors learn.

pub mod choose_home;
pub mod kept_choices;
pub mod learn;
pub mod read_dominated;
pub(crate) mod written_lines;
