//! When emulated requests end: latency and a shared bandwidth, as pure functions of given times.
//!
//! A request occupies the device's one bus in pieces, each after what was reserved before it, and ends one latency
//! after its last piece. So requests in flight together overlap in latency and share bandwidth, and a small
//! request does not wait for the whole of a large one. A flush, and a write that ends with one, takes its time after that;
//! flushes follow one another, as on a solid state disk without protection against a loss of power. Nothing here reads a
//! clock or waits.

use crate::speed::{Speed, transfer_ns};
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// Bytes reserved at once.
const PIECE_BYTES: u64 = 128 << 10;

/// The direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// The time until which a bus is taken. A bus serves its requests in sequence.
#[derive(Debug, Default)]
pub(crate) struct Bus(AtomicU64);

impl Bus {
    /// Takes `cost_ns` from `now_ns` on, or from when it is free; gives the end.
    pub(crate) fn reserve(&self, now_ns: u64, cost_ns: u64) -> u64 {
        let end = |free: u64| free.max(now_ns).saturating_add(cost_ns);
        // The closure always gives a value, so both arms hold what was there before.
        match self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| Some(end(free))) {
            Ok(free) | Err(free) => end(free),
        }
    }
}

/// A request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    direction: Direction,
    left: u64,
    at_ns: u64,
    stage: Stage,
}

/// The part of a request that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Bytes, and nothing behind them.
    Bytes,
    /// Bytes, and a flush behind them.
    BytesThenFlush,
    /// The flush.
    Flush,
}

/// The next event of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follows {
    /// Its next piece is to be reserved at this time.
    Piece(u64),
    /// It ends at this time.
    End(u64),
}

/// The pace of one device.
#[derive(Debug)]
pub struct Pace {
    speed: Speed,
    flush_ns: u64,
    bus: Bus,
    flushes: Bus,
}

impl Pace {
    /// The pace of an idle device of this speed.
    pub fn new(speed: Speed) -> Pace {
        Pace { speed, flush_ns: 0, bus: Bus::default(), flushes: Bus::default() }
    }

    /// The same with a time that each flush takes, and each durable write behind its bytes.
    #[must_use]
    pub fn with_flush_ns(self, flush_ns: u64) -> Pace {
        Pace { flush_ns, ..self }
    }

    /// The speed.
    pub fn speed(&self) -> Speed {
        self.speed
    }

    /// A request of `bytes` that arrives at `now_ns`.
    pub fn begin(&self, now_ns: u64, direction: Direction, bytes: u64) -> Transfer {
        Transfer { direction, left: bytes, at_ns: now_ns, stage: Stage::Bytes }
    }

    /// A write of `bytes` that is durable when it ends.
    pub fn begin_durable(&self, now_ns: u64, bytes: u64) -> Transfer {
        let write = self.begin(now_ns, Direction::Write, bytes);
        if self.flush_ns == 0 { write } else { Transfer { stage: Stage::BytesThenFlush, ..write } }
    }

    /// A flush. Without a time for flushes it takes the time of a write without bytes.
    pub fn begin_flush(&self, now_ns: u64) -> Transfer {
        let write = self.begin(now_ns, Direction::Write, 0);
        if self.flush_ns == 0 { write } else { Transfer { stage: Stage::Flush, ..write } }
    }

    /// Reserves the next piece. To be called at once, and then at the time it gave: earlier or later changes only
    /// who comes first.
    pub fn advance(&self, transfer: &mut Transfer) -> Follows {
        if transfer.stage == Stage::Flush {
            transfer.at_ns = self.flushes.reserve(transfer.at_ns, self.flush_ns);
            return Follows::End(transfer.at_ns);
        }
        let (rate, latency_ns) = match transfer.direction {
            Direction::Read => (self.speed.read_bytes_per_s, self.speed.read_latency_ns),
            Direction::Write => (self.speed.write_bytes_per_s, self.speed.write_latency_ns),
        };
        let piece = transfer.left.min(PIECE_BYTES);
        let end_ns = self.bus.reserve(transfer.at_ns, transfer_ns(piece, rate));
        assert!(end_ns >= transfer.at_ns, "a bus gives time back");
        (transfer.at_ns, transfer.left) = (end_ns, transfer.left - piece);
        if transfer.left > 0 {
            return Follows::Piece(end_ns);
        }
        let end_ns = end_ns.saturating_add(latency_ns);
        if transfer.stage == Stage::BytesThenFlush {
            (transfer.at_ns, transfer.stage) = (end_ns, Stage::Flush);
            return Follows::Piece(end_ns);
        }
        Follows::End(end_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEED: Speed = Speed {
        read_latency_ns: 1_000,
        write_latency_ns: 5_000,
        read_bytes_per_s: 1_000_000_000,
        write_bytes_per_s: 500_000_000,
    };

    fn whole(pace: &Pace, now_ns: u64, direction: Direction, bytes: u64) -> u64 {
        end(pace, pace.begin(now_ns, direction, bytes))
    }

    fn end(pace: &Pace, mut transfer: Transfer) -> u64 {
        loop {
            if let Follows::End(end_ns) = pace.advance(&mut transfer) {
                return end_ns;
            }
        }
    }

    #[test]
    fn a_request_takes_latency_and_transfer() {
        let pace = Pace::new(SPEED);
        assert_eq!(whole(&pace, 100, Direction::Read, 4096), 100 + 4096 + 1000);
        assert_eq!(whole(&pace, 1_000_000, Direction::Write, 4096), 1_000_000 + 8192 + 5000);
        assert_eq!(whole(&pace, 2_000_000, Direction::Read, 0), 2_001_000);
        assert_eq!(whole(&pace, 3_000_000, Direction::Read, 1 << 20), 3_000_000 + (1 << 20) + 1000);
    }

    #[test]
    fn requests_together_overlap_in_latency_and_share_bandwidth() {
        let pace = Pace::new(SPEED);
        let ends: Vec<u64> = (0..4).map(|_| whole(&pace, 0, Direction::Read, 1000)).collect();
        assert_eq!(ends, [2000, 3000, 4000, 5000]);
        // A write's longer latency does not delay the reads behind it.
        assert_eq!(whole(&pace, 4000, Direction::Write, 500), 4000 + 1000 + 5000);
        assert_eq!(whole(&pace, 4000, Direction::Read, 1000), 5000 + 1000 + 1000);
    }

    #[test]
    fn a_small_request_does_not_wait_for_all_of_a_large_one() {
        let pace = Pace::new(SPEED);
        let mut large = pace.begin(0, Direction::Read, 4 * PIECE_BYTES);
        assert_eq!(pace.advance(&mut large), Follows::Piece(PIECE_BYTES));
        assert_eq!(whole(&pace, 10, Direction::Read, 1000), PIECE_BYTES + 2000);
        // The small request keeps its time on the bus, and the large request ends later by as much.
        for piece in 2..4 {
            assert_eq!(pace.advance(&mut large), Follows::Piece(piece * PIECE_BYTES + 1000));
        }
        assert_eq!(pace.advance(&mut large), Follows::End(4 * PIECE_BYTES + 2000));
    }

    #[test]
    fn flushes_follow_one_another_beside_other_requests() {
        let pace = Pace::new(SPEED).with_flush_ns(1_000_000);
        assert_eq!(end(&pace, pace.begin_flush(0)), 1_000_000, "with nothing to flush");
        assert_eq!(end(&pace, pace.begin_flush(10)), 2_000_000);
        assert_eq!(
            whole(&pace, 20, Direction::Write, 500),
            20 + 1000 + 5000,
            "a plain write waits for no flush"
        );
        assert_eq!(end(&pace, pace.begin_durable(10_000, 500)), 3_000_000);
        assert_eq!(end(&pace, pace.begin_durable(9_000_000, 500)), 9_000_000 + 1000 + 5000 + 1_000_000);
    }

    #[test]
    fn a_flush_without_flush_time_takes_the_time_of_a_write() {
        let pace = Pace::new(SPEED);
        assert_eq!(end(&pace, pace.begin_flush(0)), 5000);
        assert_eq!(end(&pace, pace.begin_durable(10_000, 500)), 10_000 + 1000 + 5000);
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let bus = Bus::default();
        assert_eq!(bus.reserve(1000, 10), 1010);
        assert_eq!(bus.reserve(5000, 10), 5010);
        assert_eq!(bus.reserve(5000, 10), 5020);
        assert_eq!(bus.reserve(u64::MAX, 10), u64::MAX);
    }
}
