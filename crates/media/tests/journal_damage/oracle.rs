//! The judgement of a damaged journal; the rules are in `main`.

use super::damage::Damaged;
use super::states::{Batch, OPTIONS, PAGES, Page, Random, State, UUID, batches, layout, newest_anchor};
use std::collections::BTreeSet;
use std::sync::Arc;
use terrace_format::journal::{Anchor, BATCH_HEADER_BYTES, TABLE_ENTRIES, decode_table};
use terrace_format::{BLOCK_SIZE, DeviceBlock, PmOffset};
use terrace_media::block::{AlignedBlock, DeviceImage, Operation, SimulatedDevice, Times};
use terrace_media::pm::{JournalOptions, JournaledPm, OpenedJournal};
use terrace_media::{BlockMedium, MediaError, PmMedium};
use terrace_runtime::ManualClock;

/// An opened journal that keeps the rules.
pub struct Verdict {
    pub is_shorter: bool,
    pub condemned: u64,
    pub healed: u64,
}

type Pages = Vec<Option<Box<Page>>>;

fn pages(pm: &JournaledPm) -> Pages {
    let read = |page| {
        let mut bytes = Box::new([0; BLOCK_SIZE as usize]);
        pm.read(PmOffset(page * BLOCK_SIZE), &mut *bytes).ok().map(|()| bytes)
    };
    (0..PAGES).map(read).collect()
}

/// Opens a damaged journal and judges it; `None` if opening refuses.
pub fn judge(state: &State, damaged: &Damaged, random: &mut Random) -> Option<Verdict> {
    let device = Arc::new(SimulatedDevice::from_image(damaged.image.clone()));
    for block in &damaged.unreadable {
        device.fail_next(Operation::Read, *block..*block + 1, libc_eio(), Times::Forever);
    }
    let open = |read_only| {
        let options = JournalOptions { read_only, ..OPTIONS };
        JournaledPm::open(device.clone() as Arc<dyn BlockMedium>, options, Arc::new(ManualClock::new(1)))
    };
    let mut expected: Option<bool> = None;
    if random.below(4) == 0 {
        let opened = open(true);
        expected = Some(opened.is_ok());
        if let Ok(opened) = &opened
            && !damaged.is_forged
        {
            Oracle::new(state, damaged).judge(opened);
        }
        drop(opened);
        assert_eq!(device.visible_image().hash(), damaged.image.hash(), "a read-only opening wrote");
    }
    let opened = open(false);
    assert!(
        expected.is_none_or(|expected| expected == opened.is_ok()),
        "read-only and writable openings differ"
    );
    let Ok(opened) = opened else {
        assert_eq!(device.visible_image().hash(), damaged.image.hash(), "a refused opening wrote");
        let in_home = |block: &u64| (layout().home().0..layout().log().0).contains(block);
        assert!(!damaged.hit.iter().all(in_home), "damage of home alone refuses the journal");
        return None;
    };
    let found = pages(&opened.pm);
    if damaged.is_forged {
        // Forged checksums may condemn any page.
        let _ = use_it(&opened.pm, 0);
        return Some(Verdict { is_shorter: false, condemned: 0, healed: 0 });
    }
    let is_shorter = Oracle::new(state, damaged).judge(&opened);
    let sound = found.iter().position(|page| page.is_some());
    if let Some(page) = sound.filter(|_| random.below(4) == 0 && damaged.unreadable.is_empty()) {
        use_it(&opened.pm, page as u64).unwrap();
        stays(&device, &found, page);
    }
    Some(Verdict { is_shorter, condemned: opened.condemned, healed: opened.healed })
}

fn libc_eio() -> i32 {
    5
}

/// Stores into a page, brings everything home and closes.
fn use_it(pm: &JournaledPm, page: u64) -> Result<(), MediaError> {
    pm.write(PmOffset(page * BLOCK_SIZE), &[1; 64])?;
    pm.persist()?;
    pm.advance(usize::MAX)?;
    pm.close()
}

/// A closed journal opens with the same pages: damage neither grows nor turns into bytes.
fn stays(device: &SimulatedDevice, before: &Pages, stored: usize) {
    let device = Arc::new(SimulatedDevice::from_image(device.snapshot().image_none()));
    let opened =
        JournaledPm::open(device as Arc<dyn BlockMedium>, OPTIONS, Arc::new(ManualClock::new(1))).unwrap();
    for (page, (before, after)) in before.iter().zip(pages(&opened.pm)).enumerate() {
        assert_eq!(
            before.is_some(),
            after.is_some(),
            "page {page} is readable before or after a close alone"
        );
        assert!(page == stored || *before == after, "page {page} changed over a close");
    }
}

struct Oracle<'a> {
    state: &'a State,
    damaged: &'a Damaged,
    /// The damaged journal, with zeros in place of unreadable blocks.
    seen: DeviceImage,
    /// The anchor that opening finds.
    anchor: Anchor,
    /// Batches of the sound journal from this anchor on, and from the newest anchor of the sound journal on.
    known: Vec<Batch>,
    newest: Vec<Batch>,
    /// Position from which the sound journal counts.
    start: u64,
    /// The newest anchor is damaged.
    is_older_anchor: bool,
    /// Blocks of tables that a checksum of their own calls sound, and that are others.
    stale: BTreeSet<u64>,
}

impl<'a> Oracle<'a> {
    fn new(state: &'a State, damaged: &'a Damaged) -> Oracle<'a> {
        let mut seen = damaged.image.clone();
        for block in
            damaged.unreadable.iter().filter(|block| **block < seen.blocks()).copied().collect::<Vec<u64>>()
        {
            seen.set_block(DeviceBlock(block), AlignedBlock::zeroed());
        }
        let anchor = newest_anchor(&seen).expect("no sound anchor, but the journal opens");
        let newest = newest_anchor(&state.image).unwrap();
        let mut stale = BTreeSet::new();
        for (copy, number) in
            (0..2).flat_map(|copy| (0..layout().table_blocks()).map(move |number| (copy, number)))
        {
            let block = layout().table(copy).plus(number);
            if damaged.hit.contains(&block.0) && decode_table(&UUID, number, &seen.block(block).0).is_some() {
                stale.insert(number);
            }
        }
        let is_older_anchor = anchor.number < newest.number;
        let start = newest.start;
        let (known, newest) = (batches(&state.image, &anchor), batches(&state.image, &newest));
        Oracle { state, damaged, seen, start, anchor, known, newest, is_older_anchor, stale }
    }

    fn is_hit(&self, batch: &Batch) -> bool {
        batch.blocks().any(|block| self.damaged.hit.contains(&block.0))
    }

    /// Judges the end of the log and all pages; whether batches are missing.
    fn judge(&self, opened: &OpenedJournal) -> bool {
        let end = opened.pm.point().place() - BATCH_HEADER_BYTES;
        let is_shorter = self.judge_end(end);
        for (page, found) in (0..).zip(pages(&opened.pm)) {
            self.judge_page(page, found.as_deref(), end);
        }
        is_shorter
    }

    fn judge_end(&self, end: u64) -> bool {
        assert!(self.anchor.acknowledged <= end, "the anchor acknowledged more");
        let missing: Vec<&Batch> = self.newest.iter().filter(|batch| batch.header.position >= end).collect();
        let last = self.newest.last().map_or(self.start, |batch| batch.header.position + batch.header.length);
        assert!(end <= last, "the log ends at {end}, behind its last batch at {last}");
        if let Some(first) = missing.first() {
            assert_eq!(first.header.position, end, "the log does not end at a batch");
            assert!(self.is_hit(first), "a sound batch at {end} is missing");
        } else {
            assert_eq!(end, last, "acknowledged batches are missing");
        }
        for batch in missing.iter().filter(|batch| !self.is_hit(batch)) {
            assert!(batch.header.acknowledged <= end, "a sound batch proves more than {end}");
        }
        !missing.is_empty()
    }

    fn judge_page(&self, page: u64, found: Option<&Page>, end: u64) {
        let expected = self.state.versions.at(page, end);
        let table = page / TABLE_ENTRIES as u64;
        let is_hit = |block: DeviceBlock| self.damaged.hit.contains(&block.0);
        let is_home_hit = is_hit(layout().home().plus(page));
        let is_table_hit = (0..2).any(|copy| is_hit(layout().table(copy).plus(table)));
        let Some(found) = found else {
            let mut missing = self.newest.iter().filter(|batch| batch.header.position >= end);
            let lost_name = missing.any(|batch| batch.names.contains(&page));
            assert!(is_home_hit || is_table_hit || lost_name, "page {page} is sound, but cannot be read");
            return;
        };
        if found == expected {
            return;
        }
        // No checksum covers a page whose block of the table is lost; zeros in home count as never written.
        let is_zeroed =
            is_home_hit && self.seen.block(layout().home().plus(page)).0 == [0; BLOCK_SIZE as usize];
        if is_table_hit && is_zeroed {
            return;
        }
        let replayed = || self.known.iter().filter(|batch| batch.header.position < end);
        // Without its block of the table no checksum covers a page that went home in the last round either.
        let from = if is_hit(layout().table(self.anchor.table).plus(table)) { 0 } else { self.anchor.named };
        let was_going = replayed().any(|batch| batch.header.position >= from && batch.names.contains(&page));
        if is_home_hit && was_going {
            for (first, count) in replayed().flat_map(|batch| &batch.stores) {
                if first / BLOCK_SIZE == page {
                    let range = (first % BLOCK_SIZE) as usize..(first % BLOCK_SIZE + count) as usize;
                    assert!(found[range.clone()] == expected[range], "page {page} lacks bytes of the log");
                }
            }
            return;
        }
        let is_shorter = self.newest.iter().any(|batch| batch.header.position >= end);
        let is_newer = is_shorter && (self.is_older_anchor || is_table_hit);
        assert!(is_newer || self.stale.contains(&table), "page {page} has wrong bytes at {end}");
        for (index, byte) in found.iter().enumerate() {
            let is_of_history = self.state.versions.all(page).any(|version| version[index] == *byte);
            assert!(is_of_history || is_home_hit, "page {page} has bytes that it never had");
        }
    }
}
