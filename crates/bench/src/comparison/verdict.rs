//! The verdicts on the claims of a plan.

use super::figure::Figure;
use super::plan::{Claim, Must};
use crate::stats::{Ratio, quantile, short};
use serde::Serialize;

/// A ratio at a place of the axis.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Compared {
    /// The place; for a ratio of two places "from → to".
    pub at: String,
    pub ratio: Ratio,
    /// Whether the claim holds; absent while the interval allows both answers.
    pub held: Option<bool>,
}

/// The verdict on a claim.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Verdict {
    pub text: String,
    pub ours: String,
    pub theirs: String,
    pub must: String,
    pub places: Vec<Compared>,
    /// true: the claim holds at every place; false: it surely fails at a place; absent: undecided.
    pub held: Option<bool>,
}

impl Verdict {
    /// The verdict on a claim; none if no place has figures on both sides.
    pub fn of(claim: &Claim, figures: &[Figure]) -> Option<Verdict> {
        let mut places = Vec::new();
        for ours in figures.iter().filter(|figure| figure.series == claim.ours) {
            let wanted = claim.at.as_ref().is_none_or(|at| *at == ours.at);
            if !wanted {
                continue;
            }
            let ones = vec![1.0; ours.samples.len()];
            let place = claim.from.as_ref().unwrap_or(&ours.at);
            let theirs = match claim.theirs.as_str() {
                "" => &ones,
                name => match figures.iter().find(|figure| figure.series == name && figure.at == *place) {
                    Some(figure) => &figure.samples,
                    None => continue,
                },
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
