//! Reads tables and home into the image of a journal that is opened.

use super::error::JournalError;
use super::pieces::{PIECE_BLOCKS, READS_AT_ONCE, read_pieces};
use crate::block::{AlignedBlock, BlockRead, Buffer};
use crate::pm::RamPm;
use crate::{BlockMedium, PmMedium};
use std::collections::BTreeSet;
use terrace_format::journal::{Anchor, Layout, TABLE_ENTRIES, decode_table, page_checksum};
use terrace_format::{BLOCK_SIZE, Corrupt, PmOffset};

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
    pub unknown: BTreeSet<u64>,
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
    let checksums = Vec::with_capacity(layout.pages() as usize);
    let mut tables = Tables { checksums, unknown: BTreeSet::new(), damaged: BTreeSet::new() };
    let mut buffer = vec![AlignedBlock::zeroed(); PIECE_BLOCKS * READS_AT_ONCE.min(1 + table_pieces(layout))];
    let mut number = 0;
    while number < layout.table_blocks() {
        let count = buffer.len().min((layout.table_blocks() - number) as usize);
        let blocks = &mut buffer[..count];
        let first = layout.table(anchor.table).plus(number);
        let places = (0..).step_by(PIECE_BLOCKS).map(|index| first.plus(index));
        let mut reads: Vec<BlockRead<'_>> = places
            .zip(blocks.chunks_mut(PIECE_BLOCKS))
            .map(|(place, blocks)| BlockRead::new(place, blocks))
            .collect();
        let unreadable = read_pieces(device, &mut reads);
        drop(reads);
        for (index, block) in blocks.iter().enumerate() {
            let found = decode_table(&anchor.uuid, number, &block.0).filter(|_| !unreadable.contains(&index));
            let found =
                found.map_or_else(|| take_other_table(device, layout, anchor, &mut tables, number), Ok)?;
            tables.checksums.extend_from_slice(&found[..TABLE_ENTRIES]);
            number += 1;
        }
    }
    tables.checksums.truncate(layout.pages() as usize);
    Ok(tables)
}

/// Pieces of a whole table.
fn table_pieces(layout: &Layout) -> usize {
    layout.table_blocks() as usize / PIECE_BLOCKS
}

/// A block of the table that is not in use, in place of a damaged block.
fn take_other_table(
    device: &dyn BlockMedium,
    layout: &Layout,
    anchor: &Anchor,
    tables: &mut Tables,
    number: u64,
) -> Result<Vec<u32>, JournalError> {
    tracing::warn!("{}: block {number} of the table of pages is damaged", device.name());
    let mut block = [AlignedBlock::zeroed()];
    device.read(layout.table(1 - anchor.table).plus(number), &mut block)?;
    let Some(found) = decode_table(&anchor.uuid, number, &block[0].0) else {
        // Without any checksum no page of the block can be told from damage.
        let expected = "a sound copy in one of the tables";
        let site = format!("block {number} of the journal's table");
        let damage = Corrupt::new(site, expected, "two damaged copies");
        return Err(JournalError::Damaged { device: device.name().to_string(), damage });
    };
    let first = number * TABLE_ENTRIES as u64;
    let pages = (first..layout.pages()).zip(&found).filter(|(_, checksum)| **checksum == 0);
    tables.unknown.extend(pages.map(|(page, _)| page));
    tables.damaged.insert(number);
    Ok(found)
}

/// Copies the pages of home into the image, pages that do not match their checksum too: the log has the rest of a torn page. A
/// page of unknown checksum whose block is zeros was never written there, or has this content.
pub(super) fn load_home(
    device: &dyn BlockMedium,
    layout: &Layout,
    uuid: &[u8; 16],
    tables: &Tables,
    image: &RamPm,
) -> Result<Loaded, JournalError> {
    let mut loaded = Loaded { torn: Vec::new(), unreadable: Vec::new() };
    let checksums = &tables.checksums;
    let is_written = |page: &u64| checksums[*page as usize] != 0 || tables.unknown.contains(page);
    let runs = runs_of((0..layout.pages()).filter(is_written));
    let mut buffers: Vec<Buffer> =
        vec![vec![AlignedBlock::zeroed(); PIECE_BLOCKS]; READS_AT_ONCE.min(runs.len())];
    for group in runs.chunks(READS_AT_ONCE) {
        let mut reads: Vec<BlockRead<'_>> = group
            .iter()
            .zip(&mut buffers)
            .map(|((first, count), buffer)| BlockRead::new(layout.home().plus(*first), &mut buffer[..*count]))
            .collect();
        let unreadable = read_pieces(device, &mut reads);
        drop(reads);
        let mut index = 0;
        for ((first, count), buffer) in group.iter().zip(&buffers) {
            for (page, block) in (*first..).zip(&buffer[..*count]) {
                index += 1;
                if unreadable.contains(&(index - 1)) {
                    loaded.unreadable.push(page);
                    continue;
                }
                let checksum = checksums[page as usize];
                if checksum == 0 && block.0 == AlignedBlock::zeroed().0 {
                    continue;
                }
                if page_checksum(uuid, page, &block.0) != checksum {
                    loaded.torn.push(page);
                }
                image.store(PmOffset(page * BLOCK_SIZE), &block.0)?;
            }
        }
    }
    Ok(loaded)
}

/// Runs of ascending pages: first page and count, at most [`PIECE_BLOCKS`].
fn runs_of(pages: impl Iterator<Item = u64>) -> Vec<(u64, usize)> {
    let mut runs: Vec<(u64, usize)> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some((first, count)) if *first + *count as u64 == page && *count < PIECE_BLOCKS => *count += 1,
            _ => runs.push((page, 1)),
        }
    }
    runs
}
