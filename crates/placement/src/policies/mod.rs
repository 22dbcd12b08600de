//! The registry of policies.

mod ablated;
mod anticache;
mod fixed;
mod predictive;
mod room;
mod row;
mod write_only;

pub use ablated::Ablation;
pub use anticache::AntiCache;
pub use fixed::Static;
pub use predictive::Predictive;
pub use row::{PolicyKind, PolicyRow, Threshold};
pub use write_only::WriteOnly;

use crate::{Parameters, Policy};
use terrace_format::superblock::POLICY_IDS;

impl PolicyKind {
    /// The policy of a new pool without another choice.
    pub const DEFAULT: PolicyKind = PolicyKind::PREDICTIVE;

    /// The policy with a name of the command line; `None` for an unknown name.
    pub fn named(name: &str) -> Option<PolicyKind> {
        POLICIES.iter().find(|row| row.name == name).map(|row| row.kind)
    }
}

/// All policies, by id. Product code names a policy in its own file and in this table alone.
pub const POLICIES: &[PolicyRow] = &[fixed::ROW, anticache::ROW, predictive::ROW, write_only::ROW];

// The superblock takes the ids from 1 on.
const _: () = assert!(POLICIES.len() == POLICY_IDS as usize, "the format knows as many policies");

/// Where a policy has its threshold, by the superblock's number; `None` for an unknown one.
pub fn threshold_of(id: u8) -> Option<Threshold> {
    row_of(id).map(|row| row.threshold)
}

/// Name of a policy by the superblock's number.
pub fn name_of(id: u8) -> Option<&'static str> {
    row_of(id).map(|row| row.name)
}

/// Makes a policy by id; `None` for an unknown one. `threshold_percent` is `anticache`'s.
pub fn make(id: u8, threshold_percent: u8, parameters: &Parameters) -> Option<Box<dyn Policy>> {
    row_of(id).map(|row| (row.make)(threshold_percent, parameters))
}

fn row_of(id: u8) -> Option<&'static PolicyRow> {
    POLICIES.iter().find(|row| row.kind.id() == id)
}

/// The names of all policies for a message: the default first, then from the newest id to the oldest.
pub fn names() -> String {
    let mut rows: Vec<&PolicyRow> = POLICIES.iter().rev().collect();
    rows.sort_by_key(|row| row.kind != PolicyKind::DEFAULT);
    let mut names: Vec<&str> = rows.iter().map(|row| row.name).collect();
    let last = names.pop().unwrap_or_default();
    format!("{} or {last}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_makes_the_policy_it_names() {
        for row in POLICIES {
            let policy = make(row.kind.id(), 80, &Parameters::PUBLISHED).map(|policy| policy.name());
            assert_eq!((policy, name_of(row.kind.id())), (Some(row.name), Some(row.name)));
        }
        assert!([0, 5].into_iter().all(|id| make(id, 80, &Parameters::PUBLISHED).is_none()));
    }

    #[test]
    fn a_message_names_every_policy_and_the_default_first() {
        assert_eq!(names(), "predictive, write-only, anticache or static");
        assert!(POLICIES.iter().all(|row| PolicyKind::named(row.name) == Some(row.kind)));
        assert_eq!(PolicyKind::named("none"), None);
    }

    #[test]
    fn a_block_is_promoted_on_the_configured_touch() {
        for touches in [1, 2, 7] {
            let parameters = Parameters { touches, ..Parameters::PUBLISHED };
            for row in POLICIES.iter().filter(|row| row.name != "static") {
                let promotes =
                    |count| make(row.kind.id(), 80, &parameters).is_some_and(|it| it.promotes(count));
                assert!(promotes(touches) && !promotes(touches - 1), "{} {touches}", row.name);
            }
        }
    }
}
