//! Sizes and speeds of the cost machine, for the machine and for its two references.

use terrace_format::BLOCK_SIZE;
use terrace_media::speed::{Speed, named};

/// Time between the end of an operation and the beginning of the next.
pub(crate) const THINK_NS: u64 = 5_000;
/// DRAM in [TPFS table 1].
pub(crate) const DRAM: Speed = Speed {
    read_latency_ns: 100,
    write_latency_ns: 100,
    read_bytes_per_s: 25_000_000_000,
    write_bytes_per_s: 25_000_000_000,
};

/// Sizes and speeds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub pm_blocks: u64,
    /// DRAM for clean pages and dirty pages; an eighth for dirty pages.
    pub dram_blocks: u64,
    /// Largest group of a background movement.
    pub group_blocks: u64,
    pub pm: Speed,
    pub device: Speed,
}

impl Setup {
    /// A setup with the PM of [TPFS table 1]; `class` is a class of devices.
    pub fn new(pm_blocks: u64, dram_blocks: u64, class: &str) -> Option<Setup> {
        let (pm, device) = (named("pm")?.speed, named(class)?.speed);
        Some(Setup { pm_blocks, dram_blocks, group_blocks: 4096.min(pm_blocks / 4).max(1), pm, device })
    }

    /// Whether a read includes this number of unwanted blocks between two wanted blocks: if their transfer
    /// takes no more time than a second latency.
    pub fn reads_through(&self, blocks: u64) -> bool {
        blocks < 1 << 20 && transfer_ns(blocks, self.device.read_bytes_per_s) <= self.device.read_latency_ns
    }

    /// Most dirty pages: `buffer=` beside `cache=`.
    pub fn dirty_blocks(&self) -> u64 {
        self.dram_blocks / 8
    }

    /// Most clean pages.
    pub fn clean_blocks(&self) -> u64 {
        self.dram_blocks - self.dirty_blocks()
    }

    /// The throttle mark.
    pub fn throttle_mark(&self) -> u64 {
        self.pm_blocks / 16
    }
}

/// Time to transfer `blocks` blocks.
pub(crate) fn transfer_ns(blocks: u64, bytes_per_s: u64) -> u64 {
    (u128::from(blocks * BLOCK_SIZE) * 1_000_000_000 / u128::from(bytes_per_s)) as u64
}
