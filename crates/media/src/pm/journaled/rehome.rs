//! The journal goes on on another device (J12): after a failure of the old device, or before.
//!
//! A move has this order:
//! 1. No round runs. The anchors of the new device are erased.
//! 2. Passes over the image beside stores: all pages, then those stored to meanwhile.
//! 3. No batch is sealed any more, and none is under way.
//! 4. Under all page locks: the open batch ends at a position T, a failure ends, the last dirty pages are copied.
//! 5. These pages, tables and a flush; both anchors, which name T and a new epoch.
//! 6. The anchors of the old device are erased; the log goes on behind T on the new device.
//!
//! Invariants: the new home has the effects of all places before T and none of later places, since each place is reserved under
//! a page lock, before the in-place stores of its record. Until the anchors of step 5 the old device has all that was
//! acknowledged; nothing is acknowledged before step 6, so from then on the new device has it. If step 5 fails, the anchors of
//! the new device are erased before batches go on on the old. The bits of dirty pages stay set until
//! the memory names the new epoch: with either device it can be taken up (J13). Lock order: home, page, the state of the log.

use super::anchors::{FIRST_NUMBER, erase_anchors, newest_anchor, older_copy, write_both};
use super::commits::{Boundary, tell};
use super::create::write_tables;
use super::cut;
use super::device::{DurableWay, JournalDevice};
use super::error::JournalError;
use super::home::{Home, HomeState, PAGES_AT_ONCE, share_of_round};
use super::image::Image;
use super::log::Log;
use super::pieces::writes_home;
use crate::block::AlignedBlock;
use crate::{BlockMedium, MediaError, PmMedium};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use terrace_format::journal::{Anchor, BATCH_HEADER_BYTES, Layout, page_checksum};
use terrace_format::{BLOCK_SIZE, PmOffset};
use terrace_runtime::sync::atomic::Ordering;

/// Dirty pages that stores may wait for.
const FEW_PAGES: usize = 1024;
/// Passes beside stores at most.
const PASSES: usize = 4;

/// Batches rest while this lives. If it is dropped early, they go on on the old device.
struct Moving<'a> {
    log: &'a Log,
    /// The failure that the move ends.
    failure: Option<MediaError>,
    is_done: bool,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        if let Some(error) = &self.failure {
            // Before a leader may begin.
            self.log.fail(error);
        }
        let mut state = self.log.state.lock();
        state.is_moving = false;
        let leader = state.take_leader();
        drop(state);
        tell(leader.into_iter().collect(), &Ok(()));
    }
}

impl Log {
    /// Waits until no batch is under way, and lets none begin.
    fn rest(&self) -> Moving<'_> {
        let mut state = self.state.lock();
        state.is_moving = true;
        while state.leading > 0 {
            self.idle.wait(&mut state);
        }
        Moving { log: self, failure: None, is_done: false }
    }

    /// Ends the open batch and a failure, and gives the end as a boundary for another device.
    fn end_here(&self, moving: &mut Moving<'_>) -> Boundary {
        let mut state = self.state.lock();
        // Stores behind this position succeed. A store that was refused under the lock of its page came before.
        moving.failure = self.failure.take();
        self.close_open_batch(&mut state);
        Boundary { position: state.open, sequence: state.sealed.sequence, previous: 0 }
    }

    /// Goes on behind an anchor of another device, which has the effect of all places before.
    fn go_on(&self, mut moving: Moving<'_>, device: JournalDevice, anchor: &Anchor) {
        let at = Boundary { position: anchor.start, sequence: anchor.sequence, previous: anchor.previous };
        let mut state = self.state.lock();
        assert!(state.is_moving && state.leading == 0, "{} batches are written beside a move", state.leading);
        assert!(
            at.position >= state.sealed.position,
            "the new log begins at {}, before the old ends",
            at.position
        );
        self.set_device(Arc::new(device));
        self.epoch.store(anchor.epoch, Ordering::SeqCst);
        state.restart(at);
        self.ring.acknowledged(at.position);
        self.set_start(at.position, share_of_round(self.layout.image_bytes()));
        self.durable.fetch_max(at.position + BATCH_HEADER_BYTES, Ordering::Release);
        state.is_moving = false;
        moving.is_done = true;
        let mut told = state.take_waiters(self.durable.load(Ordering::Relaxed));
        told.extend(state.take_leader());
        drop(state);
        tell(told, &Ok(()));
    }
}

/// A home on another device.
struct NewHome<'a> {
    image: &'a Image,
    log: &'a Log,
    device: JournalDevice,
    /// Checksums of the pages there; 0 for a page of zeros that was never written.
    checksums: Vec<u32>,
    condemned: BTreeMap<u64, u32>,
}

/// Copies of pages with ascending numbers.
type Copies = (Vec<u64>, Vec<AlignedBlock>);

impl<'a> NewHome<'a> {
    fn new(image: &'a Image, log: &'a Log, device: JournalDevice, condemned: BTreeMap<u64, u32>) -> Self {
        let mut checksums = vec![0; log.layout.pages() as usize];
        for (page, wrong) in &condemned {
            if let Some(checksum) = checksums.get_mut(*page as usize) {
                *checksum = *wrong;
            }
        }
        NewHome { image, log, device, checksums, condemned }
    }

    /// Takes a page and copies it, under its lock.
    fn copy(&self, page: u64, (numbers, blocks): &mut Copies) -> Result<(), MediaError> {
        self.image.dirty.take_dirty(&self.image.memory, page);
        if !self.condemned.contains_key(&page) {
            let mut block = AlignedBlock::zeroed();
            self.image.memory.read(PmOffset(page * BLOCK_SIZE), &mut block.0)?;
            numbers.push(page);
            blocks.push(block);
        }
        Ok(())
    }

    /// Writes copies of pages. A page that was always zeros has no need.
    fn write(&mut self, (numbers, blocks): Copies) -> Result<(), MediaError> {
        let mut written: Copies = (Vec::new(), Vec::new());
        for (page, block) in numbers.into_iter().zip(blocks) {
            let Some(checksum) = self.checksums.get_mut(page as usize) else { continue };
            if *checksum == 0 && block.0.iter().all(|byte| *byte == 0) {
                continue;
            }
            *checksum = page_checksum(&self.log.uuid, page, &block.0);
            written.0.push(page);
            written.1.push(block);
        }
        self.device.medium().write_runs(&writes_home(&self.log.layout, &written.0, &written.1))
    }

    /// Copies pages beside stores.
    fn send(&mut self, pages: impl IntoIterator<Item = u64>) -> Result<(), MediaError> {
        let mut copies: Copies = (Vec::new(), Vec::new());
        for page in pages {
            let _locked = self.image.lock_page(page);
            self.copy(page, &mut copies)?;
        }
        self.write(copies)
    }

    /// Passes over the image, until few pages are dirty.
    fn send_all(&mut self) -> Result<(), MediaError> {
        let pages = self.log.layout.pages();
        for first in (0..pages).step_by(PAGES_AT_ONCE) {
            self.send(first..(first + PAGES_AT_ONCE as u64).min(pages))?;
        }
        for _ in 1..PASSES {
            if self.image.dirty.list(&self.image.memory, 0, FEW_PAGES + 1).len() <= FEW_PAGES {
                break;
            }
            let mut from = 0;
            loop {
                let pages = self.image.dirty.list(&self.image.memory, from, PAGES_AT_ONCE);
                let Some(last) = pages.last() else { break };
                from = last + 1;
                self.send(pages)?;
            }
        }
        // The last flush, which stores may wait for, has less to write.
        self.device.medium().flush()
    }

    /// Ends the log at a position, and copies what is left, while no store runs.
    fn end(&self, moving: &mut Moving<'_>) -> Result<(Boundary, Copies), MediaError> {
        let _locked = self.image.lock_all();
        let end = self.log.end_here(moving);
        let mut copies: Copies = (Vec::new(), Vec::new());
        for page in self.image.dirty.list(&self.image.memory, 0, usize::MAX) {
            self.copy(page, &mut copies)?;
        }
        Ok((end, copies))
    }

    /// Writes the last pages and the tables, then the anchors.
    fn finish(&mut self, end: Boundary, copies: Copies, number: u64) -> Result<Anchor, MediaError> {
        self.write(copies)?;
        let (log, device) = (self.log, self.device.medium());
        write_tables(device, &log.layout, &log.uuid, &self.checksums)?;
        device.flush()?;
        let anchor = Anchor {
            uuid: log.uuid,
            image_bytes: log.layout.image_bytes(),
            log_bytes: log.layout.log_bytes(),
            number: (number + 1) | FIRST_NUMBER,
            epoch: log.epoch.load(Ordering::SeqCst) + 1,
            start: end.position,
            sequence: end.sequence,
            previous: end.previous,
            acknowledged: end.position,
            named: end.position,
            table: 0,
            clean: false,
        };
        write_both(device, anchor)
    }
}

impl Home {
    /// Moves home and log to another device ([`JournaledPm::rehome`](super::medium::JournaledPm::rehome)).
    pub fn rehome(
        &self,
        (image, log): (&Image, &Log),
        device: Arc<dyn BlockMedium>,
        way: DurableWay,
    ) -> Result<(), JournalError> {
        self.is_moving.store(true, Ordering::Relaxed);
        let moved = self.try_rehome((image, log), &device, way);
        self.is_moving.store(false, Ordering::Relaxed);
        moved
    }

    fn try_rehome(
        &self,
        (image, log): (&Image, &Log),
        device: &Arc<dyn BlockMedium>,
        way: DurableWay,
    ) -> Result<(), JournalError> {
        let mut home = self.state.lock();
        let old = log.device();
        let found = newest_anchor(&**device).ok();
        let is_in_use = found.is_some_and(|anchor| {
            anchor.uuid == log.uuid && anchor.epoch == log.epoch.load(Ordering::SeqCst)
        });
        if is_in_use || std::ptr::addr_eq(old.medium(), &**device) {
            return Err(JournalError::OwnDevice { device: device.name().to_string() });
        }
        make_ready(&**device, &log.layout, &log.uuid)?;
        let device = JournalDevice::new(Arc::clone(device), way, &*log.clock)?;
        home.give_up_round(image);
        let (number, condemned) = (home.number, home.condemned.clone());
        let mut new = NewHome::new(image, log, device, condemned);
        let moved = write_home(&mut new, number);
        let NewHome { device, checksums, condemned, .. } = new;
        let (moving, anchor) = match moved {
            Ok(moved) => moved,
            Err(error) => {
                image.dirty.give_back(&image.memory);
                return Err(error.into());
            }
        };
        *home = HomeState {
            checksums,
            table: anchor.table,
            torn: BTreeSet::new(),
            stale: [BTreeSet::new(), BTreeSet::new()],
            number: anchor.number,
            condemned,
            named: BTreeMap::new(),
            unsure: None,
            round: None,
            mark: None,
            copies: Vec::new(),
        };
        // From here on a process can take the memory up with this device, before with the old.
        image.kept.set_name(&image.memory, &log.uuid, anchor.epoch, older_copy(&anchor));
        erase(old.medium());
        log.go_on(moving, device, &anchor);
        image.dirty.end_round(&image.memory);
        Ok(())
    }
}

/// Brings the image to its new home, with anchors behind it. Batches rest then.
fn write_home<'a>(new: &mut NewHome<'a>, number: u64) -> Result<(Moving<'a>, Anchor), MediaError> {
    new.send_all()?;
    let mut moving = new.log.rest();
    let (end, copies) = new.end(&mut moving)?;
    match new.finish(end, copies, number) {
        Ok(anchor) => Ok((moving, anchor)),
        Err(error) => {
            // An anchor may be durable, and acknowledgements on the old device follow: the next mount could take the copy.
            erase(new.device.medium());
            Err(error)
        }
    }
}

/// Makes a device ready for a home: no anchor, and no batch of this journal, which an opening could take for the log's.
fn make_ready(device: &dyn BlockMedium, layout: &Layout, uuid: &[u8; 16]) -> Result<(), JournalError> {
    if layout.total_blocks() > device.blocks() {
        return Err(JournalError::too_short(device, layout.total_blocks()));
    }
    // Without anchors there are no batches behind the end: a journal that moved away has older positions alone.
    if newest_anchor(device).is_ok_and(|anchor| anchor.uuid == *uuid) {
        cut::erase(device, layout, 0, layout.log_bytes())?;
        device.flush()?;
    }
    erase_anchors(device)?;
    Ok(())
}

/// Takes the anchors of a device without the newest state away, as far as the device can be written.
fn erase(device: &dyn BlockMedium) {
    match erase_anchors(device) {
        Ok(()) => tracing::info!("{}: is not the journal's device any more", device.name()),
        Err(error) => {
            tracing::warn!(%error, "{}: has an old copy of the journal; erase it before its next use", device.name());
        }
    }
}
