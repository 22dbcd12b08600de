//! A thread of a load: its number, its counters and bounds, and the measure that the counters give.

use crate::site::block_counts::BlockCounts;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use terrace_runtime::Clock;

/// A thread of a load: its number and the number of threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Worker {
    pub index: u64,
    pub of: u64,
}

/// How a write is made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sync {
    /// Writes are not made durable.
    Never,
    /// O_DSYNC.
    Flag,
    /// fsync(2) after the write.
    Fsync,
}

/// The measure of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// As the load counts them: filebench's flow operations, fio's requests.
    pub operations: u64,
    /// Bytes that the operations read.
    pub bytes_read: u64,
    /// Bytes that the operations wrote.
    pub bytes_written: u64,
    /// Bytes read by a scanning thread, which only disturbs the measured threads.
    #[serde(default)]
    pub bytes_scanned: u64,
    /// Writes that found no space.
    #[serde(default)]
    pub failed: u64,
    /// Bytes that a Terrace subject wrote to its devices during the run.
    #[serde(default)]
    pub device_written_bytes: u64,
    /// Bytes that a Terrace subject demoted by a write to its devices.
    #[serde(default)]
    pub demoted_bytes: u64,
    /// Bytes dropped from PM without a write.
    #[serde(default)]
    pub clean_evicted_bytes: u64,
    /// Requests that the block devices of the subject got.
    #[serde(default)]
    pub blocks: BlockCounts,
    /// Time from the begin of the run to the end of the measured work.
    pub elapsed_ns: u64,
    /// Latency of an operation (of a personality: of a turn of its loop), over all threads.
    pub latency_median_ns: u64,
    /// 99th percentile of the latency.
    pub latency_p99_ns: u64,
    /// 99.9th percentile of the latency.
    pub latency_p999_ns: u64,
    /// Longest latency.
    pub latency_max_ns: u64,
}

impl Measure {
    /// Operations in a second.
    pub fn operations_per_s(&self) -> f64 {
        self.operations as f64 / self.elapsed_ns.max(1) as f64 * 1e9
    }
    /// Bytes read and written in a second.
    pub fn bytes_per_s(&self) -> f64 {
        (self.bytes_read + self.bytes_written) as f64 / self.elapsed_ns.max(1) as f64 * 1e9
    }
}

/// The counters of a thread, and the bounds that end its run.
pub(crate) struct Tally {
    clock: Arc<dyn Clock>,
    deadline_ns: u64,
    turns_left: u64,
    pub operations: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    bytes_scanned: u64,
    failed: u64,
    /// The end of the measured work, if the thread clears up afterwards.
    end_ns: Option<u64>,
    latency: Histogram<u64>,
}

/// Longer latencies count as an hour.
const MAX_LATENCY_NS: u64 = 3_600_000_000_000;

impl Tally {
    /// The counters of a thread that ends after `limit_ns` or `operations` at the latest.
    pub(super) fn new(clock: Arc<dyn Clock>, limit_ns: u64, operations: u64) -> io::Result<Tally> {
        let latency = Histogram::new_with_bounds(1, MAX_LATENCY_NS, 2).map_err(io::Error::other)?;
        let deadline_ns = clock.monotonic_ns().saturating_add(limit_ns);
        Ok(Tally {
            clock,
            deadline_ns,
            turns_left: operations,
            operations: 0,
            bytes_read: 0,
            bytes_written: 0,
            bytes_scanned: 0,
            failed: 0,
            end_ns: None,
            latency,
        })
    }

    pub fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    /// Whether the thread has reached a bound, so that no further turn begins.
    pub fn is_over(&self) -> bool {
        self.turns_left == 0 || self.now_ns() >= self.deadline_ns
    }

    /// Whether the load is bounded by operations and not by time alone.
    pub fn is_bounded(&self) -> bool {
        self.turns_left < u64::MAX / 2
    }

    /// Ends the measured time; the thread only clears up afterwards.
    pub fn end(&mut self) {
        self.end_ns = Some(self.now_ns());
    }

    /// Runs and times a turn; false when no further turn may begin.
    pub fn turn(&mut self, body: impl FnOnce(&mut Tally) -> io::Result<()>) -> io::Result<bool> {
        self.turn_due(None, body)
    }

    /// As [`Self::turn`], but begins the turn not before its due time and counts its latency from that time.
    pub fn turn_due(
        &mut self,
        due_ns: Option<u64>,
        body: impl FnOnce(&mut Tally) -> io::Result<()>,
    ) -> io::Result<bool> {
        if self.is_over() {
            return Ok(false);
        }
        let mut begin = self.now_ns();
        if let Some(due_ns) = due_ns {
            // No wait in a loop: a test's clock may stand still.
            if let Some(early_ns) = due_ns.checked_sub(begin).filter(|early_ns| *early_ns > 0) {
                self.clock.sleep(Duration::from_nanos(early_ns));
            }
            begin = due_ns;
        }
        self.turns_left -= 1;
        body(self)?;
        let spent = self.now_ns().saturating_sub(begin);
        self.latency.saturating_record(spent.clamp(1, MAX_LATENCY_NS));
        Ok(true)
    }

    pub fn read(&mut self, bytes: u64) {
        self.operations += 1;
        self.bytes_read += bytes;
    }
    pub fn wrote(&mut self, bytes: u64) {
        self.operations += 1;
        self.bytes_written += bytes;
    }
    pub fn scanned(&mut self, bytes: u64) {
        self.bytes_scanned += bytes;
    }
    pub fn failed(&mut self) {
        self.failed += 1;
    }
    pub fn other(&mut self) {
        self.operations += 1;
    }

    /// Adds the counters of another thread.
    pub(super) fn add(&mut self, other: Tally) -> io::Result<()> {
        self.end_ns = self.end_ns.max(other.end_ns);
        self.bytes_scanned += other.bytes_scanned;
        self.failed += other.failed;
        self.operations += other.operations;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.latency.add(other.latency).map_err(io::Error::other)
    }

    /// The measure of a run from `begin_ns` to `end_ns`, or to the end of the measured work.
    pub(super) fn measure(&self, begin_ns: u64, end_ns: u64) -> Measure {
        Measure {
            operations: self.operations,
            bytes_read: self.bytes_read,
            bytes_written: self.bytes_written,
            bytes_scanned: self.bytes_scanned,
            failed: self.failed,
            device_written_bytes: 0,
            demoted_bytes: 0,
            clean_evicted_bytes: 0,
            blocks: BlockCounts::default(),
            elapsed_ns: self.end_ns.unwrap_or(end_ns).saturating_sub(begin_ns).max(1),
            latency_median_ns: self.latency.value_at_quantile(0.5),
            latency_p99_ns: self.latency.value_at_quantile(0.99),
            latency_p999_ns: self.latency.value_at_quantile(0.999),
            latency_max_ns: self.latency.max(),
        }
    }
}
