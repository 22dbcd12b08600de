//! The daemon as a library: it owns a mount and its control socket. A front end starts the daemon and asks it over the
//! socket.
//!
//! `serve` opens a pool (`mounted_pool`), serves its mount (`plan`) and ends it in order (`stopper`, `ending`); `control` is the socket, with the side of the server and
//! of the client; `pool` finds and opens the media of a pool; `mounts` reads the kernel's table of mounts.
#![forbid(unsafe_code)]

pub mod control;
pub mod emulation;
mod ending;
pub mod failure;
mod journal_options;
pub mod launch;
mod lazy_options;
mod limits;
mod log;
pub mod memory;
mod mounted_pool;
pub mod mounts;
pub mod names;
mod notify;
pub mod options;
pub mod output;
pub mod outside;
pub mod ownership;
pub mod parameters;
pub mod places;
pub mod plan;
pub mod pool;
pub mod processes;
pub mod serve;
mod stopper;
pub mod way_in;
