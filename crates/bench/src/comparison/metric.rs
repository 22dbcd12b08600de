//! The quantities that figures measure, their units, and their values in a measured load.

use crate::workload::worker::Measure;
use serde::Serialize;

/// The quantity that a figure measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Metric {
    /// Operations of the load or the program.
    OperationsPerS,
    /// Bytes read and written.
    BytesPerS,
    /// The median time of a turn of the load.
    MedianLatencyNs,
    /// From begin to end.
    Seconds,
    /// The wait of the offline optimum, divided by the wait of the candidate.
    ShareOfOptimum,
    /// 99th percentile of the latency of a turn.
    P99LatencyNs,
    /// 99.9th percentile of the latency of a turn.
    P999LatencyNs,
    /// Longest latency of a turn.
    MaxLatencyNs,
    /// The 99.9th percentile by the larger of 20 medians and 2 ms.
    TailByLimit,
    /// Writes that found no space.
    Failures,
    /// Time of all threads by operations.
    NsPerOperation,
    /// Bytes written to Terrace's devices during the load.
    DeviceBytesPerS,
    /// Bytes written to Terrace's devices, divided by the demoted bytes.
    Amplification,
    /// Bytes demoted by a write to a device, for each operation.
    EvictedPerOperation,
    /// Bytes that left PM for each operation without a write to a device.
    CleanEvictedPerOperation,
    /// Cache lines of PM that an operation reads or stores to.
    LinesPerOperation,
    /// Waits for memory in an operation: loads that run side by side are one.
    RoundsPerOperation,
    /// Fences of an operation.
    FencesPerOperation,
    /// Blocks of PM.
    Blocks,
    /// A quotient of two figures.
    Ratio,
    /// Time of the file map by the time of a whole request.
    ShareOfRequest,
    /// Time that writes take in PM by the time of the run.
    ShareOfTime,
    /// Cache lines written to PM.
    Lines,
    /// A part of the bytes written.
    ShareOfBytes,
    /// Bytes of data stored to PM for each operation.
    PmBytesPerOperation,
    /// Memory of a process.
    MemoryBytes,
    /// Flush requests of the block devices for each operation.
    FlushesPerOperation,
    /// Write requests of the block devices for each operation.
    RequestsPerOperation,
    /// Bytes written to the block devices, divided by the bytes that the load wrote.
    WrittenPerByte,
    /// Flush requests of the block devices in the whole run.
    Flushes,
    /// Bytes written to the block devices in the whole run.
    WrittenBytes,
    /// Mounts that measured PM as slow.
    Mounts,
}

/// "p99.9 ≤ max(20 × median, 2 ms)".
const TAIL_MEDIANS: u64 = 20;
const TAIL_NS: u64 = 2_000_000;

impl Metric {
    /// Unit of the figures.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::OperationsPerS => "operations/s",
            Metric::BytesPerS | Metric::DeviceBytesPerS => "bytes/s",
            Metric::Seconds => "s",
            Metric::ShareOfOptimum => "optimum / wait",
            Metric::Amplification => "bytes/byte",
            Metric::EvictedPerOperation | Metric::CleanEvictedPerOperation => "bytes/operation",
            Metric::TailByLimit => "of the limit",
            Metric::Failures => "writes",
            Metric::NsPerOperation => "ns/operation",
            Metric::LinesPerOperation => "lines/operation",
            Metric::RoundsPerOperation => "rounds/operation",
            Metric::FencesPerOperation => "fences/operation",
            Metric::Blocks => "blocks",
            Metric::Ratio => "ratio",
            Metric::ShareOfRequest => "of a request",
            Metric::ShareOfTime => "of the time",
            Metric::ShareOfBytes => "of the bytes",
            Metric::Lines => "lines",
            Metric::PmBytesPerOperation => "bytes/operation",
            Metric::MemoryBytes => "bytes",
            Metric::Mounts => "mounts",
            Metric::FlushesPerOperation => "flushes/operation",
            Metric::RequestsPerOperation => "requests/operation",
            Metric::WrittenPerByte => "bytes/byte",
            Metric::Flushes => "flushes",
            Metric::WrittenBytes => "bytes",
            _ => "ns",
        }
    }
    /// Whether the requests of a whole run make the figure, which programs have too.
    pub fn counts_requests(self) -> bool {
        matches!(self, Metric::Flushes | Metric::WrittenBytes)
    }
    /// The figure of a measure that `threads` threads made.
    pub fn of(self, measure: &Measure, threads: u64) -> f64 {
        match self {
            Metric::OperationsPerS => measure.operations_per_s(),
            Metric::BytesPerS => measure.bytes_per_s(),
            Metric::MedianLatencyNs => measure.latency_median_ns as f64,
            Metric::Seconds => measure.elapsed_ns as f64 / 1e9,
            // Computed, not from a load.
            Metric::ShareOfOptimum
            | Metric::LinesPerOperation
            | Metric::RoundsPerOperation
            | Metric::FencesPerOperation
            | Metric::Blocks
            | Metric::Ratio
            | Metric::ShareOfRequest
            | Metric::ShareOfTime
            | Metric::ShareOfBytes
            | Metric::Lines
            | Metric::PmBytesPerOperation
            | Metric::MemoryBytes
            | Metric::Mounts => f64::NAN,
            Metric::P99LatencyNs => measure.latency_p99_ns as f64,
            Metric::P999LatencyNs => measure.latency_p999_ns as f64,
            Metric::MaxLatencyNs => measure.latency_max_ns as f64,
            Metric::TailByLimit => {
                let limit = TAIL_NS.max(TAIL_MEDIANS * measure.latency_median_ns);
                measure.latency_p999_ns as f64 / limit as f64
            }
            Metric::DeviceBytesPerS => {
                measure.device_written_bytes as f64 / measure.elapsed_ns.max(1) as f64 * 1e9
            }
            Metric::Amplification => measure.device_written_bytes as f64 / measure.demoted_bytes as f64,
            Metric::EvictedPerOperation => measure.demoted_bytes as f64 / measure.operations.max(1) as f64,
            Metric::CleanEvictedPerOperation => {
                measure.clean_evicted_bytes as f64 / measure.operations.max(1) as f64
            }
            Metric::FlushesPerOperation => measure.blocks.flushes as f64 / measure.operations.max(1) as f64,
            Metric::RequestsPerOperation => measure.blocks.writes as f64 / measure.operations.max(1) as f64,
            Metric::WrittenPerByte => {
                measure.blocks.written_bytes as f64 / measure.bytes_written.max(1) as f64
            }
            Metric::Flushes => measure.blocks.flushes as f64,
            Metric::WrittenBytes => measure.blocks.written_bytes as f64,
            Metric::Failures => measure.failed as f64,
            Metric::NsPerOperation => {
                (measure.elapsed_ns * threads) as f64 / measure.operations.max(1) as f64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::block_counts::BlockCounts;

    #[test]
    fn requests_are_counted_by_operation_by_byte_and_in_the_whole_run() {
        let blocks = BlockCounts { writes: 8, written_bytes: 40960, flushes: 2 };
        let measure = Measure { operations: 4, bytes_written: 16384, blocks, ..Measure::default() };
        for (metric, value, is_of_programs) in [
            (Metric::FlushesPerOperation, 0.5, false),
            (Metric::RequestsPerOperation, 2.0, false),
            (Metric::WrittenPerByte, 2.5, false),
            (Metric::Flushes, 2.0, true),
            (Metric::WrittenBytes, 40960.0, true),
        ] {
            assert_eq!(
                (metric.of(&measure, 1), metric.counts_requests()),
                (value, is_of_programs),
                "{metric:?}"
            );
        }
    }
}
