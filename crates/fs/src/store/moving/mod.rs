//! Blocks that move between tiers: look, copy, flush, install.

pub(crate) mod bring_up;
pub(crate) mod candidate;
pub(crate) mod complete_partial;
pub(crate) mod copied;
pub(crate) mod demote;
pub(crate) mod destination;
pub(crate) mod device_run;
pub(crate) mod dram_copies;
pub(crate) mod drop_shadowed;
pub(crate) mod errors;
pub(crate) mod evict_clean;
pub(crate) mod file_id;
pub(crate) mod free_shadowed;
pub(crate) mod in_place;
pub(crate) mod install;
pub(crate) mod look_at;
pub(crate) mod outbox;
pub(crate) mod pieces;
pub(crate) mod promote;
pub(crate) mod relocate;
pub(crate) mod unmap;
pub(crate) mod victim;
pub(crate) mod write_candidates;
