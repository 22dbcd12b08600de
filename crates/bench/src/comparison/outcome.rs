//! The results of a run of a row: figures, ratios, verdicts; as JSON, as text, and as SVG (paper/plot.rs).

use super::Row;
use super::options::Options;
use super::plan::{Cell, Claim, Metric, Must, Plan, Status};
use crate::failure::Outcome;
use crate::machine::{Machine, describe};
use crate::site::peer::Subject;
use crate::site::{Site, UNLIMITED};
use crate::stats::{Ratio, median, quantile};
use crate::workload::worker::Measure;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

/// Samples of a cell; a round in which the cell failed has no sample.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    pub series: String,
    pub at: String,
    pub x: f64,
    pub unit: &'static str,
    /// By round; NaN is written as null.
    pub samples: Vec<f64>,
    pub median: Option<f64>,
    lowest: Option<f64>,
    highest: Option<f64>,
    /// The measure of the last round, if the cell is a load.
    last: Option<Measure>,
}

impl Figure {
    /// `words` name a further metric of the cell; empty for the plan's metric.
    pub fn new(cell: &Cell, words: &str, metric: Metric) -> Figure {
        let series = if words.is_empty() { cell.series.clone() } else { format!("{} {words}", cell.series) };
        let (at, x) = (cell.at.clone(), cell.x);
        let unit = metric.unit();
        Figure {
            series,
            at,
            x,
            unit,
            samples: Vec::new(),
            median: None,
            lowest: None,
            highest: None,
            last: None,
        }
    }

    pub fn push(&mut self, round: usize, value: f64, measure: Option<Measure>) {
        self.samples.resize(round, f64::NAN);
        self.samples.push(value);
        self.last = measure;
        let known: Vec<f64> = self.samples.iter().copied().filter(|sample| sample.is_finite()).collect();
        let of = |share| Some(quantile(&known, share)).filter(|value| value.is_finite());
        self.median = Some(median(&known)).filter(|value| value.is_finite());
        (self.lowest, self.highest) = (of(0.0), of(1.0));
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Missing {
    pub what: String,
    pub reason: String,
}

/// A ratio at a place of the axis.
#[derive(Debug, Clone, Serialize)]
struct Compared {
    /// The place; for a ratio of two places "from → to".
    at: String,
    ratio: Ratio,
    /// Whether the claim holds; absent while the interval allows both answers.
    held: Option<bool>,
}

#[derive(Debug, Clone, Serialize)]
struct Verdict {
    text: String,
    ours: String,
    theirs: String,
    must: String,
    places: Vec<Compared>,
    /// true: the claim holds at every place; false: it surely fails at a place; absent: undecided.
    held: Option<bool>,
}

/// The page cache's limit.
#[derive(Debug, Clone, Serialize)]
struct PageCache {
    limit_bytes: Option<u64>,
    cgroup_version: Option<u8>,
    /// Why the page cache is not limited.
    reason: Option<String>,
    /// Most dirty bytes of each peer's device, or the reason why they are not limited.
    dirty_limit_bytes: Option<u64>,
    dirty_reason: Option<String>,
}

/// A run of a row.
#[derive(Serialize)]
pub struct Result {
    output_version: u32,
    row: &'static str,
    sentence: &'static str,
    published: &'static str,
    shape: &'static str,
    class: String,
    quick: bool,
    one_core: bool,
    machine: Machine,
    rounds: usize,
    dataset_bytes: u64,
    page_cache: PageCache,
    subjects: Vec<Subject>,
    pub figures: Vec<Figure>,
    verdicts: Vec<Verdict>,
    pub not_measured: Vec<Missing>,
    /// Status of each Terrace subject before the first round, and at the end.
    pub status_before: Status,
    pub status: Status,
    /// Figures of the whole run.
    pub derived: Vec<(String, serde_json::Value)>,
    pub notes: Vec<String>,
    /// Results of the row that are no figures.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    pub details: serde_json::Value,
    #[serde(skip)]
    pub axis: &'static str,
    #[serde(skip)]
    pub metric: Metric,
}

impl Result {
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
            row: row.id,
            sentence: row.sentence,
            published: row.published,
            shape: row.shape,
            class: site.class.name().to_string(),
            quick: options.quick,
            one_core: options.one_core,
            machine: describe(),
            rounds: options.rounds,
            dataset_bytes,
            page_cache,
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

    /// Judges the claims of the plan.
    pub fn judge(&mut self, plan: &Plan) {
        self.derived =
            plan.conclude.map(|conclude| conclude(&self.status_before, &self.status)).unwrap_or_default();
        self.verdicts = plan.claims.iter().filter_map(|claim| self.verdict(claim)).collect();
    }

    fn verdict(&self, claim: &Claim) -> Option<Verdict> {
        let mut places = Vec::new();
        for ours in self.figures.iter().filter(|figure| figure.series == claim.ours) {
            let wanted = claim.at.as_ref().is_none_or(|at| *at == ours.at);
            if !wanted {
                continue;
            }
            let ones = vec![1.0; ours.samples.len()];
            let place = claim.from.as_ref().unwrap_or(&ours.at);
            let theirs = match claim.theirs.as_str() {
                "" => &ones,
                name => {
                    match self.figures.iter().find(|figure| figure.series == name && figure.at == *place) {
                        Some(figure) => &figure.samples,
                        None => continue,
                    }
                }
            };
            if let Some((ratio, held)) = claim.must.judge(&ours.samples, theirs) {
                let at = match &claim.from {
                    Some(from) => format!("{from} → {}", ours.at),
                    None => ours.at.clone(),
                };
                places.push(Compared { at, ratio, held });
            }
        }
        let held = match places.iter().any(|place| place.held == Some(false)) {
            true => Some(false),
            false => places.iter().all(|place| place.held == Some(true)).then_some(true),
        };
        let must = claim.must.words();
        let (text, ours, theirs) = (claim.text.clone(), claim.ours.clone(), claim.theirs.clone());
        (!places.is_empty()).then_some(Verdict { text, ours, theirs, must, places, held })
    }

    /// Writes ROW.json and ROW.svg; gives the first.
    pub fn write(&self, options: &Options) -> Outcome<PathBuf> {
        fs::create_dir_all(&options.out)?;
        let json = options.out.join(format!("{}.json", self.row));
        fs::write(&json, serde_json::to_string_pretty(self)? + "\n")?;
        super::plot::draw(self, &options.out.join(format!("{}.svg", self.row)))?;
        Ok(json)
    }

    pub fn title(&self) -> String {
        let quick = if self.quick { "; quick: figures mean nothing" } else { "" };
        format!("{}, device: {}{quick}", self.row, self.class)
    }

    /// The results as text, in the form of docs/evaluation.md.
    pub fn table(&self) -> String {
        let mut text =
            format!("## {}\n{}\n\n{}; {} rounds\n", self.title(), self.sentence, self.machine, self.rounds);
        let _ = writeln!(
            text,
            "\n| series | {} | median | lowest | highest | |\n|---|---|---|---|---|---|",
            self.axis
        );
        for figure in self.figures.iter().filter(|figure| figure.median.is_some()) {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} |",
                figure.series,
                figure.at,
                short(figure.median),
                short(figure.lowest),
                short(figure.highest),
                figure.unit
            );
        }
        if !self.verdicts.is_empty() {
            text += "\n| claim | of | at | | 95 % | must | |\n|---|---|---|---|---|---|---|\n";
        }
        for verdict in &self.verdicts {
            let of = match verdict.theirs.as_str() {
                "" => verdict.ours.clone(),
                theirs => format!("{} ÷ {theirs}", verdict.ours),
            };
            for place in &verdict.places {
                let ratio = &place.ratio;
                let held = match place.held {
                    Some(_) if self.quick => "(quick: means nothing)",
                    Some(true) => "held",
                    Some(false) => "**not held**",
                    None => "",
                };
                let _ = writeln!(
                    text,
                    "| {} | {of} | {} | {} | {} to {} | {} | {held} |",
                    verdict.text,
                    place.at,
                    short(Some(ratio.mean)),
                    short(ratio.low),
                    short(ratio.high),
                    verdict.must
                );
            }
        }
        for (name, value) in &self.derived {
            let _ = writeln!(text, "\n{name}: {value}.");
        }
        for missing in &self.not_measured {
            let _ = writeln!(text, "\nNot measured: {}: {}.", missing.what, missing.reason);
        }
        if let Some(reason) = &self.page_cache.reason {
            if reason != UNLIMITED {
                let _ = writeln!(text, "\nThe page cache was not limited: {reason}.");
            }
        } else if let Some(reason) = &self.page_cache.dirty_reason {
            let _ = writeln!(text, "\nDirty pages were not limited: {reason}.");
        }
        for note in &self.notes {
            let _ = writeln!(text, "\n{note}");
        }
        if self.shape != super::NO_SHAPE {
            let _ = writeln!(text, "\nPublished: {}. Shape: {}.", self.published, self.shape);
        }
        text
    }
}

impl Must {
    /// The ratio of the rounds, and whether it meets the bound; `None` when no pair of samples counts.
    fn judge(self, ours: &[f64], theirs: &[f64]) -> Option<(Ratio, Option<bool>)> {
        match self {
            Must::Never(most) => {
                let worst = quantile(ours, 1.0);
                let ratio = Ratio { mean: worst, low: None, high: None, pairs: ours.len() };
                worst.is_finite().then_some((ratio, Some(worst <= most)))
            }
            Must::MoreByAtMost(most) => {
                let ratio = Ratio::difference(ours, theirs)?;
                Some((ratio, ratio.at_most(most)))
            }
            Must::MoreByAtLeast(least) => {
                let ratio = Ratio::difference(ours, theirs)?;
                Some((ratio, ratio.at_least(least)))
            }
            _ => {
                let ratio = Ratio::of(ours, theirs)?;
                let held = match self {
                    Must::AtLeast(least) => ratio.at_least(least),
                    Must::AtMost(most) => ratio.at_most(most),
                    Must::Within(times) => match (ratio.at_least(times.recip()), ratio.at_most(times)) {
                        (Some(true), Some(true)) => Some(true),
                        (Some(false), _) | (_, Some(false)) => Some(false),
                        _ => None,
                    },
                    Must::NotAbove => match (ratio.low, ratio.high) {
                        (Some(low), _) if low > 1.0 => Some(false),
                        (Some(_), Some(high)) if high <= WIDE => Some(true),
                        _ => None,
                    },
                    _ => None,
                };
                Some((ratio, held))
            }
        }
    }

    fn words(self) -> String {
        match self {
            Must::AtLeast(least) => format!("≥ {}", short(Some(least))),
            Must::AtMost(most) => format!("≤ {}", short(Some(most))),
            Must::Never(most) => format!("never above {}", short(Some(most))),
            Must::NotAbove => "unchanged".to_string(),
            Must::Within(times) => format!("{} to {}", short(Some(times.recip())), short(Some(times))),
            Must::MoreByAtMost(most) => format!("difference ≤ {}", short(Some(most))),
            Must::MoreByAtLeast(least) => format!("difference ≥ {}", short(Some(least))),
            Must::Shown => "shown".to_string(),
        }
    }
}

/// [`Must::NotAbove`] holds if the interval ends below this bound; a wider interval decides nothing.
const WIDE: f64 = 1.25;

/// A number in few digits.
pub fn short(value: Option<f64>) -> String {
    match value {
        None => "?".to_string(),
        Some(value) => match value.abs() {
            size if size >= 1e9 => format!("{:.2}e9", value / 1e9),
            size if size >= 1e6 => format!("{:.2}e6", value / 1e6),
            size if size >= 100.0 => format!("{value:.0}"),
            size if size >= 10.0 => format!("{value:.1}"),
            _ => format!("{value:.3}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_and_ratios_are_judged_on_both_sides() {
        let judged = |must: Must, ours: &[f64], theirs: &[f64]| must.judge(ours, theirs).unwrap().1;
        let (few, many) = ([100.0, 101.0, 99.0], [130.0, 131.0, 129.0]);
        assert_eq!(judged(Must::Within(1.1), &few, &few), Some(true));
        assert_eq!(judged(Must::Within(1.1), &many, &few), Some(false));
        assert_eq!(judged(Must::Within(1.1), &few, &many), Some(false));
        assert_eq!(judged(Must::Within(1.1), &[90.0, 100.0, 121.0], &few), None);
        // Zero samples give no ratio, but a difference.
        let none = [0.0; 3];
        assert!(Must::AtLeast(1.0).judge(&many, &none).is_none());
        assert_eq!(judged(Must::MoreByAtLeast(1.0), &many, &none), Some(true));
        assert_eq!(judged(Must::MoreByAtLeast(1.0), &none, &none), Some(false));
    }
}
