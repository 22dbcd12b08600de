//! The only source of time, threads and locks (enforced by clippy.toml).
//!
//! Invariant: no other crate reads a clock, starts a thread or makes a lock by itself, so that a
//! simulator can put its own clock and its own scheduler here.
//!
//! Background work is written as [`Step`]s: one bounded piece per call, driven by a thread in
//! production ([`thread::Driver`]) and by hand in tests.
#![forbid(unsafe_code)]

pub mod activity;
pub mod affinity;
pub mod clock;
pub mod interleave;
pub mod narrow;
pub mod pause;
pub mod planted;
pub mod scheduling_group;
pub mod step;
pub mod sync;
pub mod thread;
mod thread_index;
pub mod turns;

pub use clock::{Clock, ManualClock, SystemClock};
pub use step::{Next, Step};
