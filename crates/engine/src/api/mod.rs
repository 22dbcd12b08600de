//! The public calls of a mounted pool, by caller.

mod content;
mod control;
mod durability;
mod mappings;
mod movements;
mod names;
mod simulation;

pub use durability::Durability;
pub use mappings::Mappings;
pub use movements::Movements;
pub use simulation::Simulation;
