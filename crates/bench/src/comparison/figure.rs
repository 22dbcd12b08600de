//! The figures of a run: samples of each cell, by round.

use super::plan::{Cell, Metric};
use crate::stats::{median, quantile};
use crate::workload::worker::Measure;
use serde::Serialize;

/// Samples of a cell; a round in which the cell failed has no sample.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// Line of the plot.
    pub series: String,
    /// Name of the place on the axis.
    pub at: String,
    /// Number of the place on the axis.
    pub x: f64,
    /// Unit of the samples.
    pub unit: &'static str,
    /// By round; NaN is written as null.
    pub samples: Vec<f64>,
    /// Median of the samples; absent without samples.
    pub median: Option<f64>,
    pub(super) lowest: Option<f64>,
    pub(super) highest: Option<f64>,
    /// The measure of the last round, if the cell is a load.
    last: Option<Measure>,
}

impl Figure {
    /// A figure without samples. `words` name a further metric of the cell; empty for the plan's metric.
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

    /// A figure at this place whose samples are sums, round by round, of the figures times their factors.
    pub(super) fn sum(&self, series: &str, of: &[(f64, &Figure)]) -> Figure {
        let mut sum = Figure { series: series.to_string(), samples: Vec::new(), last: None, ..self.clone() };
        for round in 0..self.samples.len() {
            let all = of
                .iter()
                .map(|(factor, figure)| factor * figure.samples.get(round).copied().unwrap_or(f64::NAN));
            sum.push(round, all.sum(), None);
        }
        sum
    }

    /// Adds the sample of a round; rounds without a sample before it get NaN.
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

/// A subject or figure that was not measured, with the reason.
#[derive(Debug, Clone, Serialize)]
pub struct Missing {
    /// The subject or figure.
    pub what: String,
    /// The reason.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::super::plan::Work;
    use super::*;

    #[test]
    fn a_sum_lacks_rounds_without_a_summand() {
        let figure = |samples: &[(usize, f64)]| {
            let (series, at, work) = ("a".to_string(), "place".to_string(), Work::Together(Vec::new()));
            let mut figure = Figure::new(&Cell { subject: 0, series, x: 0.0, at, work }, "", Metric::Seconds);
            samples.iter().for_each(|(round, value)| figure.push(*round, *value, None));
            figure
        };
        let (one, other) = (figure(&[(0, 2.0), (1, 4.0), (2, 6.0)]), figure(&[(0, 10.0), (2, 30.0)]));
        let sum = one.sum("sum", &[(1.5, &one), (4.0, &other)]);
        assert_eq!((sum.series.as_str(), sum.at.as_str(), sum.unit), ("sum", "place", "s"));
        assert_eq!((sum.samples[0], sum.samples[2], sum.median), (43.0, 129.0, Some(86.0)));
        assert!(sum.samples[1].is_nan());
    }
}
