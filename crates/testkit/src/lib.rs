//! Fixtures of tests: pools on simulated media, and short forms of the calls that most tests make.
//!
//! The crate is a dev-dependency alone, of integration tests: the unit tests of a crate below the engine cannot
//! use it. A fixture that one crate's tests need stays in that crate, under a name of its own.
//!
//! Invariants: all media of a pool count their events on one crash clock, and all pools start at the same time,
//! so a test runs alike each time. A fixture panics where a test would fail.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod calls;
mod damage;
mod options;
mod simulated_pool;
mod tracked_file;
mod two_tier_pool;

pub use calls::{
    CALLER, ROOT, assert_content, bytes_on, create, fill, find, mkdir, pattern, read_all, try_create, write,
};
pub use damage::clear_used_bit;
pub use options::{
    START_NS, atomic_blocks, buffered, format_options, has_other_map, has_shared_map, is_table_map,
    lower_device, map_under_test,
};
pub use simulated_pool::SimulatedPool;
pub use tracked_file::TrackedFile;
pub use two_tier_pool::{TwoTierImages, TwoTierPool};
