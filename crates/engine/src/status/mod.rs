//! Figures of `terrace status`, one file for each subject.

pub mod health;
pub mod io;
pub mod lazy;
pub mod metadata;
pub mod parameters;
pub mod placement;
pub mod pool;
pub mod predictions;
pub mod space;
pub mod tiers;
pub mod whereabouts;
