//! Metadata pages that lie below PM, both ways.

pub(crate) mod fetch;
pub(crate) mod lower;
