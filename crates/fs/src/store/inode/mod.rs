//! Inodes: slots in PM, numbers, orphans, attributes.

pub(crate) mod attributes;
pub(crate) mod capability;
pub(crate) mod load;
pub(crate) mod numbers;
pub(crate) mod orphan_list;
pub(crate) mod slot;
pub(crate) mod tier_pin;
