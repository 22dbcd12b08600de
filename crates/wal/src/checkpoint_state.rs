//! The state of checkpoints of a log.

use terrace_format::PmOffset;
use terrace_format::checkpoint::Checkpoint;

/// The checkpoint as last written.
pub(crate) struct CheckpointState {
    pub current: Checkpoint,
    /// Lines of the lane being settled; kept for its memory.
    pub lines: Vec<PmOffset>,
}
