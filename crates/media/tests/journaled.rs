//! `journaled`: its promises, case by case. The refinement of a model is in crates/sim/tests/journal.rs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_format::journal::{Layout, MIN_LOG_BYTES};
use terrace_format::{DeviceBlock, PmOffset};
use terrace_media::block::{AlignedBlock, DeviceImage, DeviceSnapshot, Operation, SimulatedDevice, Times};
use terrace_media::pm::{DurableWay, JournalOptions, JournaledPm, OpenedJournal, PmImage};
use terrace_media::{BlockMedium, MediaError, PmMedium};
use terrace_runtime::ManualClock;
use terrace_runtime::sync::Mutex;

const IMAGE: u64 = 64 << 10;
const UUID: [u8; 16] = [7; 16];
const DEVICE_BLOCKS: u64 = 6000;
const OPTIONS: JournalOptions =
    JournalOptions { ring_bytes: 8 << 20, durable: DurableWay::Dsync, ..JournalOptions::DEFAULT };

fn new_journal() -> Arc<SimulatedDevice> {
    let device = SimulatedDevice::new(DEVICE_BLOCKS);
    let layout = Layout::new(IMAGE, MIN_LOG_BYTES).unwrap();
    JournaledPm::create(&device, layout, UUID).unwrap();
    Arc::new(device)
}

fn open(device: Arc<SimulatedDevice>) -> OpenedJournal {
    JournaledPm::open(device as Arc<dyn BlockMedium>, OPTIONS, Arc::new(ManualClock::new(1))).unwrap()
}

fn open_image(image: DeviceImage) -> OpenedJournal {
    open(Arc::new(SimulatedDevice::from_image(image)))
}

fn content(pm: &JournaledPm) -> PmImage {
    let mut bytes = vec![0; IMAGE as usize];
    pm.read(PmOffset(0), &mut bytes).unwrap();
    bytes.into()
}

#[test]
fn persisted_stores_survive_a_loss_of_power_and_later_stores_do_not() {
    let device = new_journal();
    let pm = open(device.clone()).pm;
    pm.write(PmOffset(100), b"durable").unwrap();
    pm.persist().unwrap();
    pm.write(PmOffset(200), b"lost").unwrap();
    let again = open_image(device.snapshot().image_none());
    assert_eq!((again.batches, again.healed, again.condemned), (1, 0, 0));
    let mut found = [0; 111];
    again.pm.read(PmOffset(100), &mut found).unwrap();
    assert_eq!((&found[..7], &found[100..104]), (b"durable".as_slice(), [0; 4].as_slice()));
}

#[test]
fn a_second_persist_does_no_device_operation() {
    let device = new_journal();
    let pm = open(device.clone()).pm;
    pm.write(PmOffset(0), &[1; 5000]).unwrap();
    pm.persist().unwrap();
    let before = device.counters();
    pm.order();
    pm.persist().unwrap();
    assert_eq!(device.counters(), before);
}

#[test]
fn a_closed_journal_has_all_pages_in_home_and_no_log() {
    let device = new_journal();
    let pm = open(device.clone()).pm;
    pm.write_streaming(PmOffset(5000), &[9; 20_000]).unwrap();
    pm.store(PmOffset(64), &[3; 8]).unwrap();
    pm.write_back(PmOffset(64), 64);
    let expected = content(&pm);
    pm.close().unwrap();
    assert!(pm.write(PmOffset(0), &[1]).is_err(), "no store after the end");
    let again = open_image(device.snapshot().image_none());
    assert_eq!((again.batches, again.condemned), (0, 0));
    assert_eq!(content(&again.pm), expected);
}

#[test]
fn a_ring_shaped_log_keeps_all_stores_over_several_laps() {
    let device = new_journal();
    let mut expected = vec![0; IMAGE as usize];
    for life in 0..3 {
        let pm = open(device.clone()).pm;
        for round in 0..3000u64 {
            let at = (round * 4096 + life * 512) % (IMAGE - 8192);
            let bytes = [round as u8 ^ life as u8; 8000];
            pm.write(PmOffset(at), &bytes).unwrap();
            expected[at as usize..at as usize + 8000].copy_from_slice(&bytes);
        }
        pm.persist().unwrap();
    }
    let again = open_image(device.snapshot().image_none());
    assert_eq!(again.condemned, 0);
    assert_eq!(content(&again.pm), PmImage::from(expected));
}

/// Pages torn in home by a crash, then forgotten before the next round, once counted as damage.
#[test]
fn forgotten_torn_pages_are_no_damage() {
    let device = new_journal();
    let pm = open(device.clone()).pm;
    pm.write(PmOffset(0), &[1; 8192]).unwrap();
    assert!(pm.advance(usize::MAX).unwrap());
    pm.write(PmOffset(0), &[2; 8192]).unwrap();
    let clock = device.clock().clone();
    let kept: Arc<Mutex<Vec<DeviceSnapshot>>> = Arc::new(Mutex::new(Vec::new()));
    let (sender, weak) = (kept.clone(), Arc::downgrade(&device));
    clock.on_event(Some(Box::new(move |_| {
        if let Some(device) = weak.upgrade() {
            sender.lock().push(device.snapshot());
        }
    })));
    pm.advance(usize::MAX).unwrap();
    clock.on_event(None);
    let moments = std::mem::take(&mut *kept.lock());
    let mut healed = 0;
    for (moment, seed) in moments.iter().flat_map(|moment| (0..8).map(move |seed| (moment, seed))) {
        let device = Arc::new(SimulatedDevice::from_image(moment.image_random(seed)));
        let opened = open(device.clone());
        assert_eq!(opened.condemned, 0);
        healed += opened.healed;
        opened.pm.forget(PmOffset(0), 8192);
        opened.pm.write(PmOffset(50_000), &[3]).unwrap();
        opened.pm.close().unwrap();
        assert_eq!(open_image(device.snapshot().image_none()).condemned, 0);
    }
    assert!(healed > 0, "no crash tore a page");
}

/// Counts a thread that ends, also by a panic.
struct Ends<'a>(&'a AtomicU64);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A write-back once stored its bytes into the image again, over a later in-place store of another thread.
#[test]
fn in_place_stores_beside_write_backs_and_home_rounds_are_kept() {
    const TURNS: u64 = 400_000;
    let device = new_journal();
    let pm = open(device.clone()).pm;
    let (pm, left) = (&pm, &AtomicU64::new(3));
    std::thread::scope(|scope| {
        for word in 0..3 {
            scope.spawn(move || {
                let _ends = Ends(left);
                for turn in 1..=TURNS {
                    let at = PmOffset(turn / 8 % 2 * 64 + word * 8);
                    pm.store(at, &turn.to_le_bytes()).unwrap();
                    if turn % 16 == 0 {
                        pm.write(PmOffset(8192 + word * 8192 + turn % 500 * 8), &turn.to_le_bytes()).unwrap();
                    }
                    assert_eq!(pm.load_u64(at).unwrap(), turn, "an in-place store was lost");
                    if turn % 512 == 0 {
                        pm.persist().unwrap();
                    }
                }
            });
        }
        scope.spawn(move || {
            while left.load(Ordering::SeqCst) > 0 {
                (0..64).for_each(|turn| pm.write_back(PmOffset(turn % 2 * 64), 64));
                pm.advance(1).unwrap();
            }
        });
    });
    pm.write_back(PmOffset(0), 512);
    pm.persist().unwrap();
    let again = open_image(device.visible_image());
    assert_eq!(content(&again.pm), content(pm));
}

fn set_block(device: &SimulatedDevice, block: u64, content: AlignedBlock) -> Arc<SimulatedDevice> {
    let mut image = device.visible_image();
    image.set_block(DeviceBlock(block), content);
    Arc::new(SimulatedDevice::from_image(image))
}

/// A damaged block of a table once left zeros in place of pages that only the newer table had.
#[test]
fn pages_without_any_checksum_stay_damaged_over_later_openings() {
    let device = new_journal();
    let pm = open(device.clone()).pm;
    pm.write(PmOffset(0), &[1; 8192]).unwrap();
    pm.close().unwrap();
    let mut device = set_block(&device, 513, AlignedBlock([9; 4096]));
    for _ in 0..3 {
        let opened = open(device.clone());
        assert!(opened.condemned > 0);
        assert!(opened.pm.read(PmOffset(0), &mut [0; 8]).is_err(), "zeros in place of a lost page");
        // A refused store marks the page, and a round takes it.
        assert!(opened.pm.write(PmOffset(0), &[2; 8]).is_err());
        opened.pm.close().unwrap();
        device = Arc::new(SimulatedDevice::from_image(device.snapshot().image_none()));
    }
}

/// An opening once built on a batch whose write had failed, and which only the cache of the device had.
#[test]
fn opening_makes_the_last_batch_durable() {
    let device = new_journal();
    let pm = open(device.clone()).pm;
    pm.write(PmOffset(0), &[1; 100]).unwrap();
    device.fail_next(Operation::Flush, 0..DEVICE_BLOCKS, 5, Times::Forever);
    assert!(pm.persist().is_err());
    assert!(pm.write(PmOffset(0), &[2]).is_err(), "no store after the failure");
    drop(pm);
    device.clear_failures();
    let again = open(device.clone());
    assert_eq!(again.batches, 1);
    again.pm.write(PmOffset(200), &[3; 8]).unwrap();
    again.pm.persist().unwrap();
    let left = open_image(device.snapshot().image_none());
    assert_eq!(content(&left.pm), content(&again.pm));
}

/// A single error once ended the journal until the next mount (J12).
#[test]
fn commits_and_home_rounds_go_on_after_errors_of_the_device() {
    for operation in [Operation::Write, Operation::Flush] {
        let device = new_journal();
        let pm = open(device.clone()).pm;
        pm.write(PmOffset(0), &[1; 100]).unwrap();
        device.fail_next(operation, 0..DEVICE_BLOCKS, 5, Times::Count(3));
        pm.persist().unwrap();
        assert_eq!(device.failures_left(), 0);
        pm.write(PmOffset(8192), &[2; 100]).unwrap();
        device.fail_next(operation, 0..DEVICE_BLOCKS, 5, Times::Count(3));
        pm.close().unwrap();
        let again = open_image(device.snapshot().image_none());
        assert_eq!((again.batches, again.condemned), (0, 0));
        assert_eq!(content(&again.pm), content(&pm));
    }
}

/// A store that finds the log full waits for a home round, which may fail a few times.
#[test]
fn a_full_log_survives_errors_of_its_home_round() {
    let device = new_journal();
    let pm = open(device.clone()).pm;
    let laps = 2 * MIN_LOG_BYTES / IMAGE;
    for lap in 0..laps {
        if lap % 50 == 0 {
            device.fail_next(Operation::Flush, 0..DEVICE_BLOCKS, 5, Times::Count(2));
        }
        pm.write_streaming(PmOffset(0), &vec![lap as u8; IMAGE as usize]).unwrap();
    }
    pm.persist().unwrap();
    let again = open_image(device.snapshot().image_none());
    assert_eq!((content(&again.pm), again.condemned), (content(&pm), 0));
}

/// A journal whose device fails for longer refuses stores, and answers every waiter with an error.
#[test]
fn a_failed_journal_answers_waiters_and_can_still_be_read() {
    let device = new_journal();
    let pm = open(device.clone()).pm;
    pm.write(PmOffset(0), &[7; 100]).unwrap();
    device.fail_next(Operation::Write, 0..DEVICE_BLOCKS, 5, Times::Forever);
    let told = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..2 {
        let told = told.clone();
        let done = Box::new(move |result: Result<(), MediaError>| told.lock().push(result.is_ok()));
        if pm.persist_then(pm.point(), done) {
            pm.persist_waiting();
        }
    }
    assert_eq!(*told.lock(), [false, false]);
    assert!(pm.persist().is_err() && pm.write(PmOffset(0), &[8]).is_err());
    let mut found = [0; 1];
    pm.read(PmOffset(50), &mut found).unwrap();
    assert_eq!(found, [7]);
    assert!(pm.journal_status().unwrap().failed.is_some());
}
