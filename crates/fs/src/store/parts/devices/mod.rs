//! Lower-tier devices: media, free space, health, counts of I/O, speeds.

pub(crate) mod device;
pub(crate) mod io_count;
pub(crate) mod read_priority;
pub(crate) mod speeds;
