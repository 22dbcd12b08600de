//! Front ends' common part: how requests run and wait, and which files the kernel caches. No protocol of the kernel, and
//! no file-system logic (design 2).
//!
//! A front end takes requests from the kernel, or from a program, and answers them. It hands each request to
//! [`Requests`]: the request runs first in its request thread, and goes to a pool of [`waiting`] threads if it has to
//! wait (design L2, I10). [`KernelCache`] decides the mode of each open file.
//!
//! Invariants: no request ends the daemon, because a panic of a request becomes EIO; every request is answered exactly
//! once; a request thread never waits for a lower tier.
#![forbid(unsafe_code)]

mod durable;
mod guard;
mod held;
pub mod kernel_cache;
mod lines;
mod long;
mod pages;
pub mod requests;
pub mod served;
pub mod waiting;

pub use kernel_cache::KernelCache;
pub use pages::OpenMode;
pub use requests::Requests;
pub use served::Served;
pub use waiting::request_threads;
