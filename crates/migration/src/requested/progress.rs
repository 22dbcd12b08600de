//! Requests of users and their progress.

use serde::Serialize;

/// The movement of a file, or of a directory with everything in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveRequest {
    /// Move every block to this tier.
    Migrate {
        /// 0 is PM.
        to: u8,
    },
    /// Pin to this tier, and move every block there.
    Pin {
        /// 0 is PM.
        tier: u8,
    },
    /// Remove the pin; no block moves.
    Unpin,
}

impl MoveRequest {
    /// The tier of the movement or pin.
    pub fn tier(self) -> Option<u8> {
        match self {
            MoveRequest::Migrate { to } => Some(to),
            MoveRequest::Pin { tier } => Some(tier),
            MoveRequest::Unpin => None,
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            MoveRequest::Migrate { .. } => "migrate",
            MoveRequest::Pin { .. } => "pin",
            MoveRequest::Unpin => "unpin",
        }
    }
}

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestState {
    /// The job waits for earlier jobs.
    Queued,
    /// Files are counted.
    Looking,
    /// Pins are set or taken away.
    Pinning,
    /// Blocks are moved.
    Moving,
    /// A step failed and is tried again in a moment; see the reason.
    Waiting,
    /// Ended; blocks that changed meanwhile may be left.
    Done,
    /// Ended early, for the reason given. Blocks moved so far stay moved.
    Failed,
}

impl RequestState {
    /// Whether the job has ended.
    pub fn has_ended(self) -> bool {
        matches!(self, RequestState::Done | RequestState::Failed)
    }
}

/// The report of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestReport {
    /// Its number since mount.
    pub id: u64,
    /// migrate, pin or unpin.
    pub action: &'static str,
    /// The target tier.
    pub tier: Option<u8>,
    /// How far it is.
    pub state: RequestState,
    /// The reason why it waits or has failed, or why bytes are left.
    pub reason: Option<String>,
    /// Files and directories found.
    pub files: u64,
    /// Files left alone because they are pinned to another tier.
    pub pinned_files: u64,
    /// Bytes on other tiers when it counted them.
    pub total_bytes: u64,
    /// Bytes moved.
    pub done_bytes: u64,
    /// Bytes on other tiers when it ended: they changed during the movement, or the job failed.
    pub left_bytes: u64,
}

/// A dry run of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MovePlan {
    /// Files and directories found.
    pub files: u64,
    /// Files that would be left alone because they are pinned to another tier.
    pub pinned_files: u64,
    /// Bytes on each tier: (tier, bytes), tier 0 first.
    pub tiers: Vec<(u8, u64)>,
    /// Bytes that would move.
    pub move_bytes: u64,
    /// The reason why the job would be refused.
    pub refused: Option<String>,
}

/// The part of a job that other threads read while it runs.
#[derive(Debug)]
pub struct Progress {
    pub(crate) report: RequestReport,
}
