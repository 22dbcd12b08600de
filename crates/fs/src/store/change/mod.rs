//! One change under construction: blocks, table entries and map words that become durable together.

pub(crate) mod dirty;
pub(crate) mod finish;
pub(crate) mod lines;
pub(crate) mod map_nodes;
pub(crate) mod merge;
pub(crate) mod prune;
pub(crate) mod removal;
pub(crate) mod shards;
pub(crate) mod stage_block;
pub(crate) mod staged;
pub(crate) mod tail;
