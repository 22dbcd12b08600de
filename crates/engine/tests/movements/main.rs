//! Movements of blocks between the tiers: demotion, promotion, requested movements, tier pins, spills and
//! metadata pages. All on simulated media.
#![allow(clippy::unwrap_used)]

mod in_place;
mod metadata;
mod migration;
mod overtaken_search;
mod partial;
mod pin;
mod requested;
mod spill;
