//! A figure with the places that make it bad.

/// The side on which a figure may not pass its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Less is better.
    AtMost,
    /// More is better.
    AtLeast,
}

/// A measured figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its key in `limits.toml`.
    pub name: String,
    /// Shares are in percent and rounded to one digit.
    pub value: f64,
    /// The better side.
    pub bound: Bound,
    /// Places to mend, the worst first.
    pub worst: Vec<Offender>,
}

/// A place to mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offender {
    /// `path:line`.
    pub place: String,
    /// The fault.
    pub text: String,
}

impl Offender {
    /// An offender at a line of a file.
    pub fn new(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { place: format!("{path}:{line}"), text: text.into() }
    }
}

impl Figure {
    /// The number of the offenders.
    pub fn count(name: impl Into<String>, worst: Vec<Offender>) -> Self {
        Self { name: name.into(), value: worst.len() as f64, bound: Bound::AtMost, worst }
    }

    /// A value that should be small.
    pub fn at_most(name: impl Into<String>, value: f64, worst: Vec<Offender>) -> Self {
        Self { name: name.into(), value: rounded(value), bound: Bound::AtMost, worst }
    }

    /// A value that should be large.
    pub fn at_least(name: impl Into<String>, value: f64, worst: Vec<Offender>) -> Self {
        Self { name: name.into(), value: rounded(value), bound: Bound::AtLeast, worst }
    }
}

/// Limits have one digit, and so have figures.
fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
