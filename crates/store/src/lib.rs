//! The location of each byte of a file, and the transactions that change it.
#![forbid(unsafe_code)]

pub mod attempt;
pub mod change;
pub mod error;
pub mod inode;
pub mod lookup;
pub mod metadata;
pub mod moving;
pub mod operation;
pub mod parts;
pub mod pressure;
pub mod steering;
pub mod store;
pub mod types;
