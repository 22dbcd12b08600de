//! `emulated`: a block device with the latency and bandwidth of another, over any block medium (design 3).
//!
//! Invariants: contents, errors, promise and order are those of the medium below; a request returns no earlier
//! than its [`Pace`] says, counted from its arrival, so what the medium below takes is part of it. A medium below
//! that is slower than the speed asked for stays slower.

use super::{AlignedBlock, BlockMedium, BlockRead, HostRoom, Run};
use crate::pace::{Direction, Follows, Pace};
use crate::speed::Speed;
use crate::{MediaError, Promise};
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;
use terrace_format::{BLOCK_SIZE, DeviceBlock};
use terrace_runtime::Clock;

/// Time for which a large request may reserve its pieces in advance.
const AHEAD_NS: u64 = 200_000;

/// A block medium with another speed.
pub struct EmulatedBlock {
    below: Arc<dyn BlockMedium>,
    pace: Pace,
    clock: Arc<dyn Clock>,
}

impl EmulatedBlock {
    /// `below` with `speed`.
    pub fn new(below: Arc<dyn BlockMedium>, speed: Speed, clock: Arc<dyn Clock>) -> EmulatedBlock {
        EmulatedBlock { below, pace: Pace::new(speed), clock }
    }

    /// The speed.
    pub fn speed(&self) -> Speed {
        self.pace.speed()
    }

    /// Waits until requests of so many blocks that arrived together at `arrival_ns` are to end.
    fn wait(&self, arrival_ns: u64, direction: Direction, requests: impl IntoIterator<Item = usize>) {
        let mut end_ns = arrival_ns;
        for blocks in requests {
            let mut transfer = self.pace.begin(arrival_ns, direction, blocks as u64 * BLOCK_SIZE);
            loop {
                match self.pace.advance(&mut transfer) {
                    Follows::Piece(at_ns) => {
                        // Late is no harm: the rest is reserved from when the piece ended.
                        let ahead_ns = at_ns.saturating_sub(self.clock.monotonic_ns());
                        if ahead_ns > AHEAD_NS {
                            self.clock.sleep(Duration::from_nanos(ahead_ns));
                        }
                    }
                    Follows::End(at_ns) => {
                        end_ns = end_ns.max(at_ns);
                        break;
                    }
                }
            }
        }
        self.clock.wait_until(end_ns);
    }
}

impl BlockMedium for EmulatedBlock {
    fn blocks(&self) -> u64 {
        self.below.blocks()
    }

    fn name(&self) -> &str {
        self.below.name()
    }

    fn promise(&self) -> Promise {
        self.below.promise()
    }

    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        let arrival_ns = self.clock.monotonic_ns();
        self.below.read(first, into)?;
        self.wait(arrival_ns, Direction::Read, [into.len()]);
        Ok(())
    }

    fn read_all(&self, reads: &mut [BlockRead<'_>]) {
        let arrival_ns = self.clock.monotonic_ns();
        self.below.read_all(reads);
        let good = reads.iter().filter(|read| read.result.is_ok());
        self.wait(arrival_ns, Direction::Read, good.map(|read| read.into.len()));
    }

    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        let arrival_ns = self.clock.monotonic_ns();
        self.below.write(first, from)?;
        self.wait(arrival_ns, Direction::Write, [from.len()]);
        Ok(())
    }

    fn write_runs(&self, runs: &[Run<'_>]) -> Result<(), MediaError> {
        let arrival_ns = self.clock.monotonic_ns();
        self.below.write_runs(runs)?;
        self.wait(arrival_ns, Direction::Write, runs.iter().map(|(_, from)| from.len()));
        Ok(())
    }

    fn write_durable_at(&self, runs: &[Run<'_>], at: &'static Location<'static>) -> Result<(), MediaError> {
        let arrival_ns = self.clock.monotonic_ns();
        self.below.write_durable_at(runs, at)?;
        self.wait(arrival_ns, Direction::Write, runs.iter().map(|(_, from)| from.len()));
        Ok(())
    }

    fn flush_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        // The writes that this flush covers have returned, so their emulated time has already passed.
        self.below.flush_at(at)
    }

    fn discard(&self, first: DeviceBlock, blocks: u64) {
        self.below.discard(first, blocks);
    }

    fn error_count(&self) -> u64 {
        self.below.error_count()
    }

    fn last_error(&self) -> Option<MediaError> {
        self.below.last_error()
    }
    fn host_room(&self) -> Option<HostRoom> {
        self.below.host_room()
    }
    fn is_missing(&self) -> bool {
        self.below.is_missing()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Operation, SimulatedDevice, Times};
    use terrace_runtime::ManualClock;

    const SPEED: Speed = Speed {
        read_latency_ns: 10_000,
        write_latency_ns: 20_000,
        read_bytes_per_s: 409_600_000,
        write_bytes_per_s: 40_960_000,
    };

    #[test]
    fn emulated_requests_take_exactly_the_modelled_time() -> Result<(), MediaError> {
        let clock = Arc::new(ManualClock::new(5));
        let below = Arc::new(SimulatedDevice::new(2048));
        let device = EmulatedBlock::new(below.clone(), SPEED, clock.clone());
        let took = |begin: u64| clock.monotonic_ns() - begin;
        let begin = clock.monotonic_ns();
        device.write(DeviceBlock(3), &[AlignedBlock([7; 4096])])?;
        assert_eq!(took(begin), 100_000 + 20_000);
        let begin = clock.monotonic_ns();
        let block = [AlignedBlock([9; 4096])];
        device.write_runs(&[
            (DeviceBlock(9), &block),
            (DeviceBlock(20), &block),
            (DeviceBlock(40), &block),
        ])?;
        assert_eq!(took(begin), 3 * 100_000 + 20_000, "latency counts once");
        let begin = clock.monotonic_ns();
        let mut back = vec![AlignedBlock::zeroed(); 1000];
        device.read(DeviceBlock(3), &mut back)?;
        assert_eq!(took(begin), 1000 * 10_000 + 10_000);
        assert_eq!((back[0].0, back[6].0, back[37].0), ([7; 4096], [9; 4096], [9; 4096]));
        let begin = clock.monotonic_ns();
        let (one, two) = back.split_at_mut(1);
        device.read_all(&mut [
            BlockRead::new(DeviceBlock(9), one),
            BlockRead::new(DeviceBlock(3), &mut two[..3]),
        ]);
        assert_eq!(
            (took(begin), two[0].0),
            (4 * 10_000 + 10_000, [7; 4096]),
            "their latency passes together"
        );
        let begin = clock.monotonic_ns();
        device.flush()?;
        assert_eq!((took(begin), below.counters().flushes), (0, 1));
        Ok(())
    }

    #[test]
    fn errors_of_the_medium_below_pass_through_emulation() {
        let below = Arc::new(SimulatedDevice::new(64));
        let device = EmulatedBlock::new(below.clone(), SPEED, Arc::new(ManualClock::new(0)));
        below.fail_next(Operation::Read, 0..64, libc::EIO, Times::Count(1));
        let mut back = [AlignedBlock::zeroed()];
        assert!(device.read(DeviceBlock(0), &mut back).is_err());
        assert!(device.read(DeviceBlock(0), &mut back).is_ok());
        assert_eq!((device.error_count(), device.blocks(), device.name()), (1, 64, below.name()));
    }
}
