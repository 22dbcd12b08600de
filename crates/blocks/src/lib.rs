//! The block table and the allocator of PM blocks (design 4.2, T6, P1).
//!
//! The table in PM is the truth about allocation; there is no bitmap beside it on the medium. Each
//! block has a volatile [`Descriptor`]: state, version, pins, times of last write and read.
//! Invariants: a block goes from used to quarantined before its in-place free is stored, and from
//! quarantined to free only when the checkpoint has passed the freeing record and no pin is left; the
//! scan at mount moves only unknown blocks, by compare-and-swap.
//! Lock order: the allocator lock comes after every lock but the lanes', and covers only the taking.
//! Called by map, catalog and fs.
#![forbid(unsafe_code)]

pub mod bitmap;
pub mod bits;
pub mod descriptor;
pub mod hidden;
pub mod pool;
pub mod presence;
pub mod unreadable;

pub use descriptor::{Descriptor, MARKS, State};
pub use pool::{BlockAccounts, BlockPool, Claim, Promises, Purpose, Target, Usage};
pub use presence::Presence;
