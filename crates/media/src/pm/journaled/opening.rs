//! The parts of an opening that are the same from the device alone and with the memory of the last process (J10, J13).

use super::anchors::{newest_anchor, older_copy, write_both};
use super::commits::Boundary;
use super::device::{DurableWay, JournalDevice};
use super::error::JournalError;
use super::home::{Home, HomeState};
use super::image::Image;
use super::log::Log;
use super::medium::{Found, JournaledPm};
use super::pieces::PIECE_BLOCKS;
use super::replay::LogEnd;
use super::ring::{MIN_RING_BYTES, Ring};
use crate::block::AlignedBlock;
use crate::{BlockMedium, MediaError, PmMedium};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use terrace_format::journal::{Anchor, Layout};
use terrace_format::{BLOCK_SIZE, Corrupt, PmOffset};
use terrace_runtime::Clock;

/// Damaged ranges that an opening names in the daemon's log.
const LINES_OF_DAMAGE: usize = 20;

/// Odd, so that sums do not repeat.
const WRONG_BY: u32 = 0x9e37_79b9;

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
    /// Pages logged whole, if the image is the memory of the last process ([`JournaledPm::resume`]).
    pub resumed: Option<u64>,
    /// The position at which a damaged log was cut.
    pub cut_at: Option<u64>,
    /// The reason why the image is not locked in memory, although the options asked for that.
    pub unlocked: Option<std::io::Error>,
}

/// An opening that has found its anchor.
pub(super) struct Opening {
    pub device: Arc<dyn BlockMedium>,
    pub options: JournalOptions,
    pub clock: Arc<dyn Clock>,
    pub anchor: Anchor,
    pub layout: Layout,
}

/// The image of an opening, and the state of home.
pub(super) struct Content {
    pub image: Image,
    /// The reason why the image is not locked in memory.
    pub unlocked: Option<std::io::Error>,
    /// Checksums of home.
    pub checksums: Vec<u32>,
    /// Damaged blocks of the table in use.
    pub damaged_blocks: BTreeSet<u64>,
    /// Pages that are torn in home, or may be. The image has them, dirty unless forgotten.
    pub torn: BTreeSet<u64>,
    pub condemned: BTreeSet<u64>,
    /// Pages put together again from the log.
    pub healed: u64,
}

impl Opening {
    /// Finds the newest anchor.
    pub fn begin(
        device: Arc<dyn BlockMedium>,
        options: JournalOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Opening, JournalError> {
        let anchor = newest_anchor(&*device)?;
        let damaged = |damage| JournalError::Damaged { device: device.name().to_string(), damage };
        let layout = anchor.layout().map_err(damaged)?;
        check_sizes(&*device, &layout)?;
        Ok(Opening { device, options, clock, anchor, layout })
    }

    /// Makes the last batches durable. The daemon alone may have died: then these batches, and the last anchor, may be in the
    /// device's cache alone.
    pub fn write_last(&self, last: Option<(u64, u64)>) -> Result<(), MediaError> {
        if let Some((position, length)) = last {
            write_again(&*self.device, &self.layout, position, length)?;
        }
        self.device.flush()
    }

    /// Makes the medium of an image, behind an anchor with a new epoch whose log ends at a boundary. Everything before the
    /// boundary is durable.
    pub fn finish(
        self,
        content: Content,
        log_end: LogEnd,
        end: Boundary,
    ) -> Result<OpenedJournal, JournalError> {
        let Opening { device, options, clock, anchor, layout } = self;
        let Content { image, unlocked, mut checksums, damaged_blocks, torn, condemned, healed } = content;
        condemn(&*device, &image, &condemned);
        let epoch = anchor.epoch + u64::from(!options.read_only);
        let mut opened =
            Anchor { number: anchor.number + 1, epoch, acknowledged: end.position, clean: false, ..anchor };
        if !options.read_only {
            opened = write_both(&*device, opened)?;
        }
        let wrong = wrong_checksums(&mut checksums, &condemned);
        let every = || (0..layout.table_blocks()).collect::<BTreeSet<u64>>();
        let home = HomeState {
            checksums,
            table: anchor.table,
            torn,
            condemned: wrong,
            named: log_end.going_home.into_iter().map(|page| (page, 0)).collect(),
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
        if !options.read_only {
            image.kept.set_name(&image.memory, &anchor.uuid, epoch, older_copy(&opened));
        }
        let found = Found { healed, condemned: condemned.len() as u64 };
        let pm = JournaledPm::new((image, log, home), options.journal_ms, !options.read_only, found);
        Ok(OpenedJournal {
            pm,
            batches: log_end.batches,
            healed,
            condemned: found.condemned,
            resumed: None,
            cut_at: None,
            unlocked,
        })
    }
}

/// For each damaged page a checksum that its content in home does not have. Without a checksum a lost page would read as zeros
/// after the next round: such a page gets the wrong checksum now.
fn wrong_checksums(checksums: &mut [u32], condemned: &BTreeSet<u64>) -> BTreeMap<u64, u32> {
    let mut wrong_of = BTreeMap::new();
    for page in condemned {
        let Some(checksum) = checksums.get_mut(*page as usize) else { continue };
        // A later opening adds again, and never comes back to a checksum from before.
        let wrong = match checksum.wrapping_add(WRONG_BY) {
            0 => WRONG_BY,
            wrong => wrong,
        };
        wrong_of.insert(*page, wrong);
        if *checksum == 0 {
            *checksum = wrong;
        }
    }
    wrong_of
}

/// Refuses a device shorter than the layout, and a log too short for home rounds.
fn check_sizes(device: &dyn BlockMedium, layout: &Layout) -> Result<(), JournalError> {
    if layout.total_blocks() > device.blocks() {
        return Err(JournalError::too_short(device, layout.total_blocks()));
    }
    let least = JournaledPm::least_log_bytes(layout.image_bytes());
    if layout.log_bytes() < least {
        let found = format!("{} bytes", layout.log_bytes());
        let expected = format!("a log of at least {least} bytes");
        let damage = Corrupt::new("journal anchor", expected, found);
        return Err(JournalError::Damaged { device: device.name().to_string(), damage });
    }
    Ok(())
}

/// Condemns pages, and says so; neighbours share a line.
fn condemn(device: &dyn BlockMedium, image: &Image, pages: &BTreeSet<u64>) {
    for page in pages {
        image.memory.condemn(PmOffset(page * BLOCK_SIZE), BLOCK_SIZE);
        image.kept.condemn(&image.memory, *page);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_checksums_never_come_back_to_earlier_checksums() {
        for checksum in [0, 1, 7, u32::MAX, 0u32.wrapping_sub(WRONG_BY)] {
            let mut seen = BTreeSet::from([checksum]);
            let mut checksums = [checksum];
            for opening in 0..1000 {
                let wrong = wrong_checksums(&mut checksums, &BTreeSet::from([0]));
                // A round gives the table the wrong checksum.
                checksums = [wrong[&0]];
                assert!(checksums != [0] && seen.insert(checksums[0]), "{checksum}, opening {opening}");
            }
        }
    }
}
