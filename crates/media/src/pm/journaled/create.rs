//! Makes journals: empty, or with the content of another medium.
//!
//! The anchors come last: before, the device has no journal, also after a crash.

use super::anchors::{FIRST_NUMBER, erase_anchors, write_both};
use super::error::JournalError;
use super::home::least_log_bytes;
use super::medium::JournaledPm;
use crate::block::{AlignedBlock, Run};
use crate::{BlockMedium, MediaError, PmMedium};
use terrace_format::journal::{Anchor, Layout, MIN_LOG_BYTES, TABLE_ENTRIES, encode_table, page_checksum};
use terrace_format::{BLOCK_SIZE, PmOffset};

/// Pages of a write: 1 MiB.
const PAGES_OF_WRITE: u64 = 256;

impl JournaledPm {
    /// The smallest log for an image of so many bytes.
    pub fn least_log_bytes(image_bytes: u64) -> u64 {
        least_log_bytes(image_bytes).max(MIN_LOG_BYTES)
    }

    /// Makes a journal of this layout whose image is zeros. The old content of the device is lost. A crash before the end leaves
    /// no journal.
    ///
    /// # Errors
    /// A device too small for the layout; the device's.
    pub fn create(device: &dyn BlockMedium, layout: Layout, uuid: [u8; 16]) -> Result<(), JournalError> {
        erase(device, &layout)?;
        finish(device, layout, uuid, &vec![0; layout.pages() as usize])
    }

    /// As [`Self::create`], with the content of another medium as the image. `progress` gets the bytes done.
    ///
    /// # Errors
    /// As there; a range of the content that cannot be read.
    pub fn create_from(
        device: &dyn BlockMedium,
        layout: Layout,
        uuid: [u8; 16],
        content: &dyn PmMedium,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), JournalError> {
        assert_eq!(content.size(), layout.image_bytes(), "the content of another size");
        erase(device, &layout)?;
        let mut checksums = Vec::with_capacity(layout.pages() as usize);
        for first in (0..layout.pages()).step_by(PAGES_OF_WRITE as usize) {
            let mut pages = vec![AlignedBlock::zeroed(); PAGES_OF_WRITE.min(layout.pages() - first) as usize];
            for (page, block) in (first..).zip(&mut pages) {
                content.read(PmOffset(page * BLOCK_SIZE), &mut block.0)?;
                // A page of zeros is one that was never written.
                let is_zero = block.0.iter().all(|byte| *byte == 0);
                checksums.push(if is_zero { 0 } else { page_checksum(&uuid, page, &block.0) });
            }
            device.write_runs(&written(&layout, first, &pages, &checksums[first as usize..]))?;
            progress((first + pages.len() as u64) * BLOCK_SIZE);
        }
        finish(device, layout, uuid, &checksums)
    }
}

/// The runs of pages with a checksum, with their places in home.
fn written<'a>(layout: &Layout, first: u64, pages: &'a [AlignedBlock], checksums: &[u32]) -> Vec<Run<'a>> {
    let mut at = 0;
    let groups = checksums.chunk_by(|one, other| (*one == 0) == (*other == 0));
    let runs = groups.map(|group| {
        let start = at;
        at += group.len();
        let place = layout.home().plus(first + start as u64);
        (group.first() != Some(&0)).then(|| (place, &pages[start..at]))
    });
    runs.flatten().collect()
}

/// Takes the anchors of an old journal away.
fn erase(device: &dyn BlockMedium, layout: &Layout) -> Result<(), JournalError> {
    let least = JournaledPm::least_log_bytes(layout.image_bytes());
    assert!(layout.log_bytes() >= least, "a log too short for home rounds");
    if layout.total_blocks() > device.blocks() {
        return Err(JournalError::too_short(device, layout.total_blocks()));
    }
    erase_anchors(device)?;
    Ok(())
}

/// Writes tables and anchors of pages that are in home.
fn finish(
    device: &dyn BlockMedium,
    layout: Layout,
    uuid: [u8; 16],
    checksums: &[u32],
) -> Result<(), JournalError> {
    write_tables(device, &layout, &uuid, checksums)?;
    device.flush()?;
    let anchor = Anchor {
        uuid,
        image_bytes: layout.image_bytes(),
        log_bytes: layout.log_bytes(),
        number: FIRST_NUMBER,
        epoch: 1,
        start: 0,
        sequence: 1,
        previous: 0,
        acknowledged: 0,
        named: 0,
        table: 0,
        clean: true,
    };
    write_both(device, anchor)?;
    Ok(())
}

/// Writes both tables.
pub(super) fn write_tables(
    device: &dyn BlockMedium,
    layout: &Layout,
    uuid: &[u8; 16],
    checksums: &[u32],
) -> Result<(), MediaError> {
    for table in 0..2 {
        for (number, checksums) in (0..).zip(checksums.chunks(TABLE_ENTRIES)) {
            let mut block = AlignedBlock::zeroed();
            block.0.copy_from_slice(&encode_table(uuid, number, checksums));
            device.write(layout.table(table).plus(number), &[block])?;
        }
    }
    Ok(())
}
