//! `limits.toml`: the figure that each check may not pass.

use crate::figure::{Bound, Figure};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The content of `limits.toml`. A figure without a limit has the limit 0.
#[derive(Debug, Default, Deserialize)]
pub struct Limits {
    /// Words that look like a cited rule, with the reason why they are none.
    #[serde(default)]
    pub not_rules: BTreeMap<String, String>,
    /// Limits by check and figure.
    #[serde(flatten)]
    pub checks: BTreeMap<String, BTreeMap<String, f64>>,
}

/// How a figure stands to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Beyond the limit: the test fails.
    Broken,
    /// At the limit.
    Kept,
    /// Better than the limit, which could be tightened.
    Better,
}

impl Limits {
    /// Parses the limits.
    ///
    /// # Errors
    /// Text that is no such TOML.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| format!("limits.toml: {error}"))
    }

    /// The limit of a figure of the check `check`.
    pub fn limit(&self, check: &str, figure: &str) -> f64 {
        self.checks.get(check).and_then(|limits| limits.get(figure)).copied().unwrap_or(0.0)
    }

    /// Compares a figure with its limit.
    pub fn standing(&self, check: &str, figure: &Figure) -> Standing {
        let limit = self.limit(check, &figure.name);
        let excess = match figure.bound {
            Bound::AtMost => figure.value - limit,
            Bound::AtLeast => limit - figure.value,
        };
        match excess {
            excess if excess > 0.0 => Standing::Broken,
            excess if excess < 0.0 => Standing::Better,
            _ => Standing::Kept,
        }
    }
}

/// The text of `limits.toml` with each line `figure = limit` of the section `check` replaced by `limit(check, figure)`,
/// where there is a new one. Comments stay.
pub fn rewritten(text: &str, limit: impl Fn(&str, &str) -> Option<f64>) -> String {
    let mut check = "";
    let mut lines = String::new();
    for line in text.lines() {
        check = line.strip_prefix('[').map_or(check, |rest| rest.trim_end_matches(']'));
        let key = line.split_once(" = ").map(|(key, _)| key);
        match key.and_then(|key| Some((key, limit(check, key.trim_matches('"'))?))) {
            Some((key, limit)) => lines += &format!("{key} = {limit}\n"),
            None => lines += &format!("{line}\n"),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_compared_with_its_bound() {
        let limits = Limits::parse("[sizes]\nfiles = 2\n[asserts]\na = 1.5").expect("it is sound");
        let standing = |check, name: &str, value, bound| {
            limits.standing(check, &Figure { name: name.to_owned(), value, bound, worst: Vec::new() })
        };
        assert_eq!(standing("sizes", "files", 3.0, Bound::AtMost), Standing::Broken);
        assert_eq!(standing("sizes", "files", 2.0, Bound::AtMost), Standing::Kept);
        assert_eq!(standing("sizes", "files", 1.0, Bound::AtMost), Standing::Better);
        assert_eq!(standing("sizes", "without a limit", 1.0, Bound::AtMost), Standing::Broken);
        assert_eq!(standing("asserts", "a", 1.4, Bound::AtLeast), Standing::Broken);
        assert_eq!(standing("asserts", "a", 1.6, Bound::AtLeast), Standing::Better);
    }

    #[test]
    fn limits_are_rewritten_in_place() {
        let text = "# why\n[sizes]\nfiles = 2\n\n[asserts]\n\"a/src\" = 1.5\nfiles = 3\n";
        let limit = |check: &str, figure: &str| match (check, figure) {
            ("sizes", "files") => Some(1.0),
            ("asserts", "a/src") => Some(1.6),
            _ => None,
        };
        assert_eq!(
            rewritten(text, limit),
            "# why\n[sizes]\nfiles = 1\n\n[asserts]\n\"a/src\" = 1.6\nfiles = 3\n"
        );
    }
}
