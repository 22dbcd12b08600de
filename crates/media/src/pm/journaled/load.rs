//! Reads tables and home into the image of a journal that is opened.

use super::error::JournalError;
use crate::block::{AlignedBlock, BlockRead, Buffer};
use crate::pm::RamPm;
use crate::{BlockMedium, MediaError, PmMedium};
use std::collections::BTreeSet;
use terrace_format::journal::{Anchor, Layout, TABLE_ENTRIES, decode_table, page_checksum};
use terrace_format::{BLOCK_SIZE, DeviceBlock, PmOffset};

/// Pages of a read: 1 MiB.
const PAGES_OF_READ: usize = 256;
/// Reads in flight together.
const READS_AT_ONCE: usize = 32;

/// Pages that opening could not take from home.
pub(super) struct Loaded {
    /// Pages whose content does not match their checksum.
    pub torn: Vec<u64>,
    /// Pages that the device could not read.
    pub unreadable: Vec<u64>,
}

/// The checksums of pages.
pub(super) struct Tables {
    /// By page.
    pub checksums: Vec<u32>,
    /// Pages of damaged blocks for which the other table has no checksum: home may have them or not.
    pub unknown: Vec<u64>,
    /// Damaged blocks of the table in use.
    pub damaged: BTreeSet<u64>,
}

/// The checksums of the table that the anchor names. A damaged block of it is taken from the other table: a page that changed
/// since then does not match, and counts as torn.
pub(super) fn load_tables(
    device: &dyn BlockMedium,
    layout: &Layout,
    anchor: &Anchor,
) -> Result<Tables, JournalError> {
    let mut checksums: Vec<u32> = Vec::with_capacity(layout.pages() as usize);
    let (mut unknown, mut damaged_blocks) = (Vec::new(), BTreeSet::new());
    for number in 0..layout.table_blocks() {
        let read = |table: usize| -> Result<Option<Vec<u32>>, MediaError> {
            let mut block = [AlignedBlock::zeroed()];
            device.read(layout.table(table).plus(number), &mut block)?;
            Ok(decode_table(&anchor.uuid, number, &block[0].0))
        };
        let found = match read(anchor.table) {
            Ok(Some(found)) => found,
            damaged => {
                tracing::warn!("{}: block {number} of the table of pages is damaged", device.name());
                match read(1 - anchor.table) {
                    Ok(Some(found)) => {
                        let first = number * TABLE_ENTRIES as u64;
                        let pages =
                            (first..layout.pages()).zip(&found).filter(|(_, checksum)| **checksum == 0);
                        unknown.extend(pages.map(|(page, _)| page));
                        damaged_blocks.insert(number);
                        found
                    }
                    // Without any checksum no page of the block can be told from damage.
                    _ => {
                        damaged?;
                        let expected = "a sound copy in one of the tables";
                        let site = format!("block {number} of the journal's table");
                        let damage = terrace_format::Corrupt::new(site, expected, "two damaged copies");
                        return Err(JournalError::Damaged { device: device.name().to_string(), damage });
                    }
                }
            }
        };
        checksums.extend_from_slice(&found[..TABLE_ENTRIES]);
    }
    checksums.truncate(layout.pages() as usize);
    Ok(Tables { checksums, unknown, damaged: damaged_blocks })
}

/// Copies the pages of home into the image, pages that do not match their checksum too: the log has the rest of a torn page.
pub(super) fn load_home(
    device: &dyn BlockMedium,
    layout: &Layout,
    uuid: &[u8; 16],
    checksums: &[u32],
    image: &RamPm,
) -> Result<Loaded, JournalError> {
    let mut loaded = Loaded { torn: Vec::new(), unreadable: Vec::new() };
    let runs = runs_of(checksums);
    let mut buffers: Vec<Buffer> =
        vec![vec![AlignedBlock::zeroed(); PAGES_OF_READ]; READS_AT_ONCE.min(runs.len())];
    for group in runs.chunks(READS_AT_ONCE) {
        let mut reads: Vec<BlockRead<'_>> = group
            .iter()
            .zip(&mut buffers)
            .map(|((first, count), buffer)| BlockRead::new(layout.home().plus(*first), &mut buffer[..*count]))
            .collect();
        device.read_all(&mut reads);
        let failed: Vec<bool> = reads.iter().map(|read| read.result.is_err()).collect();
        drop(reads);
        for (((first, count), buffer), failed) in group.iter().zip(&mut buffers).zip(failed) {
            for (page, block) in (*first..).zip(&mut buffer[..*count]) {
                let place = DeviceBlock(layout.home().0 + page);
                if failed && device.read(place, std::slice::from_mut(block)).is_err() {
                    loaded.unreadable.push(page);
                    continue;
                }
                if page_checksum(uuid, page, &block.0) != checksums[page as usize] {
                    loaded.torn.push(page);
                }
                image.store(PmOffset(page * BLOCK_SIZE), &block.0)?;
            }
        }
    }
    Ok(loaded)
}

/// Runs of pages that are in home: first page and count, at most [`PAGES_OF_READ`].
fn runs_of(checksums: &[u32]) -> Vec<(u64, usize)> {
    let mut runs: Vec<(u64, usize)> = Vec::new();
    for (page, _) in checksums.iter().enumerate().filter(|(_, checksum)| **checksum != 0) {
        match runs.last_mut() {
            Some((first, count)) if *first as usize + *count == page && *count < PAGES_OF_READ => *count += 1,
            _ => runs.push((page as u64, 1)),
        }
    }
    runs
}
