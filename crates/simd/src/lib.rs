//! Vector code for hashed file maps: hashes of file blocks, comparison of table entries, a clock for short sections.
//!
//! Invariants: each function gives the same result at every level of instructions; the level is chosen once at run time;
//! safe code cannot reach an instruction that the processor lacks, since a [`Level`] exists only after its detection.
//! Memory that others may change at the same time is not for this crate: callers pass copies.
//! `unsafe` lives here because vector loads and stores take addresses, and because a function that is compiled for an
//! instruction set may be called on fitting processors only.
#![allow(unsafe_code)] // see above; every block says why it is sound
#![deny(unsafe_op_in_unsafe_fn)]
#![deny(missing_docs)]

pub mod clock;
pub mod compare;
pub mod hash;
mod level;

pub use level::{Level, level};
