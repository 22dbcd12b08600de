//! Applies the log to the image of a journal that is opened (J10, J11).
//!
//! The log ends at the first invalid batch. An unreadable block at this place is damage (T3). So is an acknowledged place: the
//! anchor or a later batch proves the acknowledgement.

use super::commits::Boundary;
use super::error::JournalError;
use super::home::PAGES_AT_ONCE;
use super::image::Image;
use super::pieces::{PIECE_BLOCKS, read_pieces};
use crate::block::{AlignedBlock, BlockRead, Buffer, bytes_of};
use crate::{BlockMedium, PmMedium};
use std::collections::BTreeSet;
use terrace_format::journal::{Anchor, BatchHeader, EntryKind, Layout, MAX_BATCH_BYTES, entries};
use terrace_format::{BLOCK_SIZE, Corrupt};
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::IN_MODELS;

/// Bytes behind the end of the log in which a batch may prove damage.
pub(super) const PROOF_BYTES: u64 = if IN_MODELS { 64 << 10 } else { 16 << 20 };
/// Bytes of the log for a read: at first 256 KiB, as most logs are short, doubled with each read.
const WINDOW_BYTES: [u64; 2] = [256 << 10, 2 * MAX_BATCH_BYTES];
/// Bytes of alleged proofs with a wrong CRC, after which the log counts as damaged: no crash leaves so many.
const MOST_WRONG_BYTES: u64 = 16 * MAX_BATCH_BYTES;

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
    /// Pages that went home in the round of the anchor: the anchor's table has their checksums.
    pub gone_home: BTreeSet<u64>,
    /// The damage at the end: the log had more.
    pub damage: Option<JournalError>,
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
        let [first, most] = WINDOW_BYTES;
        let bytes = (2 * buffer.len() as u64 * BLOCK_SIZE).clamp(first, most).max(least);
        buffer.resize((bytes / BLOCK_SIZE) as usize, AlignedBlock::zeroed());
        let mut rest = buffer.as_mut_slice();
        let mut reads = Vec::new();
        let mut at = position;
        while !rest.is_empty() {
            let (first, room) = layout.log_block(at);
            let (now, later) = rest.split_at_mut(rest.len().min(room as usize).min(PIECE_BLOCKS));
            at += now.len() as u64 * BLOCK_SIZE;
            reads.push(BlockRead::new(first, now));
            rest = later;
        }
        *unreadable = read_pieces(*device, &mut reads);
        self.start = position;
        self.blocks = self.buffer.len();
    }
}

/// Applies all batches from the anchor on, up to the first damage. Without an image, looks for the end alone.
///
/// # Errors
/// Impossible entries.
pub(super) fn replay(
    device: &dyn BlockMedium,
    layout: &Layout,
    anchor: &Anchor,
    image: Option<&Image>,
) -> Result<LogEnd, JournalError> {
    let mut window = Window::new(device, layout);
    let end = Boundary { position: anchor.start, sequence: anchor.sequence, previous: anchor.previous };
    let mut log = LogEnd {
        end,
        batches: 0,
        last: None,
        going_home: BTreeSet::new(),
        gone_home: BTreeSet::new(),
        damage: None,
    };
    let damage_of = |damage| JournalError::Damaged { device: device.name().to_string(), damage };
    let damaged = |position: u64, found: &str| {
        let site = format!("the journal's log at position {position}");
        let damage = Corrupt::new(site, "a batch that was acknowledged", found);
        JournalError::DamagedLog { device: device.name().to_string(), damage }
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
            Err(Unreadable) => {
                log.damage = Some(damaged(at.position, "an unreadable block"));
                return Ok(log);
            }
        };
        let is_later = |header: &BatchHeader| header.epoch >= epoch || planted(Mistake::ChainNotChecked);
        let Some((header, crc, batch)) = found.filter(|(header, _, _)| is_later(header)) else { break };
        let list = entries(batch, layout.image_bytes()).map_err(damage_of)?;
        for entry in list {
            match entry.kind {
                EntryKind::Store => {
                    let Some(image) = image else { continue };
                    for page in entry.offset.0 / BLOCK_SIZE..=last_page(entry.offset.0, entry.bytes.len()) {
                        image.mark(page);
                    }
                    image.memory.store(entry.offset, entry.bytes)?;
                }
                EntryKind::GoingHome => {
                    let pages =
                        if at.position < anchor.named { &mut log.gone_home } else { &mut log.going_home };
                    note_pages(pages, entry.bytes, layout.pages()).map_err(damage_of)?;
                }
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
        log.damage = Some(damaged(end, "no valid batch, although the log went on"));
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

/// Whether a valid batch behind the end of the log, or of a later lap in its place, names a later acknowledged position.
fn proves_more(window: &mut Window<'_>, anchor: &Anchor, end: u64) -> bool {
    let last = (end + PROOF_BYTES).min(anchor.start + anchor.log_bytes);
    let mut wrong_bytes = 0;
    for place in (end..last).step_by(BLOCK_SIZE as usize) {
        let found = window.get(place, BLOCK_SIZE).ok();
        let Some(header) = found.and_then(|block| BatchHeader::peek_any(bytes_of(block))) else { continue };
        // A batch of a later lap is there if this anchor is the older copy, and the newer is damaged.
        let is_here = header.position >= place && (header.position - place).is_multiple_of(anchor.log_bytes);
        // A larger epoch proves a newer anchor: it was durable before that batch.
        let says_more = header.acknowledged > end || header.epoch > anchor.epoch;
        if !is_here || !says_more {
            continue;
        }
        let batch = window.get(place, header.length).ok();
        if batch.is_some_and(|batch| header.verify(&anchor.uuid, bytes_of(batch)).is_some()) {
            return true;
        }
        wrong_bytes += header.length;
        if wrong_bytes > MOST_WRONG_BYTES {
            return true;
        }
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
