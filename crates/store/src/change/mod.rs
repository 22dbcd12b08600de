//! A change under construction: blocks, table entries and map words that become durable together.

pub mod cold;
pub mod dirty;
pub mod finish;
pub mod give_back;
pub mod lines;
pub mod map_nodes;
pub mod merge;
pub mod new_extent;
pub mod prune;
pub mod removal;
pub mod shards;
pub mod stage_block;
pub mod staged;
pub mod tail;
