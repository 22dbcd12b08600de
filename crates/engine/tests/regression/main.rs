//! Mistakes that were found and mended, by subject. The comment of each test tells the story of its mistake.
#![allow(clippy::unwrap_used)]

mod bad_sectors;
mod content;
mod copies;
mod damage;
mod damaged_tables;
mod devices;
mod fsync;
mod helpers;
mod hidden_blocks;
mod hooked_device;
mod lazy;
mod lazy_rounds;
mod metadata_words;
mod migration;
mod names;
mod reads;
mod removal;
mod space;
mod unmount;
mod unreadable_pm;
mod write_back;
