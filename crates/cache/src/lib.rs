//! Pages of file blocks in DRAM: clean pages, which are copies of cold blocks, and dirty pages (design 8). A block has one
//! header. Clean pages stay by the frequency of their uses, pages read ahead have a lifetime, and dirty pages are written
//! back, each to its home, in the order of their last write.
//!
//! Invariants: a clean page is used only if its version equals the present version of its (inode, block)
//! (design S6). Clean pages stay within the budget; after the budget is lowered, pages are dropped in pieces.
//! A dirty page leaves the cache only by a call for this page, whatever the budget. Lock order: a shard's
//! lock and a lock of the index of dirty blocks are innermost, and never held together.
#![forbid(unsafe_code)]

mod block_cache;
mod clean;
mod dirty;
mod dirty_files;
mod file_choices;
mod frequency;
mod header;
mod page;
mod shard;
mod state_table;
mod sync_state;
mod sync_states;
#[cfg(test)]
mod tests;

pub use block_cache::{BlockCache, LEAST_ADJUSTABLE_BYTES};
pub use clean::Found;
pub use dirty::{DirtyPage, Dropped, Installed};
pub use header::{Lines, PageKey};
pub use page::Page;
pub use state_table::STATE_BYTES;
pub use sync_state::{AppendedLines, Judged, LineCosts, SyncAges, SyncVerdicts, WrittenLines};
