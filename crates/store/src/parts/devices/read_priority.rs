//! Background work goes behind operations of users ("migration threads that yield at once").
//!
//! The processor: while PM has room a worker offers it after every piece of its work
//! (`pressure/processor.rs`), or a request that arrives would wait for the rest of the worker's time slice,
//! some milliseconds. The device: while a device is being read, background writes go to it in pieces that are
//! short beside a read ([`ReadPriority`]), or a read would wait behind megabytes of writes. Background work gives
//! up its order, never its progress: no thread waits for another, so neither starvation nor deadlock can
//! arise.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How long after a read ended the next one is expected.
const READ_GAP_MAX: Duration = Duration::from_millis(2);

/// Blocks of the smallest and of the largest piece.
pub(crate) const LEAST_PIECE: usize = 32;

const MOST_PIECE: usize = 512;

/// The longest time of a piece, in times of an undisturbed read.
const MOST_TIMES: u64 = 4;

/// Each slower read raises the least read time by a part in `FORGETS` of the difference, so the least of some
/// hundred reads counts.
const FORGETS: u64 = 256;

/// How one device is read, and how long writes to it may be meanwhile.
#[derive(Debug)]
pub struct ReadPriority {
    reading: AtomicU64,
    /// When the last read ended: nanoseconds, plus one; 0 is never.
    read_until_ns: AtomicU64,
    /// The time of an undisturbed read: the least of late. The average would grow with the background writes,
    /// and then allow longer ones.
    least_ns: AtomicU64,
    piece: AtomicUsize,
}

impl Default for ReadPriority {
    fn default() -> ReadPriority {
        ReadPriority {
            reading: AtomicU64::new(0),
            read_until_ns: AtomicU64::new(0),
            least_ns: AtomicU64::new(0),
            piece: AtomicUsize::new(LEAST_PIECE),
        }
    }
}

impl ReadPriority {
    /// A read begins.
    pub(crate) fn read_begins(&self) {
        self.reading.fetch_add(1, Ordering::Relaxed);
    }

    /// A read ends that began at `begin_ns`.
    pub(crate) fn read_ends(&self, begin_ns: u64, end_ns: u64) {
        let before = self.reading.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a read of a device ends that has not begun");
        self.read_until_ns.store(end_ns.saturating_add(1), Ordering::Relaxed);
        let (took, least) = (end_ns.saturating_sub(begin_ns).max(1), self.least_ns.load(Ordering::Relaxed));
        let next = if least == 0 || took < least { took } else { least + (took - least) / FORGETS };
        self.least_ns.store(next, Ordering::Relaxed);
    }

    /// The blocks that a piece of a background write may have now; `None`: no limit.
    pub fn piece(&self, now_ns: u64) -> Option<usize> {
        let until = self.read_until_ns.load(Ordering::Relaxed);
        let lately = until > 0 && now_ns < until.saturating_add(READ_GAP_MAX.as_nanos() as u64);
        let read = lately || self.reading.load(Ordering::Relaxed) > 0;
        read.then(|| self.piece.load(Ordering::Relaxed))
    }

    /// A piece took so long: the next one is shorter or longer. A device that takes long for any request, as a disk does,
    /// is given long ones.
    pub(crate) fn wrote_piece(&self, took_ns: u64) {
        let least = self.least_ns.load(Ordering::Relaxed).max(1);
        let piece = self.piece.load(Ordering::Relaxed);
        let next = match took_ns / least {
            times if times >= MOST_TIMES => piece / 2,
            times if times < MOST_TIMES / 2 => piece * 2,
            _ => piece,
        };
        self.piece.store(next.clamp(LEAST_PIECE, MOST_PIECE), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    #[test]
    fn background_writes_are_cut_into_pieces_only_beside_reads() {
        let read_priority = ReadPriority::default();
        assert_eq!(read_priority.piece(0), None);
        read_priority.read_begins();
        assert_eq!(read_priority.piece(0), Some(LEAST_PIECE));
        read_priority.read_ends(0, 100 * US);
        assert_eq!(read_priority.piece(1000 * US), Some(LEAST_PIECE), "the next read may come");
        assert_eq!(read_priority.piece(3000 * US), None);
    }

    #[test]
    fn a_piece_is_short_beside_a_read_and_longer_where_reads_are_slow() {
        let read_priority = ReadPriority::default();
        read_priority.read_begins();
        read_priority.read_ends(0, 100 * US);
        let pieces = |took: u64| {
            read_priority.wrote_piece(took);
            read_priority.piece(100 * US).unwrap_or(0)
        };
        assert_eq!(pieces(500 * US), LEAST_PIECE);
        assert_eq!(pieces(150 * US), 2 * LEAST_PIECE);
        assert_eq!(pieces(300 * US), 2 * LEAST_PIECE, "neither too long nor short");
        assert_eq!(pieces(450 * US), LEAST_PIECE);
        for _ in 0..10 {
            pieces(10 * US);
        }
        assert_eq!(pieces(10 * US), MOST_PIECE);
    }

    #[test]
    fn slow_reads_do_not_lengthen_pieces() {
        let read_priority = ReadPriority::default();
        for (begin, took) in [(0, 100 * US), (1000 * US, 900 * US), (2000 * US, 900 * US)] {
            read_priority.read_begins();
            read_priority.read_ends(begin, begin + took);
        }
        read_priority.wrote_piece(1800 * US);
        assert_eq!(read_priority.piece(3000 * US), Some(LEAST_PIECE));
        assert!(read_priority.least_ns.load(Ordering::Relaxed) < 110 * US);
    }
}
