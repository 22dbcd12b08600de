//! The public calls of a mounted pool, by caller.

mod content;
mod control;
mod movements;
mod names;
mod simulation;

pub use movements::Movements;
pub use simulation::Simulation;
