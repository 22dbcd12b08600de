//! Corruption errors: where, expected, found.

use thiserror::Error;

/// A persistent structure that is not what it must be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{site}: expected {expected}, found {found}")]
pub struct Corrupt {
    /// Which structure, with its address.
    pub site: String,
    /// What a sound structure holds there.
    pub expected: String,
    /// What was read.
    pub found: String,
}

impl Corrupt {
    /// A corruption at `site`.
    pub fn new(site: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Corrupt {
        Corrupt { site: site.into(), expected: expected.into(), found: found.into() }
    }
}
