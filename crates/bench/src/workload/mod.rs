//! Workloads: operations on files, independent of the target (a directory, or a file system in this process).
//!
//! A load is data, so it can be handed to a child process and written into the results. It is bounded by
//! operations and by time, whichever ends first; the bounds belong to the load, never to the target.

pub mod anticache;
pub(crate) mod bulk;
pub mod burst;
pub mod cold;
pub mod directory;
pub mod load;
pub mod local;
pub mod numbers;
pub mod personality;
pub mod postmark;
pub mod programs;
pub(crate) mod random;
pub(crate) mod raw;
pub mod sizes;
pub mod synced;
pub mod target;
pub mod worker;
