//! `simulated`: a block device in memory, for tests, that loses, tears and reorders unflushed writes at a
//! crash, and fails, stalls, vanishes, lies about flushes and rots on demand (design 3; the model is in
//! `device_image`, the faults are in `faults`, and `inject` has the calls of tests).
//!
//! Invariants: an operation that fails because the device is stalled or gone is no event of the clock and leaves the
//! content unchanged. Reads see every completed write. A flush that succeeds (and does not lie) makes durable
//! every write that completed before it, except those that an earlier failed flush abandoned. Lock order:
//! the clock's gate, then the state; a stalled operation waits before the gate.

use super::device_image::{DeviceImage, DeviceSnapshot, Unflushed};
use super::faults::{Faults, Operation, Stall};
use super::{AlignedBlock, BlockMedium, Run};
use crate::crash::{CrashClock, CrashMember, EventKind};
use crate::ordering::OrderingKind;
use crate::{DeviceError, MediaError};
use std::collections::HashSet;
use std::ops::Range;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use terrace_format::{BLOCK_SIZE, DeviceBlock};
use terrace_runtime::interleave;
use terrace_runtime::sync::{Condvar, Mutex};

/// Calls that reached the device, failed ones included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Durable writes.
    pub durable_writes: u64,
    /// Discards.
    pub discards: u64,
    /// Blocks written.
    pub blocks_written: u64,
}

pub(super) struct State {
    pub(super) visible: DeviceImage,
    pub(super) durable: DeviceImage,
    /// Oldest first.
    pub(super) unflushed: Vec<Unflushed>,
    pub(super) faults: Faults,
    errors: u64,
    counters: DeviceCounters,
    kept: Option<DeviceSnapshot>,
}

pub(super) struct Shared {
    clock: Arc<CrashClock>,
    name: String,
    blocks: u64,
    /// Operations pass no interleaving points.
    quiet: AtomicBool,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

/// A simulated block device.
pub struct SimulatedDevice {
    pub(super) shared: Arc<Shared>,
}

impl SimulatedDevice {
    /// A device of zero blocks with a clock of its own.
    pub fn new(blocks: u64) -> SimulatedDevice {
        Self::from_image(DeviceImage::zeroed(blocks))
    }

    /// A device that starts from an image, all durable, with a clock of its own.
    pub fn from_image(image: DeviceImage) -> SimulatedDevice {
        Self::with_clock("simulated", image, &CrashClock::new())
    }

    /// A named device that starts from an image and shares a clock with other media.
    pub fn with_clock(name: &str, image: DeviceImage, clock: &Arc<CrashClock>) -> SimulatedDevice {
        let state = State {
            visible: image.clone(),
            unflushed: Vec::new(),
            faults: Faults::default(),
            errors: 0,
            counters: DeviceCounters::default(),
            kept: None,
            durable: image,
        };
        let shared = Arc::new(Shared {
            clock: Arc::clone(clock),
            name: name.to_string(),
            blocks: state.durable.blocks,
            quiet: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let weak: Weak<Shared> = Arc::downgrade(&shared);
        clock.join(weak);
        SimulatedDevice { shared }
    }

    /// The clock that numbers its events.
    pub fn clock(&self) -> &Arc<CrashClock> {
        &self.shared.clock
    }

    /// Lets no other work of a simulation run amid its operations: for a device whose caller holds locks.
    #[must_use]
    pub fn quiet(self) -> SimulatedDevice {
        self.shared.quiet.store(true, Ordering::Relaxed);
        self
    }

    /// Calls so far.
    pub fn counters(&self) -> DeviceCounters {
        self.shared.state.lock().counters
    }

    /// A snapshot of this moment.
    pub fn snapshot(&self) -> DeviceSnapshot {
        self.shared.photograph(&self.shared.state.lock())
    }

    /// The snapshot that was kept when the clock reached its target, once.
    pub fn take_snapshot(&self) -> Option<DeviceSnapshot> {
        self.shared.state.lock().kept.take()
    }

    /// The content that reads see: all writes, flushed or not.
    pub fn visible_image(&self) -> DeviceImage {
        self.shared.state.lock().visible.clone()
    }
}

impl Shared {
    fn point(&self, name: &'static str) {
        if !self.quiet.load(Ordering::Relaxed) {
            interleave::point(name);
        }
    }

    pub(super) fn photograph(&self, state: &State) -> DeviceSnapshot {
        DeviceSnapshot {
            event: self.clock.now(),
            durable: state.durable.clone(),
            unflushed: state.unflushed.clone(),
        }
    }

    fn error(
        &self,
        state: &mut State,
        operation: &'static str,
        blocks: &Range<u64>,
        errno: i32,
    ) -> MediaError {
        state.errors += 1;
        MediaError::from(DeviceError {
            device: self.name.clone(),
            operation,
            offset: blocks.start.saturating_mul(BLOCK_SIZE),
            length: (blocks.end.saturating_sub(blocks.start)).saturating_mul(BLOCK_SIZE),
            errno,
        })
    }

    /// The range, when the device has all these blocks.
    fn range(
        &self,
        operation: &'static str,
        first: DeviceBlock,
        blocks: u64,
    ) -> Result<Range<u64>, MediaError> {
        let end = first.0.saturating_add(blocks);
        let range = first.0..end;
        if end > self.blocks {
            return Err(self.error(&mut self.state.lock(), operation, &range, libc::EINVAL));
        }
        Ok(range)
    }
}

impl Shared {
    /// Waits out a stall; an error when that takes too long, or when the device is gone.
    fn pass(&self, kind: Operation, operation: &'static str, blocks: &Range<u64>) -> Result<(), MediaError> {
        let mut state = self.state.lock();
        state.faults.begin(kind);
        match state.faults.stall {
            None => {}
            Some(Stall::NoWait) => {
                drop(state);
                self.point("device:stalled");
                state = self.state.lock();
            }
            Some(Stall::AtMost(limit)) => {
                state.faults.waiting += 1;
                self.changed.wait_while_for(&mut state, |state| state.faults.stall.is_some(), limit);
                state.faults.waiting -= 1;
            }
        }
        if let Some(errno) = state.faults.gone {
            return Err(self.error(&mut state, operation, blocks, errno));
        }
        if state.faults.stall.is_some() {
            return Err(self.error(&mut state, operation, blocks, libc::ETIMEDOUT));
        }
        Ok(())
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
    fn put(&mut self, block: u64, content: Arc<AlignedBlock>) {
        self.visible.put(block, Arc::clone(&content));
        self.unflushed.push(Unflushed { block, content, abandoned: false });
    }

    /// A flush failed: it makes none of these writes durable, and no later flush does.
    fn abandon(&mut self) {
        self.unflushed.iter_mut().for_each(|write| write.abandoned = true);
    }

    /// Makes durable what no failed flush has abandoned.
    fn make_durable(&mut self) {
        let flushed: HashSet<u64> = self.unflushed.iter().filter(|w| !w.abandoned).map(|w| w.block).collect();
        for write in std::mem::take(&mut self.unflushed) {
            if !write.abandoned {
                self.durable.put(write.block, write.content);
            } else if !flushed.contains(&write.block) {
                self.unflushed.push(write);
            }
        }
    }
}

impl State {
    /// Makes the newest content of some blocks durable. Of other blocks nothing changes.
    fn make_blocks_durable(&mut self, blocks: &HashSet<u64>) {
        let (done, left): (Vec<Unflushed>, _) =
            std::mem::take(&mut self.unflushed).into_iter().partition(|write| blocks.contains(&write.block));
        self.unflushed = left;
        done.into_iter().for_each(|write| self.durable.put(write.block, write.content));
    }
}

impl BlockMedium for SimulatedDevice {
    fn blocks(&self) -> u64 {
        self.shared.blocks
    }

    fn name(&self) -> &str {
        &self.shared.name
    }

    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        self.shared.point("device:read");
        let range = self.shared.range("read", first, into.len() as u64)?;
        self.shared.pass(Operation::Read, "read", &range)?;
        let mut state = self.shared.state.lock();
        state.counters.reads += 1;
        if let Some(errno) = state.faults.injected(Operation::Read, &range) {
            return Err(self.shared.error(&mut state, "read", &range, errno));
        }
        for (number, target) in range.zip(into) {
            match state.visible.content.get(&number) {
                Some(content) => target.0.copy_from_slice(&content.0),
                None => target.0.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        self.shared.point("device:write");
        let range = self.shared.range("write", first, from.len() as u64)?;
        self.shared.pass(Operation::Write, "write", &range)?;
        let _event = self.shared.clock.begin(EventKind::DeviceWrite);
        let mut state = self.shared.state.lock();
        state.counters.writes += 1;
        let failure = state.faults.injected(Operation::Write, &range);
        let written = match failure {
            Some(_) => from.len() / 2,
            None => from.len(),
        };
        state.counters.blocks_written += written as u64;
        for (number, content) in range.clone().zip(from.iter().take(written)) {
            state.put(number, Arc::new(content.clone()));
        }
        match failure {
            Some(errno) => Err(self.shared.error(&mut state, "write", &range, errno)),
            None => Ok(()),
        }
    }

    fn flush_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        self.shared.point("device:flush");
        let whole = 0..self.shared.blocks;
        self.shared.pass(Operation::Flush, "flush", &whole)?;
        let _event = self.shared.clock.begin(EventKind::DeviceFlush);
        let kept = self.shared.clock.ordering().pass_durable(OrderingKind::Flush, at);
        let mut state = self.shared.state.lock();
        state.counters.flushes += 1;
        let lost = std::mem::take(&mut state.faults.lost).then_some(libc::EIO);
        if let Some(errno) = lost.or_else(|| state.faults.injected(Operation::Flush, &whole)) {
            state.abandon();
            return Err(self.shared.error(&mut state, "flush", &whole, errno));
        }
        if kept && !state.faults.lies {
            state.make_durable();
        }
        Ok(())
    }

    /// Two events: the runs are written, and from there on a crash keeps any of their sectors; then they are durable.
    fn write_durable_at(&self, runs: &[Run<'_>], at: &'static Location<'static>) -> Result<(), MediaError> {
        self.write_runs(runs)?;
        let whole = 0..self.shared.blocks;
        self.shared.pass(Operation::Flush, "write durably", &whole)?;
        let _event = self.shared.clock.begin(EventKind::DeviceDurable);
        let kept = self.shared.clock.ordering().pass_durable(OrderingKind::DurableWrite, at);
        let mut state = self.shared.state.lock();
        state.counters.durable_writes += 1;
        let lost = std::mem::take(&mut state.faults.lost).then_some(libc::EIO);
        if let Some(errno) = lost.or_else(|| state.faults.injected(Operation::Flush, &whole)) {
            // Without forced unit access a durable write is a write and a flush, and a flush fails for all.
            state.abandon();
            return Err(self.shared.error(&mut state, "write durably", &whole, errno));
        }
        if kept && !state.faults.lies {
            let blocks = runs.iter().flat_map(|(first, from)| first.0..first.0 + from.len() as u64);
            state.make_blocks_durable(&blocks.collect());
        }
        Ok(())
    }

    fn discard(&self, first: DeviceBlock, blocks: u64) {
        let Ok(range) = self.shared.range("discard", first, blocks) else {
            return;
        };
        if self.shared.state.lock().faults.is_gone() {
            return;
        }
        let _event = self.shared.clock.begin(EventKind::DeviceDiscard);
        let mut state = self.shared.state.lock();
        state.counters.discards += 1;
        let zeros = Arc::new(AlignedBlock::zeroed());
        for number in range {
            if state.visible.content.contains_key(&number) {
                state.put(number, Arc::clone(&zeros));
            }
        }
    }

    fn error_count(&self) -> u64 {
        self.shared.state.lock().errors
    }
}
