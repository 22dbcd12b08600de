//! Rows hinfs-…: the write buffer in front of slow persistent memory ([HiNFS] section 5).

mod accuracy;
mod foreground;
mod jobs;
mod mounts;
mod personalities;
mod pool;
mod programs;
mod requests;
mod traces;
mod watch;

pub(crate) use accuracy::{accuracy, synced_shares};
pub(crate) use foreground::foreground;
pub(crate) use mounts::{auto, memory, mounts};
pub(crate) use personalities::{buffers, costs, personalities, synced, threads};
pub(crate) use programs::{programs, replayed};
pub(crate) use requests::{shares, sizes};

use super::maps::sheet::{MapRow, Sheet};
use pool::{ALWAYS, ATOMIC, DIRECT, LAZY, LAZY_ATOMIC, LAZY_ORDERED, ORDERED, Way};
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::Metric;
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;

/// The ways that most rows compare.
const WAYS: [Way; 4] = [LAZY, ALWAYS, ATOMIC, ORDERED];

/// Bytes of the buffer by those of the data: 2 of 5 GB.
const BUFFER_SHARE: f64 = 0.4;
/// The same for traces and programs ([HiNFS] section 5.3).
const LITTLE_BUFFER_SHARE: f64 = 0.1;

/// A row of these: rounds of every way.
struct Comparison<'a> {
    ways: &'a [Way],
    axis: &'static str,
    metric: Metric,
    notes: Vec<String>,
    /// Measures a way in a round.
    measure: &'a dyn Fn(&Site, &Way, usize, &mut Sheet) -> Outcome<()>,
    claims: &'a dyn Fn(&mut Sheet),
}

impl Comparison<'_> {
    fn run(self, row: &Row, options: &Options) -> Outcome<()> {
        let claims = |sheet: &mut Sheet| {
            sheet.best_of(DIRECT, &[ATOMIC.name, ORDERED.name]);
            sheet.best_of(LAZY.name, &[LAZY_ATOMIC.name, LAZY_ORDERED.name]);
            (self.claims)(sheet);
        };
        let row_of_ways = MapRow {
            axis: self.axis,
            metric: self.metric,
            maps: self.ways.to_vec(),
            data_bytes: options.dataset_bytes,
            notes: self.notes,
            measure: self.measure,
            claims: &claims,
        };
        row_of_ways.run(row, options)
    }
}
