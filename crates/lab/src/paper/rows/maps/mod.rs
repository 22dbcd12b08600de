//! Rows hashfs-5 to hashfs-12, hashfs-4.9 and those called maps-: the file maps of the registry, and maps of the laboratory beside them.
//!
//! A map of the registry is measured without further code. Bars that name a map are claims when it is registered.

pub(crate) mod baselines;
pub(crate) mod cold;
pub(crate) mod flows;
pub(crate) mod full;
pub(crate) mod locality;
pub(crate) mod requests;
pub(crate) mod shape;
pub(in crate::paper::rows) mod sheet;
pub(crate) mod threads;

use crate::mapping::access::Counts;
use sheet::{FENCES, IN_PLACE, IN_RECORD, LINES_READ, ROUNDS, Sheet, WRITTEN};
use terrace_bench::comparison::plan::Metric;

/// Adds mean counts of an operation.
fn add_counts(sheet: &mut Sheet, round: usize, map: &str, at: &str, counts: &Counts) {
    let mut add = |words, metric, value| sheet.add(round, (map, words), metric, at, value);
    add(LINES_READ, Metric::LinesPerOperation, counts.read);
    add(ROUNDS, Metric::RoundsPerOperation, counts.rounds);
    if counts.written() > 0.0 {
        add(IN_PLACE, Metric::LinesPerOperation, counts.in_place);
        add(IN_RECORD, Metric::LinesPerOperation, counts.in_record);
        add(FENCES, Metric::FencesPerOperation, counts.fences);
        add(WRITTEN, Metric::LinesPerOperation, counts.written());
    }
}
