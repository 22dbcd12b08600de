//! An operation under way: its page pins and fetched blocks, and the needs of its attempts.

pub mod fetched;
pub mod need;
pub mod op;
pub mod page_pins;
pub mod progress;
pub mod provide;
