//! Loads: the description, the bounds, and the run by several threads.

use super::anticache::{self, NameOperation};
use super::burst::{self, Arrivals};
use super::personality::{self, Order, Personality};
use super::random;
use super::synced::{self, SyncedFlow};
use super::target::FileTarget;
use super::worker::{Measure, Sync, Tally, Worker};
use super::{bulk, cold};
use crate::trace;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use terrace_runtime::Clock;
use terrace_runtime::sync::Mutex;

/// The kind of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Kind {
    /// A personality of filebench over `files` files of `file_bytes` on average.
    Personality {
        /// The personality.
        which: Personality,
        /// Number of files.
        files: u64,
        /// Mean size of a file.
        file_bytes: u64,
        /// Every write is made durable by fsync.
        sync_every_write: bool,
        /// The order in which files are picked.
        #[serde(default)]
        order: Order,
    },
    /// fio: every thread reads or writes `io_bytes` at Zipf-distributed offsets of a private file. With
    /// `Sync::Flag` the files of a read load are filled by synchronous writes, and so begin in PM. `single`:
    /// all threads use this existing file (of the null server).
    Random {
        /// Write, or read.
        write: bool,
        /// The way in which writes are made durable.
        sync: Sync,
        /// Number of files.
        files: u64,
        /// Size of a file.
        file_bytes: u64,
        /// Size of a request.
        io_bytes: u64,
        /// The skew θ of Zipf's distribution; 0 is uniform.
        theta: f64,
        /// The file that all threads use.
        single: Option<String>,
    },
    /// [AC-BPFS figure 3]: appends of `bytes`, each made durable.
    AppendSync {
        /// Bytes of an append.
        bytes: u64,
    },
    /// [AC-BPFS figure 5]: requests of a whole file; of ten requests, `hot` read files used lately.
    Hotness {
        /// Number of files.
        files: u64,
        /// Size of a file.
        file_bytes: u64,
        /// The number of reads of recently used files among ten requests.
        hot: u64,
    },
    /// Whole files of `file_bytes`, written and not synced.
    Bulk {
        /// Size of a file.
        file_bytes: u64,
    },
    /// [AC-BPFS table 1]: an operation on names.
    Names {
        /// The operation.
        operation: NameOperation,
    },
    /// Durable appends of 4 KiB, `bytes` in total.
    Burst {
        /// Bytes of all threads.
        bytes: u64,
        /// The times at which writes are due.
        arrivals: Arrivals,
    },
    /// Durable appends, with `scan` beside a thread that reads cold data.
    Commits {
        /// Bytes of cold data.
        cold_bytes: u64,
        /// The last thread reads the cold data.
        scan: bool,
    },
    /// 512 bytes, O_DSYNC, to files that were demoted (`cold`) or not.
    Small {
        /// Append, or overwrite.
        append: bool,
        /// The files were demoted.
        cold: bool,
    },
    /// A demoted file read from end to end, or a file written so.
    Whole {
        /// Size of the file.
        bytes: u64,
        /// Write, or read.
        write: bool,
    },
    /// Operations that end with a sync.
    Synced {
        /// The operations.
        flow: SyncedFlow,
        /// Threads for which there are files.
        files: u64,
    },
    /// A recorded trace, once.
    Trace {
        /// The trace file.
        path: PathBuf,
    },
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
    /// Demotion is not needed.
    Never,
    /// After the files were made.
    Once,
    /// Before each run of the load.
    BeforeEachRun,
}

/// A load with its bounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The kind of the load.
    pub kind: Kind,
    /// Number of threads.
    pub threads: u64,
    /// Each thread ends after this time at the latest (checked between operations).
    pub limit_ns: u64,
    /// Each thread ends after this number of operations at the latest.
    pub operations: u64,
    /// Seed of the pseudo-random choices.
    pub seed: u64,
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
            Kind::Synced { flow, files } => synced::populate(flow, *files, target)?,
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
            Kind::Synced { flow, .. } => synced::run(flow, target, worker, seed, tally),
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
        let end_ns = clock.monotonic_ns();
        let mut all = own?;
        for other in done.lock().drain(..) {
            all.add(other?)?;
        }
        Ok(all.measure(begin, end_ns))
    }

    fn thread(
        &self,
        target: &dyn FileTarget,
        set: Option<&personality::Files>,
        index: u64,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Tally> {
        let mut tally = Tally::new(clock, self.limit_ns, self.operations)?;
        self.work(target, set, Worker { index, of: self.threads }, &mut tally)?;
        Ok(tally)
    }
}
