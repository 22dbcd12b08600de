//! The journaled medium under the scheduler: writers store numbers, observe stores of other writers, write back lines of
//! in-place stores and persist, beside home rounds and a loss of power (rules J2, J3, J5, J7).
//!
//! After a crash the image has all stores before a `persist`, and a store only beside the stores seen by the writer before. The
//! next life finds the same content.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use terrace_format::PmOffset;
use terrace_format::journal::{Layout, MIN_LOG_BYTES};
use terrace_media::block::{DeviceImage, DeviceSnapshot, SimulatedDevice};
use terrace_media::crash::CrashClock;
use terrace_media::pm::{DurableWay, JournalError, JournalOptions, JournaledPm, OpenedJournal};
use terrace_media::{MediaError, PmMedium};
use terrace_models::slow::Slow;
use terrace_models::{Schedules, UUID, below, explore, finds, once};
use terrace_runtime::ManualClock;
use terrace_runtime::planted::Mistake;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_runtime::thread::spawn;

const IMAGE: u64 = 4 * 4096;
const DEVICE_BLOCKS: u64 = 5200;
const OPTIONS: JournalOptions =
    JournalOptions { ring_bytes: 8 << 20, durable: DurableWay::Dsync, ..JournalOptions::DEFAULT };
/// Stores of each writer.
const ROUNDS: u64 = 3;
/// Images of each crash.
const IMAGES: u64 = 2;

/// The number of a writer's last store, and the last number seen of the other writer.
const WRITERS: [PmOffset; 2] = [PmOffset(0), PmOffset(4096)];
/// A record, and an in-place store named by the record.
const RECORD: PmOffset = PmOffset(2 * 4096);
const IN_PLACE: PmOffset = PmOffset(3 * 4096);

fn try_open(device: &Arc<SimulatedDevice>) -> Result<OpenedJournal, JournalError> {
    let slow = Slow::new(device);
    JournaledPm::open(Arc::new(slow), OPTIONS, Arc::new(ManualClock::new(1)))
}

fn open(device: &Arc<SimulatedDevice>) -> OpenedJournal {
    try_open(device).unwrap()
}

fn new_journal() -> DeviceImage {
    let device = SimulatedDevice::new(DEVICE_BLOCKS);
    let layout = Layout::new(IMAGE, MIN_LOG_BYTES).unwrap();
    JournaledPm::create(&device, layout, UUID).unwrap();
    device.visible_image()
}

fn content(pm: &JournaledPm) -> Vec<u8> {
    let mut bytes = vec![0; IMAGE as usize];
    pm.read(PmOffset(0), &mut bytes).unwrap();
    bytes
}

fn pair(pm: &JournaledPm, at: PmOffset) -> (u64, u64) {
    (pm.load_u64(at).unwrap(), pm.load_u64(at.plus(8)).unwrap())
}

/// A crash: the devices, the newest last, and the stores acknowledged before.
struct Crash {
    devices: [DeviceSnapshot; 2],
    acknowledged: [u64; 2],
}

struct Model {
    pm: JournaledPm,
    /// The device, and another for a move.
    devices: [Arc<SimulatedDevice>; 2],
    /// The last store covered by `persist`, of each writer.
    acknowledged: [AtomicU64; 2],
    crashes: Mutex<Vec<Crash>>,
    /// Calls without an answer.
    calls: AtomicU64,
}

impl Model {
    /// Stores numbers beside the last number seen of the other writer; persists most, some through a call.
    fn write(self: &Arc<Self>, own: usize) {
        for number in 1..=ROUNDS {
            let (seen, _) = pair(&self.pm, WRITERS[1 - own]);
            let bytes: Vec<u8> = [number, seen].into_iter().flat_map(u64::to_le_bytes).collect();
            self.pm.write(WRITERS[own], &bytes).unwrap();
            self.pm.order();
            match below(4) {
                0 => {}
                1 => {
                    let model = Arc::clone(self);
                    self.calls.fetch_add(1, Ordering::SeqCst);
                    let then = move |result: Result<(), MediaError>| {
                        result.unwrap();
                        model.calls.fetch_sub(1, Ordering::SeqCst);
                        model.acknowledged[own].fetch_max(number, Ordering::SeqCst);
                    };
                    if self.pm.persist_then(self.pm.point(), Box::new(then)) {
                        self.pm.persist_waiting();
                    }
                }
                _ => {
                    self.pm.persist().unwrap();
                    self.acknowledged[own].fetch_max(number, Ordering::SeqCst);
                }
            }
        }
    }

    /// Writes records, and in-place stores behind the records.
    fn store_in_place(&self) {
        for number in 1..=ROUNDS {
            self.pm.write(RECORD, &number.to_le_bytes()).unwrap();
            self.pm.order();
            self.pm.store(IN_PLACE, &number.to_le_bytes()).unwrap();
        }
    }

    fn write_back(&self) {
        for _ in 0..2 {
            self.pm.write_back(IN_PLACE, 8);
            self.pm.order();
            self.pm.persist().unwrap();
        }
    }

    fn go_home(&self) {
        for _ in 0..2 {
            self.pm.advance(1 + below(2) as usize).unwrap();
        }
    }

    /// The old device first: a move erases its anchors after those of the new device are there.
    fn snapshots(&self) -> [DeviceSnapshot; 2] {
        let [old, new] = &self.devices;
        let old = old.snapshot();
        [old, new.snapshot()]
    }

    fn rehome(&self) {
        let slow = Slow::new(&self.devices[1]);
        self.pm.rehome(Arc::new(slow), DurableWay::Dsync).unwrap();
    }

    fn crash(&self) {
        for _ in 0..3 {
            let acknowledged = [0, 1].map(|own| self.acknowledged[own].load(Ordering::SeqCst));
            self.crashes.lock().push(Crash { devices: self.snapshots(), acknowledged });
        }
    }
}

/// Opens the image of a crash, and lives on.
fn judge(crash: &Crash) {
    for _ in 0..IMAGES {
        let images = crash.devices.each_ref().map(|device| device.image_random(below(u64::MAX)));
        let [old, new] = images.map(|image| Arc::new(SimulatedDevice::from_image(image)));
        let (opened, device) = try_open(&new).map_or_else(|_| (open(&old), old), |opened| (opened, new));
        assert_eq!(opened.condemned, 0, "damaged pages");
        let found = WRITERS.map(|at| pair(&opened.pm, at));
        for own in 0..2 {
            let (number, seen) = found[own];
            assert!(number >= crash.acknowledged[own], "store {} is lost", crash.acknowledged[own]);
            assert!(seen <= found[1 - own].0, "store {number} without store {seen}, which it had seen");
        }
        let (record, _) = pair(&opened.pm, RECORD);
        let (in_place, _) = pair(&opened.pm, IN_PLACE);
        assert!(in_place <= record, "an in-place store without its record");
        opened.pm.write(WRITERS[0], &(ROUNDS + 1).to_le_bytes()).unwrap();
        opened.pm.persist().unwrap();
        let left = content(&opened.pm);
        drop(opened);
        let again = open(&Arc::new(SimulatedDevice::from_image(device.snapshot().image_none())));
        assert!(content(&again.pm) == left, "another content than the last life left");
    }
}

fn model(image: &DeviceImage) {
    run(image, |model| model.go_home());
}

/// The journal moves to another device beside stores, commits and crashes (J12).
fn move_model(image: &DeviceImage) {
    run(image, |model| model.rehome());
}

fn run(image: &DeviceImage, beside: fn(&Arc<Model>)) {
    let device = Arc::new(SimulatedDevice::from_image(image.clone()));
    let other = Arc::new(SimulatedDevice::new(DEVICE_BLOCKS));
    let model = Arc::new(Model {
        pm: open(&device).pm,
        devices: [device, other],
        acknowledged: Default::default(),
        crashes: Mutex::default(),
        calls: AtomicU64::new(0),
    });
    let works: [fn(&Arc<Model>); 6] = [
        |model| model.write(0),
        |model| model.write(1),
        |model| model.store_in_place(),
        |model| model.write_back(),
        beside,
        |model| model.crash(),
    ];
    let start = |work: fn(&Arc<Model>)| {
        let model = Arc::clone(&model);
        spawn("model", move || work(&model)).unwrap()
    };
    let threads: Vec<_> = works.into_iter().map(start).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(model.calls.load(Ordering::SeqCst), 0, "calls without an answer");
    model.pm.persist().unwrap();
    let acknowledged = WRITERS.map(|at| pair(&model.pm, at).0);
    assert_eq!(acknowledged, [ROUNDS; 2]);
    let mut crashes = std::mem::take(&mut *model.crashes.lock());
    crashes.push(Crash { devices: model.snapshots(), acknowledged });
    crashes.iter().for_each(judge);
}

/// Records, in-place stores and write-backs beside commits, with a loss of power at every event of the device.
fn in_place_model(image: &DeviceImage) {
    let clock = CrashClock::new();
    let device = Arc::new(SimulatedDevice::with_clock("journal", image.clone(), &clock));
    let pm = Arc::new(open(&device).pm);
    let moments: Arc<Mutex<Vec<DeviceSnapshot>>> = Arc::default();
    let (kept, weak) = (Arc::clone(&moments), Arc::downgrade(&device));
    clock.on_event(Some(Box::new(move |_| {
        kept.lock().extend(weak.upgrade().map(|device| device.snapshot()));
    })));
    let works: [fn(&JournaledPm); 3] = [
        |pm| {
            for number in 1..=2u64 {
                pm.write(RECORD, &number.to_le_bytes()).unwrap();
                pm.store(IN_PLACE, &number.to_le_bytes()).unwrap();
            }
        },
        |pm| (0..2).for_each(|_| pm.write_back(IN_PLACE, 8)),
        |pm| (0..3).for_each(|_| pm.persist().unwrap()),
    ];
    let start = |work: fn(&JournaledPm)| {
        let pm = Arc::clone(&pm);
        spawn("model", move || work(&pm)).unwrap()
    };
    let threads: Vec<_> = works.into_iter().map(start).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    clock.on_event(None);
    for moment in std::mem::take(&mut *moments.lock()) {
        let opened = open(&Arc::new(SimulatedDevice::from_image(moment.image_none())));
        let [(record, _), (in_place, _)] = [RECORD, IN_PLACE].map(|at| pair(&opened.pm, at));
        assert!(in_place <= record, "in-place store {in_place} with record {record}");
    }
}

#[test]
fn an_in_place_store_is_durable_behind_the_record() {
    let image = once(new_journal);
    explore("journal", Schedules { random: 200, priorities: 400 }, move || in_place_model(&image));
}

#[test]
fn a_loss_of_power_leaves_a_prefix_of_all_stores() {
    let image = once(new_journal);
    explore("journal", Schedules { random: 300, priorities: 300 }, move || model(&image));
}

#[test]
fn a_move_beside_stores_leaves_a_prefix_of_all_stores() {
    let image = once(new_journal);
    explore("journal", Schedules { random: 150, priorities: 150 }, move || move_model(&image));
}

#[test]
fn the_model_of_the_journal_finds_planted_mistakes() {
    for mistake in [
        Mistake::ImageBeforeRing,
        Mistake::HomeBeforeLog,
        Mistake::ChainNotChecked,
        Mistake::AcknowledgedOutOfOrder,
    ] {
        let image = once(new_journal);
        let schedules = Schedules { random: 300, priorities: 2000 };
        assert!(finds("journal", mistake, schedules, move || model(&image)), "{mistake:?} is not found");
    }
    let image = once(new_journal);
    let (mistake, schedules) = (Mistake::PlaceBeforeRead, Schedules { random: 300, priorities: 4000 });
    assert!(finds("journal", mistake, schedules, move || in_place_model(&image)), "{mistake:?} is not found");
}
