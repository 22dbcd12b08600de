//! The backlog that large requests may leave before a journal slows them: half the ring, or less while somebody syncs.
//!
//! A sync writes the ring up to its own place. A writer that streams and never syncs fills the ring faster than the device
//! takes it, and each sync beside would wait for half a ring. So for a second after each sync the backlog of large requests is
//! bounded by what the device takes in [`PATIENCE_MS`]. Small requests keep the ring: a program that changes much in small pieces
//! and syncs then is faster so.

// Hints: the scheduler of models need not try their orders.
use std::sync::atomic::{AtomicU64, Ordering};

/// Milliseconds that a sync may wait for bytes of others.
const PATIENCE_MS: u64 = 4;
/// The bound holds so long after a sync.
const REMEMBERED_NS: u64 = 1_000_000_000;
/// Batches below this tell the time of a request, not the pace of the device.
const LEAST_SAMPLE_BYTES: u64 = 256 << 10;
/// The smallest bound: a few large requests.
const LEAST_BACKLOG_BYTES: u64 = 1 << 20;
/// Weight of the last batch in the mean: one part of this number.
const MEAN_PART: u64 = 8;

/// The times of syncs, and the pace of the device.
#[derive(Default)]
pub(super) struct Pressure {
    /// The last sync that had to wait, on the log's clock; 0: none.
    synced_ns: AtomicU64,
    /// Bytes that the device takes in a millisecond, by large batches; 0 before the first.
    bytes_per_ms: AtomicU64,
}

impl Pressure {
    /// A caller waits for the log.
    pub fn note_sync(&self, now_ns: u64) {
        self.synced_ns.store(now_ns.max(1), Ordering::Relaxed);
    }

    /// A batch was written.
    pub fn note_batch(&self, bytes: u64, took_ns: u64) {
        assert!(bytes > 0, "a batch without a byte");
        if bytes >= LEAST_SAMPLE_BYTES {
            let now = bytes.saturating_mul(1_000_000) / took_ns.max(1);
            let before = self.bytes_per_ms.load(Ordering::Relaxed);
            let mean = if before == 0 { now } else { (before * (MEAN_PART - 1) + now) / MEAN_PART };
            // Leaders that write at the same time may lose a sample.
            self.bytes_per_ms.store(mean, Ordering::Relaxed);
        }
    }

    /// Bytes that large requests may leave now; at most half the ring.
    pub fn sync_bytes(&self, ring_bytes: u64, now_ns: impl FnOnce() -> u64) -> u64 {
        assert!(ring_bytes >= LEAST_BACKLOG_BYTES, "a ring of {ring_bytes} bytes");
        let synced_ns = self.synced_ns.load(Ordering::Relaxed);
        if synced_ns == 0 || now_ns().saturating_sub(synced_ns) >= REMEMBERED_NS {
            return ring_bytes / 2;
        }
        let bound = self.bytes_per_ms.load(Ordering::Relaxed).saturating_mul(PATIENCE_MS);
        bound.max(LEAST_BACKLOG_BYTES).min(ring_bytes / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: u64 = 64 << 20;
    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn the_backlog_is_bounded_for_a_second_after_a_sync_by_the_pace_of_the_device() {
        let pressure = Pressure::default();
        let limit = |now_ns| pressure.sync_bytes(RING, || now_ns);
        assert_eq!(limit(5), RING / 2, "nobody synced");
        pressure.note_sync(SECOND_NS);
        assert_eq!(limit(SECOND_NS + 1), LEAST_BACKLOG_BYTES, "no pace is known");
        pressure.note_batch(4096, 1);
        assert_eq!(limit(SECOND_NS + 1), LEAST_BACKLOG_BYTES, "a short batch");
        // 1 MiB in 2 ms
        (0..100).for_each(|_| pressure.note_batch(1 << 20, 2_000_000));
        assert_eq!(limit(2 * SECOND_NS - 1), PATIENCE_MS * ((1 << 20) / 2));
        assert_eq!(limit(2 * SECOND_NS), RING / 2, "a second later");
        (0..100).for_each(|_| pressure.note_batch(1 << 20, 1));
        assert_eq!(limit(SECOND_NS), RING / 2, "a device as quick as memory");
    }
}
