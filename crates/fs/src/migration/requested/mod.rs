//! Moves that users ask for: `terrace migrate`, `sync --to`, tier pins.

pub(crate) mod drain;
pub(crate) mod job;
pub(crate) mod pinned;
pub(crate) mod pinned_bytes;
pub(crate) mod progress;
pub(crate) mod queue;
pub(crate) mod raise;
pub(crate) mod survey;
pub(crate) mod sync_to;
