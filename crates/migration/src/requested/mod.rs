//! Requested movements: `terrace migrate`, `sync --to`, tier pins.

pub mod drain;
pub mod job;
mod job_pieces;
mod job_state;
pub mod pinned;
pub mod pinned_bytes;
pub mod progress;
pub mod queue;
pub mod raise;
pub mod survey;
pub mod sync_to;
mod walk;
