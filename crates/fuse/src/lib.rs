//! FUSE: requests from the kernel in, replies out; no file-system logic (design 2).
//!
//! Only this crate knows FUSE. A node id is an inode number (the root is 1 in both), so the crate needs no
//! table of nodes. Called by the command line (mount, emulated device) and by the bench (null server); calls
//! the `transport` crate, which runs and delays requests, and for the emulated device `media`.
//!
//! Invariants: no request can end the daemon (`transport` runs every call and answers EIO when it panics); every
//! request is answered exactly once; a request thread never waits for a lower tier (design L2); notifications to the
//! kernel are sent while no lock is held.
#![deny(unsafe_code)]

mod adapter;
mod classic;
mod completions;
mod connection;
mod convert;
pub mod device;
mod fuse_device;
mod mount;
mod notifier;
pub mod null;
pub mod protocol;
mod remount;
mod server;
pub mod session;
mod set_id;
mod single_file;
mod uring;
mod validity;
mod write_cache;

pub use adapter::{Adapter, CONTROL_XATTR, EARLIER_CONTROL_XATTR, drop_pages};
pub use connection::Connection;
pub use device::{DeviceOptions, DeviceServer};
pub use mount::{MountError, SessionOptions, Transport, Unmount, unmount};
pub use notifier::Notifier;
pub use null::NullServer;
pub use remount::remount;
pub use server::Server;
pub use session::{Running, become_io_flusher, keep_descriptors_private, start};
pub use uring::{RingFigures, is_offered as is_uring_offered, offer as offer_uring};
