//! The journaled medium against the model `recorded` with durability by `persist` alone: the same calls to both, and after a crash
//! at every event of the device an image allowed by the model (rules J1 to J12).
//!
//! `TERRACE_REFINEMENTS=N` judges N histories instead of a few.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_engine::read_superblock;
use terrace_format::PmOffset;
use terrace_format::checkpoint::Checkpoint;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::journal::{Layout, MIN_LOG_BYTES};
use terrace_media::block::{DeviceImage, DeviceSnapshot, Operation, SimulatedDevice, Times};
use terrace_media::crash::CrashClock;
use terrace_media::pm::{
    CrashSnapshot, DurableWay, JournalOptions, JournaledPm, OpenedJournal, PmImage, RecordedPm,
};
use terrace_media::{BlockMedium, MediaError, PmMedium};
use terrace_runtime::ManualClock;
use terrace_runtime::planted::{JOURNALED, Mistake, plant};
use terrace_runtime::sync::Mutex;
use terrace_testkit::SimulatedPool;

const IMAGE: u64 = 64 << 10;
const PAGE: u64 = 4096;
const DEVICE_BLOCKS: u64 = 6000;
const OPTIONS: JournalOptions =
    JournalOptions { ring_bytes: 8 << 20, durable: DurableWay::Dsync, ..JournalOptions::DEFAULT };
const EIO: i32 = 5;
/// Calls of a life, lives of a history, images of each event.
const CALLS: u64 = 120;
const LIVES: u64 = 3;
const IMAGES: u64 = 4;
/// Rewrites of the whole image for a full log.
const LAP: u64 = MIN_LOG_BYTES / IMAGE;

/// splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

fn new_journal() -> DeviceImage {
    let device = SimulatedDevice::new(DEVICE_BLOCKS);
    let layout = Layout::new(IMAGE, MIN_LOG_BYTES).unwrap();
    JournaledPm::create(&device, layout, [7; 16]).unwrap();
    device.visible_image()
}

fn open(device: Arc<SimulatedDevice>) -> OpenedJournal {
    JournaledPm::open(device as Arc<dyn BlockMedium>, OPTIONS, Arc::new(ManualClock::new(1))).unwrap()
}

fn content(pm: &JournaledPm) -> PmImage {
    let mut bytes = vec![0; IMAGE as usize];
    pm.read(PmOffset(0), &mut bytes).unwrap();
    bytes.into()
}

/// The states of both media at an event of the devices, and the lines without meaning.
struct Moment {
    /// The devices that the journal has had, the newest last.
    devices: Vec<DeviceSnapshot>,
    recorded: CrashSnapshot,
    meaningless: BTreeSet<u64>,
}

/// The devices that the journal has had, the newest last.
type Devices = Arc<Mutex<Vec<Arc<SimulatedDevice>>>>;

/// Takes a moment, unless events are passed over.
fn moment_of(devices: &Devices, recorded: &RecordedPm, meaningless: &Mutex<BTreeSet<u64>>) -> Moment {
    let devices = devices.lock().iter().map(|device| device.snapshot()).collect();
    Moment { devices, recorded: recorded.snapshot(), meaningless: meaningless.lock().clone() }
}

fn fail(device: &SimulatedDevice, random: &mut Random) {
    let operation = if random.below(2) == 0 { Operation::Write } else { Operation::Flush };
    let times = match random.below(4) {
        0 => Times::Forever,
        _ => Times::Count(1 + random.below(4)),
    };
    device.fail_next(operation, 0..DEVICE_BLOCKS, EIO, times);
}

/// Both media, driven by the same calls.
struct Pair {
    /// None while its memory is taken up.
    journaled: Option<JournaledPm>,
    recorded: Arc<RecordedPm>,
    devices: Devices,
    clock: Arc<CrashClock>,
    /// Lines of forgotten pages, until a `persist` behind a store to the whole page.
    meaningless: Arc<Mutex<BTreeSet<u64>>>,
    /// Forgotten pages with a later store.
    restored: RefCell<BTreeSet<u64>>,
    moments: Arc<Mutex<Vec<Moment>>>,
    /// Events are passed over.
    is_hurried: Arc<AtomicBool>,
    /// The journal has failed: no call follows.
    has_failed: Cell<bool>,
    /// No call follows: the journal was opened from the device.
    is_over: Cell<bool>,
    /// Memories taken up.
    resumes: Cell<u64>,
}

impl Pair {
    fn new(image: DeviceImage, content: PmImage) -> Pair {
        let clock = CrashClock::new();
        let device = Arc::new(SimulatedDevice::with_clock("journal", image, &clock));
        let recorded = RecordedPm::from_image(content);
        recorded.set_persist_only(true);
        let pair = Pair {
            journaled: Some(open(device.clone()).pm),
            recorded: Arc::new(recorded),
            devices: Arc::new(Mutex::new(vec![device])),
            clock,
            meaningless: Arc::default(),
            restored: RefCell::default(),
            moments: Arc::default(),
            is_hurried: Arc::default(),
            has_failed: Cell::new(false),
            is_over: Cell::new(false),
            resumes: Cell::new(0),
        };
        // The devices have the clock, and the clock this call: it is taken away at the end.
        let (devices, recorded) = (Arc::clone(&pair.devices), Arc::downgrade(&pair.recorded));
        let (moments, meaningless, is_hurried) =
            (pair.moments.clone(), pair.meaningless.clone(), pair.is_hurried.clone());
        pair.clock.on_event(Some(Box::new(move |_| {
            if let (Some(recorded), false) = (recorded.upgrade(), is_hurried.load(Ordering::Relaxed)) {
                moments.lock().push(moment_of(&devices, &recorded, &meaningless));
            }
        })));
        pair
    }

    fn journaled(&self) -> &JournaledPm {
        self.journaled.as_ref().unwrap()
    }

    fn device(&self) -> Arc<SimulatedDevice> {
        Arc::clone(self.devices.lock().last().unwrap())
    }

    /// Goes on on another device, which may fail; a journal that has failed does too.
    fn rehome(&self, random: &mut Random) {
        let empty = DeviceImage::zeroed(DEVICE_BLOCKS);
        let device = Arc::new(SimulatedDevice::with_clock("further", empty, &self.clock));
        if random.below(3) == 0 {
            fail(&device, random);
        }
        self.devices.lock().push(Arc::clone(&device));
        let moved = self.journaled().rehome(device.clone(), DurableWay::Dsync);
        device.clear_failures();
        let mut devices = self.devices.lock();
        match moved {
            Ok(()) => devices.retain(|other| Arc::ptr_eq(other, &device)),
            // The user would not give it to a mount.
            Err(_) => drop(devices.pop()),
        }
    }

    /// The process ends, and another takes its memory up.
    fn resume(&mut self) {
        let left = content(self.journaled());
        let memory = self.journaled().memory().try_clone_to_owned().unwrap();
        drop(self.journaled.take());
        let device = self.device();
        device.clear_failures();
        let clock = Arc::new(ManualClock::new(1));
        let opened = JournaledPm::resume(memory, device, OPTIONS, clock).unwrap();
        assert!(opened.resumed.is_none() || content(&opened.pm) == left, "another content than the memory's");
        self.resumes.set(self.resumes.get() + u64::from(opened.resumed.is_some()));
        // From the device: as after a loss of power.
        self.is_over.set(opened.resumed.is_none());
        self.journaled = Some(opened.pm);
    }

    /// A call to both; a refusal of the journaled medium ends the life.
    fn both(&self, act: impl Fn(&dyn PmMedium) -> Result<(), MediaError>) {
        self.has_failed.set(act(self.journaled()).is_err());
        act(&*self.recorded).unwrap();
    }

    fn persist(&self) {
        match self.journaled().persist() {
            Err(_) => self.has_failed.set(true),
            Ok(()) => {
                self.recorded.persist().unwrap();
                for page in std::mem::take(&mut *self.restored.borrow_mut()) {
                    self.meaningless.lock().retain(|line| line * 64 / PAGE != page);
                }
            }
        }
    }

    /// A page is forgotten, as a freed block is: its freeing is durable.
    fn forget(&self, page: u64) {
        self.persist();
        if !self.has_failed.get() {
            self.restored.borrow_mut().remove(&page);
            self.meaningless.lock().extend(page * PAGE / 64..(page + 1) * PAGE / 64);
            self.journaled().forget(PmOffset(page * PAGE), PAGE);
        }
    }

    /// A whole page is stored.
    fn restore(&self, page: u64, byte: u8) {
        self.both(|pm| pm.write_streaming(PmOffset(page * PAGE), &[byte; PAGE as usize]));
        self.restored.borrow_mut().insert(page);
    }

    /// Rewrites the image until the log comes round, beside a home round that does not end.
    fn lap(&self, random: &mut Random) {
        self.is_hurried.store(true, Ordering::Relaxed);
        for left in (0..LAP - 8 + random.below(16)).rev() {
            if left == LAP * 3 / 4 {
                let _ = self.journaled().advance(1);
            }
            self.is_hurried.store(left > 2, Ordering::Relaxed);
            (0..IMAGE / PAGE).for_each(|page| self.restore(page, random.below(256) as u8));
            self.persist();
            if self.has_failed.get() {
                break;
            }
        }
        self.is_hurried.store(false, Ordering::Relaxed);
    }

    /// A random call. Lines of in-place stores and lines of writes are apart, as the medium promises less where they meet
    /// ([`PmMedium::write`]).
    fn call(&self, random: &mut Random) {
        let line = random.below(IMAGE / 64);
        let at = PmOffset(line / 4 * 256 + random.below(8) * 8);
        let bytes = vec![random.below(256) as u8; 8 * (1 + random.below(7)) as usize];
        let longer = vec![random.below(256) as u8; (1 + random.below(6000)) as usize / 8 * 8 + 8];
        match random.below(320) {
            0..80 => self.both(|pm| pm.store(at, &bytes[..(64 - at.0 as usize % 64).min(bytes.len())])),
            80..120 => self.both(|pm| {
                pm.write_back(PmOffset(at.0 / 64 * 64), 64);
                Ok(())
            }),
            120..170 => {
                self.both(|pm| pm.write(PmOffset(line / 4 * 256 + 64), &bytes[..bytes.len().min(120)]));
            }
            170..200 => {
                let first = (line / 4 * 256 + 64).min(IMAGE - 256);
                for (index, part) in longer.chunks(192).enumerate() {
                    let to = PmOffset(first + index as u64 * 256);
                    if to.0 + 192 <= IMAGE {
                        self.both(|pm| pm.write_streaming(to, part));
                    }
                }
            }
            200..260 => self.both(|pm| {
                pm.order();
                Ok(())
            }),
            260..280 => self.persist(),
            280..290 => self.forget(random.below(IMAGE / PAGE)),
            290..298 => self.restore(random.below(IMAGE / PAGE), random.below(256) as u8),
            298..300 => fail(&self.device(), random),
            300..302 => self.lap(random),
            302..304 => self.rehome(random),
            _ => {
                let most = 1 + random.below(2) as usize;
                // A failed round is tried again later.
                let _ = self.journaled().advance(most);
            }
        }
    }

    /// All moments; the last is now.
    fn end(&self) -> Vec<Moment> {
        self.clock.on_event(None);
        let now = moment_of(&self.devices, &self.recorded, &self.meaningless);
        let mut moments = std::mem::take(&mut *self.moments.lock());
        moments.push(now);
        moments
    }
}

/// Opens the newest device that has a journal.
fn open_newest(devices: &[DeviceImage]) -> (OpenedJournal, DeviceImage) {
    let open = |image: &DeviceImage| {
        let device = Arc::new(SimulatedDevice::from_image(image.clone()));
        JournaledPm::open(device as Arc<dyn BlockMedium>, OPTIONS, Arc::new(ManualClock::new(1)))
    };
    let mut refusals = Vec::new();
    for image in devices.iter().rev() {
        match open(image) {
            Ok(opened) => return (opened, image.clone()),
            Err(error) => refusals.push(error.to_string()),
        }
    }
    panic!("no device has the journal: {refusals:?}");
}

/// Calls of a life, and a process or two in it.
fn live(pair: &mut Pair, random: &mut Random) {
    for turn in 0..CALLS {
        if pair.is_over.get() {
            break;
        }
        if pair.has_failed.get() {
            // The store that was refused is in the model alone, and may be lost.
            match random.below(3) {
                0 => pair.rehome(random),
                1 => pair.resume(),
                _ => {}
            }
            break;
        }
        if random.below(CALLS) == 0 || turn == CALLS / 2 {
            pair.resume();
        } else {
            pair.call(random);
        }
    }
}

/// Opens crash images of one history at every event of the devices; gives their number, and the memories taken up.
fn refine(seed: u64) -> (u64, u64) {
    let mut random = Random(seed);
    let (mut image, mut left) = (new_journal(), PmImage::from(vec![0; IMAGE as usize]));
    let (mut judged, mut resumes) = (0, 0);
    for life in 0..LIVES {
        let mut pair = Pair::new(image.clone(), left.clone());
        live(&mut pair, &mut random);
        resumes += pair.resumes.get();
        for (number, moment) in pair.end().iter().enumerate() {
            for sample in 0..IMAGES {
                let crashed = moment.devices.iter().map(|device| match sample {
                    0 => device.image_none(),
                    1 => device.image_all(),
                    _ => device.image_random(random.below(u64::MAX)),
                });
                let (opened, crashed) = open_newest(&crashed.collect::<Vec<_>>());
                let found = content(&opened.pm);
                assert!(
                    moment.recorded.allows(&found, &moment.meaningless) && opened.condemned == 0,
                    "seed {seed}, life {life}, event {number}, sample {sample}: no crash of the model leaves this"
                );
                judged += 1;
                (image, left) = (crashed, found);
            }
        }
    }
    (judged, resumes)
}

#[allow(clippy::disallowed_methods)]
fn histories() -> u64 {
    std::env::var("TERRACE_REFINEMENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

#[test]
fn crash_images_match_recorded_pm_with_persist_only() {
    let (judged, resumes) = (0..histories())
        .map(refine)
        .fold((0, 0), |(judged, resumes), (more, again)| (judged + more, resumes + again));
    println!("{judged} images, {resumes} memories taken up");
    assert!(judged > 100 * histories() && resumes > histories());
}

/// Mistakes for several threads (crates/models/tests/journal.rs), or a whole pool (below).
const ELSEWHERE: [Mistake; 6] = [
    Mistake::ImageBeforeRing,
    Mistake::PlaceBeforeRead,
    Mistake::ChainNotChecked,
    Mistake::AcknowledgedOutOfOrder,
    Mistake::ForgottenWhenFreed,
    Mistake::StampBeforePersist,
];

#[test]
fn the_refinement_finds_planted_mistakes() {
    for (mistake, name, _) in JOURNALED.iter().filter(|(mistake, _, _)| !ELSEWHERE.contains(mistake)) {
        plant(Some(*mistake));
        let found = (0..60).find(|seed| catch_unwind(AssertUnwindSafe(|| refine(*seed))).is_err());
        plant(None);
        println!("{name}: seed {found:?}");
        assert!(found.is_some(), "{name} is not found");
    }
}

/// Whether the epoch in the headers of devices is durable in PM.
fn is_stamped_epoch_durable() -> bool {
    let pool = SimulatedPool::new(4 << 20, 4096);
    pool.pm.set_persist_only(true);
    let fs = pool.mount();
    fs.stamp_devices().unwrap();
    let epoch = fs.store.persistent.wal().epoch();
    drop(fs);
    let left = RecordedPm::from_image(pool.pm.snapshot().image_oldest());
    let (superblock, _) = read_superblock(&left, true).unwrap();
    let newest = CHECKPOINT_COPIES.into_iter().filter_map(|copy| {
        let mut bytes = vec![0; 4096];
        left.read(copy.offset(), &mut bytes).unwrap();
        Checkpoint::decode(&bytes, &superblock.uuid, superblock.geometry().lane_count).ok()
    });
    newest.map(|checkpoint| checkpoint.epoch).max() == Some(epoch)
}

#[test]
fn a_stamp_before_the_persist_of_the_epoch_is_found() {
    assert!(is_stamped_epoch_durable());
    plant(Some(Mistake::StampBeforePersist));
    let is_durable = is_stamped_epoch_durable();
    plant(None);
    assert!(!is_durable, "the mistake is not found");
}

/// Whether a page that is freed and forgotten amid a home round is whole after each crash that loses the freeing record (J8).
fn is_forgotten_page_kept() -> bool {
    const LARGE: u64 = 1 << 20;
    const FREED_PAGE: PmOffset = PmOffset(200 * PAGE);
    let device = Arc::new(SimulatedDevice::new(DEVICE_BLOCKS));
    JournaledPm::create(&*device, Layout::new(LARGE, MIN_LOG_BYTES).unwrap(), [7; 16]).unwrap();
    let pm = open(Arc::clone(&device)).pm;
    // The first group of the round: all dirty pages but the freed page.
    (0..128).for_each(|page| pm.write(PmOffset(page * PAGE), &[1; PAGE as usize]).unwrap());
    pm.write(FREED_PAGE, &[7; PAGE as usize]).unwrap();
    pm.persist().unwrap();
    let moments: Arc<Mutex<Vec<DeviceSnapshot>>> = Arc::default();
    let (kept, weak) = (Arc::clone(&moments), Arc::downgrade(&device));
    device.clock().on_event(Some(Box::new(move |_| {
        kept.lock().extend(weak.upgrade().map(|device| device.snapshot()));
    })));
    assert!(!pm.advance(1).unwrap());
    let freeing_record = 9u64.to_le_bytes();
    pm.write(PmOffset(0), &freeing_record).unwrap();
    pm.forget(FREED_PAGE, PAGE);
    assert!(pm.advance(usize::MAX).unwrap());
    device.clock().on_event(None);
    let moments = std::mem::take(&mut *moments.lock());
    moments.iter().flat_map(|moment| (0..4).map(|seed| moment.image_random(seed))).all(|image| {
        let found = open(Arc::new(SimulatedDevice::from_image(image))).pm;
        let (mut record, mut page) = ([0; 8], [0; PAGE as usize]);
        let is_read = found.read(PmOffset(0), &mut record).and(found.read(FREED_PAGE, &mut page)).is_ok();
        record == freeing_record || is_read && page == [7; PAGE as usize]
    })
}

#[test]
fn a_round_before_the_freeing_record_is_found() {
    assert!(is_forgotten_page_kept());
    plant(Some(Mistake::ForgottenWhenFreed));
    let is_kept = is_forgotten_page_kept();
    plant(None);
    assert!(!is_kept, "the mistake is not found");
}
