//! Where each byte of a file is, and how one transaction changes it.

pub(crate) mod attempt;
pub(crate) mod change;
pub(crate) mod error;
pub(crate) mod inode;
pub(crate) mod lookup;
pub(crate) mod metadata;
pub(crate) mod moving;
pub(crate) mod operation;
pub(crate) mod parts;
pub(crate) mod pressure;
pub(crate) mod steering;
pub(crate) mod store;
pub(crate) mod types;
