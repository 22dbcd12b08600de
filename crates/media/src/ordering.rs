//! Ordering points: every fence and flush of the engine by its source line, so that a test can list them, and leave
//! one out or weaken it to see whether anything depends on it.
//!
//! Invariant: a fence or flush that is left out is an event like any other, and is counted; it makes nothing durable
//! and ends no epoch. The lock is taken last and for no longer than a look. Used by the media that share a
//! [`CrashClock`](crate::crash::CrashClock).

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use terrace_runtime::sync::Mutex;

/// The operation of an ordering point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OrderingKind {
    /// `order` of PM.
    Order,
    /// `persist` of PM.
    Persist,
    /// `flush` of a block device.
    Flush,
    /// `write_durable` of a block device.
    DurableWrite,
}

/// A source line that orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrderingPoint {
    /// The file, from the root of the repository.
    pub file: &'static str,
    /// Its line.
    pub line: u32,
    /// Its column: a line may have two.
    pub column: u32,
    /// The operation it issues.
    pub kind: OrderingKind,
}

impl fmt::Display for OrderingPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            OrderingKind::Order => "order",
            OrderingKind::Persist => "persist",
            OrderingKind::Flush => "flush",
            OrderingKind::DurableWrite => "durable write",
        };
        write!(f, "{}:{}:{} ({kind})", self.file, self.line, self.column)
    }
}

impl OrderingPoint {
    fn new(at: &'static Location<'static>, kind: OrderingKind) -> OrderingPoint {
        OrderingPoint { file: at.file(), line: at.line(), column: at.column(), kind }
    }
}

/// The change that a test makes to an ordering point, to prove that the point is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// It does nothing; a flush answers that all is well.
    Removed,
    /// A `persist` only orders. Other kinds stay what they are.
    WeakenedToOrder,
}

#[derive(Default)]
struct State {
    met: BTreeMap<OrderingPoint, u64>,
    change: Option<(OrderingPoint, Change)>,
    changed: u64,
}

/// The ordering points met so far and the one that is changed.
#[derive(Default)]
pub struct OrderingPlan {
    state: Mutex<State>,
}

impl OrderingPlan {
    /// The points met so far, by file and line, and how often each.
    pub fn points(&self) -> Vec<(OrderingPoint, u64)> {
        self.state.lock().met.iter().map(|(point, count)| (*point, *count)).collect()
    }

    /// Forgets the points met so far; the change stays.
    pub fn forget(&self) {
        self.state.lock().met.clear();
    }

    /// Changes one point from now on, in place of the one changed before; `None` ends that.
    pub fn change(&self, change: Option<(OrderingPoint, Change)>) {
        self.state.lock().change = change;
    }

    /// The number of passes of a changed point.
    pub fn changed_count(&self) -> u64 {
        self.state.lock().changed
    }

    /// Counts a fence of PM; gives the fence that the medium is to issue.
    pub(crate) fn pass_fence(
        &self,
        kind: OrderingKind,
        at: &'static Location<'static>,
    ) -> Option<OrderingKind> {
        match self.pass(OrderingPoint::new(at, kind)) {
            Some(Change::Removed) => None,
            Some(Change::WeakenedToOrder) => Some(OrderingKind::Order),
            None => Some(kind),
        }
    }

    /// Counts a flush, or a durable write; false when the device is to make nothing durable.
    pub(crate) fn pass_durable(&self, kind: OrderingKind, at: &'static Location<'static>) -> bool {
        self.pass(OrderingPoint::new(at, kind)) != Some(Change::Removed)
    }

    fn pass(&self, point: OrderingPoint) -> Option<Change> {
        let mut state = self.state.lock();
        *state.met.entry(point).or_default() += 1;
        let change = state.change.filter(|(changed, _)| *changed == point).map(|(_, change)| change);
        state.changed += u64::from(change.is_some());
        change
    }
}
