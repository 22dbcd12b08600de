//! Looking for a planted mistake: single operations first, then random histories.

use crate::config::{CONFIGS, Config};
use crate::run::{Seen, Wrong, run};
use crate::systematic::{Effort, SMALL, cases, explore};

/// How something wrong was found.
#[derive(Debug, Clone)]
pub struct Found {
    /// Images judged until then, those of all tries.
    pub states: u64,
    /// Operations done until then in random histories.
    pub operations: u64,
    /// The case, or the command that repeats the history.
    pub how: String,
    /// The rule that did not hold, in its first words.
    pub what: String,
}

/// How far to look.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Random histories of each kind.
    pub histories: u64,
    /// Operations of each.
    pub operations: u64,
}

/// Looks until a rule does not hold. `None`: nothing noticed within the budget.
pub fn find(wrong: Wrong, budget: Budget) -> Option<Found> {
    let mut found = Found { states: 0, operations: 0, how: String::new(), what: String::new() };
    let ordered = Config { name: "systematic-ordered", data_ordered: true, ..SMALL };
    let persist_only = Config { name: "systematic-persist", persist_only: true, ..SMALL };
    let effort = Effort { lines: 5, samples: 12, stride: 2, quiet: true, ..Effort::NONE };
    let (singles, _) = cases();
    for (config, quiet) in [(SMALL, true), (persist_only, true), (SMALL, false), (ordered, true)] {
        for case in &singles {
            let effort = Effort { quiet, ..effort };
            let explored = explore(config, case, effort, 0, wrong);
            found.states += explored.states;
            if let Some(violation) = explored.violation {
                found.how = format!("{} on a {} pool", case[0].name, if quiet { "quiet" } else { "busy" });
                found.what = violation.chars().take(160).collect();
                return Some(found);
            }
        }
    }
    let seen = Seen::default();
    for seed in 1..=budget.histories {
        for config in CONFIGS {
            let ended = run(config, seed, budget.operations, wrong, &seen);
            found.states += ended.counts.states;
            found.operations += ended.counts.operations;
            if let Some(violation) = ended.violation {
                let operations = budget.operations;
                found.how =
                    format!("--once --config {} --seed {seed} --operations {operations}", config.name);
                found.what = violation.text.chars().take(160).collect();
                return Some(found);
            }
        }
    }
    None
}
