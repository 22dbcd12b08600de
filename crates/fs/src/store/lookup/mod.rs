//! Which copy of a block is the newest, and how to get it.

pub(crate) mod ahead_step;
pub(crate) mod cold_extents;
pub(crate) mod cold_read;
pub(crate) mod data_checksum;
pub(crate) mod intents;
pub(crate) mod lines;
pub(crate) mod newest;
pub(crate) mod partial_shadow;
pub(crate) mod read_ahead;
