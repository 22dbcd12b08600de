//! `journaled`: journals that take over the content of another medium, and the image in memory.

use std::sync::Arc;
use terrace_format::PmOffset;
use terrace_format::journal::{Layout, MIN_LOG_BYTES};
use terrace_media::block::{DeviceImage, DeviceSnapshot, SimulatedDevice};
use terrace_media::pm::{JournalError, JournalOptions, JournaledPm, OpenedJournal, PmImage, RecordedPm};
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::sync::Mutex;

/// More than a write, and a table block.
const IMAGE: u64 = 1100 << 12;
const UUID: [u8; 16] = [7; 16];
const DEVICE_BLOCKS: u64 = 7000;
const OPTIONS: JournalOptions = JournalOptions {
    ring_bytes: 8 << 20,
    durable: terrace_media::pm::DurableWay::Dsync,
    ..JournalOptions::DEFAULT
};

fn open(device: Arc<SimulatedDevice>, options: JournalOptions) -> Result<OpenedJournal, JournalError> {
    JournaledPm::open(device as Arc<dyn BlockMedium>, options, Arc::new(terrace_runtime::ManualClock::new(1)))
}

fn open_image(image: DeviceImage) -> Result<OpenedJournal, JournalError> {
    open(Arc::new(SimulatedDevice::from_image(image)), OPTIONS)
}

fn content(pm: &dyn PmMedium) -> Vec<u8> {
    let mut bytes = vec![0; IMAGE as usize];
    pm.read(PmOffset(0), &mut bytes).unwrap();
    bytes
}

/// Content with pages of zeros.
fn old_content() -> Vec<u8> {
    (0..IMAGE).map(|at| if at / 4096 % 5 < 2 { 0 } else { (at * 7 + at / 4096) as u8 | 1 }).collect()
}

#[test]
fn a_crash_leaves_a_taken_over_content_whole_or_no_journal() {
    let old = RecordedPm::from_image(PmImage::from(old_content()));
    let device = Arc::new(SimulatedDevice::new(DEVICE_BLOCKS));
    let layout = Layout::new(IMAGE, MIN_LOG_BYTES).unwrap();
    let moments: Arc<Mutex<Vec<DeviceSnapshot>>> = Arc::default();
    let (kept, weak) = (moments.clone(), Arc::downgrade(&device));
    device.clock().on_event(Some(Box::new(move |_| {
        if let Some(device) = weak.upgrade() {
            kept.lock().push(device.snapshot());
        }
    })));
    let mut done = 0;
    JournaledPm::create_from(&*device, layout, UUID, &old, &mut |bytes| done = bytes).unwrap();
    device.clock().on_event(None);
    assert_eq!(done, IMAGE);
    let mut seen = [0, 0];
    for moment in std::mem::take(&mut *moments.lock()) {
        for image in [moment.image_none(), moment.image_all(), moment.image_random(1), moment.image_random(2)]
        {
            match open_image(image) {
                Ok(opened) => {
                    assert_eq!(opened.condemned, 0);
                    assert!(content(&opened.pm) == old_content(), "a part of the content");
                    seen[0] += 1;
                }
                Err(JournalError::NotAJournal { .. } | JournalError::Damaged { .. }) => seen[1] += 1,
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    let opened = open_image(device.snapshot().image_none()).unwrap();
    assert!(content(&opened.pm) == old_content(), "the content is not durable at the end");
}

#[test]
fn an_unreadable_range_is_not_taken_over() {
    let old = RecordedPm::from_image(PmImage::from(old_content()));
    old.condemn(PmOffset(3 << 12), 4096);
    let device = SimulatedDevice::new(DEVICE_BLOCKS);
    let layout = Layout::new(IMAGE, MIN_LOG_BYTES).unwrap();
    let error = JournaledPm::create_from(&device, layout, UUID, &old, &mut |_| {}).unwrap_err();
    assert!(matches!(error, JournalError::Media(_)), "{error}");
    assert!(matches!(open_image(device.visible_image()), Err(JournalError::NotAJournal { .. })));
}

/// KiB of this process that are locked in memory.
fn locked_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn the_image_is_locked_in_memory_or_the_reason_is_told() {
    let device = Arc::new(SimulatedDevice::new(DEVICE_BLOCKS));
    let layout = Layout::new(IMAGE, MIN_LOG_BYTES).unwrap();
    JournaledPm::create(&*device, layout, UUID).unwrap();
    let before = locked_kib();
    let unlocked = open(device.clone(), OPTIONS).unwrap();
    assert_eq!((locked_kib(), unlocked.unlocked.is_none()), (before, true), "only at request");
    drop(unlocked);
    let opened = open(device, JournalOptions { resident: true, ..OPTIONS }).unwrap();
    let is_locked = locked_kib() >= before + (IMAGE >> 10);
    assert_eq!(is_locked, opened.unlocked.is_none(), "{:?}", opened.unlocked);
    drop(opened);
    assert_eq!(locked_kib(), before);
}
