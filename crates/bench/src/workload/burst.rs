//! A burst of durable appends of 4 KiB: as fast as they go (which gives the capacity), or as an open loop.
//!
//! Open loop: arrivals have times fixed beforehand, whatever the file system does; a latency is counted from that time,
//! so that what waits behind a slow request counts too. Each thread has every n-th arrival and a log of its own; the
//! logs go when the burst is over, so that the next one begins as this one did.

use super::load::{Tally, Worker};
use super::target::FileTarget;
use serde::{Deserialize, Serialize};
use std::io;
use terrace_runtime::clock::sleep_exactly;

/// "Open-loop 4 KiB fsynced writes".
pub const WRITE: usize = 4096;

/// When a write is due.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Arrivals {
    /// At once after the one before: the capacity.
    Closed,
    /// At this many percent of the capacity that the same round measured; to be replaced by `PerSecond`.
    PercentOfCapacity(u64),
    /// This many in a second, of all threads, evenly.
    PerSecond(f64),
}

/// Makes what the burst needs: a directory.
pub fn populate(target: &dyn FileTarget) -> io::Result<()> {
    target.make_directory("burst")
}

/// Writes `bytes` in all, or until the tally says to end. A write that finds no space is counted as failed.
pub fn run(
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
    // What the kernel adds to the end of a sleep would be counted as latency: 50 µs.
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
