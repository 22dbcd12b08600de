//! The FUSE protocol: layouts, requests decoded, replies encoded. No file system, and no way of transport.

pub mod init;
pub mod layout;
pub mod reply;
pub mod request;

pub use reply::{Listing, Reply};
pub use request::{Input, Operation};
