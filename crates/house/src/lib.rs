//! Checks over the project's own sources, run as ordinary tests, so that the structure of the house and the words in
//! it do not decay. `cargo test -p terrace-house` judges the figures by `limits.toml`; `cargo run -p terrace-house`
//! prints them.
//!
//! No crate of the product depends on this crate.
#![forbid(unsafe_code)]

mod arrows;
mod asserts;
pub mod checks;
mod circles;
mod comments;
mod facts;
pub mod figure;
pub mod floors;
pub mod house;
pub mod limits;
mod modules;
mod names;
mod prose;
pub mod reports;
pub mod rooms;
mod rules;
mod sizes;
pub mod sources;
mod unsafe_code;
mod widths;
mod words;
