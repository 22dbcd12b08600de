//! Whether each ordering point is needed: it is left out, or weakened, and then a rule must be violated.
//!
//! An index knows the points that each history passes. Only histories that pass the changed point are tried,
//! the shortest first, and in each the moments soon after the change.

use crate::config::{Config, Tier0};
use crate::drivers::acts::{Act, Case, DRAM, LAZY, SMALL, acts, cases, make_different, settling};
use crate::drivers::run::Wrong;
use crate::drivers::systematic::{Effort, Explored, explore_on, prepared};
use crate::drivers::{copies, fresh, log};
use crate::media::Setup;
use crate::world::Shared;
use std::collections::BTreeSet;
use terrace_format::map_kind::MapKind;
use terrace_media::ordering::{Change, OrderingKind, OrderingPoint};
use terrace_runtime::sync::Mutex;

/// The pools of the cases.
const POOLS: [(&str, Config); 6] = [
    ("", SMALL),
    (", data=ordered", Config { name: "systematic-ordered", data_ordered: true, ..SMALL }),
    (ONLY_PERSIST, Config { name: "systematic-persist", tier0: Tier0::PersistOnly, ..SMALL }),
    (", writes wait in DRAM", DRAM),
    (", lazy writes", LAZY),
    (", extent map", Config { name: "systematic-extent", map: MapKind::Extent, ..SMALL }),
];
const ONLY_PERSIST: &str = ", only persist makes durable";

/// A kind of history.
#[derive(Debug, Clone)]
enum Kind {
    /// mkfs over an old pool.
    Mkfs,
    /// A damaged superblock copy is mended.
    Superblock,
    /// A device gets another tier.
    Order,
    /// The log alone.
    Log,
    /// Operations on the pool of this index.
    Case(usize, Case),
}

/// A history, with the ordering points that it passes.
#[derive(Debug, Clone)]
pub struct History {
    kind: Kind,
    persist_only: bool,
    /// Persistence events of the last step.
    pub events: u64,
    /// The points that the last step passes, and the number of passes.
    pub points: Vec<(OrderingPoint, u64)>,
    passed: BTreeSet<OrderingPoint>,
}

impl History {
    /// A description for messages.
    pub fn name(&self) -> String {
        let (name, more) = match &self.kind {
            Kind::Case(pool, case) => {
                let names: Vec<&str> = case.iter().map(|act| act.name).collect();
                (names.join(", then "), POOLS[*pool].0)
            }
            kind => {
                let name = match kind {
                    Kind::Mkfs => "mkfs",
                    Kind::Superblock => "a damaged superblock is mended",
                    Kind::Order => "a device gets another tier",
                    _ => "the log, lanes that fill up",
                };
                (name.to_string(), if self.persist_only { ONLY_PERSIST } else { "" })
            }
        };
        name + more
    }

    /// Whether the history passes a point.
    pub fn passes(&self, point: &OrderingPoint) -> bool {
        self.passed.contains(point)
    }

    /// Whether the history is a single operation on the default pool.
    pub fn is_single(&self) -> bool {
        matches!(&self.kind, Kind::Case(0, case) if case.len() == 1)
    }
}

/// The pools of one thread, each made at its first use.
#[derive(Default)]
pub struct Pools([Option<Shared>; POOLS.len()]);

impl Pools {
    /// Explores a history of the unchanged engine at a sample of moments, with deaths of the daemon and
    /// crashes in recovery.
    pub fn explore_unchanged(&mut self, history: &History) -> Explored {
        let stride = 1 + history.events as usize / 12;
        let effort = Effort { lines: 4, samples: 8, stride, recoveries: 1, deaths: 2, ..Effort::NONE };
        self.explore(history, effort, Wrong::default())
    }

    fn explore(&mut self, history: &History, effort: Effort, wrong: Wrong) -> Explored {
        match &history.kind {
            Kind::Mkfs => fresh::explore(effort, history.persist_only, wrong),
            Kind::Superblock => copies::explore(effort, history.persist_only, wrong),
            Kind::Order => copies::explore_order(effort, history.persist_only, wrong),
            Kind::Log => log::explore(effort, history.persist_only, wrong),
            Kind::Case(pool, case) => {
                let make = || prepared(POOLS[*pool].1, &Setup::default(), Wrong::default());
                let known = self.0[*pool].get_or_insert_with(make);
                explore_on(known, case, effort, 0, wrong)
            }
        }
    }
}

/// Pairs that show more than a single step can: device space is freed and used again, a change is made
/// durable later, or bytes that the record of the first step names are overwritten in place.
fn pairs_of(config: Config) -> Vec<Case> {
    let acts: Vec<Act> = acts().into_iter().chain(settling()).collect();
    let act = |name: &str| acts.iter().find(|act| act.name == name).cloned();
    let pair = |(first, second): (&str, &str)| -> Case {
        let mut pair: Case = [act(first), act(second)].into_iter().flatten().collect();
        pair.last_mut().into_iter().for_each(make_different);
        pair
    };
    let mut pairs = Vec::new();
    if config.persist_only() {
        let frees = ["truncate cold", "punch cold", "unlink the last, cold", "demotion"];
        pairs.extend(frees.map(|first| (first, "demotion")));
        // The shadow of a cold copy that is overwritten.
        pairs.push(("over a cold block, whole", "demotion"));
        pairs.extend(["fsync", "unmount"].map(|second| ("chmod", second)));
    }
    if config.data_ordered {
        pairs.extend(["write a new block", "append across blocks"].map(|name| (name, name)));
    }
    if config.buffers() {
        let writes = ["write a new block", "append across blocks", "over a cold block, part"];
        let settles = ["write-back", "fsync", "sync", "demotion", "unmount"];
        pairs.extend(writes.iter().flat_map(|first| settles.map(|second| (*first, second))));
    }
    pairs.into_iter().map(pair).collect()
}

/// All histories with the ordering points that they pass, found by two threads.
pub fn index() -> Vec<History> {
    let history = |kind, persist_only| History {
        kind,
        persist_only,
        events: 0,
        points: Vec::new(),
        passed: BTreeSet::new(),
    };
    let mut all = Vec::new();
    for persist_only in [false, true] {
        all.extend(
            [Kind::Mkfs, Kind::Superblock, Kind::Order, Kind::Log].map(|kind| history(kind, persist_only)),
        );
    }
    let (singles, _) = cases();
    for (index, (_, config)) in POOLS.iter().enumerate() {
        let of_pool = |case: &Case| history(Kind::Case(index, case.clone()), config.persist_only());
        // Without a waiting write a single step on the DRAM pool shows no more than on the default pool.
        all.extend(singles.iter().filter(|_| !config.buffers()).map(of_pool));
        all.extend(pairs_of(*config).iter().map(of_pool));
    }
    let done = Mutex::new(Vec::new());
    on_two_threads(all, |pools, mut history: History| {
        let explored = pools.explore(&history, Effort::NONE, Wrong::default());
        assert!(explored.violation.is_none(), "{}: {:?}", history.name(), explored.violation);
        // Histories without a pool are quick, so they are sorted as the shortest.
        history.events = if matches!(history.kind, Kind::Case(..)) { explored.events } else { 0 };
        history.points = explored.points.into_iter().collect();
        history.passed = explored.passed.into_keys().collect();
        done.lock().push(history);
    });
    let mut all = done.into_inner();
    all.sort_by_key(|history| (history.events, history.name()));
    all
}

/// Calls `work` for each element of a list, on two threads with pools of their own.
pub fn on_two_threads<T: Send>(list: Vec<T>, work: impl Fn(&mut Pools, T) + Sync) {
    let list = Mutex::new(list.into_iter());
    let run = || {
        let mut pools = Pools::default();
        loop {
            let next = list.lock().next();
            let Some(next) = next else { return };
            work(&mut pools, next);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(run);
        run();
    });
}

/// All ordering points that the histories pass.
pub fn points(index: &[History]) -> BTreeSet<OrderingPoint> {
    let all = index.iter().flat_map(|history| history.passed.iter().copied());
    all.filter(|point| !point.file.starts_with("crates/sim")).collect()
}

/// The changes of an ordering point that are tried.
pub fn changes(point: OrderingPoint) -> Vec<Change> {
    match point.kind {
        OrderingKind::Persist => vec![Change::Removed, Change::WeakenedToOrder],
        OrderingKind::Order | OrderingKind::Flush | OrderingKind::DurableWrite => vec![Change::Removed],
    }
}

/// The proof that an ordering point is needed.
#[derive(Debug, Clone)]
pub struct Need {
    /// The history.
    pub history: String,
    /// Images judged until then, summed over all histories tried.
    pub states: u64,
    /// Histories tried.
    pub tried: usize,
    /// The violation.
    pub what: String,
}

/// The efforts of the search in their order; the first takes a quick look at few histories.
const EFFORTS: [(usize, Effort); 3] = [
    (6, Effort { lines: 4, samples: 8, soon: 10, ..Effort::NONE }),
    (60, Effort { lines: 4, samples: 12, soon: 30, recoveries: 1, deaths: 4, ..Effort::NONE }),
    (usize::MAX, Effort { lines: 5, samples: 16, soon: 60, recoveries: 3, deaths: 8, ..Effort::NONE }),
];

/// Searches for a history that needs a point, with the first `efforts` of three; the last is for long runs.
pub fn need(
    pools: &mut Pools,
    index: &[History],
    (point, change): (OrderingPoint, Change),
    efforts: usize,
) -> Option<Need> {
    let wrong = Wrong { ordering: Some((point, change)), ..Wrong::default() };
    // If `order` makes stores durable, a `persist` weakened to `order` changes nothing.
    let may_tell = |history: &&History| {
        history.passed.contains(&point) && (history.persist_only || change == Change::Removed)
    };
    // Histories that pass the point in their last step come first.
    let (mut candidates, mut others): (Vec<&History>, Vec<&History>) =
        index.iter().filter(may_tell).partition(|h| h.points.iter().any(|(passed, _)| *passed == point));
    // Histories that pass a flush or a persist in their last step come next.
    let orders_only = |history: &&History| history.points.iter().all(|(p, _)| p.kind == OrderingKind::Order);
    others.sort_by_key(orders_only);
    candidates.extend(others);
    let (mut states, mut tried) = (0, 0);
    for (most, effort) in EFFORTS.into_iter().take(efforts) {
        for history in candidates.iter().take(most) {
            let explored = pools.explore(history, effort, wrong);
            states += explored.states;
            tried += 1;
            if let Some(what) = explored.violation {
                let what = what.chars().take(1500).collect();
                return Some(Need { history: history.name(), states, tried, what });
            }
        }
    }
    None
}
