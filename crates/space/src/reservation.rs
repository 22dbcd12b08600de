//! Promises of free blocks to content that is still in DRAM, so that its write-back meets no lack of space.
//!
//! Invariant: the promised blocks are free: `blocks` never exceeds the free blocks of all devices.

/// The blocks that a claim may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Blocks that are promised to nobody.
    Unpromised,
    /// Blocks of a promise.
    Reservation,
}

/// The blocks promised. Below zero while a page whose promise is claimed already is dropped, or claimed by two.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reservation {
    blocks: i64,
}

impl Reservation {
    /// The number as it is, below zero at times.
    pub(crate) const fn balance(self) -> i64 {
        self.blocks
    }

    /// Blocks promised.
    pub(crate) fn promised(self) -> u64 {
        self.blocks.max(0) as u64
    }

    /// The free blocks that no content was promised.
    pub(crate) fn unpromised(self, free: u64) -> u64 {
        debug_assert!(self.promised() <= free, "{} blocks are promised, {free} are free", self.promised());
        free.saturating_sub(self.promised())
    }

    /// Promises blocks.
    pub(crate) fn add(&mut self, blocks: u64) {
        self.blocks += blocks as i64;
    }

    /// Takes a promise back.
    pub(crate) fn withdraw(&mut self, blocks: u64) {
        self.blocks -= blocks as i64;
    }

    /// Takes claimed blocks off the promise that they were claimed out of.
    pub(crate) fn settle(&mut self, blocks: u64, source: Source) {
        if source == Source::Reservation {
            self.withdraw(blocks);
        }
    }
}
