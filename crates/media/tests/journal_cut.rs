//! `journaled`: a log with damage in its middle, cut there (J11).

use std::sync::Arc;
use terrace_format::PmOffset;
use terrace_format::journal::{Layout, MIN_LOG_BYTES};
use terrace_media::block::{AlignedBlock, DeviceImage, DeviceSnapshot, SimulatedDevice};
use terrace_media::pm::{JournalError, JournalOptions, JournaledPm, OpenedJournal};
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::sync::Mutex;

const IMAGE: u64 = 64 << 10;
const UUID: [u8; 16] = [7; 16];
const DEVICE_BLOCKS: u64 = 12_000;
/// The damaged batch, the second.
const DAMAGE: u64 = 4096;
const OPTIONS: JournalOptions = JournalOptions {
    ring_bytes: 8 << 20,
    durable: terrace_media::pm::DurableWay::Dsync,
    ..JournalOptions::DEFAULT
};
const CUT: JournalOptions = JournalOptions { cut_log: true, ..OPTIONS };

/// More than the bytes behind the end in which a batch proves damage.
fn layout() -> Layout {
    Layout::new(IMAGE, 2 * MIN_LOG_BYTES).unwrap()
}

fn open(device: Arc<SimulatedDevice>, options: JournalOptions) -> Result<OpenedJournal, JournalError> {
    JournaledPm::open(device as Arc<dyn BlockMedium>, options, Arc::new(terrace_runtime::ManualClock::new(1)))
}

fn byte(pm: &JournaledPm, at: u64) -> u8 {
    let mut byte = [0];
    pm.read(PmOffset(at), &mut byte).unwrap();
    byte[0]
}

fn store(pm: &JournaledPm, at: u64, value: u8) {
    pm.write(PmOffset(at), &[value]).unwrap();
    pm.persist().unwrap();
}

/// A journal without an orderly end: byte 0 became 1 in the first batch, byte 8192 became 2, 3 and so on in later batches, one
/// of which is damaged. The batches reach beyond the bytes in which a batch proves damage.
fn damaged() -> DeviceImage {
    let device = Arc::new(SimulatedDevice::new(DEVICE_BLOCKS));
    JournaledPm::create(&*device, layout(), UUID).unwrap();
    let pm = open(device.clone(), OPTIONS).unwrap().pm;
    store(&pm, 0, 1);
    for value in 2..7 {
        store(&pm, 8192, value);
    }
    for _ in 0..6 {
        (0..400).for_each(|_| pm.write_streaming(PmOffset(32 << 10), &[9; 8192]).unwrap());
        store(&pm, 8192, 7);
    }
    for value in 8..12 {
        store(&pm, 8192, value);
    }
    let mut image = device.snapshot().image_none();
    image.set_block(layout().log_block(DAMAGE).0, AlignedBlock::zeroed());
    image
}

/// Stores that fill the log up to the places of old batches, each followed by a loss of power, find no damage.
fn use_it(device: &Arc<SimulatedDevice>, pm: JournaledPm) {
    for value in 20..25 {
        store(&pm, 4096, value);
        let again = open(Arc::new(SimulatedDevice::from_image(device.snapshot().image_none())), OPTIONS);
        assert_eq!(byte(&again.unwrap().pm, 4096), value);
    }
    for value in 30..36 {
        (0..400).for_each(|_| pm.write_streaming(PmOffset(32 << 10), &[9; 8192]).unwrap());
        store(&pm, 4096, value);
        let again = open(Arc::new(SimulatedDevice::from_image(device.snapshot().image_none())), OPTIONS);
        assert_eq!(byte(&again.unwrap().pm, 4096), value);
    }
}

#[test]
fn a_damaged_log_refuses_and_is_cut_at_request() {
    let device = Arc::new(SimulatedDevice::from_image(damaged()));
    let before = device.counters();
    let refused = open(device.clone(), OPTIONS).err().unwrap();
    assert!(matches!(refused, JournalError::DamagedLog { .. }), "{refused}");
    assert!(refused.to_string().contains("at position 4096"), "{refused}");
    assert!(open(device.clone(), JournalOptions { read_only: true, ..CUT }).is_err());
    assert_eq!(device.counters().writes, before.writes, "a refusal writes nothing");
    let opened = open(device.clone(), CUT).unwrap();
    assert_eq!((opened.cut_at, opened.batches, opened.condemned), (Some(DAMAGE), 1, 0));
    assert_eq!((byte(&opened.pm, 0), byte(&opened.pm, 8192)), (1, 0));
    use_it(&device, opened.pm);
    let sound = open(Arc::new(SimulatedDevice::from_image(device.snapshot().image_none())), CUT).unwrap();
    assert_eq!(sound.cut_at, None, "a sound log is not cut");
}

#[test]
fn a_crash_while_a_log_is_cut_leaves_the_damage_or_the_cut() {
    let device = Arc::new(SimulatedDevice::from_image(damaged()));
    let moments: Arc<Mutex<Vec<DeviceSnapshot>>> = Arc::default();
    let (kept, weak) = (moments.clone(), Arc::downgrade(&device));
    device.clock().on_event(Some(Box::new(move |_| {
        if let Some(device) = weak.upgrade() {
            kept.lock().push(device.snapshot());
        }
    })));
    drop(open(device.clone(), CUT).unwrap());
    device.clock().on_event(None);
    let mut seen = [0, 0];
    for moment in std::mem::take(&mut *moments.lock()) {
        for image in [moment.image_none(), moment.image_all(), moment.image_random(1), moment.image_random(2)]
        {
            let device = Arc::new(SimulatedDevice::from_image(image));
            match open(device.clone(), OPTIONS) {
                Ok(opened) => {
                    assert_eq!((byte(&opened.pm, 0), byte(&opened.pm, 8192)), (1, 0));
                    seen[0] += 1;
                    // The first have most of the old log left.
                    if seen[0] <= 4 {
                        use_it(&device, opened.pm);
                    }
                }
                Err(JournalError::DamagedLog { .. }) => seen[1] += 1,
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}
