//! A damaged pool is checked, mounted, walked, changed and unmounted, as in crates/engine/tests/damaged.
#![no_main]

#[path = "../../crates/engine/tests/damaged/exercise.rs"]
#[allow(dead_code)]
mod exercise;

use libfuzzer_sys::fuzz_target;
use rand::SeedableRng;
use terrace_fuzz::{ROOT, damaged};

fuzz_target!(|input: &[u8]| {
    let media = damaged(input);
    let seed = input.iter().take(8).fold(0, |seed, byte| seed << 8 | u64::from(*byte));
    exercise::exercise(&media, &mut rand::rngs::StdRng::seed_from_u64(seed));
});
