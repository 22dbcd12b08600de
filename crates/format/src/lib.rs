//! Every persistent byte of Terrace (docs/format.md), and nothing else.
//!
//! Invariants: structs are `#[repr(C)]` of fixed little-endian integers without padding, their
//! size asserted at compile time; what is read from a medium is unverified until `verify` or
//! `decode` has accepted it; the same function checks before a write.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod address;
pub mod below;
pub mod checkpoint;
pub mod checksum;
pub mod clustered_map;
pub mod corrupt;
pub mod cuckoo_map;
pub mod device;
pub mod extent_map;
pub mod geometry;
pub mod homes;
pub mod inode;
pub mod journal;
pub mod keys;
pub mod lines;
pub mod map_kind;
pub mod moved;
pub mod page;
pub mod page_checksum;
pub mod record;
pub mod record_damage;
pub mod seal;
pub mod superblock;
pub mod table;
pub mod version;

pub use address::{BLOCK_SIZE, DeviceBlock, DeviceId, FileBlock, Ino, Lsn, PmBlock, PmOffset, TierId};
pub use corrupt::Corrupt;
pub use geometry::Geometry;
pub use lines::LineMask;
