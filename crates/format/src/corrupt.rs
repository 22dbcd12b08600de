//! Corruption errors: where, expected, found.

use std::ops::Deref;
use thiserror::Error;

/// Damage of a persistent structure. It takes a single word, because the results that carry it are moved on
/// every path.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}: expected {}, found {}", .0.site, .0.expected, .0.found)]
pub struct Corrupt(Box<Finding>);

/// The content of a [`Corrupt`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The damaged structure, with its address.
    pub site: String,
    /// The value of a sound structure.
    pub expected: String,
    /// The value that was read.
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
