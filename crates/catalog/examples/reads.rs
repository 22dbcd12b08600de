//! Times of PM reads of several sizes: what the descent is built on.
#![allow(clippy::unwrap_used, missing_docs)]
use std::hint::black_box;
use std::sync::Arc;
use terrace_format::PmOffset;
use terrace_media::PmMedium;
use terrace_media::pm::RamPm;
use terrace_runtime::{Clock, SystemClock};

fn main() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let pm: Arc<dyn PmMedium> = Arc::new(RamPm::create(directory.path().join("pm"), 4 << 20).unwrap());
    pm.prepare(PmOffset(0), pm.size());
    let clock = SystemClock::default();
    let mut buffer = vec![0u8; 4096];
    for (length, skew) in [(2, 2), (8, 0), (16, 0), (32, 0), (32, 5), (64, 0), (256, 0), (1024, 0), (4096, 0)]
    {
        let start = clock.monotonic_ns();
        let count = 2_000_000u64;
        for i in 0..count {
            pm.read(PmOffset((i % 8) * 4096 * u64::from(skew != 2) + skew), black_box(&mut buffer[..length]))
                .unwrap();
        }
        let ns = (clock.monotonic_ns() - start) as f64 / count as f64;
        println!("read {length:5} at +{skew}: {ns:.1} ns");
    }
    let start = clock.monotonic_ns();
    for i in 0..2_000_000u64 {
        black_box(pm.load_u64(PmOffset((i % 64) * 8)).unwrap());
    }
    println!("load_u64: {:.1} ns", (clock.monotonic_ns() - start) as f64 / 2e6);
}
