//! The contents that PM may have after a crash: the durable bytes, and the states that each line with stores
//! not yet durable may have reached.
//!
//! Invariants (the persistence model): stores to one line persist in order, so a line holds a prefix of its
//! stores since it was last durable; an aligned 8-byte word is whole; the words of the one store that a line
//! was in the middle of persist in ascending order, or in any combination when that store was streaming.
//! Lines are independent. In the mode where only `persist` makes durable, each `order` ends an epoch, and a
//! crash falls into one epoch: lines written back in earlier epochs are durable, stores of later epochs are
//! gone.

use super::image::{PmImage, line_hash};
use crate::crash::Choice;
use std::collections::BTreeSet;
use terrace_format::PmOffset;
use terrace_format::address::LINE_SIZE;

/// The part of a store that lies in a single line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LineStore {
    /// Bit per word that was stored.
    pub(crate) mask: u8,
    pub(crate) words: [u64; 8],
    pub(crate) streaming: bool,
    /// Number of the event that stored it.
    pub(crate) event: u64,
    /// Epoch in which it was stored.
    pub(crate) stored: u64,
    /// Epoch in which it was written back; `u64::MAX` while it was not.
    pub(crate) written_back: u64,
}

impl LineStore {
    /// The number of states of the line that this store leads to. Each state has a part of the stored words;
    /// the last state has the whole store.
    fn states(&self) -> usize {
        if self.streaming { (1 << self.mask.count_ones()) - 1 } else { self.mask.count_ones() as usize }
    }

    /// Puts its words into `line`, restricted to state `state` (1 ..= `states()`).
    fn apply(&self, line: &mut [u8], state: usize) {
        assert!(state <= self.states(), "state {state} of a store of {} words", self.mask.count_ones());
        let mut rank = 0;
        for (word, value) in self.words.iter().enumerate() {
            if self.mask & (1 << word) == 0 {
                continue;
            }
            let there = if self.streaming { state & (1 << rank) != 0 } else { rank < state };
            if there && let Some(bytes) = line.get_mut(word * 8..word * 8 + 8) {
                bytes.copy_from_slice(&value.to_ne_bytes());
            }
            rank += 1;
        }
    }

    /// Puts all its words into `line`.
    pub(crate) fn apply_all(&self, line: &mut [u8]) {
        self.apply(line, self.states());
    }
}

/// A line with stores that are not durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingLine {
    pub(crate) line: u64,
    pub(crate) stores: Vec<LineStore>,
}

impl PendingLine {
    /// Where the line starts.
    pub fn offset(&self) -> PmOffset {
        PmOffset(self.line * LINE_SIZE)
    }

    /// States the line can be found in: 0 is the durable one, the last the newest.
    pub fn state_count(&self) -> usize {
        1 + self.stores.iter().map(LineStore::states).sum::<usize>()
    }

    /// The event that stored to it first.
    pub fn first_event(&self) -> u64 {
        self.stores.first().map_or(0, |store| store.event)
    }

    /// Puts the line into state `state`, at most the newest.
    fn apply(&self, line: &mut [u8], mut state: usize) {
        for store in &self.stores {
            let states = store.states();
            store.apply(line, state.min(states));
            if state <= states {
                return;
            }
            state -= states;
        }
    }
}

/// All contents of PM that a crash at this moment may leave.
#[derive(Debug, Clone)]
pub struct CrashSnapshot {
    /// Events of the clock that had begun.
    pub event: u64,
    /// Bytes that are durable.
    pub durable: PmImage,
    /// Lines that are not, by address.
    pub pending: Vec<PendingLine>,
    /// Epochs a crash can fall into; one value where `order` makes durable.
    pub(crate) epochs: std::ops::RangeInclusive<u64>,
}

impl CrashSnapshot {
    /// Lines whose content is undecided.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Epochs a crash can fall into: 1 unless the medium is in the mode where `order` only orders.
    pub fn epoch_count(&self) -> u64 {
        assert!(self.epochs.start() <= self.epochs.end(), "a crash falls into an epoch");
        self.epochs.end() - self.epochs.start() + 1
    }

    /// The snapshot narrowed to crashes in one epoch (`index` below `epoch_count`, the last the
    /// newest): what earlier epochs wrote back is durable, what later ones stored is gone.
    #[must_use]
    pub fn in_epoch(&self, index: u64) -> CrashSnapshot {
        let epoch = self.epochs.start() + index.min(self.epoch_count() - 1);
        let mut durable = self.durable.clone();
        let mut pending = Vec::new();
        for line in &self.pending {
            let forced = line.stores.iter().take_while(|s| s.written_back < epoch).count();
            if forced != 0 {
                durable.edit_line(line.line, |bytes| {
                    line.stores.iter().take(forced).for_each(|store| store.apply_all(bytes));
                });
            }
            let open = line.stores.iter().skip(forced);
            let stores: Vec<LineStore> = open.take_while(|s| s.stored <= epoch).copied().collect();
            if !stores.is_empty() {
                pending.push(PendingLine { line: line.line, stores });
            }
        }
        CrashSnapshot { event: self.event, durable, pending, epochs: epoch..=epoch }
    }

    /// The image in which pending line `i` is in state `choice(i)` (0 durable, `usize::MAX` newest),
    /// with the crash in the newest epoch.
    pub fn image(&self, choice: &dyn Fn(usize) -> usize) -> PmImage {
        let narrow = self.in_epoch(u64::MAX);
        narrow.image_here(choice)
    }

    /// Whether a crash at this moment may leave an image, but for lines whose content means nothing.
    pub fn allows(&self, image: &PmImage, meaningless: &BTreeSet<u64>) -> bool {
        (0..self.epoch_count()).any(|index| self.in_epoch(index).allows_here(image, meaningless))
    }

    /// [`Self::allows`], for a snapshot of one epoch.
    fn allows_here(&self, image: &PmImage, meaningless: &BTreeSet<u64>) -> bool {
        let mut closest = self.durable.clone();
        for line in meaningless {
            let found = image.line(*line);
            closest.edit_line(*line, |to| *to = found);
        }
        for line in self.pending.iter().filter(|line| !meaningless.contains(&line.line)) {
            let found = image.line(line.line);
            let mut reached = None;
            for state in 0..line.state_count() {
                let mut bytes = self.durable.line(line.line);
                line.apply(&mut bytes, state);
                if bytes == found {
                    reached = Some(bytes);
                    break;
                }
            }
            let Some(bytes) = reached else { return false };
            closest.edit_line(line.line, |to| *to = bytes);
        }
        closest == *image
    }

    /// Only what is durable.
    pub fn image_oldest(&self) -> PmImage {
        self.in_epoch(0).image_here(&|_| 0)
    }

    /// The image with all stores.
    pub fn image_newest(&self) -> PmImage {
        self.image(&|_| usize::MAX)
    }

    /// An image that a crash may leave, chosen by the seed: equal seeds give equal images. Half of the seeds
    /// give each line its durable or its newest state only; the rest choose among all states.
    pub fn image_random(&self, seed: u64) -> PmImage {
        let mut choice = Choice::new(seed);
        let narrow = self.in_epoch(choice.below(self.epoch_count()));
        let any_state = choice.below(2) == 1;
        // The share of lines that reach a newer state differs between images: from almost none to almost all.
        let kept = choice.below(9);
        let states: Vec<usize> = narrow
            .pending
            .iter()
            .map(|line| {
                let newest = line.state_count() - 1;
                if any_state && choice.below(2) == 0 {
                    choice.below(newest as u64 + 1) as usize
                } else if choice.below(8) < kept {
                    newest
                } else {
                    0
                }
            })
            .collect();
        narrow.image_here(&|index| states.get(index).copied().unwrap_or(0))
    }

    /// For each epoch all images, if their number is at most `2^max_pending`. Else, if at most `max_pending`
    /// lines are undecided, the images in which each line is durable or newest. `None` if an epoch has more
    /// undecided lines: then choose by seed.
    pub fn images_exhaustive(&self, max_pending: u32) -> Option<impl Iterator<Item = PmImage> + use<>> {
        let bound = 1u64 << max_pending.min(20);
        let mut plans = Vec::new();
        for epoch in 0..self.epoch_count() {
            let narrow = self.in_epoch(epoch);
            let radixes: Vec<u64> = narrow.pending.iter().map(|line| line.state_count() as u64).collect();
            let all = radixes.iter().try_fold(1u64, |n, r| n.checked_mul(*r));
            let binary = radixes.len() as u32 <= max_pending.min(20);
            match all {
                Some(count) if count <= bound => plans.push((narrow, radixes, count, false)),
                _ if binary => {
                    let count = 1 << radixes.len();
                    plans.push((narrow, vec![2; radixes.len()], count, true));
                }
                _ => return None,
            }
        }
        let images = plans.into_iter().flat_map(|(narrow, radixes, count, ends)| {
            (0..count).map(move |mut number| {
                let digits: Vec<usize> = radixes
                    .iter()
                    .map(|radix| {
                        let digit = (number % radix) as usize;
                        number /= radix;
                        if ends && digit == 1 { usize::MAX } else { digit }
                    })
                    .collect();
                narrow.image_here(&|index| digits.get(index).copied().unwrap_or(0))
            })
        });
        Some(images)
    }

    /// All images if they are few (see `images_exhaustive`), else the oldest, the newest and `samples` random
    /// images by seeds from `seed` on.
    pub fn images(&self, max_pending: u32, samples: u64, seed: u64) -> Box<dyn Iterator<Item = PmImage>> {
        if let Some(all) = self.images_exhaustive(max_pending) {
            return Box::new(all);
        }
        let snapshot = self.clone();
        let random = (0..samples).map(move |i| snapshot.image_random(seed.wrapping_add(i)));
        Box::new([self.image_oldest(), self.image_newest()].into_iter().chain(random))
    }

    /// The image in which pending line `i` is in state `choice(i)`; for a snapshot of one epoch.
    pub fn image_here(&self, choice: &dyn Fn(usize) -> usize) -> PmImage {
        let mut image = self.durable.clone();
        for (index, line) in self.pending.iter().enumerate() {
            match choice(index) {
                0 => {}
                state => image.edit_line(line.line, |bytes| line.apply(bytes, state)),
            }
        }
        image
    }

    /// The hash of [`Self::image_here`], without making the image.
    pub fn hash_here(&self, choice: &dyn Fn(usize) -> usize) -> u64 {
        let mut hash = self.durable.hash();
        for (index, line) in self.pending.iter().enumerate() {
            let state = choice(index);
            if state != 0 {
                let mut bytes = self.durable.line(line.line);
                hash ^= line_hash(line.line, &bytes);
                line.apply(&mut bytes, state);
                hash ^= line_hash(line.line, &bytes);
            }
        }
        hash
    }
}
