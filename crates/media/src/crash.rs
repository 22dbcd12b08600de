//! Crash moments for tests: one sequence of persistence events over several media.
//!
//! Every store, write-back, fence, device write, discard and flush of the media that share a
//! [`CrashClock`] is one event. Event `n` begins when the clock shows `n`; a crash at `n` is the
//! moment just before event `n` takes effect, for all media at once.
//!
//! Invariants: an event takes effect while the clock's gate is held, so no medium is halfway through
//! an event when the others are photographed. Lock order: gate, then the medium's own lock. A stalled
//! operation waits before it takes the gate. Used by `recorded` PM and `simulated` devices only.

use crate::ordering::OrderingPlan;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use terrace_runtime::sync::{Mutex, MutexGuard};

/// The kind of an event: an operation on a medium that is about to take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// `write` or `write_streaming` of PM.
    Store,
    /// `write_back` of PM.
    WriteBack,
    /// `order` of PM.
    Order,
    /// `persist` of PM.
    Persist,
    /// Write to a block device.
    DeviceWrite,
    /// Discard of blocks.
    DeviceDiscard,
    /// Flush of a block device.
    DeviceFlush,
    /// A durable write to a block device becomes durable.
    DeviceDurable,
}

/// A persistence event, as a hook sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Its number in the shared sequence, from 0.
    pub number: u64,
    /// The operation that is about to take effect.
    pub kind: EventKind,
}

/// Called before each event takes effect. It may call `snapshot()` of the media (hold them weakly); it
/// must not write or flush them, nor call the clock, whose gate is held.
pub type EventHook = Box<dyn FnMut(Event) + Send>;

/// A medium that can be photographed.
pub(crate) trait CrashMember: Send + Sync {
    /// Keeps a snapshot of this moment for `take_snapshot`.
    fn keep_snapshot(&self);
}

#[derive(Default)]
struct Gate {
    members: Vec<Weak<dyn CrashMember>>,
    target: Option<u64>,
    hook: Option<EventHook>,
}

/// The shared sequence of events.
#[derive(Default)]
pub struct CrashClock {
    now: AtomicU64,
    gate: Mutex<Gate>,
    ordering: OrderingPlan,
}

/// Held while an event takes effect.
pub(crate) struct EventGuard<'a> {
    _gate: MutexGuard<'a, Gate>,
}

impl CrashClock {
    /// A clock at event 0 without media.
    pub fn new() -> Arc<CrashClock> {
        Arc::new(CrashClock::default())
    }

    /// Events that have begun.
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::Acquire)
    }

    /// All media of this clock take and keep a snapshot just before event `target` takes effect. `None`
    /// cancels. A target below [`CrashClock::now`] never comes; for the moment after the last event use
    /// [`CrashClock::crash_now`].
    pub fn set_crash_at(&self, target: Option<u64>) {
        self.gate.lock().target = target;
    }

    /// Calls `hook` before each event, or stops that.
    pub fn on_event(&self, hook: Option<EventHook>) {
        self.gate.lock().hook = hook;
    }

    /// All media take and keep a snapshot now.
    pub fn crash_now(&self) {
        let mut gate = self.gate.lock();
        photograph(&mut gate);
    }

    /// The ordering points that the media of this clock have met, and the one that they leave out.
    pub fn ordering(&self) -> &OrderingPlan {
        &self.ordering
    }

    pub(crate) fn join(&self, member: Weak<dyn CrashMember>) {
        self.gate.lock().members.push(member);
    }

    /// Begins an event: photographs all media if this is the moment, then calls the hook. The
    /// caller makes the event take effect while it holds the guard.
    pub(crate) fn begin(&self, kind: EventKind) -> EventGuard<'_> {
        let mut gate = self.gate.lock();
        let number = self.now.load(Ordering::Acquire);
        if gate.target == Some(number) {
            photograph(&mut gate);
        }
        if let Some(mut hook) = gate.hook.take() {
            hook(Event { number, kind });
            gate.hook = Some(hook);
        }
        self.now.store(number + 1, Ordering::Release);
        EventGuard { _gate: gate }
    }
}

fn photograph(gate: &mut Gate) {
    gate.members.retain(|member| match member.upgrade() {
        Some(medium) => {
            medium.keep_snapshot();
            true
        }
        None => false,
    });
}

/// Numbers for choosing crash states: splitmix64 (Steele, Lea, Flood, OOPSLA 2014). The same seed
/// gives the same image in every version.
pub(crate) struct Choice(u64);

impl Choice {
    pub(crate) fn new(seed: u64) -> Choice {
        Choice(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound` (which is at least 1).
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound.max(1)
    }
}
