//! `counted`: PM that counts, over any PM medium, for measurements whose counts decide and not their times.
//!
//! Counted are the distinct cache lines of an operation. A line that is read twice counts once: the processor has it in its
//! cache the second time. A *round* is a call that waits for memory: it reads a line that no earlier call of the operation
//! has read or stored, and that no batch has announced. Lines that are announced one after the other
//! ([`PmMedium::expect_load`]) are one round, since their loads run side by side. Stored lines are those of the log or those in place.
//!
//! Nothing is counted before the first operation begins, and after one has ended until the next begins.
//!
//! Invariants: contents, errors, order and promise are those of the medium below. All threads count as one.
//! Lock order: the counts' lock is the last.

use super::{PmMedium, Promise};
use crate::MediaError;
use std::collections::HashSet;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;
use terrace_format::PmOffset;
use terrace_format::address::LINE_SIZE;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicBool, Ordering};

/// Counts of an operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Distinct lines that were read.
    pub read: u64,
    /// Calls that waited for lines.
    pub rounds: u64,
    /// Distinct lines that were stored to outside of the log.
    pub in_place: u64,
    /// Distinct lines of records.
    pub in_record: u64,
    /// Fences.
    pub fences: u64,
}

impl LineCounts {
    /// Lines that were stored to, in place and in records.
    pub fn written(&self) -> u64 {
        self.in_place + self.in_record
    }
}

#[derive(Default)]
struct Lines {
    /// In the cache of a processor that began the operation with an empty cache.
    near: HashSet<u64>,
    read: HashSet<u64>,
    in_place: HashSet<u64>,
    in_record: HashSet<u64>,
    rounds: u64,
    fences: u64,
    /// Nothing was read since the last announced load: the next one is of the same round.
    is_announcing: bool,
}

/// Persistent memory that counts.
pub struct CountedPm {
    below: Arc<dyn PmMedium>,
    log: Range<u64>,
    /// Whether an operation is under way.
    counting: AtomicBool,
    lines: Mutex<Lines>,
}

/// The lines that a range touches.
fn lines_of(range: &Range<u64>) -> Range<u64> {
    match range.is_empty() {
        true => 0..0,
        false => range.start / LINE_SIZE..range.end.div_ceil(LINE_SIZE),
    }
}

impl CountedPm {
    /// `below` with counts; `log` is the address range of the records.
    pub fn new(below: Arc<dyn PmMedium>, log: Range<PmOffset>) -> CountedPm {
        CountedPm {
            below,
            log: log.start.0..log.end.0,
            counting: AtomicBool::new(false),
            lines: Mutex::default(),
        }
    }

    /// Begins an operation: nothing is counted yet, no line is in the cache.
    pub fn begin(&self) {
        *self.lines.lock() = Lines::default();
        self.counting.store(true, Ordering::Relaxed);
    }

    /// Ends the operation and gives its counts.
    pub fn end(&self) -> LineCounts {
        self.counting.store(false, Ordering::Relaxed);
        self.counts()
    }

    /// The lines that the operation has read, announced or stored to, ascending.
    pub fn touched(&self) -> Vec<PmOffset> {
        let mut lines: Vec<PmOffset> =
            self.lines.lock().near.iter().map(|line| PmOffset(line * LINE_SIZE)).collect();
        lines.sort_unstable();
        lines
    }

    fn is_idle(&self) -> bool {
        !self.counting.load(Ordering::Relaxed)
    }

    fn count_fence(&self) {
        if !self.is_idle() {
            self.lines.lock().fences += 1;
        }
    }

    /// The counts since the operation began.
    pub fn counts(&self) -> LineCounts {
        let lines = self.lines.lock();
        LineCounts {
            read: lines.read.len() as u64,
            rounds: lines.rounds,
            in_place: lines.in_place.len() as u64,
            in_record: lines.in_record.len() as u64,
            fences: lines.fences,
        }
    }

    fn loaded(&self, offset: PmOffset, length: usize) {
        if self.is_idle() {
            return;
        }
        let mut lines = self.lines.lock();
        let mut waits = false;
        lines.is_announcing = false;
        for line in lines_of(&(offset.0..offset.0.saturating_add(length as u64))) {
            lines.read.insert(line);
            waits |= lines.near.insert(line);
        }
        lines.rounds += u64::from(waits);
    }

    fn stored(&self, offset: PmOffset, length: usize) {
        if self.is_idle() {
            return;
        }
        let mut lines = self.lines.lock();
        for line in lines_of(&(offset.0..offset.0.saturating_add(length as u64))) {
            match self.log.contains(&(line * LINE_SIZE)) {
                true => lines.in_record.insert(line),
                false => lines.in_place.insert(line),
            };
            lines.near.insert(line);
        }
    }
}

impl PmMedium for CountedPm {
    forward_to_below!();

    fn size(&self) -> u64 {
        self.below.size()
    }

    fn promise(&self) -> Promise {
        self.below.promise()
    }

    fn describe(&self) -> String {
        format!("counted: {}", self.below.describe())
    }

    fn read(&self, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError> {
        self.loaded(offset, into.len());
        self.below.read(offset, into)
    }

    fn load_u64(&self, offset: PmOffset) -> Result<u64, MediaError> {
        self.loaded(offset, 8);
        self.below.load_u64(offset)
    }

    fn write(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.stored(offset, bytes.len());
        self.below.write(offset, bytes)
    }

    fn store(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.stored(offset, bytes.len());
        self.below.store(offset, bytes)
    }

    fn write_streaming(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.stored(offset, bytes.len());
        self.below.write_streaming(offset, bytes)
    }

    fn write_streaming_checked(&self, offset: PmOffset, bytes: &[u8]) -> Result<u32, MediaError> {
        self.stored(offset, bytes.len());
        self.below.write_streaming_checked(offset, bytes)
    }

    fn expect_store(&self, offset: PmOffset) {
        self.below.expect_store(offset);
    }

    fn expect_load(&self, offset: PmOffset) {
        if !self.is_idle() {
            let mut lines = self.lines.lock();
            if lines.near.insert(offset.0 / LINE_SIZE) && !lines.is_announcing {
                lines.is_announcing = true;
                lines.rounds += 1;
            }
        }
        self.below.expect_load(offset);
    }

    fn write_back(&self, offset: PmOffset, length: u64) {
        self.below.write_back(offset, length);
    }

    fn order_at(&self, at: &'static Location<'static>) {
        self.count_fence();
        self.below.order_at(at);
    }

    fn persist_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        self.count_fence();
        self.below.persist_at(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pm::RecordedPm;

    fn counted() -> CountedPm {
        CountedPm::new(Arc::new(RecordedPm::new(1 << 16)), PmOffset(4096)..PmOffset(8192))
    }

    #[test]
    fn a_line_counts_once_and_a_call_without_a_new_line_is_no_round() -> Result<(), MediaError> {
        let pm = counted();
        pm.load_u64(PmOffset(0))?;
        assert_eq!(pm.counts(), LineCounts::default(), "no operation has begun");
        pm.begin();
        pm.load_u64(PmOffset(0))?;
        pm.load_u64(PmOffset(56))?;
        pm.read(PmOffset(60), &mut [0; 8])?;
        assert_eq!(pm.counts(), LineCounts { read: 2, rounds: 2, ..LineCounts::default() });
        pm.store(PmOffset(1024), &[1; 8])?;
        pm.load_u64(PmOffset(1024))?;
        assert_eq!(pm.counts(), LineCounts { read: 3, rounds: 2, in_place: 1, ..LineCounts::default() });
        assert_eq!(pm.touched(), [0, 64, 1024].map(PmOffset));
        pm.begin();
        assert_eq!(pm.counts(), LineCounts::default());
        pm.load_u64(PmOffset(0))?;
        assert_eq!(pm.end().rounds, 1, "a new operation begins with an empty cache");
        pm.load_u64(PmOffset(640))?;
        assert_eq!(pm.counts().rounds, 1, "the operation has ended");
        Ok(())
    }

    #[test]
    fn announced_loads_are_one_round() -> Result<(), MediaError> {
        let pm = counted();
        pm.begin();
        pm.expect_load(PmOffset(0));
        pm.expect_load(PmOffset(640));
        assert_eq!(pm.counts(), LineCounts { rounds: 1, ..LineCounts::default() }, "nothing is read yet");
        pm.read(PmOffset(640), &mut [0; 64])?;
        pm.load_u64(PmOffset(8))?;
        assert_eq!((pm.counts().read, pm.counts().rounds), (2, 1));
        pm.load_u64(PmOffset(64))?;
        assert_eq!((pm.counts().read, pm.counts().rounds), (3, 2));
        pm.expect_load(PmOffset(0));
        pm.expect_load(PmOffset(100));
        assert_eq!(pm.counts().rounds, 2, "all announced lines are there");
        pm.expect_load(PmOffset(128));
        pm.expect_load(PmOffset(192));
        assert_eq!(pm.counts().rounds, 3, "announced after reads, one round together");
        Ok(())
    }

    #[test]
    fn stores_to_the_log_and_in_place_are_counted_apart() -> Result<(), MediaError> {
        let pm = counted();
        pm.begin();
        pm.write_streaming(PmOffset(4096), &[1; 130])?;
        pm.write(PmOffset(8192), &[1; 64])?;
        pm.store(PmOffset(8192), &[2; 65])?;
        pm.order();
        let found = pm.counts();
        assert_eq!((found.in_record, found.in_place, found.fences, found.written()), (3, 2, 1, 5));
        let mut back = [0; 2];
        pm.read(PmOffset(8255), &mut back)?;
        assert_eq!(back, [2; 2], "content passes through");
        Ok(())
    }
}
