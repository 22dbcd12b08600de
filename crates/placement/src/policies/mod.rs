//! The registry of policies.

mod ablated;
mod anticache;
mod fixed;
mod predictive;
mod write_only;

pub use ablated::Ablation;
pub use anticache::AntiCache;
pub use fixed::Static;
pub use predictive::Predictive;
pub use write_only::WriteOnly;

use crate::{Observation, Parameters, Policy};
use terrace_format::superblock::POLICY_IDS;

/// A policy by its id: the value of the superblock's field, which never changes. Each policy has a constant in its
/// own file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyKind(u8);

impl PolicyKind {
    /// The policy of a new pool without another choice.
    pub const DEFAULT: PolicyKind = PolicyKind::PREDICTIVE;

    /// The value of the superblock's field.
    pub const fn id(self) -> u8 {
        self.0
    }

    /// The policy with a name of the command line; `None` for an unknown name.
    pub fn named(name: &str) -> Option<PolicyKind> {
        POLICIES.iter().find(|row| row.name == name).map(|row| row.kind)
    }
}

/// A selectable policy.
pub struct PolicyRow {
    /// The stable id.
    pub kind: PolicyKind,
    /// Name on the command line.
    pub name: &'static str,
    /// Its rule, as a sentence for the user.
    pub sentence: &'static str,
    /// Makes the policy from the threshold of `anticache`, in percent, and the parameters.
    make: fn(u8, &Parameters) -> Box<dyn Policy>,
}

/// All policies, by id. A policy is named in its own file and in this table alone.
pub const POLICIES: &[PolicyRow] = &[fixed::ROW, anticache::ROW, predictive::ROW, write_only::ROW];

// The superblock takes the ids from 1 on.
const _: () = assert!(POLICIES.len() == POLICY_IDS as usize, "the format knows as many policies");

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

/// Spare room: PM / `BESIDE` blocks are to be free besides the room for the blocks that arrive while a group
/// is demoted, or the blocks that the threshold leaves free if these are fewer. The throttle mark is at half
/// of it.
const BESIDE: u64 = 8;

/// Blocks to demote: the blocks above a threshold of PM use, or more if the blocks that arrive while a group
/// is demoted need more room. So a stream of writes finds the device at work before PM is full. A quarter of
/// the threshold, the blocks written last, always stays. While the arriving blocks have room, no block below
/// the threshold is demoted.
fn above(threshold_percent: u8, seen: &Observation) -> u64 {
    let limit = seen.total_blocks * u64::from(threshold_percent) / 100;
    let used = seen.used_blocks();
    let beside = (seen.total_blocks / BESIDE).min(seen.total_blocks.saturating_sub(limit));
    let in_the_way = (seen.arriving_blocks + beside).saturating_sub(seen.free_blocks);
    used.saturating_sub(limit).max(in_the_way).min(used.saturating_sub(limit / 4))
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
