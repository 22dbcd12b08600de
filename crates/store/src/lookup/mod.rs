//! Which copy of a block is the newest, and how to get it.

pub mod ahead_step;
pub mod below;
pub mod cold_extents;
pub mod cold_read;
pub mod data_checksum;
pub mod intents;
pub mod lines;
pub mod newest;
pub mod partial_shadow;
pub mod read_ahead;
