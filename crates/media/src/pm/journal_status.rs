//! The figures of a journal, for status.

use serde::Serialize;

/// The state of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JournalStatus {
    /// The journal device.
    pub device: String,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes of the log that an opening would apply.
    pub log_used_bytes: u64,
    /// Bytes of stores and their headers that no commit has made durable.
    pub waiting_bytes: u64,
    /// Milliseconds since the step saw the oldest of these bytes; 0 without any.
    pub oldest_ms: u64,
    /// Pages of the image that home does not have as they are.
    pub dirty_pages: u64,
    /// Commits since mount.
    pub commits: u64,
    /// Bytes of stores since mount: what the log and home carry.
    pub stored_bytes: u64,
    /// Bytes that commits wrote.
    pub committed_bytes: u64,
    /// Pages written home since mount.
    pub home_pages: u64,
    /// Median of the times of syncs that had to wait for the log, in microseconds; none before the first.
    pub sync_p50_us: Option<u64>,
    /// The 99th percentile.
    pub sync_p99_us: Option<u64>,
    /// Pages that the mount put together again after a crash had torn them.
    pub healed_pages: u64,
    /// Damaged pages: their reads fail.
    pub condemned_pages: u64,
    /// The error that ended the journal.
    pub failed: Option<String>,
}
