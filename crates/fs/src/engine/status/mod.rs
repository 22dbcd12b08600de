//! What status tells, one file for each subject.

pub(crate) mod health;
pub(crate) mod io;
pub(crate) mod metadata;
pub(crate) mod parameters;
pub(crate) mod placement;
pub(crate) mod pool;
pub(crate) mod predictions;
pub(crate) mod space;
pub(crate) mod tiers;
pub(crate) mod whereabouts;
