//! The results of a replay: waits of the thread, and moved blocks.

/// The waits of the thread, in nanoseconds, and the moved blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Waits {
    /// For PM and DRAM.
    pub memory_ns: u64,
    /// For reads of the device.
    pub read_ns: u64,
    /// For fsync and for writes that go through to the device.
    pub sync_ns: u64,
    /// For room in PM or DRAM.
    pub room_ns: u64,
    /// The part of [`Self::read_ns`] that is no transfer of requested blocks.
    pub latency_ns: u64,
    /// Blocks that the thread read from the device; and the same by their last use: none, a read, a write.
    pub blocks_missed: u64,
    pub missed_after: [u64; 3],
    /// Blocks of read-dominated files promoted into PM; blocks written to the device; touched blocks promoted
    /// into PM.
    pub blocks_up: u64,
    pub blocks_down: u64,
    pub blocks_raised: u64,
}

impl Waits {
    pub fn total_ns(&self) -> u64 {
        self.memory_ns + self.read_ns + self.sync_ns + self.room_ns
    }
}
