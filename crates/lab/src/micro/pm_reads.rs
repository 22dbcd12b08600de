//! Times of PM reads of several sizes: the basis of a descent in the catalog.

use super::fixture::prepared_pm;
use std::hint::black_box;
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_format::PmOffset;
use terrace_media::PmMedium;
use terrace_runtime::{Clock, SystemClock};

const CALLS: u64 = 2_000_000;

pub(super) fn run(_: &[String]) -> Outcome<()> {
    let pm: Arc<dyn PmMedium> = prepared_pm(4 << 20)?;
    let clock = SystemClock::default();
    let mut buffer = vec![0u8; 4096];
    for (length, skew) in [(2, 2), (8, 0), (16, 0), (32, 0), (32, 5), (64, 0), (256, 0), (1024, 0), (4096, 0)]
    {
        let start = clock.monotonic_ns();
        for call in 0..CALLS {
            let at = PmOffset((call % 8) * 4096 * u64::from(skew != 2) + skew);
            pm.read(at, black_box(&mut buffer[..length]))?;
        }
        let ns = (clock.monotonic_ns() - start) as f64 / CALLS as f64;
        println!("read {length:5} at +{skew}: {ns:.1} ns");
    }
    let start = clock.monotonic_ns();
    for call in 0..CALLS {
        black_box(pm.load_u64(PmOffset((call % 64) * 8))?);
    }
    println!("load_u64: {:.1} ns", (clock.monotonic_ns() - start) as f64 / CALLS as f64);
    Ok(())
}
