//! The stores of recorded PM: visible, written back, durable (the model is stated in `crash_image`).
//!
//! Invariants: `visible` is the content that reads see; `durable` plus all stores of `pending` gives `visible`. A store
//! leaves `pending` only by a fence after its write-back, so a line that nobody wrote back stays undecided for ever.
//! Epochs rise, and the durable epoch is never above the present epoch.

use super::crash_image::{CrashSnapshot, LineStore, PendingLine};
use super::image::PmImage;
use std::collections::HashMap;
use std::ops::Range;
use terrace_format::PmOffset;
use terrace_format::address::LINE_SIZE;

/// A store not written back.
const NEVER: u64 = u64::MAX;

/// Ways to store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Store {
    Cached,
    WrittenBack,
    Streaming,
}

pub(super) struct Stores {
    visible: PmImage,
    durable: PmImage,
    /// Stores per line since the line was durable, in order; the written-back ones come first.
    pending: HashMap<u64, Vec<LineStore>>,
    /// Lines with stores that the next fence covers.
    written_back: Vec<u64>,
    epoch: u64,
    /// Epoch of the last fence that made stores durable.
    durable_epoch: u64,
}

impl Stores {
    /// The stores after the daemon alone has died at a moment.
    pub fn after(moment: &CrashSnapshot) -> Stores {
        assert!(moment.epochs.start() <= moment.epochs.end(), "durable before it was stored");
        let pending = moment.pending.iter().map(|line| (line.line, line.stores.clone()));
        let fenced = |line: &&PendingLine| line.stores.iter().any(|store| store.written_back != NEVER);
        Stores {
            visible: moment.image_newest(),
            durable: moment.durable.clone(),
            pending: pending.collect(),
            written_back: moment.pending.iter().filter(fenced).map(|line| line.line).collect(),
            epoch: *moment.epochs.end(),
            durable_epoch: *moment.epochs.start(),
        }
    }

    pub fn size(&self) -> u64 {
        self.visible.len() as u64
    }

    /// The present epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The epoch that the last fence with an effect on durability began.
    pub fn durable_epoch(&self) -> u64 {
        self.durable_epoch
    }

    /// The content that reads see.
    pub fn visible(&self) -> &PmImage {
        &self.visible
    }

    pub fn snapshot(&self, event: u64) -> CrashSnapshot {
        let lines = self.pending.iter();
        let mut pending: Vec<PendingLine> =
            lines.map(|(line, stores)| PendingLine { line: *line, stores: stores.clone() }).collect();
        pending.sort_by_key(|line| line.line);
        CrashSnapshot {
            event,
            durable: self.durable.clone(),
            pending,
            epochs: self.durable_epoch..=self.epoch,
        }
    }

    /// The range, if the medium has all its bytes.
    pub fn inside(&self, offset: PmOffset, length: u64) -> Option<Range<u64>> {
        let end = offset.0.checked_add(length)?;
        (end <= self.visible.len() as u64).then_some(offset.0..end)
    }

    /// Stores bytes at an event of the clock. False when the range is not inside.
    pub fn store(&mut self, offset: PmOffset, bytes: &[u8], kind: Store, event: u64) -> bool {
        let (start, length) = (offset.0, bytes.len() as u64);
        if !self.visible.write(start, bytes) {
            return false;
        }
        for line in lines_of(start, length) {
            let base = line * LINE_SIZE;
            // whole lines only go past the cache, edges through it (see `mapped`)
            let whole = start <= base && base + LINE_SIZE <= start + length;
            let mut store = self.line_store(line, start, length);
            store.streaming = kind == Store::Streaming && whole;
            store.event = event;
            self.pending.entry(line).or_default().push(store);
            if kind != Store::Cached {
                self.mark_written_back(line);
            }
        }
        true
    }

    /// The words that a store of `length` bytes at `start` put into `line`, taken from `visible`.
    fn line_store(&self, line: u64, start: u64, length: u64) -> LineStore {
        let mut store = LineStore {
            mask: 0,
            words: [0; 8],
            streaming: false,
            event: 0,
            stored: self.epoch,
            written_back: NEVER,
        };
        let bytes = self.visible.line(line);
        for (index, (value, word)) in store.words.iter_mut().zip(bytes.as_chunks::<8>().0).enumerate() {
            let at = line * LINE_SIZE + index as u64 * 8;
            if at < start + length && start < at + 8 {
                *value = u64::from_ne_bytes(*word);
                store.mask |= 1 << index;
            }
        }
        store
    }

    /// A line is written back: the next fence covers its stores.
    pub fn mark_written_back(&mut self, line: u64) {
        let epoch = self.epoch;
        let mut changed = false;
        for store in self.pending.get_mut(&line).into_iter().flatten() {
            if store.written_back == NEVER {
                store.written_back = epoch;
                changed = true;
            }
        }
        if changed {
            self.written_back.push(line);
        }
    }

    /// A fence ends an epoch.
    pub fn end_epoch(&mut self, makes_durable: bool) {
        self.epoch += 1;
        assert!(self.durable_epoch < self.epoch, "an epoch ended before it began");
        if makes_durable {
            self.make_durable();
            self.durable_epoch = self.epoch;
        }
    }

    /// Everything written back becomes durable.
    fn make_durable(&mut self) {
        if self.written_back.is_empty() {
            return;
        }
        for line in self.written_back.drain(..) {
            let Some(stores) = self.pending.get_mut(&line) else {
                continue; // listed twice
            };
            let done = stores.partition_point(|s| s.written_back != NEVER);
            let rest = stores.get(done..).unwrap_or_default();
            assert!(
                rest.iter().all(|s| s.written_back == NEVER),
                "a store written back behind one that was not"
            );
            self.durable.edit_line(line, |bytes| stores.drain(..done).for_each(|s| s.apply_all(bytes)));
            if stores.is_empty() {
                self.pending.remove(&line);
            }
        }
    }
}

/// The lines that a range touches.
pub(super) fn lines_of(offset: u64, length: u64) -> Range<u64> {
    if length == 0 {
        return 0..0;
    }
    offset / LINE_SIZE..(offset + length).div_ceil(LINE_SIZE)
}
