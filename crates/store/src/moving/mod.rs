//! Blocks that move between tiers: look, copy, flush, install.

pub mod bring_up;
pub mod candidate;
pub mod complete_partial;
pub mod copied;
pub mod demote;
pub mod destination;
pub mod device_run;
pub mod dram_copies;
pub mod drop_shadowed;
pub mod errors;
pub mod evict_clean;
pub mod file_id;
pub mod free_shadowed;
pub mod in_place;
mod in_place_choice;
mod in_place_install;
pub mod install;
pub mod install_pieces;
pub mod look_at;
pub mod outbox;
pub mod pieces;
pub mod promote;
pub mod relocate;
pub mod relocation_group;
pub mod unmap;
pub mod victim;
pub mod write_candidates;
