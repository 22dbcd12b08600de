//! Loads: the description, the bounds, and the run by several threads.

use super::anticache::{self, NameOperation};
use super::burst::{self, Arrivals};
use super::personality::{self, Order, Personality};
use super::random;
use super::target::FileTarget;
use super::{bulk, cold};
use crate::trace;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use terrace_runtime::Clock;
use terrace_runtime::sync::Mutex;

/// The kind of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Kind {
    /// A personality of filebench over `files` files of `file_bytes` on average.
    Personality {
        which: Personality,
        files: u64,
        file_bytes: u64,
        sync_every_write: bool,
        #[serde(default)]
        order: Order,
    },
    /// fio: every thread reads or writes `io_bytes` at Zipf-distributed offsets of a private file. With
    /// `Sync::Flag` the files of a read load are filled by synchronous writes, and so begin in PM. `single`:
    /// all threads use this existing file (of the null server).
    Random {
        write: bool,
        sync: Sync,
        files: u64,
        file_bytes: u64,
        io_bytes: u64,
        theta: f64,
        single: Option<String>,
    },
    /// [AC-BPFS figure 3]: appends of `bytes`, each made durable.
    AppendSync { bytes: u64 },
    /// [AC-BPFS figure 5]: requests of a whole file; of ten requests, `hot` read files used lately.
    Hotness { files: u64, file_bytes: u64, hot: u64 },
    /// Whole files of `file_bytes`, written and not synced.
    Bulk { file_bytes: u64 },
    /// [AC-BPFS table 1]: an operation on names.
    Names { operation: NameOperation },
    /// Durable appends of 4 KiB, `bytes` in total.
    Burst { bytes: u64, arrivals: Arrivals },
    /// Durable appends, with `scan` beside a thread that reads cold data.
    Commits { cold_bytes: u64, scan: bool },
    /// 512 bytes, O_DSYNC, to files that were demoted (`cold`) or not.
    Small { append: bool, cold: bool },
    /// A demoted file read from end to end, or a file written so.
    Whole { bytes: u64, write: bool },
    /// A recorded trace, once.
    Trace { path: PathBuf },
}

impl Kind {
    /// When the load needs a demotion of all data.
    pub fn demoted(&self) -> Demoted {
        match self {
            Kind::Commits { cold_bytes: 0, .. } => Demoted::Never,
            Kind::Commits { .. } | Kind::Whole { write: false, .. } => Demoted::BeforeEachRun,
            Kind::Small { cold: true, .. } => Demoted::Once,
            _ => Demoted::Never,
        }
    }
}

/// When all data of a subject must be demoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demoted {
    Never,
    /// After the files were made.
    Once,
    BeforeEachRun,
}

/// How a write is made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sync {
    Never,
    /// O_DSYNC.
    Flag,
    /// fsync(2) after the write.
    Fsync,
}

/// A load with its bounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    pub kind: Kind,
    pub threads: u64,
    /// Each thread ends after this time at the latest (checked between operations).
    pub limit_ns: u64,
    /// Each thread ends after this number of operations at the latest.
    pub operations: u64,
    /// Seed of the pseudo-random choices.
    pub seed: u64,
}

/// The measure of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// As the load counts them: filebench's flow operations, fio's requests.
    pub operations: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Bytes read by a scanning thread, which only disturbs the measured threads.
    #[serde(default)]
    pub bytes_scanned: u64,
    /// Writes that found no space.
    #[serde(default)]
    pub failed: u64,
    /// Of a Terrace subject: bytes written to its devices during the run, and bytes demoted by a write.
    #[serde(default)]
    pub device_written_bytes: u64,
    #[serde(default)]
    pub demoted_bytes: u64,
    /// Bytes dropped from PM without a write.
    #[serde(default)]
    pub clean_evicted_bytes: u64,
    pub elapsed_ns: u64,
    /// Latency of an operation (of a personality: of a turn of its loop), over all threads.
    pub latency_median_ns: u64,
    pub latency_p99_ns: u64,
    pub latency_p999_ns: u64,
    pub latency_max_ns: u64,
}

impl Measure {
    pub fn operations_per_s(&self) -> f64 {
        self.operations as f64 / self.elapsed_ns.max(1) as f64 * 1e9
    }
    pub fn bytes_per_s(&self) -> f64 {
        (self.bytes_read + self.bytes_written) as f64 / self.elapsed_ns.max(1) as f64 * 1e9
    }
}

/// The counters of a thread, and the bounds that end its run.
pub struct Tally {
    clock: Arc<dyn Clock>,
    deadline_ns: u64,
    turns_left: u64,
    pub operations: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    bytes_scanned: u64,
    failed: u64,
    /// The end of the measured work, if the thread clears up afterwards.
    end_ns: Option<u64>,
    latency: Histogram<u64>,
}

/// Longer latencies count as an hour.
const MAX_LATENCY_NS: u64 = 3_600_000_000_000;

impl Tally {
    fn new(clock: Arc<dyn Clock>, load: &Load) -> io::Result<Tally> {
        let latency = Histogram::new_with_bounds(1, MAX_LATENCY_NS, 2).map_err(io::Error::other)?;
        let deadline_ns = clock.monotonic_ns().saturating_add(load.limit_ns);
        let turns_left = load.operations;
        Ok(Tally {
            clock,
            deadline_ns,
            turns_left,
            operations: 0,
            bytes_read: 0,
            bytes_written: 0,
            bytes_scanned: 0,
            failed: 0,
            end_ns: None,
            latency,
        })
    }

    pub fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    /// Whether the thread has reached a bound, so that no further turn begins.
    pub fn is_over(&self) -> bool {
        self.turns_left == 0 || self.now_ns() >= self.deadline_ns
    }

    /// Whether the load is bounded by operations and not by time alone.
    pub fn is_bounded(&self) -> bool {
        self.turns_left < u64::MAX / 2
    }

    /// Ends the measured time; the thread only clears up afterwards.
    pub fn end(&mut self) {
        self.end_ns = Some(self.now_ns());
    }

    /// Runs and times a turn; false when no further turn may begin.
    pub fn turn(&mut self, body: impl FnOnce(&mut Tally) -> io::Result<()>) -> io::Result<bool> {
        self.turn_due(None, body)
    }

    /// As [`Self::turn`], but begins the turn not before its due time and counts its latency from that time.
    pub fn turn_due(
        &mut self,
        due_ns: Option<u64>,
        body: impl FnOnce(&mut Tally) -> io::Result<()>,
    ) -> io::Result<bool> {
        if self.is_over() {
            return Ok(false);
        }
        let mut begin = self.now_ns();
        if let Some(due_ns) = due_ns {
            // No wait in a loop: a test's clock may stand still.
            if let Some(early_ns) = due_ns.checked_sub(begin).filter(|early_ns| *early_ns > 0) {
                self.clock.sleep(Duration::from_nanos(early_ns));
            }
            begin = due_ns;
        }
        self.turns_left -= 1;
        body(self)?;
        let spent = self.now_ns().saturating_sub(begin);
        self.latency.saturating_record(spent.clamp(1, MAX_LATENCY_NS));
        Ok(true)
    }

    pub fn read(&mut self, bytes: u64) {
        self.operations += 1;
        self.bytes_read += bytes;
    }
    pub fn wrote(&mut self, bytes: u64) {
        self.operations += 1;
        self.bytes_written += bytes;
    }
    pub fn scanned(&mut self, bytes: u64) {
        self.bytes_scanned += bytes;
    }
    pub fn failed(&mut self) {
        self.failed += 1;
    }
    pub fn other(&mut self) {
        self.operations += 1;
    }
}

/// A thread of a load: its number and the number of threads.
#[derive(Debug, Clone, Copy)]
pub struct Worker {
    pub index: u64,
    pub of: u64,
}

impl Load {
    /// Makes the files that the load works on, durably.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn populate(&self, target: &dyn FileTarget) -> io::Result<()> {
        match &self.kind {
            Kind::Personality { which, files, file_bytes, .. } => {
                personality::populate(*which, target, *files, *file_bytes)?
            }
            Kind::Random { single: Some(_), .. } => return Ok(()),
            Kind::Random { write, sync, files, file_bytes, .. } => {
                let durable = !write && *sync == Sync::Flag;
                random::populate(target, *files, *file_bytes, durable)?
            }
            Kind::AppendSync { .. } => target.make_directory("append")?,
            Kind::Hotness { files, file_bytes, .. } => {
                anticache::populate_hotness(target, *files, *file_bytes)?
            }
            Kind::Bulk { .. } => target.make_directory("bulk")?,
            Kind::Names { .. } => target.make_directory("names")?,
            Kind::Burst { .. } => burst::populate(target)?,
            Kind::Commits { cold_bytes, .. } => cold::populate_scan(target, *cold_bytes)?,
            Kind::Small { append, cold } => cold::populate_small(target, *append, *cold)?,
            Kind::Whole { bytes, .. } => cold::populate_whole(target, *bytes)?,
            Kind::Trace { .. } => {}
        }
        target.settle()
    }

    /// The file set that threads share, looked up before the clock runs.
    fn prepare(&self, target: &dyn FileTarget) -> io::Result<Option<personality::Files>> {
        let Kind::Personality { which, files, file_bytes, sync_every_write, order } = &self.kind else {
            return Ok(None);
        };
        Ok(Some(personality::Files {
            exists: personality::existing(*which, target, *files)?,
            mean_bytes: *file_bytes,
            sync_every_write: *sync_every_write,
            order: *order,
        }))
    }

    fn work(
        &self,
        target: &dyn FileTarget,
        set: Option<&personality::Files>,
        worker: Worker,
        tally: &mut Tally,
    ) -> io::Result<()> {
        let seed = self.seed.wrapping_mul(1000) + worker.index;
        match &self.kind {
            Kind::Personality { which, .. } => {
                let set = set.ok_or_else(|| io::Error::other("a personality without its files"))?;
                personality::run(*which, set, target, worker, seed, tally)
            }
            Kind::Random { write, sync, files, file_bytes, io_bytes, theta, single } => {
                let plan = random::Plan {
                    write: *write,
                    sync: *sync,
                    files: *files,
                    file_bytes: *file_bytes,
                    io_bytes: *io_bytes,
                    theta: *theta,
                    single: single.as_deref(),
                };
                random::run(&plan, target, worker, seed, tally)
            }
            Kind::AppendSync { bytes } => anticache::append(*bytes, target, worker, tally),
            Kind::Hotness { files, file_bytes, hot } => {
                anticache::hotness(*files, *file_bytes, *hot, target, seed, tally)
            }
            Kind::Bulk { file_bytes } => bulk::run(*file_bytes, target, worker, seed, tally),
            Kind::Names { operation } => anticache::names(*operation, target, worker, tally),
            Kind::Burst { bytes, arrivals } => burst::run(*bytes, *arrivals, target, worker, tally),
            Kind::Commits { cold_bytes, scan } => cold::commits(*cold_bytes, *scan, target, worker, tally),
            Kind::Small { append, cold } => cold::small(*append, *cold, self.seed, target, tally),
            Kind::Whole { bytes, write } => cold::whole(*bytes, *write, target, worker, tally),
            Kind::Trace { path } => {
                let events = trace::read(path)?;
                tally.turn(|tally| {
                    tally.operations += trace::replay(&events, target)?;
                    Ok(())
                })?;
                Ok(())
            }
        }
    }

    /// Runs the load to its end. The files must have been made.
    ///
    /// # Errors
    /// The first error of the target in any thread; `InvalidInput` for an impossible load.
    pub fn run(&self, target: &Arc<dyn FileTarget>, clock: &Arc<dyn Clock>) -> io::Result<Measure> {
        if self.threads == 0 || self.threads > 256 {
            let text = format!("{} threads", self.threads);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let done: Arc<Mutex<Vec<io::Result<Tally>>>> = Arc::default();
        let set = Arc::new(self.prepare(&**target)?);
        let begin = clock.monotonic_ns();
        let mut threads = Vec::new();
        for index in 1..self.threads {
            let (load, target, clock, done) = (self.clone(), target.clone(), clock.clone(), done.clone());
            let set = set.clone();
            threads.push(terrace_runtime::thread::spawn("load", move || {
                let result = load.thread(&*target, set.as_ref().as_ref(), index, clock);
                done.lock().push(result);
            })?);
        }
        let own = self.thread(&**target, set.as_ref().as_ref(), 0, clock.clone());
        for thread in threads {
            thread.join().map_err(|_| io::Error::other("a thread of the load panicked"))?;
        }
        let mut end_ns = clock.monotonic_ns();
        let mut all = own?;
        for other in done.lock().drain(..) {
            let other = other?;
            all.end_ns = all.end_ns.max(other.end_ns);
            all.bytes_scanned += other.bytes_scanned;
            all.failed += other.failed;
            all.operations += other.operations;
            all.bytes_read += other.bytes_read;
            all.bytes_written += other.bytes_written;
            all.latency.add(other.latency).map_err(io::Error::other)?;
        }
        end_ns = all.end_ns.unwrap_or(end_ns);
        Ok(Measure {
            operations: all.operations,
            bytes_read: all.bytes_read,
            bytes_written: all.bytes_written,
            bytes_scanned: all.bytes_scanned,
            failed: all.failed,
            device_written_bytes: 0,
            demoted_bytes: 0,
            clean_evicted_bytes: 0,
            elapsed_ns: end_ns.saturating_sub(begin).max(1),
            latency_median_ns: all.latency.value_at_quantile(0.5),
            latency_p99_ns: all.latency.value_at_quantile(0.99),
            latency_p999_ns: all.latency.value_at_quantile(0.999),
            latency_max_ns: all.latency.max(),
        })
    }

    fn thread(
        &self,
        target: &dyn FileTarget,
        set: Option<&personality::Files>,
        index: u64,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Tally> {
        let mut tally = Tally::new(clock, self)?;
        self.work(target, set, Worker { index, of: self.threads }, &mut tally)?;
        Ok(tally)
    }
}
