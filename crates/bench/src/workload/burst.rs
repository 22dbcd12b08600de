//! A burst of durable appends of 4 KiB: as fast as possible (a closed loop, which measures the capacity), or
//! as an open loop.
//!
//! Open loop: the times of arrivals are fixed beforehand, and a latency is counted from the arrival. So the
//! wait behind a slow request counts too. Each thread has every n-th arrival and a log of its own. The logs
//! are removed after the burst, so every burst begins in the same state.

use super::target::FileTarget;
use super::worker::{Tally, Worker};
use serde::{Deserialize, Serialize};
use std::io;
use terrace_runtime::clock::sleep_exactly;

/// "Open-loop 4 KiB fsynced writes".
pub(crate) const WRITE: usize = 4096;

/// When a write is due.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Arrivals {
    /// At once after the previous write: measures the capacity.
    Closed,
    /// This percentage of the capacity that the same round measured; replaced by `PerSecond` before the run.
    PercentOfCapacity(u64),
    /// Writes per second of all threads together, at even distances.
    PerSecond(f64),
}

/// Makes the directory of the logs.
pub(crate) fn populate(target: &dyn FileTarget) -> io::Result<()> {
    target.make_directory("burst")
}

/// Writes `bytes` in total, or until the tally ends the run. A write that finds no space is counted as
/// failed.
pub(crate) fn run(
    bytes: u64,
    arrivals: Arrivals,
    target: &dyn FileTarget,
    worker: Worker,
    tally: &mut Tally,
) -> io::Result<()> {
    let period_ns = match arrivals {
        Arrivals::Closed => None,
        Arrivals::PerSecond(rate) if rate > 0.0 => Some(1e9 / rate),
        _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "a burst without a rate")),
    };
    // By default the kernel prolongs a sleep by up to 50 µs, which would be counted as latency.
    sleep_exactly();
    let path = format!("burst/{}", worker.index);
    let _ = target.unlink(&path);
    let mut file = target.open(&path, true)?;
    let block = vec![0xb5; WRITE];
    let begin = tally.now_ns();
    for number in 0..bytes / WRITE as u64 / worker.of.max(1) {
        let due_ns = period_ns.map(|period| {
            let arrival = number * worker.of + worker.index;
            begin.saturating_add((arrival as f64 * period) as u64)
        });
        let more = tally.turn_due(due_ns, |tally| {
            let written = file.write_at(&block, number * WRITE as u64, false);
            match written.and_then(|()| file.sync()) {
                Err(error) if error.kind() == io::ErrorKind::StorageFull => tally.failed(),
                done => {
                    done?;
                    tally.wrote(WRITE as u64);
                }
            }
            Ok(())
        })?;
        if !more {
            break;
        }
    }
    tally.end();
    drop(file);
    target.unlink(&path)
}
