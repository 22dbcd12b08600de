//! A row of the table of policies.

use crate::{Parameters, Policy};

/// A policy by its id: the value of the superblock's field, which never changes. Each policy has a constant in its
/// own file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyKind(pub(super) u8);

impl PolicyKind {
    /// The value of the superblock's field.
    pub const fn id(self) -> u8 {
        self.0
    }
}

/// Where a policy has the threshold of PM use above which it demotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threshold {
    /// The policy demotes nothing of its own accord.
    None,
    /// The mount option `threshold=`.
    Given,
    /// The parameters `threshold_min` and `threshold_max`.
    Parameters,
}

/// A selectable policy.
pub struct PolicyRow {
    /// The stable id.
    pub kind: PolicyKind,
    /// Name on the command line.
    pub name: &'static str,
    /// Its rule, as a sentence for the user.
    pub sentence: &'static str,
    /// Where the policy has its threshold.
    pub threshold: Threshold,
    /// Makes the policy from the threshold of `anticache`, in percent, and the parameters.
    pub(super) make: fn(u8, &Parameters) -> Box<dyn Policy>,
}
