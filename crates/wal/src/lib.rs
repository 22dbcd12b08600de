//! Transactions: redo records in write-ahead log lanes, checkpoint, recovery (design 4.1, T1–T8).
//!
//! Invariants: all metadata changes pass through [`Wal::commit`]; a record is durable before any of
//! its writes is stored in place; ring space is reused only after a checkpoint that passed it is
//! durable in both copies.
//! Lock order: callers hold their own locks (inodes, shards, orphan lists, allocator); then one lane.
//! The checkpoint lock is taken while holding no lane, and may be taken under any caller lock, because
//! a checkpoint waits for nobody: it takes no lock but its own and, briefly, each lane's state.
//! Called by blocks, map, catalog and fs.
#![forbid(unsafe_code)]

pub mod checkpoint;
mod checkpoint_state;
pub mod commit;
mod dirty_lines;
pub mod error;
pub mod lane;
pub mod page_checksums;
pub mod recovery;
mod reserve;
pub mod scan;
pub mod transaction;
pub mod wal;

pub use commit::Open;
pub use error::{Error, MapRoom, NoSpace, PageBelow, Result};
pub use page_checksums::PageChecksums;
pub use recovery::RecoveryReport;
pub use transaction::Tx;
pub use wal::{Reservation, Wal};
