//! One operation under way: what it holds and what it lacks.

pub mod fetched;
pub mod need;
pub mod op;
pub mod page_pins;
pub mod progress;
pub mod provide;
