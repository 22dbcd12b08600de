//! A lane: a ring in PM that holds records (design T3).
//!
//! Invariant (room for a confirming record, T4): a reservation takes 64 bytes more than its record and
//! leaves 64 free; so after every commit at least 64 bytes are free, and a lane whose last record
//! names data can always take one confirming record.

use crate::dirty_lines::DirtyLines;
use crate::error::Result;
use terrace_format::checksum::record_seed;
use terrace_format::record::{DataCheck, HEADER_SIZE, RECORD_ALIGN, padded};
use terrace_format::{Lsn, PmOffset};
use terrace_media::PmMedium;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_runtime::sync::{LockKind, PoolLocks, RankedMutex};

/// Most ranges of data named by a lane's last record that are remembered exactly. Of more ranges, any byte
/// counts as named.
const NAMED: usize = 4;

pub(crate) struct LaneState {
    /// Position after the last record.
    pub head: u64,
    /// Position of the first record that a recovery would read.
    pub tail: u64,
    /// Bytes reserved by transactions that have not committed.
    pub reserved: u64,
    /// LSN of the last record.
    pub last_lsn: Lsn,
    /// Cache lines that records stored in place and nobody has written back.
    pub dirty: DirtyLines,
    /// Scratch space for records.
    pub scratch: Vec<u8>,
}

pub(crate) struct Lane {
    pub index: u32,
    offset: PmOffset,
    size: u64,
    pub state: RankedMutex<LaneState>,
    /// Lower bound of the LSN that is drawn and not yet applied; `u64::MAX` when none is (T5).
    pub pending: AtomicU64,
    named: [AtomicU64; NAMED],
}

impl Lane {
    pub fn new(
        locks: PoolLocks,
        index: u32,
        (offset, size): (PmOffset, u64),
        position: u64,
        lsn: Lsn,
    ) -> Lane {
        let state = LaneState {
            head: position,
            tail: position,
            reserved: 0,
            last_lsn: lsn,
            dirty: DirtyLines::default(),
            scratch: Vec::with_capacity(4096),
        };
        Lane {
            index,
            offset,
            size,
            state: RankedMutex::new(locks.rank(LockKind::Lane, index), state),
            pending: AtomicU64::new(u64::MAX),
            named: Default::default(),
        }
    }

    /// Ring bytes that a reservation for a record of `bytes` takes.
    pub fn need(bytes: usize) -> u64 {
        padded(bytes) + RECORD_ALIGN
    }

    /// Takes room for a record if there is any.
    pub fn try_reserve(&self, state: &mut LaneState, need: u64) -> bool {
        if state.head - state.tail + state.reserved + need + RECORD_ALIGN > self.size {
            return false;
        }
        state.reserved += need;
        true
    }

    /// Streams a sealed record to the ring at the head; the caller fences.
    pub fn append(&self, pm: &dyn PmMedium, head: u64, record: &[u8]) -> Result<()> {
        let at = head % self.size;
        let first = record.len().min((self.size - at) as usize);
        let (front, back) = record.split_at(first);
        pm.write_streaming(self.offset.plus(at), front)?;
        if !back.is_empty() {
            pm.write_streaming(self.offset, back)?;
        }
        Ok(())
    }

    /// Reads ring bytes from a position.
    pub fn read(&self, pm: &dyn PmMedium, position: u64, into: &mut [u8]) -> Result<()> {
        read_ring(pm, self.offset, self.size, position, into)
    }

    /// Remembers which data the last record names. More ranges than fit are kept as one range over
    /// all of PM: a needless confirming record is only slow.
    pub fn set_named(&self, checks: &[DataCheck]) {
        for (index, place) in self.named.iter().enumerate() {
            let packed = match checks.get(index) {
                Some(check) if checks.len() <= NAMED && check.length <= 0xffff => {
                    check.offset.0 << 16 | u64::from(check.length)
                }
                Some(_) if index == 0 => u64::MAX,
                _ => 0,
            };
            place.store(packed, Ordering::Release);
        }
    }

    /// True when the last record names bytes of this range.
    pub fn names(&self, offset: PmOffset, length: u64) -> bool {
        self.named.iter().any(|place| {
            let packed = place.load(Ordering::Acquire);
            let (start, size) = (packed >> 16, packed & 0xffff);
            packed == u64::MAX || (packed != 0 && start < offset.0 + length && offset.0 < start + size)
        })
    }
}

/// The seed of a record's CRC, for write and read (design T3).
pub(crate) fn seed(pool_uuid: &[u8; 16], lane: u32, position: u64, epoch: u64) -> u32 {
    if planted(Mistake::StaleRecordsCount) {
        return record_seed(pool_uuid, lane, 0, 0);
    }
    record_seed(pool_uuid, lane, position, epoch)
}

/// Reads bytes of a ring that may wrap around its end.
pub(crate) fn read_ring(
    pm: &dyn PmMedium,
    base: PmOffset,
    size: u64,
    position: u64,
    into: &mut [u8],
) -> Result<()> {
    let at = position % size;
    let first = into.len().min((size - at) as usize);
    let (front, back) = into.split_at_mut(first);
    pm.read(base.plus(at), front)?;
    if !back.is_empty() {
        pm.read(base, back)?;
    }
    Ok(())
}

/// A header's worth of zeros, the start of a record under construction.
pub(crate) const EMPTY_HEADER: [u8; HEADER_SIZE] = [0; HEADER_SIZE];

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_media::pm::RecordedPm;

    const RING: u64 = 4096;

    fn lane(position: u64) -> Lane {
        Lane::new(PoolLocks::new(), 3, (PmOffset(8192), RING), position, Lsn(1))
    }

    #[test]
    fn a_reservation_leaves_room_for_a_confirming_record() {
        assert_eq!([1, 64, 65, 128].map(Lane::need), [128, 128, 192, 192]);
        let taken = |used: u64, reserved: u64, need: u64| {
            let lane = lane(10 * RING);
            let mut state = lane.state.lock();
            (state.head, state.reserved) = (10 * RING + used, reserved);
            let taken = lane.try_reserve(&mut state, need);
            assert_eq!(state.reserved, if taken { reserved + need } else { reserved });
            taken
        };
        for (used, reserved) in [(0, 0), (640, 0), (0, 640), (640, 128), (RING - 64, 0)] {
            let room = RING - used - reserved - 64;
            assert!(taken(used, reserved, room), "{used} used, {reserved} reserved");
            assert!(!taken(used, reserved, room + 64), "{used} used, {reserved} reserved");
        }
    }

    #[test]
    fn records_wrap_around_the_end_of_the_ring_and_go_nowhere_else() {
        for at in [0, 64, RING - 192, RING - 128, RING - 64] {
            let pm = RecordedPm::new(64 << 10);
            let lane = lane(0);
            let record: Vec<u8> = (1..=192).collect();
            let position = 7 * RING + at;
            lane.append(&pm, position, &record).unwrap();
            let mut back = vec![0; 192];
            lane.read(&pm, position, &mut back).unwrap();
            assert_eq!(back, record, "at {at}");
            let mut all = vec![0; 64 << 10];
            pm.read(PmOffset(0), &mut all).unwrap();
            for (index, byte) in (0..).zip(&record) {
                let place = 8192 + (at + index) % RING;
                assert_eq!(std::mem::take(&mut all[place as usize]), *byte);
            }
            assert!(all.iter().all(|byte| *byte == 0), "bytes outside of the record");
        }
    }

    #[test]
    fn data_named_by_the_last_record_is_known_to_the_byte() {
        let check = |offset, length| DataCheck { offset: PmOffset(offset), length, crc: 1 };
        let lane = lane(0);
        let names = |offset, length| lane.names(PmOffset(offset), length);
        assert!(!names(0, 1 << 40), "nothing yet");
        lane.set_named(&[check(1000, 24), check(5000, 0xffff)]);
        for (offset, length, named) in [
            (999, 1, false),
            (999, 2, true),
            (1000, 1, true),
            (1023, 1, true),
            (1024, 3000, false),
            (1024, 3977, true),
            (5000 + 0xfffe, 1, true),
            (5000 + 0xffff, 9, false),
            (0, 1 << 30, true),
        ] {
            assert_eq!(names(offset, length), named, "{offset} + {length}");
        }
        lane.set_named(&[1, 2, 3, 4].map(|number| check(number * 1000, 8)));
        assert!((1..=4).all(|number| names(number * 1000 + 7, 1) && !names(number * 1000 + 8, 1)));
        lane.set_named(&[]);
        assert!(!names(0, 1 << 40), "the next record names nothing");
        // More than is remembered, or longer: anything may be named.
        lane.set_named(&[1, 2, 3, 4, 5].map(|number| check(number * 1000, 8)));
        assert!(names(1 << 40, 1));
        lane.set_named(&[check(1000, 0x10000)]);
        assert!(names(1 << 40, 1));
    }
}
