//! `emulated`: persistent memory with the latency and bandwidth of another, over any PM medium (design 3).
//!
//! Two models. [`PmModel::Line`] is the one of [HiNFS]: each flushed cache line takes a latency, spent by spinning
//! after its write-back, and all threads share a bandwidth. [`PmModel::Run`]: each contiguous run of bytes takes
//! one latency, and its transfer at the shared bandwidth. In both a read of a cache line or more takes the read
//! latency once; smaller reads and single words are taken for hits in the processor's cache.
//!
//! Invariants: contents, errors, order and promise are those of the medium below. The times are those of the whole
//! operation, so what the memory below takes is part of them; what the delay itself takes too much is measured once,
//! at the beginning, and taken off. A memory below that is slower stays slower: how fast it can be is measured as well
//! ([`PmFloor`]), and what cannot be reached is said ([`EmulatedPm::shortfalls`]).

mod calibration;

use super::{PmMedium, Promise};
use crate::MediaError;
use crate::pace::Bus;
use crate::speed::{latency, rate, transfer_ns};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use terrace_format::PmOffset;
use terrace_runtime::Clock;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

const LINE_BYTES: u64 = 64;
const COUNTER_SHARDS: usize = 64;
/// The speed that the calibration emulates.
const CALIBRATION: PmSpeed =
    PmSpeed { model: PmModel::Line, write_ns: 500, bytes_per_s: 1 << 40, read_ns: 0 };
/// Most that is taken off: more is a machine that was disturbed.
const MAX_TAKEN_OFF_NS: u64 = 200;

/// By how much a time may be off, in percent.
const ACCURACY_PERCENT: u64 = 10;

/// The unit that pays the latency of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PmModel {
    /// Each flushed cache line [HiNFS].
    Line,
    /// Each contiguous run.
    Run,
}

/// The speed of emulated PM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PmSpeed {
    /// The model.
    pub model: PmModel,
    /// Of a line or run, in nanoseconds.
    pub write_ns: u64,
    /// Of all writes together, bytes per second.
    pub bytes_per_s: u64,
    /// Of a run that is read, in nanoseconds; 0 leaves reads alone.
    pub read_ns: u64,
}

impl PmSpeed {
    /// `[run:|line:]WRITE_NS:BYTES_PER_S[:READ_NS]`; the rate may end in K, M or G (base 1024). Without a model it is
    /// `line`.
    ///
    /// # Errors
    /// The mistake in the text, in words for a user.
    pub fn parse(text: &str) -> Result<PmSpeed, String> {
        let wrong = || {
            format!(
                "'{text}': write [line:|run:]WRITE_NS:BYTES_PER_S[:READ_NS], as in 200:1G or run:300:2G:300"
            )
        };
        let (model, figures) = match (text.strip_prefix("run:"), text.strip_prefix("line:")) {
            (Some(rest), _) => (PmModel::Run, rest),
            (_, Some(rest)) => (PmModel::Line, rest),
            _ => (PmModel::Line, text),
        };
        let words: Vec<&str> = figures.split(':').collect();
        let (write_ns, bytes_per_s, read_ns) = match words.as_slice() {
            [write, rate] => (*write, *rate, "0"),
            [write, rate, read] => (*write, *rate, *read),
            _ => return Err(wrong()),
        };
        Ok(PmSpeed {
            model,
            write_ns: latency(write_ns).ok_or_else(wrong)?,
            bytes_per_s: rate(bytes_per_s).ok_or_else(wrong)?,
            read_ns: latency(read_ns).ok_or_else(wrong)?,
        })
    }
}

impl fmt::Display for PmSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.model {
            PmModel::Line => "line",
            PmModel::Run => "run",
        };
        let rate = self.bytes_per_s / 1_000_000;
        write!(f, "{} ns a {unit}, {rate} MB/s, reads {} ns", self.write_ns, self.read_ns)
    }
}

/// The shortest times that can be emulated: the time of the memory below plus the overhead of the emulation.
/// They are measured, so they are larger if the machine was busy at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PmFloor {
    /// A line written and its fence, in nanoseconds.
    pub write_ns: u64,
    /// 4 KiB read that are in none of the processor's caches, in nanoseconds.
    pub read_ns: u64,
}

impl PmSpeed {
    /// The requested times that a machine with this floor misses by more than 10 %: a sentence for the user
    /// on each.
    fn shortfalls(&self, floor: &PmFloor) -> Vec<String> {
        let transfer = transfer_ns(LINE_BYTES, self.bytes_per_s);
        let write_ns = match self.model {
            PmModel::Line => transfer.max(self.write_ns),
            PmModel::Run => transfer.saturating_add(self.write_ns),
        };
        // A latency of zero asks for none.
        let is_missed = |latency: u64, asked: u64, found: u64| {
            latency > 0 && found.saturating_mul(100) > asked.saturating_mul(100 + ACCURACY_PERCENT)
        };
        let sentence = |what: &str, found: u64, asked: u64| {
            format!("emulated persistent memory: {what} takes {found} ns on this machine, not {asked} ns")
        };
        let write = is_missed(self.write_ns, write_ns, floor.write_ns);
        let read = is_missed(self.read_ns, self.read_ns, floor.read_ns);
        let write = write.then(|| sentence("a write of 64 B with its fence", floor.write_ns, write_ns));
        let read = read.then(|| sentence("a read of 4 KiB", floor.read_ns, self.read_ns));
        write.into_iter().chain(read).collect()
    }
}

/// Writes that an emulated medium has delayed since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delayed {
    /// Cache lines written back or streamed.
    pub lines: u64,
    /// Bytes of the calls, parts of these lines.
    pub bytes: u64,
    /// Nanoseconds that threads waited, beside the time of the memory below.
    pub waited_ns: u64,
}

/// Where the runs of a thread ended, and its writes, on cache lines of its own.
#[repr(align(128))]
struct Shard {
    written: AtomicU64,
    read: AtomicU64,
    lines: AtomicU64,
    bytes: AtomicU64,
    waited_ns: AtomicU64,
}

const NOWHERE: u64 = u64::MAX;

/// Persistent memory with another speed.
pub struct EmulatedPm {
    below: Arc<dyn PmMedium>,
    speed: PmSpeed,
    clock: Arc<dyn Clock>,
    bus: Bus,
    /// Taken off each delay.
    off_ns: u64,
    floor: PmFloor,
    shards: Box<[Shard; COUNTER_SHARDS]>,
}

impl EmulatedPm {
    /// `below` with `speed`. Measures for some milliseconds what the delay takes too much, and the floor, with writes of
    /// what the first line holds: nobody else may store to it meanwhile.
    pub fn new(below: Arc<dyn PmMedium>, speed: PmSpeed, clock: Arc<dyn Clock>) -> EmulatedPm {
        let shard = |_| Shard {
            written: AtomicU64::new(NOWHERE),
            read: AtomicU64::new(NOWHERE),
            lines: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        };
        let shards = Box::new(std::array::from_fn(shard));
        let (bus, floor) = (Bus::default(), PmFloor::default());
        let mut pm = EmulatedPm { below, speed: CALIBRATION, clock, bus, off_ns: 0, floor, shards };
        // The overhead of spin loop, clock and fence.
        let over =
            calibration::write_ns(&pm, &*pm.clock).map_or(0, |ns| ns.saturating_sub(CALIBRATION.write_ns));
        pm.off_ns = over.min(MAX_TAKEN_OFF_NS);
        pm.speed = PmSpeed { write_ns: 0, read_ns: 1, ..CALIBRATION };
        pm.floor = PmFloor {
            write_ns: calibration::write_ns(&pm, &*pm.clock).unwrap_or(0),
            read_ns: calibration::read_ns(&pm, &*pm.clock).unwrap_or(0),
        };
        (pm.speed, pm.bus) = (speed, Bus::default());
        // The writes of the calibration are nobody's.
        for shard in pm.shards.iter() {
            [&shard.lines, &shard.bytes, &shard.waited_ns]
                .iter()
                .for_each(|count| count.store(0, Ordering::Relaxed));
        }
        pm
    }

    /// The writes that were delayed since it was made.
    pub fn delayed(&self) -> Delayed {
        let sum = |count: fn(&Shard) -> &AtomicU64| -> u64 {
            self.shards.iter().map(|shard| count(shard).load(Ordering::Relaxed)).sum()
        };
        Delayed { lines: sum(|s| &s.lines), bytes: sum(|s| &s.bytes), waited_ns: sum(|s| &s.waited_ns) }
    }

    /// The shortest times that this medium can emulate.
    pub fn floor(&self) -> PmFloor {
        self.floor
    }

    /// A sentence for the user on each requested time that this machine misses by more than 10 %.
    pub fn shortfalls(&self) -> Vec<String> {
        self.speed.shortfalls(&self.floor)
    }

    #[inline]
    fn shard(&self) -> &Shard {
        &self.shards[terrace_runtime::thread::index() % COUNTER_SHARDS]
    }

    #[inline]
    fn wait_until(&self, end_ns: u64) {
        self.clock.wait_until(end_ns.saturating_sub(self.off_ns));
    }

    /// A fence ends the current run: the next store begins a new run.
    fn end_run(&self) {
        self.shard().written.store(NOWHERE, Ordering::Relaxed);
    }

    /// Waits as long as a write-back takes that began at `begin_ns`.
    fn written(&self, begin_ns: u64, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        let lines = (offset % LINE_BYTES + length).div_ceil(LINE_BYTES);
        assert!(lines * LINE_BYTES >= length, "{length} bytes from {offset} are of {lines} lines");
        let transfer = |bytes| self.bus.reserve(begin_ns, transfer_ns(bytes, self.speed.bytes_per_s));
        let end_ns = match self.speed.model {
            PmModel::Line => {
                let latency_ns = lines.saturating_mul(self.speed.write_ns);
                transfer(lines * LINE_BYTES).max(begin_ns.saturating_add(latency_ns))
            }
            PmModel::Run => {
                let end = offset.saturating_add(length);
                let continues = self.shard().written.swap(end, Ordering::Relaxed) == offset;
                transfer(length).saturating_add(if continues { 0 } else { self.speed.write_ns })
            }
        };
        let shard = self.shard();
        let wait_ns = end_ns.saturating_sub(self.off_ns).saturating_sub(self.clock.monotonic_ns());
        shard.lines.fetch_add(lines, Ordering::Relaxed);
        shard.bytes.fetch_add(length, Ordering::Relaxed);
        shard.waited_ns.fetch_add(wait_ns, Ordering::Relaxed);
        self.wait_until(end_ns);
    }

    /// Does a write-back and waits for the rest of its time.
    #[inline]
    fn write_as<T>(
        &self,
        offset: PmOffset,
        length: usize,
        write: impl FnOnce() -> Result<T, MediaError>,
    ) -> Result<T, MediaError> {
        let begin_ns = self.clock.monotonic_ns();
        let result = write()?;
        self.written(begin_ns, offset.0, length as u64);
        Ok(result)
    }
}

impl PmMedium for EmulatedPm {
    forward_to_below!();

    fn size(&self) -> u64 {
        self.below.size()
    }

    fn promise(&self) -> Promise {
        self.below.promise()
    }

    fn describe(&self) -> String {
        let PmSpeed { model, write_ns, bytes_per_s, read_ns } = self.speed;
        let unit = match model {
            PmModel::Line => "line",
            PmModel::Run => "run",
        };
        let (rate, off) = (bytes_per_s / 1_000_000, self.off_ns);
        let below = self.below.describe();
        let PmFloor { write_ns: least_write, read_ns: least_read } = self.floor;
        format!(
            "emulated: {write_ns} ns a {unit}, {rate} MB/s, reads {read_ns} ns (delays {off} ns shorter; not below \
             {least_write} ns for 64 B written, {least_read} ns for 4 KiB read); {below}"
        )
    }

    #[inline]
    fn read(&self, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError> {
        if self.speed.read_ns == 0 || (into.len() as u64) < LINE_BYTES {
            return self.below.read(offset, into);
        }
        let begin_ns = self.clock.monotonic_ns();
        self.below.read(offset, into)?;
        let end = offset.0.saturating_add(into.len() as u64);
        if self.shard().read.swap(end, Ordering::Relaxed) != offset.0 {
            self.wait_until(begin_ns.saturating_add(self.speed.read_ns));
        }
        Ok(())
    }

    #[inline]
    fn load_u64(&self, offset: PmOffset) -> Result<u64, MediaError> {
        self.below.load_u64(offset)
    }

    fn write(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.write_as(offset, bytes.len(), || self.below.write(offset, bytes))
    }

    #[inline]
    fn store(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        // Stays in the cache: its write-back takes the time.
        self.below.store(offset, bytes)
    }

    fn write_streaming(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.write_as(offset, bytes.len(), || self.below.write_streaming(offset, bytes))
    }

    fn write_streaming_checked(&self, offset: PmOffset, bytes: &[u8]) -> Result<u32, MediaError> {
        self.write_as(offset, bytes.len(), || self.below.write_streaming_checked(offset, bytes))
    }

    #[inline]
    fn expect_store(&self, offset: PmOffset) {
        self.below.expect_store(offset);
    }

    #[inline]
    fn expect_load(&self, offset: PmOffset) {
        self.below.expect_load(offset);
    }

    fn write_back(&self, offset: PmOffset, length: u64) {
        let begin_ns = self.clock.monotonic_ns();
        self.below.write_back(offset, length);
        if offset.0.checked_add(length).is_some_and(|end| end <= self.size()) {
            self.written(begin_ns, offset.0, length);
        }
    }

    fn order_at(&self, at: &'static Location<'static>) {
        self.below.order_at(at);
        self.end_run();
    }

    fn persist_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        self.end_run();
        self.below.persist_at(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pm::RecordedPm;
    use terrace_runtime::{ManualClock, SystemClock};

    fn emulated(text: &str) -> (EmulatedPm, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(1_000_000));
        let speed = PmSpeed::parse(text).unwrap_or_else(|error| unreachable!("{error}"));
        let pm = EmulatedPm::new(Arc::new(RecordedPm::new(1 << 20)), speed, clock.clone());
        assert_eq!(pm.off_ns, 0, "a manual clock is exact");
        (pm, clock)
    }

    /// The time that `act` takes by the clock.
    fn time(clock: &ManualClock, act: impl FnOnce() -> Result<(), MediaError>) -> Result<u64, MediaError> {
        let begin = clock.monotonic_ns();
        act()?;
        Ok(clock.monotonic_ns() - begin)
    }

    #[test]
    fn delayed_writes_are_counted_with_lines_bytes_and_waits() -> Result<(), MediaError> {
        let (pm, clock) = emulated("200:1000000000");
        assert_eq!(pm.delayed(), Delayed::default());
        pm.write(PmOffset(60), &[1; 8])?;
        pm.store(PmOffset(0), &[1; 64])?;
        pm.write_streaming(PmOffset(4096), &[1; 4096])?;
        pm.write_back(PmOffset(0), 64);
        let lines = 2 + 64 + 1;
        let expected = Delayed { lines, bytes: 8 + 4096 + 64, waited_ns: lines * 200 };
        assert_eq!(pm.delayed(), expected);
        // Time that passes elsewhere is no wait.
        clock.advance(std::time::Duration::from_secs(1));
        assert_eq!(pm.delayed(), expected);
        Ok(())
    }

    #[test]
    fn a_line_takes_its_latency_or_its_share_of_the_bandwidth() -> Result<(), MediaError> {
        // 64 bytes in 64 ns.
        let (pm, clock) = emulated("200:1000000000");
        assert_eq!(time(&clock, || pm.write(PmOffset(60), &[1; 8]))?, 400);
        assert_eq!(time(&clock, || pm.write_streaming(PmOffset(4096), &[1; 4096]))?, 64 * 200);
        assert_eq!(
            time(&clock, || pm.write_streaming_checked(PmOffset(4096), &[1; 4096]).map(|_| ()))?,
            64 * 200
        );
        assert_eq!(time(&clock, || pm.store(PmOffset(0), &[1; 4096]))?, 0);
        let write_back = || {
            pm.write_back(PmOffset(0), 4096);
            Ok(())
        };
        assert_eq!(time(&clock, write_back)?, 64 * 200);
        assert_eq!(time(&clock, || pm.read(PmOffset(0), &mut [0; 4096]))?, 0);
        // Bandwidth is the narrower: 64 bytes in 640 ns.
        let (pm, clock) = emulated("line:200:100000000");
        assert_eq!(time(&clock, || pm.write_streaming(PmOffset(0), &[1; 4096]))?, 40_960);
        Ok(())
    }

    #[test]
    fn a_run_takes_one_latency_and_its_transfer() -> Result<(), MediaError> {
        let (pm, clock) = emulated("run:300:1000000000:150");
        assert_eq!(time(&clock, || pm.write_streaming(PmOffset(0), &[1; 4096]))?, 300 + 4096);
        // Goes on where the last ended, and not after a fence.
        assert_eq!(time(&clock, || pm.write_streaming(PmOffset(4096), &[1; 64]))?, 64);
        pm.order();
        assert_eq!(time(&clock, || pm.write_streaming(PmOffset(4160), &[1; 64]))?, 300 + 64);
        assert_eq!(time(&clock, || pm.read(PmOffset(0), &mut [0; 4096]))?, 150);
        assert_eq!(time(&clock, || pm.read(PmOffset(4096), &mut [0; 64]))?, 0);
        assert_eq!(time(&clock, || pm.read(PmOffset(0), &mut [0; 8]))?, 0);
        assert_eq!(time(&clock, || pm.load_u64(PmOffset(0)).map(|_| ()))?, 0);
        Ok(())
    }

    #[test]
    fn shortfalls_name_each_time_below_the_floor_of_the_machine() {
        let missed = |text: &str, write_ns, read_ns| {
            let speed = PmSpeed::parse(text).unwrap_or_else(|error| unreachable!("{error}"));
            speed.shortfalls(&PmFloor { write_ns, read_ns }).len()
        };
        assert_eq!(missed("200:1G:300", 220, 330), 0, "within 10 %");
        assert_eq!([missed("200:1G:300", 221, 0), missed("200:1G:300", 0, 331)], [1, 1]);
        assert_eq!(missed("100:1G:300", 180, 611), 2);
        assert_eq!(missed("100:1G", 0, 611), 0, "reads are left alone");
        assert_eq!(missed("0:1G", 180, 0), 0, "no latency is asked for");
        // 64 bytes take 640 ns of the bandwidth, beside or behind the latency.
        assert_eq!([missed("100:100000000", 700, 0), missed("run:100:100000000", 800, 0)], [0, 0]);
        assert_eq!([missed("100:100000000", 710, 0), missed("run:100:100000000", 815, 0)], [1, 1]);
        let speed = PmSpeed::parse("100:1G").unwrap_or_else(|error| unreachable!("{error}"));
        let said = speed.shortfalls(&PmFloor { write_ns: 180, read_ns: 0 });
        assert!(said[0].ends_with("a write of 64 B with its fence takes 180 ns on this machine, not 100 ns"));
    }

    #[test]
    fn the_floor_is_measured_on_the_memory_below() {
        let of = |text: &str| {
            let speed = PmSpeed::parse(text).unwrap_or_else(|error| unreachable!("{error}"));
            EmulatedPm::new(Arc::new(RecordedPm::new(1 << 20)), speed, Arc::new(SystemClock::default()))
        };
        // No memory is as fast, and none as slow.
        let pm = of("1:64G:1");
        assert!(pm.floor().write_ns > 1 && pm.floor().read_ns > 1, "{:?}", pm.floor());
        assert_eq!(pm.shortfalls().len(), 2);
        assert_eq!(of("1000000000:64G:1000000000").shortfalls(), Vec::<String>::new());
        let floor = emulated("200:1G:300").0.floor();
        assert!(
            floor.write_ns <= 1 && floor.read_ns <= 1,
            "a manual clock goes on by what is waited for: {floor:?}"
        );
    }

    #[test]
    fn two_threads_share_the_bandwidth_and_overlap_in_latency() {
        let (pm, _) = emulated("run:300:1000000000");
        // Both begin at the same time: the second's transfer follows the first's.
        assert_eq!(pm.bus.reserve(5_000_000, 4096), 5_004_096);
        assert_eq!(pm.bus.reserve(5_000_000, 4096), 5_008_192);
    }

    #[test]
    fn errors_counters_and_promise_pass_through() {
        let (pm, clock) = emulated("200:1G");
        let begin = clock.monotonic_ns();
        assert!(pm.write(PmOffset(1 << 20), &[1]).is_err() && pm.load_u64(PmOffset(3)).is_err());
        pm.write_back(PmOffset(u64::MAX), 64);
        assert_eq!(clock.monotonic_ns(), begin);
        assert_eq!(pm.promise(), pm.below.promise());
        let fences = pm.counters().fences;
        pm.persist().unwrap();
        assert_eq!(pm.counters().fences, fences + 1);
        assert!(pm.describe().starts_with("emulated: 200 ns a line, 1073 MB/s"));
    }

    #[test]
    fn speeds_are_read_and_nonsense_is_refused() {
        let speed = PmSpeed { model: PmModel::Run, write_ns: 300, bytes_per_s: 2 << 30, read_ns: 150 };
        assert_eq!(PmSpeed::parse("run:300:2G:150"), Ok(speed));
        let line = PmSpeed { model: PmModel::Line, read_ns: 0, ..speed };
        assert_eq!(PmSpeed::parse("300:2G"), Ok(line));
        for bad in ["", "1", "run:1", "1:2:3:4", "x:1G", "1:0", "1:1G:", "1:-1", "9999999999:1G"] {
            assert!(PmSpeed::parse(bad).is_err(), "{bad}");
        }
    }
}
