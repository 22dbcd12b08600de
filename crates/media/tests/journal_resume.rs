//! `journaled`: a process takes up the memory of the last (J13).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use terrace_format::journal::{ANCHOR_COPIES, Anchor, Layout, MIN_LOG_BYTES};
use terrace_format::{DeviceBlock, PmOffset};
use terrace_media::block::{AlignedBlock, DeviceImage, DeviceSnapshot, Operation, SimulatedDevice, Times};
use terrace_media::pm::{DurableWay, JournalError, JournalOptions, JournaledPm, OpenedJournal};
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::ManualClock;
use terrace_runtime::sync::Mutex;

/// Dirty pages of the whole image take several batches.
const IMAGE: u64 = 4 << 20;
const PAGE: u64 = 4096;
const UUID: [u8; 16] = [7; 16];
const DEVICE_BLOCKS: u64 = 6000;
const EIO: i32 = 5;
const OPTIONS: JournalOptions =
    JournalOptions { ring_bytes: 8 << 20, durable: DurableWay::Dsync, ..JournalOptions::DEFAULT };

fn new_journal(image: u64, uuid: [u8; 16]) -> Arc<SimulatedDevice> {
    let device = SimulatedDevice::new(DEVICE_BLOCKS);
    JournaledPm::create(&device, Layout::new(image, MIN_LOG_BYTES).unwrap(), uuid).unwrap();
    Arc::new(device)
}

fn open(device: &Arc<SimulatedDevice>) -> OpenedJournal {
    let device = Arc::clone(device) as Arc<dyn BlockMedium>;
    JournaledPm::open(device, OPTIONS, Arc::new(ManualClock::new(1))).unwrap()
}

fn open_image(image: DeviceImage) -> OpenedJournal {
    open(&Arc::new(SimulatedDevice::from_image(image)))
}

fn try_resume(memory: OwnedFd, device: &Arc<SimulatedDevice>) -> Result<OpenedJournal, JournalError> {
    let device = Arc::clone(device) as Arc<dyn BlockMedium>;
    JournaledPm::resume(memory, device, OPTIONS, Arc::new(ManualClock::new(1)))
}

fn resume(memory: OwnedFd, device: &Arc<SimulatedDevice>) -> OpenedJournal {
    try_resume(memory, device).unwrap()
}

/// The process ends; its memory is left.
fn die(pm: JournaledPm) -> OwnedFd {
    pm.memory().try_clone_to_owned().unwrap()
}

fn content(pm: &JournaledPm) -> Vec<u8> {
    let mut bytes = vec![0; pm.size() as usize];
    pm.read(PmOffset(0), &mut bytes).unwrap();
    bytes
}

/// Stores to `count` pages from a page on.
fn store(pm: &JournaledPm, first: u64, count: u64, byte: u8) {
    (first..first + count).for_each(|page| pm.write(PmOffset(page * PAGE + 100), &[byte; 300]).unwrap());
}

/// A journal with pages in home, durable stores, a round under way, and stores without a commit.
fn used_journal() -> (Arc<SimulatedDevice>, JournaledPm) {
    let device = new_journal(IMAGE, UUID);
    let pm = open(&device).pm;
    store(&pm, 0, 300, 1);
    assert!(pm.advance(usize::MAX).unwrap());
    store(&pm, 100, 300, 2);
    pm.persist().unwrap();
    assert!(!pm.advance(1).unwrap());
    store(&pm, 150, 400, 3);
    pm.store(PmOffset(700 * PAGE), &[4; 8]).unwrap();
    (device, pm)
}

#[test]
fn a_resume_finds_the_content_of_the_last_process() {
    let (device, pm) = used_journal();
    let expected = content(&pm);
    let memory = die(pm);
    let resumed = resume(memory, &device);
    // Pages 100 to 549, some of them in the round.
    assert_eq!((resumed.resumed, resumed.condemned), (Some(450), 0));
    assert!(content(&resumed.pm) == expected);
    // The in-place store alone has no record.
    let again = open_image(device.snapshot().image_none());
    assert_eq!(again.condemned, 0);
    let (found, in_place) = (content(&again.pm), 700 * PAGE as usize);
    assert!(found[..in_place] == expected[..in_place] && found[in_place + 8..] == expected[in_place + 8..]);
    // Each store of the next life is kept, and its pages go home.
    for turn in 0..3000 {
        store(&resumed.pm, turn % 1000, 2, turn as u8);
    }
    resumed.pm.write_back(PmOffset(700 * PAGE), 8);
    resumed.pm.persist().unwrap();
    let again = open_image(device.snapshot().image_none());
    assert_eq!((content(&again.pm) == content(&resumed.pm), again.condemned), (true, 0));
    resumed.pm.close().unwrap();
    let again = open_image(device.snapshot().image_none());
    assert_eq!((content(&again.pm) == content(&resumed.pm), again.batches, again.condemned), (true, 0, 0));
}

#[test]
fn several_processes_take_up_a_memory_in_turn() {
    let (device, mut pm) = used_journal();
    for life in 0..4 {
        let expected = content(&pm);
        let resumed = resume(die(pm), &device);
        // After an orderly end no page is dirty.
        assert_eq!(resumed.resumed.map(|pages| pages > 0), Some(life != 3), "life {life}");
        assert!(content(&resumed.pm) == expected, "life {life}");
        pm = resumed.pm;
        store(&pm, 10 * life, 3, 50 + life as u8);
        if life == 2 {
            pm.close().unwrap();
        }
    }
}

/// Snapshots of a device at all events of a call, and behind it.
fn moments_of(device: &Arc<SimulatedDevice>, call: impl FnOnce()) -> Vec<DeviceSnapshot> {
    let moments: Arc<Mutex<Vec<DeviceSnapshot>>> = Arc::default();
    let (kept, weak) = (Arc::clone(&moments), Arc::downgrade(device));
    device.clock().on_event(Some(Box::new(move |_| {
        kept.lock().extend(weak.upgrade().map(|device| device.snapshot()));
    })));
    call();
    device.clock().on_event(None);
    let mut moments = std::mem::take(&mut *moments.lock());
    moments.push(device.snapshot());
    moments
}

fn images(moment: &DeviceSnapshot) -> impl Iterator<Item = DeviceImage> {
    [moment.image_none(), moment.image_all()].into_iter().chain((0..4).map(|seed| moment.image_random(seed)))
}

/// A loss of power leaves the durable stores, or all stores of the last process: no part of them.
#[test]
fn a_loss_of_power_amid_a_resume_leaves_old_or_new_content() {
    let device = new_journal(IMAGE, UUID);
    let pm = open(&device).pm;
    store(&pm, 0, 300, 1);
    assert!(pm.advance(usize::MAX).unwrap());
    store(&pm, 100, 300, 2);
    pm.persist().unwrap();
    let persisted = content(&pm);
    store(&pm, 50, 700, 3);
    let stored = content(&pm);
    let memory = die(pm);
    let moments = moments_of(&device, || assert!(resume(memory, &device).resumed.is_some()));
    let mut seen = [0, 0];
    for image in moments.iter().flat_map(images) {
        let device = Arc::new(SimulatedDevice::from_image(image));
        let opened = open(&device);
        let found = content(&opened.pm);
        assert_eq!(opened.condemned, 0);
        assert!(found == persisted || found == stored, "a part of the stores");
        seen[usize::from(found == stored)] += 1;
        // Batches left behind the end count never.
        store(&opened.pm, 900, 1, 9);
        opened.pm.persist().unwrap();
        let again = open_image(device.snapshot().image_none());
        assert!(content(&again.pm) == content(&opened.pm));
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

/// The device fails amid the resume, at different places; the memory serves again.
#[test]
fn a_memory_serves_again_after_a_failed_resume() {
    let (device, pm) = used_journal();
    let expected = content(&pm);
    let memory = die(pm);
    for place in [0..1, 256..257, 1800..DEVICE_BLOCKS, 2000..2400] {
        for operation in [Operation::Write, Operation::Flush] {
            device.fail_next(operation, place.clone(), EIO, Times::Forever);
            let tried = try_resume(memory.try_clone().unwrap(), &device);
            device.clear_failures();
            let Ok(resumed) = tried else { continue };
            assert!(content(&resumed.pm) == expected);
        }
    }
    let resumed = resume(memory, &device);
    // The anchor of an attempt may have passed the memory; the device has the whole pages then.
    let in_place = 700 * PAGE as usize;
    assert!(content(&resumed.pm)[..in_place] == expected[..in_place]);
}

#[test]
fn memory_of_another_journal_epoch_or_size_is_passed_over() {
    let (device, pm) = used_journal();
    pm.persist().unwrap();
    let memory = die(pm);
    let without =
        |device: &Arc<SimulatedDevice>| Arc::new(SimulatedDevice::from_image(device.visible_image()));
    let expected = content(&open(&without(&device)).pm);
    for other in [new_journal(IMAGE, [8; 16]), new_journal(IMAGE / 2, UUID)] {
        let opened = resume(memory.try_clone().unwrap(), &other);
        assert_eq!(opened.resumed, None);
        assert!(content(&opened.pm).iter().all(|byte| *byte == 0));
    }
    // The epoch of its first anchor: this device is older than the memory.
    let older = try_resume(memory.try_clone().unwrap(), &new_journal(IMAGE, UUID));
    assert!(matches!(older, Err(JournalError::MovedAway { .. })));
    let opened_since = without(&device);
    let pm = open(&opened_since).pm;
    store(&pm, 500, 1, 77);
    pm.persist().unwrap();
    let (newest, _) = (content(&pm), die(pm));
    let opened = resume(memory.try_clone().unwrap(), &opened_since);
    assert!(opened.resumed.is_none() && content(&opened.pm) == newest);
    // A file that is no memory of a journal.
    let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let opened = resume(file, &without(&device));
    assert!(opened.resumed.is_none() && content(&opened.pm) == expected);
    let options = JournalOptions { read_only: true, ..OPTIONS };
    let clock = Arc::new(ManualClock::new(1));
    let opened = JournaledPm::resume(memory.try_clone().unwrap(), device.clone(), options, clock).unwrap();
    assert!(opened.resumed.is_none());
    drop(opened);
    assert!(resume(memory, &device).resumed.is_some(), "the same memory for its own journal");
}

#[test]
fn memory_of_an_opening_without_an_end_is_passed_over() {
    let device = new_journal(IMAGE, UUID);
    let options = JournalOptions { read_only: true, ..OPTIONS };
    let clock = Arc::new(ManualClock::new(1));
    let pm = JournaledPm::open(device.clone(), options, clock).unwrap().pm;
    assert_eq!(resume(die(pm), &device).resumed, None);
}

#[test]
fn damaged_pages_stay_damaged_over_a_resume() {
    let device = new_journal(IMAGE, UUID);
    let pm = open(&device).pm;
    store(&pm, 0, 10, 1);
    pm.close().unwrap();
    let mut image = device.visible_image();
    let home = Layout::new(IMAGE, MIN_LOG_BYTES).unwrap().home();
    image.set_block(DeviceBlock(home.0 + 3), AlignedBlock([9; 4096]));
    let device = Arc::new(SimulatedDevice::from_image(image));
    let opened = open(&device);
    assert_eq!(opened.condemned, 1);
    assert!(opened.pm.write(PmOffset(3 * PAGE), &[2; 8]).is_err());
    store(&opened.pm, 5, 1, 6);
    let resumed = resume(die(opened.pm), &device);
    assert_eq!((resumed.resumed, resumed.condemned), (Some(1), 1));
    assert!(resumed.pm.read(PmOffset(3 * PAGE), &mut [0; 8]).is_err());
    resumed.pm.close().unwrap();
    let again = open_image(device.snapshot().image_none());
    assert_eq!(again.condemned, 1);
    assert!(again.pm.read(PmOffset(3 * PAGE), &mut [0; 8]).is_err());
    let mut found = [0];
    again.pm.read(PmOffset(5 * PAGE + 100), &mut found).unwrap();
    assert_eq!(found, [6]);
}

/// The log is nearly full: the whole pages have no room, and the durable stores are opened from the device.
#[test]
fn a_log_without_room_is_opened_from_the_device() {
    let device = new_journal(IMAGE, UUID);
    let pm = open(&device).pm;
    store(&pm, 0, 1000, 1);
    for _ in 0..12 {
        pm.write_streaming(PmOffset(0), &vec![7; 1 << 20]).unwrap();
    }
    pm.persist().unwrap();
    let persisted = content(&pm);
    store(&pm, 0, 1, 2);
    let opened = resume(die(pm), &device);
    assert_eq!((opened.resumed, opened.condemned), (None, 0));
    assert!(content(&opened.pm) == persisted);
}

#[test]
fn a_memory_goes_with_the_newest_device() {
    let (old, pm) = used_journal();
    let other = Arc::new(SimulatedDevice::new(DEVICE_BLOCKS));
    other.fail_next(Operation::Flush, 0..DEVICE_BLOCKS, EIO, Times::Count(1));
    assert!(pm.rehome(other.clone(), DurableWay::Dsync).is_err());
    // The pages that the attempt took are dirty again.
    let expected = content(&pm);
    let resumed = resume(die(pm), &old);
    assert!(resumed.resumed.is_some_and(|pages| pages > 300) && content(&resumed.pm) == expected);
    let pm = resumed.pm;
    other.clear_failures();
    pm.rehome(other.clone(), DurableWay::Dsync).unwrap();
    store(&pm, 800, 3, 5);
    let expected = content(&pm);
    let memory = die(pm);
    assert!(try_resume(memory.try_clone().unwrap(), &old).is_err(), "the old device has no journal");
    let resumed = resume(memory, &other);
    assert_eq!(resumed.resumed, Some(3));
    assert!(content(&resumed.pm) == expected);
    let again = open_image(other.snapshot().image_none());
    assert!(content(&again.pm) == expected);
}

#[test]
fn a_memory_without_its_newest_anchor_is_passed_over() {
    let (device, pm) = used_journal();
    assert!(pm.advance(usize::MAX).unwrap());
    pm.persist().unwrap();
    let expected = content(&pm);
    let memory = die(pm);
    let number = |copy: &DeviceBlock| {
        Anchor::decode(&device.visible_image().block(*copy).0).map(|anchor| anchor.number).unwrap()
    };
    let newest = ANCHOR_COPIES.into_iter().max_by_key(number).unwrap();
    device.write(newest, &[AlignedBlock::zeroed()]).unwrap();
    let opened = resume(memory, &device);
    // The bits of the pages in the last round have ended: the memory does not suit the older anchor.
    assert_eq!((opened.resumed, opened.condemned), (None, 0));
    assert!(opened.pm.advance(usize::MAX).unwrap());
    let again = open_image(device.snapshot().image_none());
    let in_place = 700 * PAGE as usize;
    assert!(content(&again.pm)[..in_place] == expected[..in_place] && again.condemned == 0);
}
