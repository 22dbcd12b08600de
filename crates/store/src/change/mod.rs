//! A change under construction: blocks, table entries and map words that become durable together.

mod absorbed;
pub mod cold;
pub mod dirty;
pub mod finish;
pub mod give_back;
pub mod lines;
pub(crate) mod map_changes;
pub mod map_room;
pub mod merge;
pub mod new_extent;
pub mod prune;
pub mod record_room;
pub mod removal;
pub mod shards;
pub mod stage_block;
pub mod staged;
pub mod tail;
