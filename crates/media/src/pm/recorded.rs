//! `recorded`: PM for tests that knows which of its stores are durable and can produce every crash image
//! they allow (design 3; the model is stated in `crash_image`).
//!
//! Invariants: `visible` is what reads see; `durable` plus all stores of `pending` gives `visible`. A store
//! leaves `pending` only by a fence after its write-back, so a line that nobody wrote back stays
//! undecided for ever. All threads count as one: a fence covers what any thread wrote back.
//! In the mode `persist_only`, `order` ends an epoch and makes nothing durable; `persist` does both. A fence that
//! the clock's [`OrderingPlan`](crate::ordering::OrderingPlan) removes does neither.
//! Lock order: the clock's gate, then the state.

use super::crash_image::{CrashSnapshot, LineStore, PendingLine};
use super::image::PmImage;
use super::{Fence, PmCounters, PmMedium, Promise};
use crate::MediaError;
use crate::block::Times;
use crate::crash::{CrashClock, CrashMember, EventKind};
use std::collections::HashMap;
use std::ops::Range;
use std::panic::Location;
use std::sync::{Arc, Weak};
use terrace_format::PmOffset;
use terrace_format::address::LINE_SIZE;
use terrace_runtime::sync::Mutex;

/// A store not written back.
const NEVER: u64 = u64::MAX;

/// Accesses that poison makes fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads and stores.
    Any,
    /// Reads alone: stores go through, as they do on PM whose line is gone.
    Reads,
    /// Stores alone.
    Stores,
}

/// Ways to store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Cached,
    WrittenBack,
    Streaming,
}

struct Poison {
    range: Range<u64>,
    access: Access,
    times: Times,
}

impl Poison {
    fn meets(&self, range: &Range<u64>, access: Access) -> bool {
        let touches = self.range.start < range.end && range.start < self.range.end;
        touches && (self.access == access || self.access == Access::Any)
    }
}

struct State {
    visible: PmImage,
    durable: PmImage,
    /// Stores per line since the line was durable, in order; the written-back ones come first.
    pending: HashMap<u64, Vec<LineStore>>,
    /// Lines with stores that the next fence covers.
    written_back: Vec<u64>,
    epoch: u64,
    /// Epoch of the last `persist` (of the last fence, unless `persist_only`).
    durable_epoch: u64,
    persist_only: bool,
    poisoned: Vec<Poison>,
    /// Ranges that no read may touch until the next mount.
    condemned: Vec<Range<u64>>,
    /// Accesses that failed.
    errors: u64,
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
        let pending = moment.pending.iter().map(|line| (line.line, line.stores.clone()));
        let fenced = |line: &&PendingLine| line.stores.iter().any(|store| store.written_back != NEVER);
        let state = State {
            visible: moment.image_newest(),
            durable: moment.durable.clone(),
            pending: pending.collect(),
            written_back: moment.pending.iter().filter(fenced).map(|line| line.line).collect(),
            epoch: *moment.epochs.end(),
            durable_epoch: *moment.epochs.start(),
            persist_only: false,
            poisoned: Vec::new(),
            condemned: Vec::new(),
            errors: 0,
            trace: None,
            counters: PmCounters::default(),
            bytes_read: 0,
            kept: None,
        };
        let shared = Arc::new(Shared {
            clock: Arc::clone(clock),
            size: state.visible.len() as u64,
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
        self.shared.state.lock().poisoned.push(Poison { range, access, times });
    }

    /// Poison that has not ended yet.
    pub fn poison_left(&self) -> usize {
        self.shared.state.lock().poisoned.len()
    }

    /// Ends all poison.
    pub fn clear_poison(&self) {
        self.shared.state.lock().poisoned.clear();
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
        self.shared.state.lock().visible.clone()
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
        let start = offset.0;
        if kind != Store::Cached {
            state.counters.lines += lines_of(start, bytes.len() as u64).count() as u64;
        }
        if !state.visible.write(start, bytes) {
            return Err(error(offset, bytes.len() as u64));
        }
        for line in lines_of(start, bytes.len() as u64) {
            let base = line * LINE_SIZE;
            // whole lines only go past the cache, edges through it (see `ram`)
            let whole = start <= base && base + LINE_SIZE <= start + bytes.len() as u64;
            let mut store = state.line_store(line, start, bytes.len() as u64);
            store.streaming = kind == Store::Streaming && whole;
            store.event = event;
            state.pending.entry(line).or_default().push(store);
            if kind != Store::Cached {
                state.mark_written_back(line);
            }
        }
        Ok(())
    }
}

impl Shared {
    fn photograph(&self, state: &State) -> CrashSnapshot {
        let mut pending: Vec<PendingLine> = state
            .pending
            .iter()
            .map(|(line, stores)| PendingLine { line: *line, stores: stores.clone() })
            .collect();
        pending.sort_by_key(|line| line.line);
        CrashSnapshot {
            event: self.clock.now(),
            durable: state.durable.clone(),
            pending,
            epochs: state.durable_epoch..=state.epoch,
        }
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
        let range = self.inside(offset, length).ok_or_else(|| error(offset, length))?;
        if let Some(trace) = &mut self.trace {
            trace.push((access, range.clone()));
        }
        let touches = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        if access == Access::Reads && self.condemned.iter().any(touches) {
            self.errors += 1;
            return Err(error(offset, length));
        }
        let Some(index) = self.poisoned.iter().position(|poison| poison.meets(&range, access)) else {
            return Ok(());
        };
        let poison = &mut self.poisoned[index];
        let strike = poison.times.strike();
        if strike.here {
            poison.range = range;
        }
        if !strike.stays {
            self.poisoned.remove(index);
        }
        self.errors += u64::from(strike.fails);
        if strike.fails { Err(error(offset, length)) } else { Ok(()) }
    }

    fn inside(&self, offset: PmOffset, length: u64) -> Option<Range<u64>> {
        let end = offset.0.checked_add(length)?;
        (end <= self.visible.len() as u64).then_some(offset.0..end)
    }

    /// The words that a store of `length` bytes at `start` put into `line`, taken from `visible`.
    fn line_store(&self, line: u64, start: u64, length: u64) -> LineStore {
        let mut store = LineStore {
            mask: 0,
            words: [0; 8],
            streaming: false,
            event: 0,
            stored: self.epoch,
            written_back: NEVER,
        };
        let bytes = self.visible.line(line);
        for (index, (value, word)) in store.words.iter_mut().zip(bytes.as_chunks::<8>().0).enumerate() {
            let at = line * LINE_SIZE + index as u64 * 8;
            if at < start + length && start < at + 8 {
                *value = u64::from_ne_bytes(*word);
                store.mask |= 1 << index;
            }
        }
        store
    }

    fn mark_written_back(&mut self, line: u64) {
        let epoch = self.epoch;
        let mut changed = false;
        for store in self.pending.get_mut(&line).into_iter().flatten() {
            if store.written_back == NEVER {
                store.written_back = epoch;
                changed = true;
            }
        }
        if changed {
            self.written_back.push(line);
        }
    }

    /// Everything written back becomes durable.
    fn make_durable(&mut self) {
        if self.written_back.is_empty() {
            return;
        }
        for line in self.written_back.drain(..) {
            let Some(stores) = self.pending.get_mut(&line) else {
                continue; // listed twice
            };
            let done = stores.partition_point(|s| s.written_back != NEVER);
            self.durable.edit_line(line, |bytes| stores.drain(..done).for_each(|s| s.apply_all(bytes)));
            if stores.is_empty() {
                self.pending.remove(&line);
            }
        }
    }
}

fn error(offset: PmOffset, length: u64) -> MediaError {
    MediaError::Pm { offset, length }
}

fn lines_of(offset: u64, length: u64) -> Range<u64> {
    if length == 0 {
        return 0..0;
    }
    offset / LINE_SIZE..(offset + length).div_ceil(LINE_SIZE)
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
        if state.visible.read(offset.0, into) { Ok(()) } else { Err(error(offset, into.len() as u64)) }
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
        // Poison that is still to come keeps no line back.
        let in_force = |times| matches!(times, Times::Forever | Times::Count(_) | Times::From(0));
        let stores_fail =
            |poison: &Poison, range| in_force(poison.times) && poison.meets(range, Access::Stores);
        match state.inside(offset, length) {
            Some(range) if !state.poisoned.iter().any(|poison| stores_fail(poison, &range)) => {}
            _ => return,
        }
        for line in lines_of(offset.0, length) {
            state.counters.lines += 1;
            state.mark_written_back(line);
        }
    }

    fn fence(&self, kind: Fence, at: &'static Location<'static>) {
        let event = match kind {
            Fence::Order => EventKind::Order,
            Fence::Persist => EventKind::Persist,
        };
        let _event = self.shared.clock.begin(event);
        let kept = self.shared.clock.ordering().pass_fence(kind, at);
        let mut state = self.shared.state.lock();
        state.counters.fences += 1;
        let Some(kind) = kept else { return };
        state.epoch += 1;
        if kind == Fence::Persist || !state.persist_only {
            state.make_durable();
            state.durable_epoch = state.epoch;
        }
    }

    fn counters(&self) -> PmCounters {
        self.shared.state.lock().counters
    }

    fn condemn(&self, offset: PmOffset, length: u64) {
        self.shared.state.lock().condemned.push(offset.0..offset.0 + length);
    }

    fn error_count(&self) -> u64 {
        self.shared.state.lock().errors
    }
}
