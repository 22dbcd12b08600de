//! The loads in process that several rows use, with the same sizes in each.

use super::pool::{LazyPool, Size};
use super::traces::{Trace, setup_of};
use std::sync::Arc;
use terrace_bench::comparison::options::Options;
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_bench::trace::replay;
use terrace_bench::workload::load::{Kind, Load};
use terrace_bench::workload::personality::{Order, Personality};
use terrace_bench::workload::postmark::{MEAN_BYTES, Postmark};
use terrace_bench::workload::programs::Postgres;
use terrace_bench::workload::target::FileTarget;

/// A load in process.
#[derive(Debug, Clone, Copy)]
pub(super) enum Job {
    /// By one thread, for a time.
    Personality(Personality),
    /// A generated trace, whole.
    Trace(&'static Trace),
    /// PostMark, whole.
    Postmark,
    /// The file operations of PostgreSQL under pgbench.
    Postgres,
}

/// Mean bytes of a file ([HiNFS] section 5.1).
fn file_bytes(which: Personality) -> u64 {
    match which {
        Personality::Webproxy | Personality::Varmail => 16 << 10,
        _ => 128 << 10,
    }
}

/// A personality over the data of a pool.
pub(super) fn personality_load(
    (which, order): (Personality, Order),
    threads: u64,
    size: &Size,
    options: &Options,
    seed: u64,
) -> Load {
    let mean = file_bytes(which);
    let kind = Kind::Personality {
        which,
        files: (size.data_bytes / mean).max(20),
        file_bytes: mean,
        sync_every_write: false,
        order,
    };
    let limit_ns = (options.seconds * 1e9) as u64;
    let operations = if options.quick { 50 } else { u64::MAX };
    Load { kind, threads, limit_ns, operations, seed }
}

/// PostMark's files are short-lived: files created by files alive. The living ones fit a buffer of a tenth of the data.
const LIVING: u64 = 20;

/// Bytes of tables that a transaction of pgbench stands for, so that checkpoints write all of them about twice.
const BYTES_BY_TRANSACTION: u64 = 16 << 10;

/// The bounds and sizes of a run of a job.
pub(super) struct Run<'a> {
    pub(super) job: Job,
    pub(super) size: &'a Size,
    pub(super) options: &'a Options,
    pub(super) seed: u64,
}

impl Job {
    pub(super) fn name(self) -> &'static str {
        match self {
            Job::Personality(which) => which.name(),
            Job::Trace(trace) => trace.name,
            Job::Postmark => "postmark",
            Job::Postgres => "pgbench-like",
        }
    }
}

impl Run<'_> {
    fn postgres(&self) -> Postgres {
        Postgres { table_bytes: self.size.data_bytes }
    }

    fn postmark(&self) -> Postmark {
        // Every other transaction creates a file.
        let created = (self.size.data_bytes / MEAN_BYTES).max(100);
        Postmark { files: created / LIVING, transactions: 2 * created }
    }

    fn load(&self, which: Personality) -> Load {
        personality_load((which, Order::Even), 1, self.size, self.options, self.seed)
    }

    /// Makes the files, durably.
    pub(super) fn prepare(&self, pool: &LazyPool, target: &dyn FileTarget) -> Outcome<()> {
        match self.job {
            Job::Personality(which) => self.load(which).populate(target)?,
            Job::Trace(trace) => {
                replay(&setup_of(trace, self.size.data_bytes), target)?;
            }
            Job::Postmark => self.postmark().populate(target)?,
            Job::Postgres => self.postgres().populate(target)?,
        }
        Ok(pool.fs.sync()?)
    }

    /// Does the first turns of a personality's flow.
    pub(super) fn warm_up(&self, site: &Site, target: &Arc<dyn FileTarget>, turns: u64) -> Outcome<()> {
        if let (Job::Personality(which), 1..) = (self.job, turns) {
            let load = Load { operations: turns, limit_ns: u64::MAX, ..self.load(which) };
            load.run(target, &site.scratch.clock)?;
        }
        Ok(())
    }

    /// The work, ready to be done: what has to be computed before is computed now.
    pub(super) fn work<'a>(
        &'a self,
        site: &'a Site,
        target: &'a Arc<dyn FileTarget>,
    ) -> Box<dyn FnOnce() -> Outcome<()> + 'a> {
        match self.job {
            Job::Personality(which) => {
                let load = self.load(which);
                Box::new(move || load.run(target, &site.scratch.clock).map(drop).map_err(Into::into))
            }
            Job::Trace(trace) => {
                let events = trace.events(self.size.data_bytes, self.seed);
                Box::new(move || Ok(replay(&events?, &**target).map(drop)?))
            }
            Job::Postmark => Box::new(move || Ok(self.postmark().run(&**target, self.seed)?)),
            Job::Postgres => {
                let transactions = (self.size.data_bytes / BYTES_BY_TRANSACTION).max(100);
                Box::new(move || Ok(self.postgres().run(&**target, transactions, self.seed)?))
            }
        }
    }
}
