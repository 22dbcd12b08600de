//! Makes and opens journals (J9 to J11).
//!
//! Opening has this order: the newest sound anchor; home pages, each against its checksum; the batches from the anchor on;
//! their entries in order; the last batch once more, with the same bytes; an anchor with a new epoch, durable before the first
//! store. A crash inside changes nothing.

use super::error::JournalError;
use super::home::{Home, HomeState, copy_of, least_log_bytes};
use super::image::Image;
use super::load::{Loaded, Tables, load_home, load_tables};
use super::log::Log;
use super::medium::{Found, JournaledPm};
use super::replay::{LogEnd, replay};
use super::ring::{MIN_RING_BYTES, Ring};
use crate::block::{AlignedBlock, DurableWay};
use crate::{BlockMedium, MediaError, PmMedium, memory_available};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use terrace_format::journal::{
    ANCHOR_COPIES, Anchor, Layout, MIN_LOG_BYTES, RefusedAnchor, TRIAL_BLOCKS, encode_table,
};
use terrace_format::{BLOCK_SIZE, PmOffset};
use terrace_runtime::Clock;

/// Memory that the image leaves to everybody else.
const MEMORY_RESERVE_BYTES: u64 = 256 << 20;

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
}

impl Default for JournalOptions {
    fn default() -> JournalOptions {
        let durable = DurableWay::default();
        JournalOptions { ring_bytes: 64 << 20, journal_ms: 1000, read_only: false, durable }
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
}

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
        assert!(
            layout.log_bytes() >= Self::least_log_bytes(layout.image_bytes()),
            "a log too short for home rounds"
        );
        if layout.total_blocks() > device.blocks() {
            return Err(JournalError::too_short(device, layout.total_blocks()));
        }
        let zeros = [AlignedBlock::zeroed()];
        device.write_durable(&ANCHOR_COPIES.map(|copy| (copy, zeros.as_slice())))?;
        let none = vec![0; terrace_format::journal::TABLE_ENTRIES];
        for table in 0..2 {
            for number in 0..layout.table_blocks() {
                let mut block = AlignedBlock::zeroed();
                block.0.copy_from_slice(&encode_table(&uuid, number, &none));
                device.write(layout.table(table).plus(number), &[block])?;
            }
        }
        device.flush()?;
        // Copy 0 comes last: without it the device still has no journal.
        for number in [1, 2] {
            let anchor = Anchor {
                uuid,
                image_bytes: layout.image_bytes(),
                log_bytes: layout.log_bytes(),
                number,
                epoch: 1,
                start: 0,
                sequence: 1,
                previous: 0,
                acknowledged: 0,
                table: 0,
                clean: true,
            };
            write_anchor(device, &anchor)?;
        }
        Ok(())
    }

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
        let image = Image::new(layout.image_bytes())?;
        let Tables { checksums, unknown, damaged: damaged_blocks } = load_tables(&*device, &layout, &anchor)?;
        let Loaded { torn, unreadable } =
            load_home(&*device, &layout, &anchor.uuid, &checksums, &image.memory)?;
        let LogEnd { end, batches, last, going_home } = replay(&*device, &layout, &anchor, &image)?;
        let (healed, mut condemned): (BTreeSet<u64>, BTreeSet<u64>) =
            torn.into_iter().partition(|page| going_home.contains(page));
        // Each was stored to behind the anchor, so the log has marked it; a page that is not in home must stay dirty.
        healed.iter().for_each(|page| image.mark(*page));
        condemned.extend(unreadable);
        condemned.extend(unknown);
        for page in &condemned {
            tracing::error!("{}: page {page} of tier 0 is damaged; its reads fail", device.name());
            image.memory.condemn(PmOffset(page * BLOCK_SIZE), BLOCK_SIZE);
        }
        let epoch = anchor.epoch + u64::from(!options.read_only);
        let opened =
            Anchor { number: anchor.number + 1, epoch, acknowledged: end.position, clean: false, ..anchor };
        if !options.read_only {
            device.choose_durable(options.durable, TRIAL_BLOCKS)?;
            // The daemon alone may have died: then the last batches may be in the device's cache, and nowhere else.
            if let Some((position, length)) = last {
                write_again(&*device, &layout, position, length)?;
            }
            write_anchor(&*device, &opened)?;
        }
        // A checksum that the content of the page in home does not have.
        let wrong_of =
            |page: &u64| checksums.get(*page as usize).map(|checksum| (*page, (checksum ^ 1).max(2)));
        let wrong: BTreeMap<u64, u32> = condemned.iter().filter_map(wrong_of).collect();
        let every = || (0..layout.table_blocks()).collect::<BTreeSet<u64>>();
        let home = HomeState {
            checksums,
            table: anchor.table,
            torn: healed.clone(),
            condemned: wrong,
            named: going_home,
            // Each block of the other table may be older.
            stale: if anchor.table == 0 { [damaged_blocks, every()] } else { [every(), damaged_blocks] },
            number: opened.number,
            unsure: None,
            round: None,
        };
        let ring = Ring::new(options.ring_bytes.max(MIN_RING_BYTES), end.position);
        let log = Log::new((device, layout), (anchor.uuid, epoch), ring, end, clock);
        let home = Home::new(home, &log, anchor.start);
        let found = Found { healed: healed.len() as u64, condemned: condemned.len() as u64 };
        let pm = JournaledPm::new((image, log, home), options.journal_ms, !options.read_only, found);
        Ok(OpenedJournal { pm, batches, healed: healed.len() as u64, condemned: condemned.len() as u64 })
    }
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

/// Makes batches of the log durable that read as they were written.
fn write_again(device: &dyn BlockMedium, layout: &Layout, start: u64, length: u64) -> Result<(), MediaError> {
    for position in (start..start + length).step_by(BLOCK_SIZE as usize) {
        let mut block = [AlignedBlock::zeroed()];
        let (place, _) = layout.log_block(position);
        device.read(place, &mut block)?;
        device.write(place, &block)?;
    }
    device.flush()
}

fn write_anchor(device: &dyn BlockMedium, anchor: &Anchor) -> Result<(), MediaError> {
    let mut block = AlignedBlock::zeroed();
    block.0.copy_from_slice(&anchor.encode());
    device.write_durable(&[(copy_of(anchor.number), &[block])])
}

/// The newest sound anchor of a device.
fn newest_anchor(device: &dyn BlockMedium) -> Result<Anchor, JournalError> {
    let name = || device.name().to_string();
    let mut newest: Option<Anchor> = None;
    let mut refused = Vec::new();
    let mut failed = None;
    for copy in ANCHOR_COPIES.into_iter().filter(|copy| copy.0 < device.blocks()) {
        let mut block = [AlignedBlock::zeroed()];
        if let Err(error) = device.read(copy, &mut block) {
            failed = Some(error);
            continue;
        }
        match Anchor::decode(&block[0].0) {
            Ok(anchor) if newest.is_none_or(|other| other.number < anchor.number) => newest = Some(anchor),
            Ok(_) => {}
            Err(why) => refused.push(why),
        }
    }
    if let Some(anchor) = newest {
        return Ok(anchor);
    }
    let version = refused.iter().find_map(|why| match why {
        RefusedAnchor::Version(version) => Some(*version),
        _ => None,
    });
    if let Some(version) = version {
        return Err(JournalError::Version { device: name(), version });
    }
    let damage = refused.into_iter().find_map(|why| match why {
        RefusedAnchor::Corrupt(damage) => Some(damage),
        _ => None,
    });
    match (damage, failed) {
        (Some(damage), _) => Err(JournalError::Damaged { device: name(), damage }),
        (None, Some(error)) => Err(error.into()),
        (None, None) => Err(JournalError::NotAJournal { device: name() }),
    }
}
