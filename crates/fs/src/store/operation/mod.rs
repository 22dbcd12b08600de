//! One operation under way: what it holds and what it lacks.

pub(crate) mod fetched;
pub(crate) mod need;
pub(crate) mod op;
pub(crate) mod page_pins;
pub(crate) mod progress;
pub(crate) mod provide;
