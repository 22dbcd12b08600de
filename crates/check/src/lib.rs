//! Judges a pool from its format and media alone (design 2, I6, I11): it uses no code of log, map, catalog or
//! file system, so a bug there cannot hide itself here.
//!
//! Invariants: no medium is written, because the check has views that only read ([`PoolView`]); valid records are
//! replayed into a memory overlay; no image makes the check panic or loop: every PM block is descended into at most
//! once, depths are bounded by the format, memory is bitmaps, one record per used inode, the names of one directory
//! and the lanes. Superblock and log come first, then the phases of the table in `phases`. Called by `terrace check`
//! and by crash tests.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod below;
mod catalog;
pub mod checker;
pub mod checksums;
mod clustered_map;
pub mod clustered_table;
pub mod code;
mod cold;
mod cuckoo_map;
pub mod cuckoo_table;
mod extent_map;
mod file_map;
mod inode_record;
mod inodes;
mod keys;
mod lane;
mod links;
pub mod log;
mod mapped_block;
mod options;
pub mod overlay;
mod phases;
mod pool_view;
mod radix_map;
pub mod report;
pub mod sets;
mod shadows;
pub mod superblock;
mod table;
mod table_blocks;
mod table_map;

pub use code::{CODES, Code, CodeRow, Severity};
pub use options::Options;
pub use phases::{PHASES, Phase};
pub use pool_view::PoolView;
pub use report::{Finding, MapSummary, OUTPUT_VERSION, PmBlocks, Report, Summary};

use terrace_format::superblock::Superblock;

/// Checks a pool. Writes nothing; never panics and always ends, whatever the media hold.
pub fn check(pool: &PoolView, options: &Options<'_>) -> Report {
    let mut findings = report::Findings::default();
    let mut summary = Summary::default();
    let Some(superblock) = superblock::read(&pool.pm, &mut findings) else {
        return findings.into_report(summary);
    };
    let geometry = superblock.geometry();
    let Some(log) = log::read(&pool.pm, &superblock.uuid, &geometry, &mut findings) else {
        return findings.into_report(summary);
    };
    summary.clean_unmount = log.clean;
    summary.records_replayed = log.records;
    judge(pool, options, superblock, log.overlay, (findings, summary))
}

/// All phases but superblock and log.
pub fn judge(
    pool: &PoolView,
    options: &Options<'_>,
    superblock: Superblock,
    overlay: overlay::Overlay,
    (findings, summary): (report::Findings, Summary),
) -> Report {
    let mut checker = checker::Checker::new(pool, *options, superblock, overlay, findings, summary);
    phases::run(&mut checker);
    let (map, free) = (checker.geometry.map, checker.summary.pm_blocks.free);
    let slots = checker.geometry.block_count() - checker.geometry.first_pool_block().0;
    checker.summary.map.name = map.name();
    // Cuckoo and clustered tables were counted by entries and lines.
    if map.is_table() || !map.is_shared() {
        checker.summary.map.load_percent = report::percent(slots.saturating_sub(free), slots);
    }
    checker.findings.into_report(checker.summary)
}
