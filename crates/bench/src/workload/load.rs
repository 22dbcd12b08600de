//! A load: its description, its bounds, and its run by several threads.

use super::anticache::{self, NameOperation};
use super::bulk;
use super::personality::{self, Personality};
use super::random;
use super::target::FileTarget;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Arc;
use terrace_runtime::Clock;
use terrace_runtime::sync::Mutex;

/// What is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// One of filebench's personalities over `files` files of `file_bytes` on average.
    Personality { which: Personality, files: u64, file_bytes: u64, sync_every_write: bool },
    /// fio: every thread reads or writes `io_bytes` at Zipf-distributed places of a private file.
    /// `single`: all threads on this one file, which exists (the null server's).
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
    /// [AC-BPFS figure 5]: requests of a whole file; of ten, `hot` go to files just used.
    Hotness { files: u64, file_bytes: u64, hot: u64 },
    /// Whole files of so many bytes, written and not synced.
    Bulk { file_bytes: u64 },
    /// [AC-BPFS table 1]: an operation on names.
    Names { operation: NameOperation },
}

/// How a write is made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sync {
    Never,
    /// O_DSYNC.
    Flag,
    /// fsync(2) after it.
    Fsync,
}

/// A load with its bounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Load {
    pub kind: Kind,
    pub threads: u64,
    /// Each thread ends after this time at the latest (checked between operations).
    pub limit_ns: u64,
    /// Each thread ends after so many operations at the latest.
    pub operations: u64,
    /// Of what looks random.
    pub seed: u64,
}

/// What a run did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measure {
    /// As the load counts them: filebench's flow operations, fio's requests.
    pub operations: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub elapsed_ns: u64,
    /// Of one operation (of a personality: one turn of its loop), over all threads.
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

/// What one thread has done, and when it has to end.
pub(crate) struct Tally {
    clock: Arc<dyn Clock>,
    deadline_ns: u64,
    turns_left: u64,
    pub operations: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    latency: Histogram<u64>,
}

/// Longer latencies count as this: an hour.
const MAX_LATENCY_NS: u64 = 3_600_000_000_000;

impl Tally {
    fn new(clock: Arc<dyn Clock>, load: &Load) -> io::Result<Tally> {
        let latency = Histogram::new_with_bounds(1, MAX_LATENCY_NS, 2).map_err(io::Error::other)?;
        let deadline_ns = clock.monotonic_ns().saturating_add(load.limit_ns);
        let turns_left = load.operations;
        Ok(Tally { clock, deadline_ns, turns_left, operations: 0, bytes_read: 0, bytes_written: 0, latency })
    }

    /// Does one turn and times it; false when there is to be no further one.
    pub fn turn(&mut self, body: impl FnOnce(&mut Tally) -> io::Result<()>) -> io::Result<bool> {
        let begin = self.clock.monotonic_ns();
        if self.turns_left == 0 || begin >= self.deadline_ns {
            return Ok(false);
        }
        self.turns_left -= 1;
        body(self)?;
        let spent = self.clock.monotonic_ns().saturating_sub(begin);
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
    pub fn other(&mut self) {
        self.operations += 1;
    }
}

/// One thread of a load: its number and that of all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Worker {
    pub index: u64,
    pub of: u64,
}

impl Load {
    /// Makes the files that the load works on, durably.
    ///
    /// # Errors
    /// The target's.
    pub fn populate(&self, target: &dyn FileTarget) -> io::Result<()> {
        match &self.kind {
            Kind::Personality { which, files, file_bytes, .. } => {
                personality::populate(*which, target, *files, *file_bytes)?
            }
            Kind::Random { single: Some(_), .. } => return Ok(()),
            Kind::Random { files, file_bytes, .. } => random::populate(target, *files, *file_bytes)?,
            Kind::AppendSync { .. } => target.make_directory("append")?,
            Kind::Hotness { files, file_bytes, .. } => {
                anticache::populate_hotness(target, *files, *file_bytes)?
            }
            Kind::Bulk { .. } => target.make_directory("bulk")?,
            Kind::Names { .. } => target.make_directory("names")?,
        }
        target.settle()
    }

    /// What threads share, looked up before the clock runs.
    fn prepare(&self, target: &dyn FileTarget) -> io::Result<Option<personality::Files>> {
        let Kind::Personality { which, files, file_bytes, sync_every_write } = &self.kind else {
            return Ok(None);
        };
        Ok(Some(personality::Files {
            exists: personality::existing(*which, target, *files)?,
            mean_bytes: *file_bytes,
            sync_every_write: *sync_every_write,
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
        }
    }

    /// Runs the load to its end. The files must have been made.
    ///
    /// # Errors
    /// The target's, of the first thread that failed; `InvalidInput` for a load that cannot be.
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
        let elapsed_ns = clock.monotonic_ns().saturating_sub(begin).max(1);
        let mut all = own?;
        for other in done.lock().drain(..) {
            let other = other?;
            all.operations += other.operations;
            all.bytes_read += other.bytes_read;
            all.bytes_written += other.bytes_written;
            all.latency.add(other.latency).map_err(io::Error::other)?;
        }
        Ok(Measure {
            operations: all.operations,
            bytes_read: all.bytes_read,
            bytes_written: all.bytes_written,
            elapsed_ns,
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
