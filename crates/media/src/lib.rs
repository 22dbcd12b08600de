//! Media: persistent memory and block devices behind two traits (design 3).
//!
//! Invariants: no code outside this crate stores to PM; every PM read is fallible; only
//! `persist`/`flush` make anything durable, only `order` orders; the traits never hand out a `&[u8]`
//! over bytes that may change.
//! `unsafe` lives here because mappings, non-temporal stores, cache-line write-back and io_uring
//! have no safe form.
#![allow(unsafe_code)] // see above; every block says why it is sound

pub mod block;
pub mod crash;
pub mod durable;
pub mod error;
pub mod found;
pub mod open;
pub mod ordering;
pub mod pace;
pub mod page_memory;
pub mod pm;
mod prefetch;
pub mod speed;
mod view;

pub use block::BlockMedium;
pub use durable::{Durable, FlushMark, Flushed, SharedFlush};
pub use error::{DeviceError, MediaError};
pub use found::{Access, Found};
pub use open::OpenError;
pub use page_memory::PageMemory;
pub use pm::mapping::memory_available;
pub use pm::{PmMedium, Point, Promise};
pub use prefetch::prefetch;
pub use view::{BlockView, PmView};
