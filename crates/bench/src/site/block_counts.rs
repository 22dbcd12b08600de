//! Requests that block devices got, by the kernel's counters (Documentation/block/stat.rst).
//!
//! A loop device belongs to a single subject, so no other program adds to its counters. The disk of the machine has other users.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Requests of block devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockCounts {
    /// Completed writes.
    pub writes: u64,
    /// Bytes of these writes.
    pub written_bytes: u64,
    /// Completed flushes.
    pub flushes: u64,
}

/// The unit of the kernel's counters.
const SECTOR_BYTES: u64 = 512;
/// Fields of the file `stat`.
const WRITES: usize = 4;
const WRITTEN_SECTORS: usize = 6;
const FLUSHES: usize = 15;

impl BlockCounts {
    /// The counters in the text of a file `stat`; kernels before 5.5 do not count flushes.
    fn told(text: &str) -> BlockCounts {
        let fields: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
        let field = |index: usize| fields.get(index).copied().unwrap_or(0);
        BlockCounts {
            writes: field(WRITES),
            written_bytes: field(WRITTEN_SECTORS) * SECTOR_BYTES,
            flushes: field(FLUSHES),
        }
    }

    /// The sums over some devices, by their directories in /sys/block. A device without counters counts nothing.
    pub fn of(devices: &[PathBuf]) -> BlockCounts {
        let texts = devices.iter().filter_map(|device| std::fs::read_to_string(device.join("stat")).ok());
        texts.map(|text| BlockCounts::told(&text)).fold(BlockCounts::default(), |sum, device| BlockCounts {
            writes: sum.writes + device.writes,
            written_bytes: sum.written_bytes + device.written_bytes,
            flushes: sum.flushes + device.flushes,
        })
    }

    /// The requests since `before`.
    #[must_use]
    pub fn since(self, before: BlockCounts) -> BlockCounts {
        BlockCounts {
            writes: self.writes.saturating_sub(before.writes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            flushes: self.flushes.saturating_sub(before.flushes),
        }
    }
}

/// The kernel's directory of a block device.
pub fn of_block_device(device: &str) -> PathBuf {
    Path::new("/sys/block").join(device.trim_start_matches("/dev/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_a_device_are_told_and_subtracted() {
        let directory = tempfile::tempdir().unwrap();
        let count = |text: &str| {
            std::fs::write(directory.path().join("stat"), text).unwrap();
            BlockCounts::of(&[directory.path().to_path_buf(), PathBuf::from("/none")])
        };
        let before = count("1 2 3 4 10 6 80 8 0 9 10 11 12 13 14 7 16\n");
        assert_eq!(before, BlockCounts { writes: 10, written_bytes: 40960, flushes: 7 });
        let after = count("1 2 3 4 14 6 96 8 0 9 10 11 12 13 14 9 16\n");
        assert_eq!(after.since(before), BlockCounts { writes: 4, written_bytes: 8192, flushes: 2 });
        // Without the flushes that old kernels do not have.
        assert_eq!(count("1 2 3 4 14 6 96 8").flushes, 0);
        assert_eq!(of_block_device("/dev/loop3"), Path::new("/sys/block/loop3"));
    }
}
