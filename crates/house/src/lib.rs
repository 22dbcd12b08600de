//! Checks over the project's own sources, run as ordinary tests, so that the structure of the house and the words in
//! it do not decay. `cargo test -p terrace-house` judges the figures by `limits.toml`; `cargo run -p terrace-house`
//! prints them.
//!
//! No crate of the product depends on this crate.
#![forbid(unsafe_code)]

pub mod comments;
pub mod prose;
pub mod sources;
pub mod words;
