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

/// A selectable policy.
pub struct PolicyRow {
    /// Value of the superblock's field. Stable.
    pub id: u8,
    /// Name on the command line.
    pub name: &'static str,
    /// Its rule, as a sentence for the user.
    pub sentence: &'static str,
}

/// All policies.
pub const POLICIES: &[PolicyRow] = &[
    PolicyRow { id: 1, name: "static", sentence: "moves nothing by itself before PM is full" },
    PolicyRow {
        id: 2,
        name: "anticache",
        sentence: "demotes the least recently used blocks above a threshold of PM use [AC-BPFS]",
    },
    PolicyRow {
        id: 3,
        name: "predictive",
        sentence: "three predictors steer writes, thresholds follow reads and writes, write-cold and read-hot data moves [TPFS]",
    },
    PolicyRow {
        id: 4,
        name: "write-only",
        sentence: "two predictors steer writes, write-cold data moves down [Ziggurat]",
    },
];

/// Name of a policy by the superblock's number.
pub fn name_of(id: u8) -> Option<&'static str> {
    POLICIES.iter().find(|row| row.id == id).map(|row| row.name)
}

/// Makes a policy by id; `None` for an unknown one. `threshold_percent` is `anticache`'s.
pub fn make(id: u8, threshold_percent: u8, parameters: &Parameters) -> Option<Box<dyn Policy>> {
    match id {
        1 => Some(Box::new(Static)),
        2 => Some(Box::new(AntiCache { threshold_percent, touches: parameters.touches })),
        3 => Some(Box::new(Predictive::new(parameters))),
        4 => Some(Box::new(WriteOnly::new(parameters))),
        _ => None,
    }
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
            let policy = make(row.id, 80, &Parameters::PUBLISHED).map(|policy| policy.name());
            assert_eq!((policy, name_of(row.id)), (Some(row.name), Some(row.name)));
        }
        assert!([0, 5].into_iter().all(|id| make(id, 80, &Parameters::PUBLISHED).is_none()));
    }

    #[test]
    fn a_block_is_promoted_on_the_configured_touch() {
        for touches in [1, 2, 7] {
            let parameters = Parameters { touches, ..Parameters::PUBLISHED };
            for row in POLICIES.iter().filter(|row| row.name != "static") {
                let promotes = |count| make(row.id, 80, &parameters).is_some_and(|it| it.promotes(count));
                assert!(promotes(touches) && !promotes(touches - 1), "{} {touches}", row.name);
            }
        }
    }
}
