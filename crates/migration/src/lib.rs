//! Migration: decides which blocks move between tiers, and when.
#![forbid(unsafe_code)]

pub mod clock;
pub mod demote;
pub mod metadata;
pub mod migration;
pub mod observe;
pub mod pace;
pub mod planner;
pub mod promote;
pub mod report;
pub mod requested;
pub mod space;
pub mod spill;
pub mod worker;
