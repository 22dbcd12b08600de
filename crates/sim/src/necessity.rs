//! Whether each ordering point is needed: it is left out, or weakened, and something must then go wrong.

use crate::config::CONFIGS;
use crate::mistakes::{Budget, Found, find};
use crate::run::{Seen, Wrong, run};
use crate::systematic::{Effort, SMALL, cases, explore};
use std::collections::BTreeMap;
use terrace_media::ordering::{Change, OrderingKind, OrderingPoint};

/// A point, how it is made wrong, and what needs it.
pub struct Need {
    /// Where.
    pub point: OrderingPoint,
    /// How it was made wrong.
    pub change: Change,
    /// What then went wrong; `None` when nothing did.
    pub found: Option<Found>,
}

/// All ordering points that operations, background work, recovery and unmount pass.
pub fn points() -> Vec<OrderingPoint> {
    let mut all: BTreeMap<OrderingPoint, u64> = BTreeMap::new();
    let (singles, _) = cases();
    for case in &singles {
        let effort = Effort { lines: 0, samples: 0, stride: usize::MAX, quiet: true, recoveries: 0 };
        all.extend(explore(SMALL, case, effort, 0, Wrong::default()).points);
    }
    for (seed, config) in CONFIGS.into_iter().enumerate() {
        all.extend(run(config, seed as u64, 1500, Wrong::default(), &Seen::default()).points);
    }
    all.extend(
        crate::fresh::explore(
            Effort { lines: 0, samples: 0, stride: 1, quiet: true, recoveries: 0 },
            false,
            Wrong::default(),
        )
        .points,
    );
    all.into_keys().collect()
}

/// The ways to make a point wrong.
pub fn changes(point: OrderingPoint) -> Vec<Change> {
    match point.kind {
        OrderingKind::Persist => vec![Change::Removed, Change::WeakenedToOrder],
        OrderingKind::Order | OrderingKind::Flush => vec![Change::Removed],
    }
}

/// Looks for what needs a point.
pub fn need(point: OrderingPoint, change: Change, budget: Budget) -> Need {
    let wrong = Wrong { ordering: Some((point, change)), ..Wrong::default() };
    Need { point, change, found: find(wrong, budget) }
}
