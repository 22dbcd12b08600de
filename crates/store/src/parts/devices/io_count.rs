//! The figures of `terrace iostat`: operations, bytes and latency of each tier and of DRAM since mount.
//!
//! Devices are counted and timed by a wrapper around their medium, so every access to a device is counted. PM
//! and DRAM are counted where file data passes (an operation is a contiguous run), and not timed: reading a
//! clock costs a good part of such an operation. The metadata of PM is not counted. Invariant: counting takes
//! no lock and orders nothing; numbers read together need not be of one instant.

use crate::parts::devices::read_priority::ReadPriority;
use serde::Serialize;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use terrace_format::{DeviceBlock, DeviceId};
use terrace_media::block::{AlignedBlock, BlockRead, HostRoom, Run};
use terrace_media::{BlockMedium, MediaError, Promise};
use terrace_runtime::{Clock, thread};

/// Cells of a counter: more threads than this share cells.
const CELLS: usize = 8;

/// A cell has its own cache lines: threads that share a line would slow their counting.
#[derive(Default)]
#[repr(align(128))]
struct Cell {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    read_ns: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    write_ns: AtomicU64,
    flushes: AtomicU64,
    flush_ns: AtomicU64,
}

/// Sums since mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct IoSums {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Nanoseconds that the reads took together; 0 where they are not timed.
    pub read_ns: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Nanoseconds that the writes took together; 0 where they are not timed.
    pub write_ns: u64,
    /// Flushes.
    pub flushes: u64,
    /// Nanoseconds that the flushes took together.
    pub flush_ns: u64,
}

/// A tier and its sums.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TierIo {
    /// 0 is PM.
    pub id: u8,
    /// `ram`, or the class of the first device.
    pub kind: &'static str,
    /// Bytes.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Whether its operations are timed.
    pub timed: bool,
    /// The sums over all devices of the tier.
    pub sums: IoSums,
}

/// Counts the operations of a device, of PM or of DRAM.
#[derive(Default)]
pub struct Counter([Cell; CELLS]);

impl Counter {
    #[inline]
    fn cell(&self) -> &Cell {
        &self.0[thread::index() % CELLS]
    }

    /// A read.
    #[inline]
    pub fn read(&self, bytes: usize) {
        let cell = self.cell();
        cell.reads.fetch_add(1, Ordering::Relaxed);
        cell.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A write.
    #[inline]
    pub fn write(&self, bytes: usize) {
        let cell = self.cell();
        cell.writes.fetch_add(1, Ordering::Relaxed);
        cell.write_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The sums so far.
    pub fn sums(&self) -> IoSums {
        let mut sums = IoSums::default();
        for cell in &self.0 {
            sums.reads += cell.reads.load(Ordering::Relaxed);
            sums.read_bytes += cell.read_bytes.load(Ordering::Relaxed);
            sums.read_ns += cell.read_ns.load(Ordering::Relaxed);
            sums.writes += cell.writes.load(Ordering::Relaxed);
            sums.write_bytes += cell.write_bytes.load(Ordering::Relaxed);
            sums.write_ns += cell.write_ns.load(Ordering::Relaxed);
            sums.flushes += cell.flushes.load(Ordering::Relaxed);
            sums.flush_ns += cell.flush_ns.load(Ordering::Relaxed);
        }
        sums
    }
}

impl IoSums {
    fn add(&mut self, other: &IoSums) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.read_ns += other.read_ns;
        self.writes += other.writes;
        self.write_bytes += other.write_bytes;
        self.write_ns += other.write_ns;
        self.flushes += other.flushes;
        self.flush_ns += other.flush_ns;
    }
}

/// All counters of a mount.
pub struct IoCount {
    /// File data in PM.
    pub pm: Counter,
    /// Blocks of lower tiers in DRAM.
    pub dram: Counter,
    /// By device number.
    devices: Vec<Arc<Counter>>,
    activities: Vec<Arc<Activity>>,
    priorities: Vec<Arc<ReadPriority>>,
    /// Monotonic time of the mount.
    pub mounted_at_ns: u64,
}

/// How long a device that is asked may give no answer before it is passed over.
const SILENT: Duration = Duration::from_secs(5);

/// Whether a device answers.
#[derive(Default)]
struct Activity {
    under_way: AtomicU64,
    /// When the last operation ended, or the first of those under way began.
    since_ns: AtomicU64,
    /// Whether the last operation that ended failed.
    failed: AtomicBool,
}

impl IoCount {
    /// Counts from now on, by a wrapper around the medium of each device.
    pub fn around(devices: &mut [Arc<dyn BlockMedium>], clock: &Arc<dyn Clock>) -> IoCount {
        let mut counters = Vec::with_capacity(devices.len());
        let mut activities = Vec::with_capacity(devices.len());
        let mut priorities = Vec::with_capacity(devices.len());
        for device in devices {
            let (counter, activity) = (Arc::new(Counter::default()), Arc::new(Activity::default()));
            let read_priority = Arc::new(ReadPriority::default());
            counters.push(Arc::clone(&counter));
            activities.push(Arc::clone(&activity));
            priorities.push(Arc::clone(&read_priority));
            let medium = Arc::clone(device);
            *device =
                Arc::new(Counted { medium, counter, activity, read_priority, clock: Arc::clone(clock) });
        }
        let (pm, dram) = (Counter::default(), Counter::default());
        IoCount { pm, dram, devices: counters, activities, priorities, mounted_at_ns: clock.monotonic_ns() }
    }

    /// How a device is read.
    pub fn read_priority(&self, device: DeviceId) -> Option<&ReadPriority> {
        self.priorities.get(usize::from(device.0)).map(|read_priority| &**read_priority)
    }

    /// Whether a device was asked and has answered nothing for some seconds.
    pub fn is_silent(&self, device: DeviceId, now_ns: u64) -> bool {
        self.activities.get(usize::from(device.0)).is_some_and(|activity| {
            activity.under_way.load(Ordering::Relaxed) > 0
                && now_ns.saturating_sub(activity.since_ns.load(Ordering::Relaxed)) > SILENT.as_nanos() as u64
        })
    }

    /// Whether the last operation on a device failed.
    pub(crate) fn has_failed(&self, device: DeviceId) -> bool {
        self.activities
            .get(usize::from(device.0))
            .is_some_and(|activity| activity.failed.load(Ordering::Relaxed))
    }

    /// The number of silent devices.
    pub fn silent(&self, now_ns: u64) -> u64 {
        (0..self.activities.len()).filter(|device| self.is_silent(DeviceId(*device as u8), now_ns)).count()
            as u64
    }

    /// When a device last answered, or was asked after a rest: monotonic nanoseconds; 0 is never.
    pub fn answered_ns(&self) -> u64 {
        self.activities.iter().map(|activity| activity.since_ns.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// Sums of several devices.
    pub fn of_devices(&self, ids: &[DeviceId]) -> IoSums {
        let mut sums = IoSums::default();
        for id in ids {
            if let Some(counter) = self.devices.get(usize::from(id.0)) {
                sums.add(&counter.sums());
            }
        }
        sums
    }
}

/// A medium that counts and times its operations. A failed operation counts too: it took its time.
struct Counted {
    medium: Arc<dyn BlockMedium>,
    counter: Arc<Counter>,
    activity: Arc<Activity>,
    read_priority: Arc<ReadPriority>,
    clock: Arc<dyn Clock>,
}

impl Counted {
    /// Does `operations` operations at once; their time is added to `sum`.
    fn timed<T>(
        &self,
        operations: u64,
        sum: impl FnOnce(&Cell) -> &AtomicU64,
        work: impl FnOnce() -> T,
    ) -> T {
        let begin = self.clock.monotonic_ns();
        if self.activity.under_way.fetch_add(1, Ordering::Relaxed) == 0 {
            self.activity.since_ns.store(begin, Ordering::Relaxed);
        }
        let done = work();
        let end = self.clock.monotonic_ns();
        self.activity.since_ns.store(end, Ordering::Relaxed);
        self.activity.under_way.fetch_sub(1, Ordering::Relaxed);
        let passed = end.saturating_sub(begin) * operations;
        sum(self.counter.cell()).fetch_add(passed, Ordering::Relaxed);
        done
    }

    /// Remembers how an operation ended.
    fn ended(&self, result: Result<(), MediaError>) -> Result<(), MediaError> {
        self.activity.failed.store(result.is_err(), Ordering::Relaxed);
        result
    }

    /// Does `operations` reads at once.
    fn reading<T>(&self, operations: u64, work: impl FnOnce() -> T) -> T {
        self.read_priority.read_begins();
        let begin = self.clock.monotonic_ns();
        let done = self.timed(operations, |cell| &cell.read_ns, work);
        self.read_priority.read_ends(begin, self.clock.monotonic_ns());
        done
    }
}

impl BlockMedium for Counted {
    fn blocks(&self) -> u64 {
        self.medium.blocks()
    }
    fn name(&self) -> &str {
        self.medium.name()
    }
    fn promise(&self) -> Promise {
        self.medium.promise()
    }
    #[inline]
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        self.counter.read(size_of_val(into));
        self.ended(self.reading(1, || self.medium.read(first, into)))
    }
    fn read_all(&self, reads: &mut [BlockRead<'_>]) {
        reads.iter().for_each(|read| self.counter.read(size_of_val(read.into)));
        // In flight together: each counts as long as the last.
        self.reading(reads.len() as u64, || self.medium.read_all(reads));
        self.activity.failed.store(reads.iter().any(|read| read.result.is_err()), Ordering::Relaxed);
    }
    #[inline]
    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        self.counter.write(size_of_val(from));
        self.ended(self.timed(1, |cell| &cell.write_ns, || self.medium.write(first, from)))
    }
    /// Counts as one write: what is in flight together ends together.
    fn write_runs(&self, runs: &[Run<'_>]) -> Result<(), MediaError> {
        self.counter.write(runs.iter().map(|(_, from)| size_of_val(*from)).sum());
        self.ended(self.timed(1, |cell| &cell.write_ns, || self.medium.write_runs(runs)))
    }
    fn write_durable_at(&self, runs: &[Run<'_>], at: &'static Location<'static>) -> Result<(), MediaError> {
        self.counter.write(runs.iter().map(|(_, from)| size_of_val(*from)).sum());
        self.ended(self.timed(1, |cell| &cell.write_ns, || self.medium.write_durable_at(runs, at)))
    }
    fn flush_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        self.counter.cell().flushes.fetch_add(1, Ordering::Relaxed);
        self.ended(self.timed(1, |cell| &cell.flush_ns, || self.medium.flush_at(at)))
    }
    fn discard(&self, first: DeviceBlock, blocks: u64) {
        self.medium.discard(first, blocks);
    }
    fn error_count(&self) -> u64 {
        self.medium.error_count()
    }
    fn last_error(&self) -> Option<MediaError> {
        self.medium.last_error()
    }
    fn host_room(&self) -> Option<HostRoom> {
        self.medium.host_room()
    }
    fn is_missing(&self) -> bool {
        self.medium.is_missing()
    }
}
