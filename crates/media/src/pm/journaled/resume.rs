//! Takes up the memory of a process that died (J13): the image with each store of the process.
//!
//! The order: the memory must name this journal and the epoch of its newest anchor; the log is read up to its end, which the
//! image has passed; the last batches are made durable; all dirty pages are logged whole behind the end, as batches of the same
//! epoch; an anchor with a new epoch follows, as in each opening.
//!
//! Invariants: dirty pages are all pages with a store that the log may lack. The batches of the whole pages count together: the
//! first of them is written last, when the others are durable, so a loss of power leaves the log's end or the whole image. They
//! have the anchor's epoch and acknowledge nothing new, so they prove no damage before the first is there (J11). What the memory
//! cannot give is opened from the device, as after a loss of power.

use super::commits::Boundary;
use super::error::JournalError;
use super::home::share_of_round;
use super::image::Image;
use super::load::load_tables;
use super::medium::JournaledPm;
use super::opening::{Content, JournalOptions, OpenedJournal, Opening};
use super::pieces::log_runs;
use super::replay::{LogEnd, replay};
use super::ring::MARGIN_BYTES;
use crate::block::AlignedBlock;
use crate::{BlockMedium, MediaError, PmMedium};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use terrace_format::journal::{BATCH_HEADER_BYTES, BatchHeader, Entry, EntryKind, entry_bytes};
use terrace_format::{BLOCK_SIZE, PmOffset};
use terrace_runtime::Clock;
use terrace_runtime::sync::IN_MODELS;

/// Pages of a batch: 1 MiB, with headers.
const PAGES_OF_BATCH: usize = if IN_MODELS { 2 } else { 254 };

impl JournaledPm {
    /// The memory file: a process that has it can take up the image after the end of this one ([`Self::resume`]).
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.image().memory.file().as_fd()
    }

    /// Takes up the memory of a process that has ended ([`Self::memory`]): the content is what that process left, and is durable
    /// when this returns. A memory that does not belong to the newest anchor of the device, or has no use, is passed over with a
    /// warning, and the journal is opened from the device. The process that had the memory must have ended.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn resume(
        memory: OwnedFd,
        device: Arc<dyn BlockMedium>,
        options: JournalOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<OpenedJournal, JournalError> {
        let opening = Opening::begin(device, options, clock)?;
        let name = opening.device.name().to_string();
        match take_up(opening, memory)? {
            Taken::Up(opened) => Ok(*opened),
            Taken::Not(opening, why) => {
                tracing::warn!("{name}: the memory of the last process is not taken up: {why}");
                opening.load()
            }
        }
    }
}

/// The outcome of an attempt.
enum Taken {
    Up(Box<OpenedJournal>),
    /// The reason against the memory.
    Not(Opening, String),
}

fn take_up(opening: Opening, memory: OwnedFd) -> Result<Taken, JournalError> {
    let (image, unlocked) = match image_of(&opening, memory) {
        Ok(found) => found,
        Err(why) => return Ok(Taken::Not(opening, why)),
    };
    match image.kept.epoch_and_number(&image.memory, &opening.anchor.uuid) {
        // The move to that device was whole when the memory got its epoch.
        Some((epoch, _)) if epoch > opening.anchor.epoch => {
            return Err(JournalError::MovedAway { device: opening.device.name().to_string() });
        }
        Some((epoch, number)) if epoch == opening.anchor.epoch && number <= opening.anchor.number => {}
        Some(_) => {
            let why = "the journal was opened since, or its newest anchor is damaged".to_string();
            return Ok(Taken::Not(opening, why));
        }
        None => {
            return Ok(Taken::Not(opening, "it belongs to another journal, or was never whole".into()));
        }
    }
    let tables = load_tables(&*opening.device, &opening.layout, &opening.anchor)?;
    let log_end = replay(&*opening.device, &opening.layout, &opening.anchor, None)?;
    // The opening from the device tells the pages of a damaged table apart by their content in home.
    let refusal = if log_end.damage.is_some() {
        Some("the log is damaged")
    } else if !tables.damaged.is_empty() {
        Some("the table of pages is damaged")
    } else {
        None
    };
    if let Some(why) = refusal {
        return Ok(Taken::Not(opening, why.to_string()));
    }
    image.dirty.give_back(&image.memory);
    let condemned = image.kept.condemned(&image.memory);
    let mut pages = image.dirty.list(&image.memory, 0, usize::MAX);
    pages.retain(|page| !condemned.contains(page));
    let end = match log_whole(&opening, &image, &log_end, &pages) {
        Ok(end) => end,
        Err(Refused::Room) => return Ok(Taken::Not(opening, "the log has no room for its pages".into())),
        Err(Refused::Media(error @ MediaError::Pm { .. })) => {
            return Ok(Taken::Not(opening, error.to_string()));
        }
        Err(Refused::Media(error)) => return Err(error.into()),
    };
    let content = Content {
        image,
        unlocked,
        checksums: tables.checksums,
        damaged_blocks: BTreeSet::new(),
        torn: log_end.going_home.difference(&condemned).copied().collect(),
        condemned,
        healed: 0,
    };
    let opened = opening.finish(content, log_end, end)?;
    Ok(Taken::Up(Box::new(OpenedJournal { resumed: Some(pages.len() as u64), ..opened })))
}

/// The image in a memory, whatever its name.
fn image_of(opening: &Opening, memory: OwnedFd) -> Result<(Image, Option<std::io::Error>), String> {
    if opening.options.read_only {
        return Err("the journal is opened for reading alone".into());
    }
    let (bytes, resident) = (opening.layout.image_bytes(), opening.options.resident);
    let (image, unlocked) =
        Image::of_memory(File::from(memory), bytes, resident).map_err(|error| error.to_string())?;
    Ok((image, unlocked))
}

/// The reason against whole pages in the log.
enum Refused {
    Room,
    Media(MediaError),
}

impl From<MediaError> for Refused {
    fn from(error: MediaError) -> Refused {
        Refused::Media(error)
    }
}

/// Logs pages whole behind the end of the log, durably and all at once; gives the new end.
fn log_whole(opening: &Opening, image: &Image, log: &LogEnd, pages: &[u64]) -> Result<Boundary, Refused> {
    let groups = pages.chunks(PAGES_OF_BATCH);
    let needed: u64 = groups.clone().map(|group| batch_bytes(group.len())).sum();
    let limit = opening.anchor.start + opening.layout.log_bytes();
    if log.end.position + needed + share_of_round(opening.layout.image_bytes()) + MARGIN_BYTES > limit {
        return Err(Refused::Room);
    }
    opening.write_last(log.last)?;
    let device = &opening.device;
    let (mut end, mut first) = (log.end, None);
    for group in groups {
        let position = end.position;
        let batch = batch_of(opening, image, group, &mut end, log.end.position)?;
        if first.is_none() {
            first = Some(batch);
        } else {
            device.write_runs(&log_runs(&opening.layout, position, &batch))?;
        }
    }
    assert_eq!(end.position, log.end.position + needed, "more than the log has room for");
    if let Some(batch) = first {
        device.flush()?;
        device.write_durable(&log_runs(&opening.layout, log.end.position, &batch))?;
    }
    Ok(end)
}

fn batch_bytes(pages: usize) -> u64 {
    (BATCH_HEADER_BYTES + pages as u64 * entry_bytes(BLOCK_SIZE as usize)).next_multiple_of(BLOCK_SIZE)
}

/// A batch of whole pages at the end of the log, which it moves.
fn batch_of(
    opening: &Opening,
    image: &Image,
    pages: &[u64],
    end: &mut Boundary,
    acknowledged: u64,
) -> Result<Vec<AlignedBlock>, MediaError> {
    assert!(pages.len() <= PAGES_OF_BATCH, "{} pages in a batch", pages.len());
    let mut bytes = vec![0; BATCH_HEADER_BYTES as usize];
    for page in pages {
        let offset = PmOffset(page * BLOCK_SIZE);
        let mut content = [0; BLOCK_SIZE as usize];
        image.memory.read(offset, &mut content)?;
        bytes.extend_from_slice(&Entry { kind: EntryKind::Store, offset, bytes: &content }.header());
        bytes.extend_from_slice(&content);
    }
    bytes.resize(batch_bytes(pages.len()) as usize, 0);
    let header = BatchHeader {
        epoch: opening.anchor.epoch,
        sequence: end.sequence,
        position: end.position,
        length: bytes.len() as u64,
        previous: end.previous,
        acknowledged,
    };
    let (head, entries) = bytes.split_at_mut(BATCH_HEADER_BYTES as usize);
    let (encoded, crc) = header.encode(&opening.anchor.uuid, [&*entries]);
    head.copy_from_slice(&encoded);
    *end = Boundary { position: end.position + header.length, sequence: end.sequence + 1, previous: crc };
    Ok(bytes.as_chunks::<{ BLOCK_SIZE as usize }>().0.iter().map(|block| AlignedBlock(*block)).collect())
}
