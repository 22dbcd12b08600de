//! The samples of a figure.

/// Samples in the order taken.
#[derive(Debug, Clone, Default)]
pub(crate) struct Series(Vec<f64>);

impl Series {
    pub fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted
    }
    /// The sample that a `share` of the samples does not exceed.
    pub fn quantile(&self, share: f64) -> f64 {
        let sorted = self.sorted();
        let last = sorted.len().saturating_sub(1);
        sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
    }
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }
    pub fn min(&self) -> f64 {
        self.quantile(0.0)
    }
    pub fn max(&self) -> f64 {
        self.quantile(1.0)
    }
}

/// Combines paired samples into a new series.
pub(crate) fn paired(ours: &Series, theirs: &Series, combine: fn(f64, f64) -> f64) -> Series {
    Series(ours.0.iter().zip(&theirs.0).map(|(a, b)| combine(*a, *b)).collect())
}
