//! Workloads: what is done to files, apart from where (a directory, or a file system in this process).
//!
//! A load is data, so that it can be handed to a child process and written into the results. It is bounded by
//! operations and by time, whichever ends first; both ends are of the load, never of the target.

pub(crate) mod anticache;
pub(crate) mod bulk;
pub(crate) mod burst;
pub(crate) mod cold;
pub(crate) mod directory;
pub(crate) mod load;
pub(crate) mod local;
pub(crate) mod numbers;
pub(crate) mod personality;
pub(crate) mod programs;
pub(crate) mod random;
pub(crate) mod raw;
pub(crate) mod sizes;
pub(crate) mod target;
#[cfg(test)]
mod tests;
