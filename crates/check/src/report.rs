//! The findings of a check, and their output.

use crate::code::{Code, Severity};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// Version of the `--json` output; rises when a field changes its meaning or goes away.
pub const OUTPUT_VERSION: u32 = 1;
/// Findings of one code that are listed; the rest is counted.
const LISTED_OF_A_CODE: u64 = 100;

/// A single fault of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The kind of fault.
    pub code: Code,
    /// The location, and the bytes or numbers found there.
    pub detail: String,
}

impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = self.code.row();
        let mut out = serializer.serialize_struct("Finding", 4)?;
        out.serialize_field("code", &self.code)?;
        out.serialize_field("name", row.name)?;
        out.serialize_field("severity", &row.severity)?;
        out.serialize_field("detail", &self.detail)?;
        out.end()
    }
}

/// PM blocks by owner, counted in the block table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PmBlocks {
    /// Blocks without an owner.
    pub free: u64,
    /// Superblock, checkpoint, roots, lanes, block table.
    pub fixed: u64,
    /// Inode pages.
    pub inode_pages: u64,
    /// Radix nodes of the inode file.
    pub inode_nodes: u64,
    /// Catalog pages.
    pub catalog_pages: u64,
    /// Nodes of file maps.
    pub map_nodes: u64,
    /// Blocks of files.
    pub files: u64,
    /// Blocks of files that are allocated but read as zeros (counted in `files` too).
    pub unwritten: u64,
    /// Blocks of files that hold some lines only, over a cold copy (counted in `files` too).
    pub partial: u64,
    /// Blocks of files whose data has a checksum (counted in `files` too).
    pub checksums: u64,
}

/// The nearest whole percent of a part, 0 of nothing.
pub(crate) fn percent(part: u64, whole: u64) -> u64 {
    (part * 100 + whole / 2).checked_div(whole).unwrap_or(0)
}

/// The file map of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MapSummary {
    /// Its name.
    pub name: &'static str,
    /// Blocks of the pool in use, to the nearest percent: the load of the table where the block table is the map. Of a cuckoo
    /// table its entries, in percent of the places in its buckets; of a clustered table its lines in use, in percent of all.
    pub load_percent: u64,
    /// Where the map has a reach: the largest distance of a block from its home, in slots or lines of its search.
    pub longest_distance: Option<u64>,
    /// Where the map has a reach: the stored bound of all distances.
    pub reach: Option<u64>,
    /// Entries in the stash of a cuckoo table; `None` with another map.
    pub stash_entries: Option<u64>,
    /// Entries of a cuckoo table in the second bucket of their block, because the first was full or by a move; `None` with
    /// another map.
    pub second_bucket_entries: Option<u64>,
}

/// Counts of the pool's content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Unmounted in order.
    pub clean_unmount: bool,
    /// Valid records in the lanes, replayed into memory.
    pub records_replayed: u64,
    /// Inodes in use, directories and orphans included.
    pub inodes: u64,
    /// Directories.
    pub directories: u64,
    /// Names in all directories.
    pub dentries: u64,
    /// Inodes without a name, waiting for removal.
    pub orphans: u64,
    /// Truncation intents waiting to be worked off.
    pub intents: u64,
    /// Sizes of all regular files added up, in bytes.
    pub bytes: u64,
    /// PM blocks by owner.
    pub pm_blocks: PmBlocks,
    /// The file map.
    pub map: MapSummary,
    /// Blocks of cold extents.
    pub cold_blocks: u64,
    /// Cold blocks read and compared with their checksum (with `read_cold`).
    pub cold_blocks_read: u64,
    /// Metadata pages on lower tiers.
    pub metadata_below: u64,
    /// Blocks of group summaries.
    pub summary_blocks: u64,
}

/// The outcome of a check.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Findings in the order of the check; at most 100 of each code.
    pub findings: Vec<Finding>,
    /// Count of the findings of a code that are not listed.
    pub unlisted: BTreeMap<Code, u64>,
    /// Counts.
    pub summary: Summary,
}

impl Report {
    /// The bits of fsck(8): 0 clean, 4 errors, 8 a part of the pool could not be judged; 12 is both.
    pub fn exit_status(&self) -> i32 {
        self.findings.iter().fold(0, |status, finding| {
            status
                | match finding.code.row().severity {
                    Severity::Note => 0,
                    Severity::Error => 4,
                    Severity::Operational => 8,
                }
        })
    }
    /// True when all findings are notes.
    pub fn is_clean(&self) -> bool {
        self.exit_status() == 0
    }
    /// True when a finding has this code.
    pub fn has(&self, code: Code) -> bool {
        self.findings.iter().any(|finding| finding.code == code)
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let unlisted: BTreeMap<u16, u64> = self.unlisted.iter().map(|(code, n)| (*code as u16, *n)).collect();
        let mut out = serializer.serialize_struct("Report", 5)?;
        out.serialize_field("output_version", &OUTPUT_VERSION)?;
        out.serialize_field("exit_status", &self.exit_status())?;
        out.serialize_field("findings", &self.findings)?;
        out.serialize_field("unlisted", &unlisted)?;
        out.serialize_field("summary", &self.summary)?;
        out.end()
    }
}

/// Findings under construction: bounded, however damaged the pool is.
#[derive(Default)]
pub struct Findings {
    listed: Vec<Finding>,
    counts: BTreeMap<Code, u64>,
}

impl Findings {
    /// Adds a finding.
    pub fn add(&mut self, code: Code, detail: impl FnOnce() -> String) {
        let count = self.counts.entry(code).or_insert(0);
        *count += 1;
        if *count <= LISTED_OF_A_CODE {
            let detail = detail();
            self.listed.push(Finding { code, detail });
        }
    }

    /// The report of all findings.
    pub fn into_report(self, summary: Summary) -> Report {
        let beyond = self.counts.into_iter().filter(|(_, count)| *count > LISTED_OF_A_CODE);
        Report {
            findings: self.listed,
            unlisted: beyond.map(|(code, count)| (code, count - LISTED_OF_A_CODE)).collect(),
            summary,
        }
    }
}
