//! A simulator for the whole file system: production code on simulated media and simulated time, on one
//! thread, so that a seed repeats a failure.
//!
//! `world` holds a pool and the reference beside it; `generate` draws actions, `happen` runs them, `operate`
//! runs operations on both and compares, `power` loses power and judges the images, `run` repeats and
//! shortens histories. docs/crash-consistency.md describes the explored states and the findings. Invariants:
//! every choice comes from a seed; the simulator uses no threads and no clock of the machine; a violation is
//! a panic inside a run, caught by `run`.
//!
//! This crate turns on the feature `simulation` of terrace-runtime, which is never part of a product.
#![forbid(unsafe_code)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test program

pub mod action;
pub mod acts;
pub mod bounds;
mod choose;
mod compare;
pub mod config;
pub mod copies;
mod descriptors;
mod engine;
pub mod faults;
mod flips;
pub mod fresh;
pub mod generate;
mod hand;
mod happen;
mod inject;
mod leaks;
pub mod log;
pub mod media;
pub mod mistakes;
pub mod necessity;
pub mod old_content;
mod operate;
mod pm_fault;
mod power;
pub mod run;
pub mod scenes;
pub mod subsets;
pub mod systematic;
mod unwritten;
pub mod world;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<u32> = const { Cell::new(0) };
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs a closure whose panics are findings: answers their text instead of printing it.
///
/// # Errors
/// The text and the place of the panic.
pub fn caught<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if QUIET.get() == 0 {
                return before(info);
            }
            let payload = info.payload();
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_string()));
            let place = info.location().map_or(String::new(), |at| format!(" ({}:{})", at.file(), at.line()));
            LAST.set(text.unwrap_or_default() + &place);
        }));
    });
    QUIET.set(QUIET.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(run));
    QUIET.set(QUIET.get() - 1);
    result.map_err(|_| LAST.take())
}
