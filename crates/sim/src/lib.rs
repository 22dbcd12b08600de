//! A simulator for the whole file system: production code on simulated media and simulated time, on one
//! thread, so that a seed repeats a failure.
//!
//! `world` holds a pool and the reference beside it; `choose` draws operations, `actions` run them, `judges`
//! compare pool and reference and judge images after a loss of power, `drivers` choose histories and cases.
//! docs/crash-consistency.md describes the explored states and the findings.
//!
//! Invariants: every choice comes from a seed; the simulator uses no threads and no clock of the machine; a
//! violation is a panic inside a run, caught by `findings`.
//!
//! This crate turns on the feature `simulation` of terrace-runtime, which is never part of a product.
#![forbid(unsafe_code)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test program

pub mod action;
mod actions;
pub mod bounds;
pub(crate) mod call;
pub mod choose;
pub mod config;
pub mod counts;
pub mod drivers;
pub mod findings;
mod journal;
pub(crate) mod judges;
pub mod kinds;
pub mod media;
pub mod old_content;
pub mod subsets;
pub mod world;
