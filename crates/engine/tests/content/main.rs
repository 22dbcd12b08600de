//! Content of files: writes whose home is PM or DRAM, full pools, devices that fail, and removed files. All on
//! simulated media.
#![allow(clippy::unwrap_used)]

mod buffered;
mod data_checksum;
mod devices;
mod full;
mod lazy;
mod lazy_attacks;
mod lazy_choices;
mod lazy_mapping;
mod lazy_status;
mod lines;
mod model;
mod persist_errors;
mod predict;
mod reclaim;
mod turns;
mod write_back_file;
