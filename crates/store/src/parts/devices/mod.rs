//! Lower-tier devices: media, free space, health, counts of I/O, speeds.

pub mod device;
pub mod io_count;
pub mod read_priority;
pub mod speeds;
