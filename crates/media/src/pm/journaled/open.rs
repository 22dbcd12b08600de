//! Opens journals (J9 to J11).
//!
//! Opening has this order: the newest sound anchor; home pages, each against its checksum; the batches from the anchor on;
//! their entries in order; the batches behind the last acknowledged position once more, with the same bytes; a flush; an anchor
//! with a new epoch in both copies, durable before the first store. A crash inside changes nothing.

use super::cut::cut;
use super::error::JournalError;
use super::image::Image;
use super::load::{Loaded, Tables, load_home, load_tables};
use super::medium::JournaledPm;
use super::opening::{Content, JournalOptions, OpenedJournal, Opening};
use super::replay::replay;
use crate::{BlockMedium, memory_available};
use std::collections::BTreeSet;
use std::sync::Arc;
use terrace_format::journal::{Layout, TABLE_ENTRIES};
use terrace_runtime::Clock;

/// Memory that the image leaves to everybody else.
const MEMORY_RESERVE_BYTES: u64 = 256 << 20;

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
        Opening::begin(device, options, clock)?.load()
    }
}

impl Opening {
    /// Puts the image together from home and log.
    pub fn load(self) -> Result<OpenedJournal, JournalError> {
        let Opening { device, options, anchor, layout, .. } = &self;
        refuse_scarce(&**device, layout, options.ring_bytes)?;
        let (image, unlocked) = Image::new(layout.image_bytes(), options.resident)?;
        let tables = load_tables(&**device, layout, anchor)?;
        let Loaded { torn, unreadable } = load_home(&**device, layout, &anchor.uuid, &tables, &image.memory)?;
        let Tables { checksums, damaged: damaged_blocks, .. } = tables;
        let mut log_end = replay(&**device, layout, anchor, Some(&image))?;
        let end = log_end.end;
        let damage = log_end.damage.take();
        let cut_at = damage.is_some().then_some(end.position);
        match damage {
            Some(damage) if !options.cut_log || options.read_only => return Err(damage),
            Some(_) => cut(&**device, layout, anchor.start, end.position)?,
            None => {}
        }
        // Home has the pages of the anchor's round whole, with a checksum unless the block of the table is lost.
        let is_covered = |page: &u64| !damaged_blocks.contains(&(page / TABLE_ENTRIES as u64));
        let (healed, mut condemned): (BTreeSet<u64>, BTreeSet<u64>) = torn.into_iter().partition(|page| {
            log_end.going_home.contains(page) || log_end.gone_home.contains(page) && !is_covered(page)
        });
        // Each was stored to behind the anchor, so the log has marked it; a page that is not in home must stay dirty.
        healed.iter().for_each(|page| image.mark(*page));
        condemned.extend(unreadable);
        if !options.read_only {
            self.write_last(log_end.last)?;
        }
        let healed_pages = healed.len() as u64;
        let content = Content {
            image,
            unlocked,
            checksums,
            damaged_blocks,
            torn: healed,
            condemned,
            healed: healed_pages,
        };
        Ok(OpenedJournal { cut_at, ..self.finish(content, log_end, end)? })
    }
}

/// Refuses an image beyond the memory of the machine.
fn refuse_scarce(device: &dyn BlockMedium, layout: &Layout, ring_bytes: u64) -> Result<(), JournalError> {
    let needed = Image::memory_bytes(layout.image_bytes()) + ring_bytes;
    match memory_available() {
        Some(available) if needed.saturating_add(MEMORY_RESERVE_BYTES) > available => {
            Err(JournalError::NoMemory { device: device.name().to_string(), needed, available })
        }
        _ => Ok(()),
    }
}
