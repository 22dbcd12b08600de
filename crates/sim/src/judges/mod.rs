//! Judges: each compares what the engine shows with what the reference allows, and panics at a violation.

pub(crate) mod answers;
pub(crate) mod comparison;
pub(crate) mod content;
pub(crate) mod directories;
pub(crate) mod flips;
pub(crate) mod intents;
pub(crate) mod leaks;
pub(crate) mod moves;
pub(crate) mod parts;
pub(crate) mod recovery;
pub(crate) mod tree;
pub(crate) mod waiting;
