//! Judges a pool from its format and media alone (design 2, I6, I11): it uses no code of log, map, catalog or
//! file system, so a bug there cannot hide itself here.
//!
//! Invariants: no medium is written; valid records are replayed into a memory overlay; no image makes the
//! check panic or loop: every PM block is descended into at most once, depths are bounded by the format,
//! memory is bitmaps, one record per used inode, the names of one directory and the lanes. Phases, in order:
//! superblock, log, inode file with file maps, catalog, links, orphans, devices, block table. Called by
//! `terrace check` and by crash tests.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod below;
pub mod bitmap;
mod blocks;
mod catalog;
pub mod checker;
pub mod checksums;
pub mod code;
mod cold;
mod file_map;
mod inodes;
mod keys;
mod lane;
mod links;
pub mod log;
pub mod overlay;
pub mod report;
pub mod superblock;

use std::sync::Arc;
use terrace_format::superblock::Superblock;
use terrace_media::{BlockMedium, PmMedium};

pub use code::{CODES, Code, CodeRow, Severity};
pub use report::{Finding, OUTPUT_VERSION, PmBlocks, Report, Summary};

/// The media of a pool.
pub struct Devices {
    /// Persistent memory.
    pub pm: Arc<dyn PmMedium>,
    /// Lower-tier devices by [`terrace_format::DeviceId`]; `None` when absent.
    pub block: Vec<Option<Arc<dyn BlockMedium>>>,
}

/// Choices of a check.
#[derive(Default, Clone, Copy)]
pub struct Options<'a> {
    /// Read every cold block and compare its CRC32C.
    pub read_cold: bool,
    /// Devices whose paths the user gave: `repair` may write a header to them even if the old header is lost
    /// whole.
    pub given: &'a [usize],
    /// Called with the units of work done and the units in all.
    pub progress: Option<&'a dyn Fn(u64, u64)>,
}

/// Checks a pool. Writes nothing; never panics and always ends, whatever the media hold.
pub fn check(devices: &Devices, options: &Options<'_>) -> Report {
    let mut findings = report::Findings::default();
    let mut summary = Summary::default();
    let Some(superblock) = superblock::read(&*devices.pm, &mut findings) else {
        return findings.into_report(summary);
    };
    let geometry = superblock.geometry();
    let Some(log) = log::read(&*devices.pm, &superblock.uuid, &geometry, &mut findings) else {
        return findings.into_report(summary);
    };
    summary.clean_unmount = log.clean;
    summary.records_replayed = log.records;
    judge(devices, options, superblock, log.overlay, (findings, summary))
}

/// All phases but superblock and log.
pub fn judge(
    devices: &Devices,
    options: &Options<'_>,
    superblock: Superblock,
    overlay: overlay::Overlay,
    (findings, summary): (report::Findings, Summary),
) -> Report {
    let mut checker = checker::Checker::new(devices, *options, superblock, overlay, findings, summary);
    checker.run();
    checker.findings.into_report(checker.summary)
}
