//! Sound journals in several states, with the whole history of each page.

use std::sync::Arc;
use terrace_format::journal::{
    ANCHOR_COPIES, Anchor, BatchHeader, EntryKind, Layout, MIN_LOG_BYTES, entries,
};
use terrace_format::{BLOCK_SIZE, DeviceBlock, PmOffset};
use terrace_media::block::{DeviceImage, DeviceSnapshot, SimulatedDevice};
use terrace_media::pm::{JournalOptions, JournaledPm, OpenedJournal};
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::ManualClock;
use terrace_runtime::sync::Mutex;

/// More pages than one block of a table has.
pub const PAGES: u64 = 1100;
pub const IMAGE: u64 = PAGES * BLOCK_SIZE;
pub const UUID: [u8; 16] = [7; 16];
pub const OPTIONS: JournalOptions = JournalOptions {
    ring_bytes: 8 << 20,
    durable: terrace_media::pm::DurableWay::Dsync,
    ..JournalOptions::DEFAULT
};
/// Pages that the histories store to: around the end of the first block of the tables.
pub const USED: std::ops::Range<u64> = 990..1060;

pub type Page = [u8; BLOCK_SIZE as usize];

/// splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

pub fn layout() -> Layout {
    Layout::new(IMAGE, MIN_LOG_BYTES).unwrap()
}

pub fn new_device() -> Arc<SimulatedDevice> {
    let device = SimulatedDevice::new(layout().total_blocks() + 10);
    JournaledPm::create(&device, layout(), UUID).unwrap();
    Arc::new(device)
}

pub fn open(device: Arc<SimulatedDevice>) -> OpenedJournal {
    JournaledPm::open(device as Arc<dyn BlockMedium>, OPTIONS, Arc::new(ManualClock::new(1))).unwrap()
}

/// The versions of each page, each with the end of its entry in the log.
#[derive(Clone)]
pub struct Versions(Vec<Vec<(u64, Arc<Page>)>>);

impl Versions {
    fn new() -> Versions {
        Versions(vec![vec![(0, Arc::new([0; BLOCK_SIZE as usize]))]; PAGES as usize])
    }

    /// A page when the log ends at a position.
    pub fn at(&self, page: u64, end: u64) -> &Page {
        let versions = &self.0[page as usize];
        &versions.iter().rev().find(|(tail, _)| *tail <= end).unwrap().1
    }

    pub fn all(&self, page: u64) -> impl Iterator<Item = &Arc<Page>> {
        self.0[page as usize].iter().map(|(_, page)| page)
    }
}

/// A sound journal.
pub struct State {
    pub name: &'static str,
    pub image: DeviceImage,
    /// An earlier time of the same journal.
    pub old: DeviceImage,
    pub versions: Versions,
}

/// A medium in use, and its history.
pub struct History {
    pub device: Arc<SimulatedDevice>,
    pub pm: JournaledPm,
    pub versions: Versions,
    random: Random,
}

impl History {
    pub fn new(seed: u64) -> History {
        let device = new_device();
        let pm = open(device.clone()).pm;
        History { device, pm, versions: Versions::new(), random: Random(seed) }
    }

    /// Stores inside one page at a time: a batch has the store whole, or not at all.
    pub fn write(&mut self, times: u64) {
        for _ in 0..times {
            let page = USED.start + self.random.below(USED.end - USED.start);
            let (from, byte) = (self.random.below(4000), self.random.below(255) as u8 + 1);
            let bytes = vec![byte; 1 + self.random.below(4096 - from) as usize];
            self.pm.write(PmOffset(page * BLOCK_SIZE + from), &bytes).unwrap();
            let mut content = *self.versions.at(page, u64::MAX);
            content[from as usize..][..bytes.len()].copy_from_slice(&bytes);
            self.versions.0[page as usize].push((self.pm.point().place(), Arc::new(content)));
        }
    }

    pub fn commit(&mut self, batches: u64) {
        for _ in 0..batches {
            let times = 1 + self.random.below(5);
            self.write(times);
            self.pm.persist().unwrap();
        }
    }

    pub fn round(&self) {
        assert!(self.pm.advance(usize::MAX).unwrap());
    }

    /// The content after a loss of power.
    pub fn left(&self) -> DeviceImage {
        self.device.snapshot().image_none()
    }

    /// Opens after a loss of power; nothing may be waiting for a commit.
    pub fn reopen(&mut self) {
        self.device = Arc::new(SimulatedDevice::from_image(self.left()));
        self.pm = open(self.device.clone()).pm;
    }

    fn state(self, name: &'static str, old: DeviceImage) -> State {
        State { name, image: self.left(), old, versions: self.versions }
    }
}

/// Moments in the middle of a round.
fn moments_of_round(history: &History) -> Vec<DeviceSnapshot> {
    let moments: Arc<Mutex<Vec<DeviceSnapshot>>> = Arc::default();
    let (kept, device) = (moments.clone(), Arc::downgrade(&history.device));
    history.device.clock().on_event(Some(Box::new(move |_| {
        if let Some(device) = device.upgrade() {
            kept.lock().push(device.snapshot());
        }
    })));
    history.round();
    history.device.clock().on_event(None);
    std::mem::take(&mut *moments.lock())
}

/// All states.
pub fn all() -> Vec<State> {
    let mut states = Vec::new();
    let mut history = History::new(1);
    history.commit(6);
    let old = history.left();
    history.commit(8);
    states.push(history.state("log in use", old));

    let mut history = History::new(2);
    history.commit(20);
    history.round();
    let old = history.left();
    history.commit(10);
    history.round();
    history.commit(7);
    states.push(history.state("after rounds", old));

    let mut history = History::new(3);
    history.commit(30);
    history.round();
    let old = history.left();
    history.commit(10);
    history.pm.close().unwrap();
    states.push(history.state("clean", old));

    let mut history = History::new(4);
    history.commit(20);
    history.round();
    let old = history.left();
    history.commit(10);
    history.reopen();
    history.commit(4);
    states.push(history.state("opened again", old));

    let mut history = History::new(5);
    history.commit(4);
    let old = history.left();
    while history.pm.point().place() < 2 * MIN_LOG_BYTES + (5 << 20) {
        history.write(64);
    }
    history.pm.persist().unwrap();
    history.round();
    history.commit(6);
    states.push(history.state("third lap", old));

    let mut random = Random(6);
    for seed in 0..4 {
        let mut history = History::new(10 + seed);
        history.commit(15);
        history.round();
        let old = history.left();
        history.commit(10);
        for moment in moments_of_round(&history) {
            let (old, versions) = (old.clone(), history.versions.clone());
            let image = moment.image_random(random.below(u64::MAX));
            states.push(State { name: "crash in a round", image, old, versions });
        }
    }
    states
}

/// A batch of a sound log.
pub struct Batch {
    pub header: BatchHeader,
    /// Pages on their way home.
    pub names: Vec<u64>,
    /// Stores: first byte of the image, and count.
    pub stores: Vec<(u64, u64)>,
}

impl Batch {
    /// The blocks of the device that have it.
    pub fn blocks(&self) -> impl Iterator<Item = DeviceBlock> {
        let header = self.header;
        (header.position..header.position + header.length)
            .step_by(BLOCK_SIZE as usize)
            .map(|position| layout().log_block(position).0)
    }
}

/// The newest anchor of an image.
pub fn newest_anchor(image: &DeviceImage) -> Option<Anchor> {
    ANCHOR_COPIES
        .into_iter()
        .filter(|copy| copy.0 < image.blocks())
        .filter_map(|copy| {
            let anchor = Anchor::decode(&image.block(copy).0).ok()?;
            (ANCHOR_COPIES[(anchor.number % 2) as usize] == copy).then_some(anchor)
        })
        .max_by_key(|anchor| anchor.number)
}

/// The batches of an image from an anchor on.
pub fn batches(image: &DeviceImage, anchor: &Anchor) -> Vec<Batch> {
    let mut found = Vec::new();
    let (mut position, mut sequence, mut previous) = (anchor.start, anchor.sequence, anchor.previous);
    while position < anchor.start + MIN_LOG_BYTES {
        let block = image.block(layout().log_block(position).0);
        let Some(header) = BatchHeader::peek(&block.0, position) else { break };
        let batch = Batch { header, names: Vec::new(), stores: Vec::new() };
        let bytes: Vec<u8> = batch.blocks().flat_map(|block| image.block(block).0).collect();
        let Some(crc) = header.verify(&anchor.uuid, &bytes) else { break };
        if header.sequence != sequence || header.previous != previous {
            break;
        }
        found.push(of_entries(batch, &bytes));
        (position, sequence, previous) = (position + header.length, sequence + 1, crc);
    }
    found
}

fn of_entries(mut batch: Batch, bytes: &[u8]) -> Batch {
    for entry in entries(bytes, IMAGE).unwrap() {
        match entry.kind {
            EntryKind::Store => batch.stores.push((entry.offset.0, entry.bytes.len() as u64)),
            EntryKind::GoingHome => {
                for pair in entry.bytes.as_chunks::<8>().0 {
                    let [first, count] =
                        [0, 4].map(|at| u32::from_le_bytes(*pair[at..].first_chunk().unwrap()));
                    batch.names.extend(u64::from(first)..u64::from(first + count));
                }
            }
        }
    }
    batch
}
