//! The faults of a simulated device, as tests inject them.
//!
//! Invariant: no thread waits or calls a hook while it holds the lock of the device's state.

use super::AlignedBlock;
use super::faults::{Begins, Operation, Stall, Times};
use super::simulated::SimulatedDevice;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use terrace_format::DeviceBlock;

impl SimulatedDevice {
    /// Makes operations that touch `blocks` fail with `errno`. Flushes ignore the range.
    pub fn fail_next(&self, operation: Operation, blocks: Range<u64>, errno: i32, times: Times) {
        self.shared.state.lock().faults.fail(operation, blocks, errno, times);
    }

    /// Lets `begins` begin with the operation of this kind that follows the next `after`.
    pub fn begin_after(&self, operation: Operation, after: u64, begins: Begins) {
        self.shared.state.lock().faults.begin_after(operation, after, begins);
    }

    /// Injected failures that have not ended yet.
    pub fn failures_left(&self) -> usize {
        self.shared.state.lock().faults.failures_left()
    }

    /// Ends all injected failures.
    pub fn clear_failures(&self) {
        self.shared.state.lock().faults.clear();
    }

    /// Makes reads, writes and flushes wait until `unstall`. After 30 s a waiting operation fails with
    /// ETIMEDOUT, so that a broken test ends.
    pub fn stall(&self) {
        self.stall_at_most(Duration::from_secs(30));
    }

    /// As `stall`, with another limit.
    pub fn stall_at_most(&self, limit: Duration) {
        self.shared.state.lock().faults.stall = Some(Stall::AtMost(limit));
    }

    /// A stall for simulations on one thread, where nobody could end it meanwhile: operations come once to the
    /// interleaving point "device:stalled" and then, if the stall goes on, fail with ETIMEDOUT at once.
    pub fn stall_without_waiting(&self) {
        self.shared.state.lock().faults.stall = Some(Stall::NoWait);
    }

    /// Lets stalled operations go on.
    pub fn unstall(&self) {
        self.shared.state.lock().faults.stall = None;
        self.shared.changed.notify_all();
    }

    /// Operations that wait in a stall now.
    pub fn waiting(&self) -> u64 {
        self.shared.state.lock().faults.waiting
    }

    /// The device is gone, as one that was pulled or whose link is down: every operation fails with `errno`
    /// (ENODEV or EIO) until [`Self::come_back`].
    pub fn vanish(&self, errno: i32) {
        self.shared.state.lock().faults.gone = Some(errno);
    }

    /// Whether unflushed writes were lost and no flush has reported the loss yet: the next flush will fail,
    /// although the device is present.
    pub fn has_loss_to_tell(&self) -> bool {
        self.shared.state.lock().faults.lost
    }

    /// The device is present again. With a seed the device has lost power meanwhile: its unflushed writes are
    /// kept, lost or torn as in a crash, and the next flush fails with EIO if it had such writes. Without a
    /// seed all writes are kept.
    pub fn come_back(&self, lost_power: Option<u64>) {
        let mut state = self.shared.state.lock();
        state.faults.gone = None;
        let Some(seed) = lost_power.filter(|_| !state.unflushed.is_empty()) else { return };
        let left = self.shared.photograph(&state).image_random(seed);
        state.visible = left.clone();
        state.durable = left;
        state.unflushed.clear();
        state.faults.lost = true;
    }

    /// Whether flushes answer without doing anything.
    pub fn lie_about_flush(&self, lies: bool) {
        self.shared.state.lock().faults.lies = lies;
    }

    /// Flips bits of one byte on the medium, as a disk that rots: reads succeed with wrong data.
    pub fn corrupt(&self, block: DeviceBlock, byte: usize, flip: u8) {
        let mut state = self.shared.state.lock();
        let rot = |content: Option<&Arc<AlignedBlock>>| {
            let mut changed = content.map_or_else(AlignedBlock::zeroed, |c| AlignedBlock::clone(c));
            if let Some(target) = changed.0.get_mut(byte) {
                *target ^= flip;
            }
            Arc::new(changed)
        };
        let visible = rot(state.visible.content.get(&block.0));
        state.visible.put(block.0, visible);
        let durable = rot(state.durable.content.get(&block.0));
        state.durable.put(block.0, durable);
        for write in &mut state.unflushed {
            if write.block == block.0 {
                write.content = rot(Some(&write.content));
            }
        }
    }
}
