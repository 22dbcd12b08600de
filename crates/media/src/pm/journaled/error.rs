//! A journal that cannot be made or opened.

use crate::{BlockMedium, MediaError, OpenError};
use terrace_format::{BLOCK_SIZE, Corrupt};

/// A journal that cannot be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// No anchor.
    #[error("{device}: has no journal; `terrace mkfs --journal` makes one")]
    NotAJournal {
        /// The device.
        device: String,
    },
    /// An anchor of another version.
    #[error(
        "{device}: the journal has version {version}, this program knows version 1; use the program that made it"
    )]
    Version {
        /// The device.
        device: String,
        /// The version.
        version: u32,
    },
    /// Damage that opening cannot mend.
    #[error(
        "{device}: the journal is damaged, nothing was written: {damage}; put a backup back, or make the pool anew"
    )]
    Damaged {
        /// The device.
        device: String,
        /// The damage.
        damage: Corrupt,
    },
    /// The log ends before what was acknowledged. [`JournalOptions::cut_log`](super::JournalOptions::cut_log) gives up what lies
    /// behind.
    #[error("{device}: {damage}")]
    DamagedLog {
        /// The device.
        device: String,
        /// The damage.
        damage: Corrupt,
    },
    /// The device is shorter than the journal.
    #[error("{device}: has {found} bytes, the journal needs {needed}; is it a copy that was cut off?")]
    TooShort {
        /// The device.
        device: String,
        /// Bytes of the device.
        found: u64,
        /// Bytes of the journal.
        needed: u64,
    },
    /// The image does not fit into the memory that is available.
    #[error(
        "{device}: tier 0 needs {needed} bytes of memory, {available} are available; end other programs first"
    )]
    NoMemory {
        /// The device.
        device: String,
        /// Bytes of the image.
        needed: u64,
        /// Bytes available.
        available: u64,
    },
    /// A journal cannot move to its own device, or to a copy of it.
    #[error("{device}: has this journal already; name another device")]
    OwnDevice {
        /// The device.
        device: String,
    },
    /// The journal went on on another device.
    #[error("{device}: the journal went on on another device since; open that device")]
    MovedAway {
        /// The device.
        device: String,
    },
    /// The operating system refused the memory.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The device failed.
    #[error(transparent)]
    Media(#[from] MediaError),
}

impl JournalError {
    pub(super) fn too_short(device: &dyn BlockMedium, needed_blocks: u64) -> JournalError {
        let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_SIZE);
        let device_name = device.name().to_string();
        JournalError::TooShort {
            device: device_name,
            found: bytes(device.blocks()),
            needed: bytes(needed_blocks),
        }
    }
}
