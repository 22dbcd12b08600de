//! The device runs on which I/O is under way (S7): pinned blocks are not claimed, also when they are free.

use terrace_blocks::bits;
use terrace_catalog::DeviceRun;
use terrace_catalog::chunks::{ChunkIndex, pieces};
use terrace_format::DeviceId;

/// The number of an I/O pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PinNumber(u64);

/// All I/O pins. Invariant: each has a number of its own, and is dropped once.
#[derive(Default)]
pub(crate) struct IoPins {
    held: Vec<(PinNumber, DeviceRun)>,
    next: u64,
}

impl IoPins {
    /// Pins a run.
    pub(crate) fn hold(&mut self, run: DeviceRun) -> PinNumber {
        let number = PinNumber(self.next);
        self.next += 1;
        self.held.push((number, run));
        number
    }

    /// Pins a run; `None` while another I/O pin holds a block of it.
    pub(crate) fn hold_alone(&mut self, run: DeviceRun) -> Option<PinNumber> {
        let end = run.start.0 + run.length;
        let meets = |other: &DeviceRun| {
            other.device == run.device && other.start.0 < end && run.start.0 < other.start.0 + other.length
        };
        if self.runs().any(meets) { None } else { Some(self.hold(run)) }
    }

    /// Drops an I/O pin.
    pub(crate) fn let_go(&mut self, number: PinNumber) {
        let before = self.held.len();
        self.held.retain(|(held, _)| *held != number);
        debug_assert_eq!(self.held.len() + 1, before, "I/O pin {number:?} is dropped once");
    }

    /// The pinned runs, the oldest I/O pin first.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &DeviceRun> {
        self.held.iter().map(|(_, run)| run)
    }

    /// The used bits of a chunk with those that are pinned.
    pub(crate) fn with_pinned(
        &self,
        device: DeviceId,
        chunk: ChunkIndex,
        words: &[u64],
        chunk_blocks: u32,
    ) -> Vec<u64> {
        let mut words = words.to_vec();
        for run in self.runs().filter(|run| run.device == device) {
            for piece in pieces(chunk_blocks, *run).filter(|piece| piece.chunk == chunk) {
                bits::set(&mut words, piece.bits);
            }
        }
        words
    }
}
