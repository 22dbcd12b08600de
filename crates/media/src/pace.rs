//! When emulated requests end: latency and a shared bandwidth, as pure functions of given times.
//!
//! A request occupies the device's one bus in pieces, each after what was reserved before it, and ends one latency
//! after its last piece. So requests in flight together overlap in latency and share bandwidth, and a small
//! request does not wait for the whole of a large one. Nothing here reads a clock or waits.

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
    bus: Bus,
}

impl Pace {
    /// The pace of an idle device of this speed.
    pub fn new(speed: Speed) -> Pace {
        Pace { speed, bus: Bus::default() }
    }

    /// The speed.
    pub fn speed(&self) -> Speed {
        self.speed
    }

    /// A request of `bytes` that arrives at `now_ns`.
    pub fn begin(&self, now_ns: u64, direction: Direction, bytes: u64) -> Transfer {
        Transfer { direction, left: bytes, at_ns: now_ns }
    }

    /// Reserves the next piece. To be called at once, and then at the time it gave: earlier or later changes only
    /// who comes first.
    pub fn advance(&self, transfer: &mut Transfer) -> Follows {
        let (rate, latency_ns) = match transfer.direction {
            Direction::Read => (self.speed.read_bytes_per_s, self.speed.read_latency_ns),
            Direction::Write => (self.speed.write_bytes_per_s, self.speed.write_latency_ns),
        };
        let piece = transfer.left.min(PIECE_BYTES);
        let end_ns = self.bus.reserve(transfer.at_ns, transfer_ns(piece, rate));
        assert!(end_ns >= transfer.at_ns, "a bus gives time back");
        (transfer.at_ns, transfer.left) = (end_ns, transfer.left - piece);
        match transfer.left {
            0 => Follows::End(end_ns.saturating_add(latency_ns)),
            _ => Follows::Piece(end_ns),
        }
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
        let mut transfer = pace.begin(now_ns, direction, bytes);
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
    fn idle_time_is_not_saved_up() {
        let bus = Bus::default();
        assert_eq!(bus.reserve(1000, 10), 1010);
        assert_eq!(bus.reserve(5000, 10), 5010);
        assert_eq!(bus.reserve(5000, 10), 5020);
        assert_eq!(bus.reserve(u64::MAX, 10), u64::MAX);
    }
}
