//! The results of a run of a row: figures, verdicts, and the conditions of the run.

use super::figure::{Figure, Missing};
use super::options::Options;
use super::plan::{Metric, Plan, Status, Sum};
use super::row::Row;
use super::verdict::Verdict;
use crate::machine::{Machine, describe};
use crate::site::Site;
use crate::site::subject::Subject;
use serde::Serialize;

/// The page cache's limit.
#[derive(Debug, Clone, Serialize)]
pub(super) struct PageCache {
    limit_bytes: Option<u64>,
    cgroup_version: Option<u8>,
    /// Why the page cache is not limited.
    pub reason: Option<String>,
    /// Most dirty bytes of each peer's device, or the reason why they are not limited.
    dirty_limit_bytes: Option<u64>,
    pub dirty_reason: Option<String>,
}

/// The conditions of a run.
#[derive(Debug, Serialize)]
pub(super) struct Conditions {
    class: String,
    pub quick: bool,
    one_core: bool,
    pub machine: Machine,
    pub rounds: usize,
    dataset_bytes: u64,
    pub page_cache: PageCache,
}

/// A run of a row.
#[derive(Serialize)]
pub struct Result {
    output_version: u32,
    #[serde(flatten)]
    pub(super) row: Row,
    #[serde(flatten)]
    pub(super) conditions: Conditions,
    subjects: Vec<Subject>,
    /// Figures in the order of the plan.
    pub figures: Vec<Figure>,
    pub(super) verdicts: Vec<Verdict>,
    /// Subjects and figures that were not measured.
    pub not_measured: Vec<Missing>,
    /// Status of each Terrace subject before the first round.
    pub status_before: Status,
    /// Status of each Terrace subject at the end.
    pub status: Status,
    /// Figures of the whole run.
    pub derived: Vec<(String, serde_json::Value)>,
    /// Sentences and tables below the figures.
    pub notes: Vec<String>,
    /// Results of the row that are no figures.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    pub details: serde_json::Value,
    #[serde(skip)]
    pub(super) axis: &'static str,
    #[serde(skip)]
    pub(super) metric: Metric,
}

impl Result {
    /// A result without figures.
    pub fn new(row: &Row, options: &Options, plan: &Plan, site: &Site, dataset_bytes: u64) -> Result {
        let (group, dirty) = (site.group.as_ref(), site.dirty_bytes.as_ref());
        let page_cache = PageCache {
            limit_bytes: group.ok().map(|group| group.limit_bytes),
            cgroup_version: group.ok().map(|group| group.version),
            reason: group.err().cloned(),
            dirty_limit_bytes: dirty.ok().copied(),
            dirty_reason: dirty.err().cloned(),
        };
        Result {
            output_version: 1,
            row: *row,
            conditions: Conditions {
                class: site.class.name().to_string(),
                quick: options.quick,
                one_core: options.one_core,
                machine: describe(),
                rounds: options.rounds,
                dataset_bytes,
                page_cache,
            },
            subjects: plan.subjects.clone(),
            figures: Vec::new(),
            verdicts: Vec::new(),
            not_measured: Vec::new(),
            status_before: Status::new(),
            status: Status::new(),
            derived: Vec::new(),
            notes: plan.notes.clone(),
            details: serde_json::Value::Null,
            axis: plan.axis,
            metric: plan.metric,
        }
    }

    /// Adds the figures of a sum, at each place that every summand has.
    pub(super) fn add_sum(&mut self, sum: &Sum) {
        let mut sums: Vec<Figure> = Vec::new();
        let Some((_, first)) = sum.of.first() else { return };
        for start in self.figures.iter().filter(|figure| figure.series == *first) {
            let at = |(factor, series): &(f64, String)| {
                let mut there = self.figures.iter().filter(|figure| figure.at == start.at);
                there.find(|figure| figure.series == *series).map(|figure| (*factor, figure))
            };
            if let Some(all) = sum.of.iter().map(at).collect::<Option<Vec<_>>>() {
                sums.push(start.sum(&sum.series, &all));
            }
        }
        self.figures.append(&mut sums);
    }

    /// Judges the claims of the plan.
    pub fn judge(&mut self, plan: &Plan) {
        self.derived =
            plan.conclude.map(|conclude| conclude(&self.status_before, &self.status)).unwrap_or_default();
        self.verdicts = plan.claims.iter().filter_map(|claim| Verdict::of(claim, &self.figures)).collect();
    }

    /// The row and the device, as a line.
    pub(super) fn title(&self) -> String {
        let quick = if self.conditions.quick { "; quick: figures mean nothing" } else { "" };
        format!("{}, device: {}{quick}", self.row.id, self.conditions.class)
    }

    /// Notes that a subject or figure was not measured.
    pub(super) fn missing(&mut self, what: &str, error: &dyn std::error::Error) {
        eprintln!("  {what}: {error}");
        self.not_measured.push(Missing { what: what.to_string(), reason: error.to_string() });
    }
}
