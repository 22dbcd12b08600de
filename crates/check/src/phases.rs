//! The phases of a check in their order, after superblock and log.
//!
//! Invariants: a phase uses only findings of earlier phases. Counts of links, orphans and device blocks need every key
//! and slot: such a phase is left out when a metadata page below could not be read.

use crate::checker::Checker;
use crate::clustered_map::clustered_rest;
use crate::table::regions;

/// A row of [`PHASES`].
pub struct Phase {
    /// Stable name.
    pub name: &'static str,
    /// The judgement of the phase.
    pub sentence: &'static str,
    /// With keys and slots unread, the counts of the phase would be too low and give false errors.
    needs_all_metadata: bool,
    run: fn(&mut Checker<'_>),
}

/// All phases.
pub const PHASES: &[Phase] = &[
    Phase {
        name: "device headers",
        sentence: "Each device of the superblock is there and has the pool's header.",
        needs_all_metadata: false,
        run: |checker| checker.device_headers(),
    },
    Phase {
        name: "fixed pages",
        sentence: "The pages of roots, block table and shared file map match their checksums.",
        needs_all_metadata: false,
        run: |checker| checker.fixed_checksums(),
    },
    Phase {
        name: "inode file",
        sentence: "Each page of the inode file is reached, each slot is possible, each file map is sound.",
        needs_all_metadata: false,
        run: |checker| checker.inode_file(),
    },
    Phase {
        name: "shared file map",
        sentence: "Each entry of a table of all files belongs to a file in use.",
        needs_all_metadata: true,
        run: |checker| {
            checker.cuckoo_rest();
            clustered_rest(checker);
        },
    },
    Phase {
        name: "catalog",
        sentence: "Each shard is a sound tree, and each key belongs to an inode that can have it.",
        needs_all_metadata: false,
        run: |checker| checker.catalog(),
    },
    Phase {
        name: "links",
        sentence: "Link counts, sizes and parents agree with names and file maps.",
        needs_all_metadata: true,
        run: |checker| checker.links(),
    },
    Phase {
        name: "orphans",
        sentence: "Each orphan is on its list once.",
        needs_all_metadata: true,
        run: |checker| checker.orphans(),
    },
    Phase {
        name: "chunks",
        sentence: "Chunk bitmaps mark the blocks of extents, metadata pages and group summaries, and no others.",
        needs_all_metadata: true,
        run: |checker| checker.chunk_bitmaps(),
    },
    Phase {
        name: "block table",
        sentence: "Each entry decodes, and each owned block was reached from its owner.",
        needs_all_metadata: false,
        run: |checker| checker.block_table(),
    },
];

/// Runs all phases.
pub(crate) fn run(checker: &mut Checker<'_>) {
    let pages = checker.word(checker.geometry.inode_pages()).unwrap_or(0);
    let shards = u64::from(checker.geometry.catalog_shards);
    let blocks = checker.geometry.block_count();
    checker.expect_steps(pages.min(blocks) + shards + regions(blocks));
    assert!(checker.inodes.is_empty() && checker.cold.is_empty(), "a check ran before");
    for phase in PHASES {
        if !(phase.needs_all_metadata && checker.unread) {
            (phase.run)(checker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_has_a_name_and_a_sentence() {
        let names: std::collections::BTreeSet<&str> = PHASES.iter().map(|phase| phase.name).collect();
        assert_eq!(names.len(), PHASES.len());
        assert!(PHASES.iter().all(|phase| phase.sentence.ends_with('.')));
    }
}
