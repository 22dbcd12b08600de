//! `journaled`: persistent memory whose content is in DRAM and becomes durable by a log on a block device (design 3;
//! rules J1 to J14 in docs/design.md, section 12).
//!
//! A store reserves a place in the ring, copies its bytes there and then into the image (`medium`). `order` costs nothing,
//! because places in the ring are the order of all stores. `persist` writes the ring up to now as one batch (`commit`). Pages of
//! the image go home in rounds (`home`), which frees space of the log. `open` puts the image together again.
//!
//! Invariants: 1. In-place stores ([`PmMedium::store`](crate::PmMedium::store)) are not logged: the record that names them is,
//! and the checkpoint's write-back follows. 2. No batch is written over before an anchor passes it.
//! Lock order: home, page, the state of the log. A device is never asked under a page lock.

mod anchors;
mod commit;
mod commits;
mod create;
mod cut;
mod device;
mod dirty;
mod error;
mod failure;
mod home;
mod image;
mod kept;
mod latency;
mod load;
mod log;
mod medium;
mod open;
mod opening;
mod patience;
mod pieces;
mod pressure;
mod rehome;
mod replay;
mod resume;
mod ring;
mod step;

pub use device::DurableWay;
pub use error::JournalError;
pub use medium::JournaledPm;
pub use opening::{JournalOptions, OpenedJournal};
