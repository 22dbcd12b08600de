//! Decides the new state where found structures differ.
//!
//! Invariants: a decision uses found structures and earlier decisions, and writes no page; pages and words are written
//! by `emit`. Each content that goes is in the list of losses.

pub(crate) mod blocks;
pub(crate) mod chunks;
pub(crate) mod cold;
pub(crate) mod keys;
pub(crate) mod names;
pub(crate) mod sizes;
pub(crate) mod slots;
