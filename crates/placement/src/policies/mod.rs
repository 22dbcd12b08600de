//! The registry of policies.

mod anticache;
mod fixed;

pub use anticache::AntiCache;
pub use fixed::Static;

use crate::Policy;

/// One selectable policy.
pub struct PolicyRow {
    /// Value of the superblock's field. Stable.
    pub id: u8,
    /// Name on the command line.
    pub name: &'static str,
    /// What it does.
    pub sentence: &'static str,
}

/// All policies.
pub const POLICIES: &[PolicyRow] = &[
    PolicyRow { id: 1, name: "static", sentence: "never moves anything by itself" },
    PolicyRow {
        id: 2,
        name: "anticache",
        sentence: "demotes the least recently used blocks above a threshold of PM use [AC-BPFS]",
    },
];

/// Makes a policy by id; `None` for an unknown one.
pub fn make(id: u8, threshold_percent: u8, first_touch: bool) -> Option<Box<dyn Policy>> {
    match id {
        1 => Some(Box::new(Static)),
        2 => Some(Box::new(AntiCache { threshold_percent, first_touch })),
        _ => None,
    }
}
