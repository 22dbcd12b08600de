//! The meaning of each system call: names, content, attributes, syncing, removal, by POSIX rules.
//!
//! Functions over a [`Store`](terrace_store::store::Store), one for each call. Each change runs as attempts
//! (`terrace_store::attempt`).
#![forbid(unsafe_code)]

pub mod content;
pub mod names;
pub mod removal;
pub mod sync;
pub mod write_back;
