//! Opens journals (J9 to J11).
//!
//! Opening has this order: the newest sound anchor; home pages, each against its checksum; the batches from the anchor on;
//! their entries in order; the batches behind the last acknowledged position once more, with the same bytes; a flush; an anchor
//! with a new epoch in both copies, durable before the first store. A crash inside changes nothing.

use super::anchors::{newest_anchor, write_both};
use super::cut::cut;
use super::device::{DurableWay, JournalDevice};
use super::error::JournalError;
use super::home::{Home, HomeState};
use super::image::Image;
use super::load::{Loaded, Tables, load_home, load_tables};
use super::log::Log;
use super::medium::{Found, JournaledPm};
use super::pieces::PIECE_BLOCKS;
use super::replay::{LogEnd, replay};
use super::ring::{MIN_RING_BYTES, Ring};
use crate::block::AlignedBlock;
use crate::{BlockMedium, MediaError, PmMedium, memory_available};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use terrace_format::journal::{Anchor, Layout, TABLE_ENTRIES};
use terrace_format::{BLOCK_SIZE, PmOffset};
use terrace_runtime::Clock;

/// Memory that the image leaves to everybody else.
const MEMORY_RESERVE_BYTES: u64 = 256 << 20;
/// Damaged ranges that an opening names in the daemon's log.
const LINES_OF_DAMAGE: usize = 20;

/// Choices of an opening.
#[derive(Debug, Clone, Copy)]
pub struct JournalOptions {
    /// Bytes of the ring (`journal_buffer`).
    pub ring_bytes: u64,
    /// Milliseconds after which the step commits a store without a `persist` (`journal_ms`).
    pub journal_ms: u64,
    /// Nothing is written to the device, and no store succeeds.
    pub read_only: bool,
    /// The way of durable writes (`durable`).
    pub durable: DurableWay,
    /// A damaged log is cut where the damage is: what was acknowledged behind that place is lost (J11).
    pub cut_log: bool,
    /// The image is in large pages and locked in memory, where the system allows that (J1).
    pub resident: bool,
}

impl JournalOptions {
    /// The choices of a mount without options.
    pub const DEFAULT: JournalOptions = JournalOptions {
        ring_bytes: 64 << 20,
        journal_ms: 1000,
        read_only: false,
        durable: DurableWay::Quicker,
        cut_log: false,
        resident: false,
    };
}

impl Default for JournalOptions {
    fn default() -> JournalOptions {
        JournalOptions::DEFAULT
    }
}

/// An opened journal, and the work of opening it.
pub struct OpenedJournal {
    /// The medium.
    pub pm: JournaledPm,
    /// Batches applied.
    pub batches: u64,
    /// Torn pages, put together again from the log.
    pub healed: u64,
    /// Damaged pages of home: reads fail.
    pub condemned: u64,
    /// The position at which a damaged log was cut.
    pub cut_at: Option<u64>,
    /// The reason why the image is not locked in memory, although the options asked for that.
    pub unlocked: Option<std::io::Error>,
}

impl JournaledPm {
    /// Opens a journal: puts the image together from home and log. The clock measures commits, and attempts after errors.
    ///
    /// # Errors
    /// No journal, another version, damage, too little memory, the device's. Nothing was written then.
    pub fn open(
        device: Arc<dyn BlockMedium>,
        options: JournalOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<OpenedJournal, JournalError> {
        let anchor = newest_anchor(&*device)?;
        let damaged = |damage| JournalError::Damaged { device: device.name().to_string(), damage };
        let layout = anchor.layout().map_err(damaged)?;
        check_sizes(&*device, &layout, options.ring_bytes)?;
        let (image, unlocked) = Image::new(layout.image_bytes(), options.resident)?;
        let tables = load_tables(&*device, &layout, &anchor)?;
        let Loaded { torn, unreadable } = load_home(&*device, &layout, &anchor.uuid, &tables, &image.memory)?;
        let Tables { mut checksums, damaged: damaged_blocks, .. } = tables;
        let LogEnd { end, batches, last, going_home, gone_home, damage } =
            replay(&*device, &layout, &anchor, &image)?;
        let is_cut = damage.is_some();
        match damage {
            Some(damage) if !options.cut_log || options.read_only => return Err(damage),
            Some(_) => cut(&*device, &layout, anchor.start, end.position)?,
            None => {}
        }
        // Home has the pages of the anchor's round whole, with a checksum unless the block of the table is lost.
        let is_covered = |page: &u64| !damaged_blocks.contains(&(page / TABLE_ENTRIES as u64));
        let (healed, mut condemned): (BTreeSet<u64>, BTreeSet<u64>) = torn
            .into_iter()
            .partition(|page| going_home.contains(page) || gone_home.contains(page) && !is_covered(page));
        // Each was stored to behind the anchor, so the log has marked it; a page that is not in home must stay dirty.
        healed.iter().for_each(|page| image.mark(*page));
        condemned.extend(unreadable);
        condemn(&*device, &image, &condemned);
        let epoch = anchor.epoch + u64::from(!options.read_only);
        let mut opened =
            Anchor { number: anchor.number + 1, epoch, acknowledged: end.position, clean: false, ..anchor };
        if !options.read_only {
            // The daemon alone may have died: then the last batches, and the last anchor, may be in the device's cache alone.
            if let Some((position, length)) = last {
                write_again(&*device, &layout, position, length)?;
            }
            device.flush()?;
            opened = write_both(&*device, opened)?;
        }
        let wrong = wrong_checksums(&mut checksums, &condemned);
        let every = || (0..layout.table_blocks()).collect::<BTreeSet<u64>>();
        let home = HomeState {
            checksums,
            table: anchor.table,
            torn: healed.clone(),
            condemned: wrong,
            named: going_home.into_iter().map(|page| (page, 0)).collect(),
            // Each block of the other table may be older.
            stale: if anchor.table == 0 { [damaged_blocks, every()] } else { [every(), damaged_blocks] },
            number: opened.number,
            unsure: None,
            round: None,
            mark: None,
            copies: Vec::new(),
        };
        let ring = Ring::new(options.ring_bytes.max(MIN_RING_BYTES), end.position);
        let way = if options.read_only { DurableWay::Dsync } else { options.durable };
        let device = JournalDevice::new(device, way, &*clock)?;
        let log = Log::new((device, layout), (anchor.uuid, epoch), ring, end, clock);
        let home = Home::new(home, &log, anchor.start);
        let found = Found { healed: healed.len() as u64, condemned: condemned.len() as u64 };
        let pm = JournaledPm::new((image, log, home), options.journal_ms, !options.read_only, found);
        let cut_at = is_cut.then_some(end.position);
        Ok(OpenedJournal { pm, batches, healed: found.healed, condemned: found.condemned, cut_at, unlocked })
    }
}

/// For each damaged page a checksum that its content in home does not have. Without a checksum a lost page would read as zeros
/// after the next round: such a page gets the wrong checksum now.
fn wrong_checksums(checksums: &mut [u32], condemned: &BTreeSet<u64>) -> BTreeMap<u64, u32> {
    let mut wrong_of = BTreeMap::new();
    for page in condemned {
        let Some(checksum) = checksums.get_mut(*page as usize) else { continue };
        let wrong = (*checksum ^ 1).max(2);
        wrong_of.insert(*page, wrong);
        if *checksum == 0 {
            *checksum = wrong;
        }
    }
    wrong_of
}

/// Refuses a device shorter than the layout, a log too short for home rounds, and an image beyond the memory of the machine.
fn check_sizes(device: &dyn BlockMedium, layout: &Layout, ring_bytes: u64) -> Result<(), JournalError> {
    if layout.total_blocks() > device.blocks() {
        return Err(JournalError::too_short(device, layout.total_blocks()));
    }
    let least = JournaledPm::least_log_bytes(layout.image_bytes());
    if layout.log_bytes() < least {
        let found = format!("{} bytes", layout.log_bytes());
        let expected = format!("a log of at least {least} bytes");
        let damage = terrace_format::Corrupt::new("journal anchor", expected, found);
        return Err(JournalError::Damaged { device: device.name().to_string(), damage });
    }
    let needed = Image::memory_bytes(layout.image_bytes()) + ring_bytes;
    if let Some(available) = memory_available()
        && needed.saturating_add(MEMORY_RESERVE_BYTES) > available
    {
        return Err(JournalError::NoMemory { device: device.name().to_string(), needed, available });
    }
    Ok(())
}

/// Condemns pages, and says so; neighbours share a line.
fn condemn(device: &dyn BlockMedium, image: &Image, pages: &BTreeSet<u64>) {
    pages.iter().for_each(|page| image.memory.condemn(PmOffset(page * BLOCK_SIZE), BLOCK_SIZE));
    let ranges = image.memory.poisoned_ranges();
    for range in ranges.iter().take(LINES_OF_DAMAGE) {
        let (first, last) = (range.start / BLOCK_SIZE, range.end / BLOCK_SIZE - 1);
        tracing::error!("{}: pages {first} to {last} of tier 0 are damaged; reads fail", device.name());
    }
    if ranges.len() > LINES_OF_DAMAGE {
        let more = ranges.len() - LINES_OF_DAMAGE;
        tracing::error!("{}: {more} further ranges of pages are damaged", device.name());
    }
}

/// Makes a batch of the log durable that reads as it was written.
fn write_again(device: &dyn BlockMedium, layout: &Layout, start: u64, length: u64) -> Result<(), MediaError> {
    let mut buffer = vec![AlignedBlock::zeroed(); PIECE_BLOCKS];
    let (mut at, end) = (start, start + length);
    while at < end {
        let (place, room) = layout.log_block(at);
        let count = ((end - at) / BLOCK_SIZE).min(room).min(PIECE_BLOCKS as u64);
        let piece = &mut buffer[..count as usize];
        device.read(place, piece)?;
        device.write(place, piece)?;
        at += count * BLOCK_SIZE;
    }
    Ok(())
}
