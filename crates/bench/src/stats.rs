//! Statistics of paired rounds: medians, spreads, and ratios with a 95 % interval. A
//! ratio is taken round by round, so a disturbance that slows both sides of a round cancels out. Its interval
//! is Student's t on the logarithms of the ratios: ratios are multiplicative and few.

use serde::{Deserialize, Serialize};

/// The value that a `share` (0 to 1) of the samples does not exceed; NaN without samples.
pub fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let place = last as f64 * share.clamp(0.0, 1.0);
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    match (sorted.get(low), sorted.get(high)) {
        (Some(low_value), Some(high_value)) => low_value + (high_value - low_value) * (place - low as f64),
        _ => f64::NAN,
    }
}

/// The middle sample, or the mean of the two middle samples.
pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

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

/// A ratio of paired samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Geometric mean of the rounds' ratios.
    pub mean: f64,
    /// Ends of the 95 % interval; both absent with fewer than two rounds.
    pub low: Option<f64>,
    /// Upper end of the interval.
    pub high: Option<f64>,
    /// Pairs that counted.
    pub pairs: usize,
}

impl Ratio {
    /// `ours[i] / theirs[i]`; pairs with a value that is not above zero do not count. `None` without pairs.
    pub fn of(ours: &[f64], theirs: &[f64]) -> Option<Ratio> {
        let usable = |value: &f64| value.is_finite() && *value > 0.0;
        let pairs = ours.iter().zip(theirs).filter(|(a, b)| usable(a) && usable(b));
        let logs: Vec<f64> = pairs.map(|(a, b)| (a / b).ln()).collect();
        let found = Ratio::of_values(&logs)?;
        Some(Ratio {
            mean: found.mean.exp(),
            low: found.low.map(f64::exp),
            high: found.high.map(f64::exp),
            ..found
        })
    }

    /// `ours[i] - theirs[i]`, a difference in place of a ratio: mean and interval of the differences
    /// themselves.
    pub fn difference(ours: &[f64], theirs: &[f64]) -> Option<Ratio> {
        let values: Vec<f64> =
            ours.iter().zip(theirs).map(|(a, b)| a - b).filter(|it| it.is_finite()).collect();
        Ratio::of_values(&values)
    }

    fn of_values(values: &[f64]) -> Option<Ratio> {
        if values.is_empty() {
            return None;
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let half = (values.len() > 1).then(|| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            let deviation = (squares / (count - 1.0)).sqrt();
            student_95(values.len() - 1) * deviation / count.sqrt()
        });
        let (low, high) = (half.map(|half| mean - half), half.map(|half| mean + half));
        Some(Ratio { mean, low, high, pairs: values.len() })
    }

    /// Whether the ratio is at least `least`: undecided (`None`) while the interval contains `least`, or
    /// without an interval.
    pub fn at_least(&self, least: f64) -> Option<bool> {
        let (low, high) = (self.low?, self.high?);
        if low >= least {
            return Some(true);
        }
        (high < least).then_some(false)
    }

    /// Whether the ratio is at most `most`: as [`Self::at_least`].
    pub fn at_most(&self, most: f64) -> Option<bool> {
        let (low, high) = (self.low?, self.high?);
        if high <= most {
            return Some(true);
        }
        (low > most).then_some(false)
    }
}

/// How much larger paired samples are: the median of the differences.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Median of the differences.
    pub median: f64,
    /// Ends of the 95 % interval of the median, by order statistics: single disturbed pairs do not move them.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Pairs that counted.
    pub pairs: usize,
}

impl Difference {
    /// `ours[i] − theirs[i]`. `None` without pairs.
    pub fn of(ours: &[f64], theirs: &[f64]) -> Option<Difference> {
        let mut all: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a - b).collect();
        all.sort_unstable_by(f64::total_cmp);
        let count = all.len();
        let spread = 1.96 * (count as f64).sqrt() / 2.0;
        let (low, high) = (count as f64 / 2.0 - spread, count as f64 / 2.0 + spread);
        let at = |place: f64| all.get((place.max(0.0) as usize).min(count.checked_sub(1)?)).copied();
        Some(Difference { median: median(&all), low: at(low.floor())?, high: at(high.ceil())?, pairs: count })
    }

    /// Whether the difference is at most `most`; undecided (`None`) while the interval contains `most`.
    pub fn at_most(&self, most: f64) -> Option<bool> {
        if self.high <= most {
            return Some(true);
        }
        (self.low > most).then_some(false)
    }
}

/// Two-sided 95 % quantile of Student's t with `freedom` degrees of freedom (from tables; above 30 the last
/// entry, which is a little too wide).
fn student_95(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042,
    ];
    TABLE[freedom.clamp(1, TABLE.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_sample() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(quantile(&[1.0, 2.0], 1.0), 2.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn equal_rounds_have_a_ratio_without_width() {
        let ratio = Ratio::of(&[2.0, 4.0, 8.0], &[1.0, 2.0, 4.0]).unwrap();
        assert!((ratio.mean - 2.0).abs() < 1e-12, "{ratio:?}");
        assert!((ratio.low.unwrap() - 2.0).abs() < 1e-9 && (ratio.high.unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(ratio.at_least(1.9), Some(true));
        assert_eq!(ratio.at_least(2.1), Some(false));
        assert_eq!(ratio.at_most(1.9), Some(false));
    }

    /// By hand: logs of 1, 2, 4 have mean ln 2 and deviation ln 2; t(2) = 4.303; the half width is 2.484 ln
    /// 2.
    #[test]
    fn the_interval_is_students() {
        let ratio = Ratio::of(&[1.0, 2.0, 4.0], &[1.0; 3]).unwrap();
        assert!((ratio.mean - 2.0).abs() < 1e-12);
        let half = 4.303 * std::f64::consts::LN_2 / 3f64.sqrt();
        assert!((ratio.high.unwrap().ln() - (std::f64::consts::LN_2 + half)).abs() < 1e-12);
        assert_eq!(ratio.at_least(1.5), None, "the interval contains it");
    }

    #[test]
    fn a_difference_is_not_moved_by_a_disturbed_pair() {
        let theirs: Vec<f64> = (0..100).map(f64::from).collect();
        let mut ours: Vec<f64> = theirs.iter().map(|value| value + 10.0).collect();
        ours[7] = 1e9;
        let found = Difference::of(&ours, &theirs).unwrap();
        assert_eq!((found.median, found.low, found.high, found.pairs), (10.0, 10.0, 10.0, 100));
        assert_eq!((found.at_most(10.0), found.at_most(9.0)), (Some(true), Some(false)));
        // By hand: of 0…99 the interval is from the 40th to the 60th.
        let spread = Difference::of(&theirs, &[0.0; 100]).unwrap();
        assert_eq!((spread.low, spread.high, spread.at_most(50.0)), (40.0, 60.0, None));
        assert_eq!(Difference::of(&[], &[]), None);
    }

    #[test]
    fn a_difference_has_the_interval_of_its_values() {
        let found = Ratio::difference(&[11.0, 22.0, 33.0], &[10.0, 20.0, 30.0]).unwrap();
        assert!((found.mean - 2.0).abs() < 1e-12);
        assert!((found.high.unwrap() - 2.0 - 4.303 / 3f64.sqrt()).abs() < 1e-9);
        assert_eq!((found.at_most(5.0), found.at_most(3.0)), (Some(true), None));
    }

    #[test]
    fn pairs_without_a_ratio_do_not_count() {
        assert_eq!(Ratio::of(&[0.0, 1.0], &[1.0, f64::NAN]), None);
        let one = Ratio::of(&[3.0, 0.0], &[1.0, 1.0]).unwrap();
        assert_eq!((one.pairs, one.low, one.at_least(2.0)), (1, None, None));
    }
}
