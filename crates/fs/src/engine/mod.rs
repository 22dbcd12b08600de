//! A mounted pool: mount and unmount, background steps, status, and the public entry points.

pub(crate) mod accounts;
pub(crate) mod api;
pub(crate) mod background;
pub(crate) mod engine;
pub(crate) mod memory;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod options;
pub(crate) mod provide;
pub(crate) mod requests;
pub(crate) mod status;
pub(crate) mod superblock;
pub(crate) mod unmount;
