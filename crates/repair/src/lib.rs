//! `check --repair`: computes a sound pool from all surviving structures, then commits the whole new state at
//! once.
//!
//! Invariants: the media are changed only when the whole new state is durable beside the old one (`journal`),
//! so a crash at any point leads to the same pool; a pool without errors is not written; a second repair of a
//! repaired pool finds no error. The new state is computed in an overlay and judged there by the code that
//! judges media; while errors are left, another round computes again from the overlay.
//!
//! Only `journal`, `repair` and `device_headers` have the media; everything else has a view that reads.
//!
//! A round (`rounds`) works on the state of `state`: `find` reads the structures that survive, `decide` chooses where
//! they differ, `emit` writes pages and words. docs/decisions/0006 says why.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod decide;
mod device_headers;
mod emit;
mod find;
mod journal;
mod lost;
mod media;
mod outcome;
mod pages;
mod repair;
mod rounds;
mod state;

pub use media::Media;
pub use outcome::Repair;
pub use repair::repair;
