//! Requests of users and how far they are.

use serde::Serialize;

/// What is to be done with a file or a directory with all below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandMove {
    /// Every block to this tier.
    Migrate {
        /// 0 is PM.
        to: u8,
    },
    /// Kept on this tier from now on, and every block there.
    Pin {
        /// 0 is PM.
        tier: u8,
    },
    /// Kept on no tier any more; nothing moves.
    Unpin,
}

impl HandMove {
    /// The tier it is about.
    pub fn tier(self) -> Option<u8> {
        match self {
            HandMove::Migrate { to } => Some(to),
            HandMove::Pin { tier } => Some(tier),
            HandMove::Unpin => None,
        }
    }

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            HandMove::Migrate { .. } => "migrate",
            HandMove::Pin { .. } => "pin",
            HandMove::Unpin => "unpin",
        }
    }
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HandState {
    /// Others are before it.
    Queued,
    /// Files are counted.
    Looking,
    /// Pins are set or taken away.
    Pinning,
    /// Blocks are moved.
    Moving,
    /// Something failed and is tried again in a moment; see the reason.
    Waiting,
    /// Ended; blocks that changed meanwhile may be left.
    Done,
    /// Ended; the reason says why. What moved stays moved.
    Failed,
}

impl HandState {
    /// Whether nothing more will be done.
    pub fn has_ended(self) -> bool {
        matches!(self, HandState::Done | HandState::Failed)
    }
}

/// What is known of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HandReport {
    /// Its number since mount.
    pub id: u64,
    /// migrate, pin or unpin.
    pub action: &'static str,
    /// To which tier.
    pub tier: Option<u8>,
    /// How far it is.
    pub state: HandState,
    /// Why it waits or has failed, or what was left.
    pub reason: Option<String>,
    /// Files and directories found.
    pub files: u64,
    /// Files left alone because they are pinned to another tier.
    pub pinned_files: u64,
    /// Bytes that were elsewhere when it looked.
    pub total_bytes: u64,
    /// Bytes moved.
    pub done_bytes: u64,
    /// Bytes still elsewhere when it ended: they changed while they were moved, or the job failed.
    pub left_bytes: u64,
}

/// What a job would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HandPlan {
    /// Files and directories found.
    pub files: u64,
    /// Files that would be left alone because they are pinned to another tier.
    pub pinned_files: u64,
    /// Bytes on each tier: (tier, bytes), tier 0 first.
    pub tiers: Vec<(u8, u64)>,
    /// Bytes that would move.
    pub move_bytes: u64,
    /// Why it would be refused.
    pub refused: Option<String>,
}

/// What others may look at while a job runs.
#[derive(Debug)]
pub struct Progress {
    pub(crate) report: HandReport,
}
