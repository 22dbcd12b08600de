//! Metadata pages that lie below PM, both ways.

pub mod fetch;
pub mod lower;
