//! Corruption errors: where, expected, found.

use std::ops::Deref;
use thiserror::Error;

/// A persistent structure that is not what it must be. One word: results that carry it are moved on every path.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}: expected {}, found {}", .0.site, .0.expected, .0.found)]
pub struct Corrupt(Box<Finding>);

/// What a [`Corrupt`] says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which structure, with its address.
    pub site: String,
    /// What a sound structure holds there.
    pub expected: String,
    /// What was read.
    pub found: String,
}

impl Corrupt {
    /// A corruption at `site`.
    #[cold]
    pub fn new(site: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Corrupt {
        Corrupt(Box::new(Finding { site: site.into(), expected: expected.into(), found: found.into() }))
    }
}

impl Deref for Corrupt {
    type Target = Finding;

    fn deref(&self) -> &Finding {
        &self.0
    }
}
