//! The contract of file maps, run over every implementation: a new map adds one row.
//!
//! A random test prints its seed; `TERRACE_SEED=n cargo test -p terrace-map` repeats it.

mod clustered;
mod clustered_damage;
mod crash;
mod cuckoo;
mod cuckoo_damage;
mod cuckoo_loads;
mod cursor;
mod damage;
mod damaged_answers;
mod extent;
mod hashfs;
mod model;
mod modelled_map;
mod radix;
mod unit;

use terrace_map::{MAPS, MapRow as Row};

/// Runs a test for every map and seed.
fn for_each_map(seeds: std::ops::Range<u64>, test: impl Fn(&Row, u64)) {
    for_maps(MAPS, seeds, test);
}

/// Runs a test of the radix map alone: of its numbers of nodes, or of the words in them.
fn for_radix(test: impl Fn(&Row, u64)) {
    for_maps(&MAPS[..1], 0..1, test);
}

fn for_maps(maps: &[Row], seeds: std::ops::Range<u64>, test: impl Fn(&Row, u64)) {
    let fixed = std::env::var("TERRACE_SEED").ok().and_then(|s| s.parse().ok());
    let seeds = fixed.map_or(seeds, |seed: u64| seed..seed + 1);
    for row in maps {
        for seed in seeds.clone() {
            let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(row, seed)));
            if let Err(cause) = run {
                eprintln!("map {}, repeat with TERRACE_SEED={seed}", row.name);
                std::panic::resume_unwind(cause);
            }
        }
    }
}
