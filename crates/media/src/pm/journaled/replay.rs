//! Applies the log to the image of a journal that is opened (J10, J11).
//!
//! The log ends at the first invalid batch. An unreadable block at this place is damage (T3). So is an acknowledged place: the
//! anchor or a later batch proves the acknowledgement.

use super::error::JournalError;
use super::home::PAGES_AT_ONCE;
use super::image::Image;
use super::log::Boundary;
use crate::block::{AlignedBlock, BlockRead, Buffer, bytes_of};
use crate::{BlockMedium, PmMedium};
use std::collections::BTreeSet;
use terrace_format::journal::{Anchor, BatchHeader, EntryKind, Layout, MAX_BATCH_BYTES, entries};
use terrace_format::{BLOCK_SIZE, Corrupt};
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::IN_MODELS;

/// Bytes behind the end of the log in which a batch may prove damage.
const PROOF_BYTES: u64 = if IN_MODELS { 64 << 10 } else { 16 << 20 };
/// Bytes of the log for a read: at first 256 KiB, as most logs are short, doubled with each read.
const WINDOW_BYTES: [u64; 2] = [256 << 10, 2 * MAX_BATCH_BYTES];
/// Bytes of one read.
const PIECE_BYTES: u64 = 1 << 20;

/// The end of a log, after all entries went into the image.
pub(super) struct LogEnd {
    /// Behind the last valid batch.
    pub end: Boundary,
    /// Batches applied.
    pub batches: u64,
    /// Start and length of the batches that nobody acknowledged, as far as the log says: the device's cache alone may have them.
    pub last: Option<(u64, u64)>,
    /// Pages on the way home at the crash, perhaps torn there.
    pub going_home: BTreeSet<u64>,
}

/// A part of the log in memory.
struct Window<'a> {
    device: &'a dyn BlockMedium,
    layout: &'a Layout,
    buffer: Buffer,
    start: u64,
    blocks: usize,
    /// Unreadable blocks of the window.
    unreadable: BTreeSet<usize>,
}

/// A valid batch: header, CRC and bytes.
type Batch<'a> = (BatchHeader, u32, &'a [u8]);

/// A read error inside the log.
struct Unreadable;

impl<'a> Window<'a> {
    fn new(device: &'a dyn BlockMedium, layout: &'a Layout) -> Window<'a> {
        Window { device, layout, buffer: Vec::new(), start: 0, blocks: 0, unreadable: BTreeSet::new() }
    }

    /// Blocks at a position.
    fn get(&mut self, position: u64, bytes: u64) -> Result<&[AlignedBlock], Unreadable> {
        let count = (bytes / BLOCK_SIZE) as usize;
        let inside =
            position >= self.start && position + bytes <= self.start + self.blocks as u64 * BLOCK_SIZE;
        if !inside {
            self.fill(position, bytes);
        }
        let first = ((position - self.start) / BLOCK_SIZE) as usize;
        if self.unreadable.range(first..first + count).next().is_some() {
            return Err(Unreadable);
        }
        Ok(&self.buffer[first..first + count])
    }

    fn fill(&mut self, position: u64, least: u64) {
        let Window { device, layout, buffer, unreadable, .. } = self;
        unreadable.clear();
        let [first, most] = WINDOW_BYTES;
        let bytes = (2 * buffer.len() as u64 * BLOCK_SIZE).clamp(first, most).max(least);
        buffer.resize((bytes / BLOCK_SIZE) as usize, AlignedBlock::zeroed());
        let mut rest = buffer.as_mut_slice();
        let mut reads = Vec::new();
        let mut at = position;
        while !rest.is_empty() {
            let (first, room) = layout.log_block(at);
            let most = rest.len().min(room as usize).min((PIECE_BYTES / BLOCK_SIZE) as usize);
            let (now, later) = rest.split_at_mut(most);
            reads.push(BlockRead::new(first, now));
            rest = later;
            at += most as u64 * BLOCK_SIZE;
        }
        device.read_all(&mut reads);
        let mut index = 0;
        for read in reads {
            for (offset, block) in read.into.iter_mut().enumerate() {
                let failed = read.result.is_err()
                    && device.read(read.first.plus(offset as u64), std::slice::from_mut(block)).is_err();
                if failed {
                    unreadable.insert(index);
                }
                index += 1;
            }
        }
        self.start = position;
        self.blocks = index;
    }
}

/// Applies all batches from the anchor on.
///
/// # Errors
/// Damage before the end of the log; impossible entries.
pub(super) fn replay(
    device: &dyn BlockMedium,
    layout: &Layout,
    anchor: &Anchor,
    image: &Image,
) -> Result<LogEnd, JournalError> {
    let mut window = Window::new(device, layout);
    let end = Boundary { position: anchor.start, sequence: anchor.sequence, previous: anchor.previous };
    let mut log = LogEnd { end, batches: 0, last: None, going_home: BTreeSet::new() };
    let damaged = |position: u64, found: &str| {
        let site = format!("the journal's log at position {position}");
        let damage = Corrupt::new(site, "a batch that was acknowledged", found);
        JournalError::Damaged { device: device.name().to_string(), damage }
    };
    let mut epoch = 0;
    loop {
        // No batch follows a clean anchor.
        if anchor.clean {
            break;
        }
        let at = log.end;
        let left = anchor.start + layout.log_bytes() - at.position;
        let found = match next_batch(&mut window, anchor, at, left) {
            Ok(found) => found,
            Err(Unreadable) => return Err(damaged(at.position, "an unreadable block")),
        };
        let is_later = |header: &BatchHeader| header.epoch >= epoch || planted(Mistake::ChainNotChecked);
        let Some((header, crc, batch)) = found.filter(|(header, _, _)| is_later(header)) else { break };
        let list = entries(batch, layout.image_bytes())
            .map_err(|damage| JournalError::Damaged { device: device.name().to_string(), damage })?;
        for entry in list {
            match entry.kind {
                EntryKind::Store => {
                    for page in entry.offset.0 / BLOCK_SIZE..=last_page(entry.offset.0, entry.bytes.len()) {
                        image.mark(page);
                    }
                    image.memory.store(entry.offset, entry.bytes)?;
                }
                EntryKind::GoingHome => note_pages(&mut log.going_home, entry.bytes, layout.pages())
                    .map_err(|damage| JournalError::Damaged { device: device.name().to_string(), damage })?,
            }
        }
        epoch = header.epoch;
        let first = header.acknowledged.max(anchor.start);
        log.last = Some((first, at.position + header.length - first));
        log.batches += 1;
        log.end =
            Boundary { position: at.position + header.length, sequence: at.sequence + 1, previous: crc };
    }
    let end = log.end.position;
    if end < anchor.acknowledged || proves_more(&mut window, anchor, end) {
        return Err(damaged(end, "no valid batch, although the log went on"));
    }
    Ok(log)
}

fn last_page(offset: u64, length: usize) -> u64 {
    (offset + (length as u64).max(1) - 1) / BLOCK_SIZE
}

/// The batch at a boundary, if valid and next in the chain: header, CRC and bytes.
fn next_batch<'a>(
    window: &'a mut Window<'_>,
    anchor: &Anchor,
    at: Boundary,
    left: u64,
) -> Result<Option<Batch<'a>>, Unreadable> {
    if left < BLOCK_SIZE {
        return Ok(None);
    }
    let first = window.get(at.position, BLOCK_SIZE)?;
    let header = BatchHeader::peek(bytes_of(first), at.position).filter(|header| {
        let is_next = header.previous == at.previous || planted(Mistake::ChainNotChecked);
        let continues = header.sequence == at.sequence && is_next;
        continues && header.epoch <= anchor.epoch && header.length <= left
    });
    let Some(header) = header else { return Ok(None) };
    let batch = bytes_of(window.get(at.position, header.length)?);
    Ok(header.verify(&anchor.uuid, batch).map(|crc| (header, crc, batch)))
}

/// Whether a valid batch behind the end of the log names a later acknowledged position.
fn proves_more(window: &mut Window<'_>, anchor: &Anchor, end: u64) -> bool {
    let last = (end + PROOF_BYTES).min(anchor.start + anchor.log_bytes);
    let mut position = end;
    while position < last {
        // The place may also have a batch of the next lap, if this anchor is the older copy and the newer is damaged.
        for of_lap in [position, position + anchor.log_bytes] {
            let found = window.get(position, BLOCK_SIZE).ok();
            let header = found.and_then(|block| BatchHeader::peek(bytes_of(block), of_lap));
            // A larger epoch proves a newer anchor: it was durable before that batch.
            let proves = |header: &BatchHeader| header.acknowledged > end || header.epoch > anchor.epoch;
            let Some(header) = header.filter(proves) else { continue };
            let batch = window.get(position, header.length).ok();
            if batch.is_some_and(|batch| header.verify(&anchor.uuid, bytes_of(batch)).is_some()) {
                return true;
            }
        }
        position += BLOCK_SIZE;
    }
    false
}

/// Notes the pages of an entry.
fn note_pages(pages: &mut BTreeSet<u64>, bytes: &[u8], limit: u64) -> Result<(), Corrupt> {
    let mut left = PAGES_AT_ONCE as u64;
    for pair in bytes.as_chunks::<8>().0 {
        let [a, b, c, d, e, f, g, h] = *pair;
        let first = u64::from(u32::from_le_bytes([a, b, c, d]));
        let count = u64::from(u32::from_le_bytes([e, f, g, h]));
        left = left.checked_sub(count).ok_or_else(|| {
            Corrupt::new("journal entry", format!("at most {PAGES_AT_ONCE} pages on their way home"), "more")
        })?;
        pages.extend(first.min(limit)..(first + count).min(limit));
    }
    Ok(())
}
