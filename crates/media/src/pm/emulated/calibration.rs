//! The times of the memory below an emulated medium, measured when the medium is made.

use crate::pm::PmMedium;
use terrace_format::PmOffset;
use terrace_format::address::LINE_SIZE;
use terrace_runtime::Clock;

/// Samples of the calibration, and writes of each.
const CALIBRATION_SAMPLES: usize = 101;
const SAMPLE_WRITES: u64 = 16;
/// Reads by which the floor is measured, and the bytes of each.
const FLOOR_READS: u64 = 512;
const FLOOR_READ_BYTES: u64 = 4096;

fn median(mut samples: Vec<u64>) -> Option<u64> {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied()
}

/// Nanoseconds that a write of a line with its fence takes; `None` if the memory cannot be used.
/// Writes the bytes just read, so an interruption at any moment leaves PM unchanged.
pub(super) fn write_ns(pm: &dyn PmMedium, clock: &dyn Clock) -> Option<u64> {
    let mut line = [0; LINE_SIZE as usize];
    pm.read(PmOffset(0), &mut line).ok()?;
    let mut samples = Vec::with_capacity(CALIBRATION_SAMPLES);
    for _ in 0..CALIBRATION_SAMPLES {
        let begin = clock.monotonic_ns();
        for _ in 0..SAMPLE_WRITES {
            pm.write_streaming(PmOffset(0), &line).ok()?;
            pm.order();
        }
        samples.push((clock.monotonic_ns() - begin) / SAMPLE_WRITES);
    }
    median(samples)
}

/// Nanoseconds that a read of 4 KiB takes. The reads are scattered over the memory, each place once, so that
/// the processor's caches hardly help.
pub(super) fn read_ns(pm: &dyn PmMedium, clock: &dyn Clock) -> Option<u64> {
    let pages = pm.size() / FLOOR_READ_BYTES;
    let reads = FLOOR_READS.min(pages);
    let mut samples = Vec::with_capacity(reads as usize);
    let mut into = [0; FLOOR_READ_BYTES as usize];
    for index in 0..reads {
        let place = PmOffset(index * (pages / reads) * FLOOR_READ_BYTES);
        // A page fault is not what is measured.
        let there = pm.load_u64(place).is_ok();
        let begin = clock.monotonic_ns();
        // A place that cannot be read says nothing of speed.
        if there && pm.read(place, &mut into).is_ok() {
            samples.push(clock.monotonic_ns() - begin);
        }
    }
    median(samples)
}
