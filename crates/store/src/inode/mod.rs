//! Inodes: slots in PM, numbers, orphans, attributes.

pub mod attributes;
pub mod capability;
pub mod hidden;
pub mod load;
pub mod numbers;
pub mod orphan_list;
pub mod slot;
pub mod tier_pin;
