//! `recorded`: PM for tests that knows which of its stores are durable and can produce every crash image
//! they allow (design 3; the model is stated in `crash_image`).
//!
//! Invariants: all threads count as one: a fence covers the lines that any thread wrote back (`stores`).
//! In the mode `persist_only`, `order` ends an epoch and makes nothing durable; `persist` does both. A fence that
//! the clock's [`OrderingPlan`](crate::ordering::OrderingPlan) removes does neither.
//! Lock order: the clock's gate, then the state.

use super::crash_image::CrashSnapshot;
use super::image::PmImage;
use super::poison::{Access, Poisons};
use super::stores::{Store, Stores, lines_of};
use super::{PmCounters, PmMedium, Point, Promise};
use crate::block::Times;
use crate::crash::{CrashClock, CrashMember, EventKind};
use crate::ordering::OrderingKind;
use crate::{DeviceError, MediaError};
use std::ops::Range;
use std::panic::Location;
use std::sync::{Arc, Weak};
use terrace_format::PmOffset;
use terrace_runtime::sync::Mutex;

struct State {
    stores: Stores,
    poisons: Poisons,
    /// Persist alone makes durable.
    persist_only: bool,
    /// Injected failure of `persist`.
    failing: Option<Times>,
    /// `persist` calls that failed.
    failed: u64,
    /// All accesses, while a test traces them.
    trace: Option<Vec<(Access, Range<u64>)>>,
    counters: PmCounters,
    bytes_read: u64,
    kept: Option<CrashSnapshot>,
}

struct Shared {
    clock: Arc<CrashClock>,
    state: Mutex<State>,
    size: u64,
}

/// Recorded persistent memory.
pub struct RecordedPm {
    shared: Arc<Shared>,
}

impl RecordedPm {
    /// A medium of zeros with a clock of its own; `size` is rounded up to a line.
    pub fn new(size: u64) -> RecordedPm {
        Self::from_image(vec![0; size as usize])
    }

    /// A medium that starts from an image, all durable, with a clock of its own.
    pub fn from_image(image: impl Into<PmImage>) -> RecordedPm {
        Self::with_clock(image, &CrashClock::new())
    }

    /// A medium that starts from an image and shares a clock with other media.
    pub fn with_clock(image: impl Into<PmImage>, clock: &Arc<CrashClock>) -> RecordedPm {
        let durable = image.into();
        Self::resumed(&CrashSnapshot { event: 0, durable, pending: Vec::new(), epochs: 0..=0 }, clock)
    }

    /// The medium after the daemon alone has died at a moment: all stores are visible, but the stores that
    /// were not durable are still not durable, and a later loss of power may lose them.
    pub fn resumed(moment: &CrashSnapshot, clock: &Arc<CrashClock>) -> RecordedPm {
        let state = State {
            stores: Stores::after(moment),
            poisons: Poisons::default(),
            persist_only: false,
            failing: None,
            failed: 0,
            trace: None,
            counters: PmCounters::default(),
            bytes_read: 0,
            kept: None,
        };
        let shared = Arc::new(Shared {
            clock: Arc::clone(clock),
            size: state.stores.size(),
            state: Mutex::new(state),
        });
        let weak: Weak<Shared> = Arc::downgrade(&shared);
        clock.join(weak);
        RecordedPm { shared }
    }

    /// Switches the mode in which `order` only orders and `persist` alone makes durable. Set it before the
    /// first store.
    pub fn set_persist_only(&self, persist_only: bool) {
        self.shared.state.lock().persist_only = persist_only;
    }

    /// Makes `persist` fail, as on a medium whose journal device fails: it makes nothing durable. `None` ends that.
    pub fn fail_persist(&self, times: Option<Times>) {
        self.shared.state.lock().failing = times;
    }

    /// The clock that numbers its events.
    pub fn clock(&self) -> &Arc<CrashClock> {
        &self.shared.clock
    }

    /// Events counted by the clock that the media of a test share.
    pub fn event_count(&self) -> u64 {
        self.shared.clock.now()
    }

    /// See [`CrashClock::set_crash_at`].
    pub fn set_crash_at(&self, event: Option<u64>) {
        self.shared.clock.set_crash_at(event);
    }

    /// The snapshot that was kept when the clock reached its target, once.
    pub fn take_snapshot(&self) -> Option<CrashSnapshot> {
        self.shared.state.lock().kept.take()
    }

    /// A snapshot of this moment.
    pub fn snapshot(&self) -> CrashSnapshot {
        self.shared.photograph(&self.shared.state.lock())
    }

    /// Makes accesses to a byte range fail, as poisoned PM does.
    pub fn poison(&self, range: Range<u64>) {
        self.poison_for(range, Access::Any, Times::Forever);
    }

    /// As `poison`, limited to a kind of access and to `times`.
    pub fn poison_for(&self, range: Range<u64>, access: Access, times: Times) {
        self.shared.state.lock().poisons.add(range, access, times);
    }

    /// Poison that has not ended yet.
    pub fn poison_left(&self) -> usize {
        self.shared.state.lock().poisons.left()
    }

    /// Ends all poison.
    pub fn clear_poison(&self) {
        self.shared.state.lock().poisons.clear();
    }

    /// From now on remembers all accesses: [`Self::take_trace`].
    pub fn start_trace(&self) {
        self.shared.state.lock().trace = Some(Vec::new());
    }

    /// Reads and stores since [`Self::start_trace`], and where.
    pub fn take_trace(&self) -> Vec<(Access, Range<u64>)> {
        self.shared.state.lock().trace.take().unwrap_or_default()
    }

    /// Bytes read so far: what a mount reads must not grow with the pool.
    pub fn bytes_read(&self) -> u64 {
        self.shared.state.lock().bytes_read
    }

    /// The whole content that reads see: all stores, durable or not.
    pub fn visible_image(&self) -> PmImage {
        self.shared.state.lock().stores.visible().clone()
    }

    /// [`PmMedium::store`], for tests of the model and of harnesses that must notice a missing write-back.
    ///
    /// # Errors
    /// As [`PmMedium::write`].
    pub fn store_only(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.record(offset, bytes, Store::Cached)
    }

    fn record(&self, offset: PmOffset, bytes: &[u8], kind: Store) -> Result<(), MediaError> {
        let _event = self.shared.clock.begin(EventKind::Store);
        let event = self.shared.clock.now();
        let mut state = self.shared.state.lock();
        state.admit(offset, bytes.len() as u64, Access::Stores)?;
        if kind != Store::Cached {
            state.counters.lines += lines_of(offset.0, bytes.len() as u64).count() as u64;
        }
        let stored = state.stores.store(offset, bytes, kind, event);
        if stored { Ok(()) } else { Err(error(offset, bytes.len() as u64)) }
    }
}

impl Shared {
    fn photograph(&self, state: &State) -> CrashSnapshot {
        state.stores.snapshot(self.clock.now())
    }
}

impl CrashMember for Shared {
    fn keep_snapshot(&self) {
        let mut state = self.state.lock();
        let snapshot = self.photograph(&state);
        state.kept = Some(snapshot);
    }
}

impl State {
    /// An error unless the range is inside and not poisoned.
    fn admit(&mut self, offset: PmOffset, length: u64, access: Access) -> Result<(), MediaError> {
        let range = self.stores.inside(offset, length).ok_or_else(|| error(offset, length))?;
        if let Some(trace) = &mut self.trace {
            trace.push((access, range.clone()));
        }
        if self.poisons.strike(&range, access) { Err(error(offset, length)) } else { Ok(()) }
    }

    /// A fence of this kind takes effect; `None`: the fence is left out.
    fn end_epoch(&mut self, kind: Option<OrderingKind>) {
        self.counters.fences += 1;
        let Some(kind) = kind else { return };
        let makes_durable = kind == OrderingKind::Persist || !self.persist_only;
        self.stores.end_epoch(makes_durable);
    }

    /// Whether this `persist` fails; counts it.
    fn fails_to_persist(&mut self) -> bool {
        let Some(times) = &mut self.failing else { return false };
        let strike = times.strike();
        if !strike.stays {
            self.failing = None;
        }
        self.failed += u64::from(strike.fails);
        strike.fails
    }
}

fn error(offset: PmOffset, length: u64) -> MediaError {
    MediaError::Pm { offset, length }
}

impl PmMedium for RecordedPm {
    fn size(&self) -> u64 {
        self.shared.size
    }

    fn promise(&self) -> Promise {
        Promise::PowerFail
    }

    fn describe(&self) -> String {
        let mode = if self.shared.state.lock().persist_only {
            "only persist makes durable"
        } else {
            "order makes durable"
        };
        format!("recorded ({mode})")
    }

    fn read(&self, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError> {
        let mut state = self.shared.state.lock();
        state.admit(offset, into.len() as u64, Access::Reads)?;
        state.bytes_read += into.len() as u64;
        if state.stores.visible().read(offset.0, into) {
            Ok(())
        } else {
            Err(error(offset, into.len() as u64))
        }
    }

    fn load_u64(&self, offset: PmOffset) -> Result<u64, MediaError> {
        if !offset.0.is_multiple_of(8) {
            return Err(error(offset, 8));
        }
        let mut word = [0; 8];
        self.read(offset, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    fn write(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.record(offset, bytes, Store::WrittenBack)
    }

    fn store(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.store_only(offset, bytes)
    }

    fn write_streaming(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.record(offset, bytes, Store::Streaming)
    }

    fn write_back(&self, offset: PmOffset, length: u64) {
        let _event = self.shared.clock.begin(EventKind::WriteBack);
        let mut state = self.shared.state.lock();
        match state.stores.inside(offset, length) {
            Some(range) if !state.poisons.keeps_back(&range) => {}
            _ => return,
        }
        for line in lines_of(offset.0, length) {
            state.counters.lines += 1;
            state.stores.mark_written_back(line);
        }
    }

    fn order_persists(&self) -> bool {
        !self.shared.state.lock().persist_only
    }

    fn order_at(&self, at: &'static Location<'static>) {
        let _event = self.shared.clock.begin(EventKind::Order);
        let mut state = self.shared.state.lock();
        state.end_epoch(self.shared.clock.ordering().pass_fence(OrderingKind::Order, at));
    }

    fn persist_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        let _event = self.shared.clock.begin(EventKind::Persist);
        let mut state = self.shared.state.lock();
        let kept = self.shared.clock.ordering().pass_fence(OrderingKind::Persist, at);
        if state.fails_to_persist() {
            return Err(MediaError::from(DeviceError {
                device: "recorded".into(),
                operation: "persist",
                offset: 0,
                length: self.shared.size,
                errno: libc::EIO,
            }));
        }
        state.end_epoch(kept);
        Ok(())
    }

    fn point(&self) -> Point {
        Point(self.shared.state.lock().stores.epoch())
    }

    fn try_persist_at(&self, point: Point, _at: &'static Location<'static>) -> Result<bool, MediaError> {
        let state = self.shared.state.lock();
        Ok(!state.persist_only || state.stores.durable_epoch() > point.0)
    }

    fn counters(&self) -> PmCounters {
        self.shared.state.lock().counters
    }

    fn condemn(&self, offset: PmOffset, length: u64) {
        self.shared.state.lock().poisons.condemn(offset.0..offset.0 + length);
    }

    fn error_count(&self) -> u64 {
        let state = self.shared.state.lock();
        state.poisons.errors() + state.failed
    }
}
