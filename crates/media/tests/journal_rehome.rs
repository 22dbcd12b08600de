//! `journaled`: it goes on on another device (J12).

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_format::journal::{Layout, MIN_LOG_BYTES};
use terrace_format::{DeviceBlock, PmOffset};
use terrace_media::block::{AlignedBlock, DeviceImage, DeviceSnapshot, Operation, SimulatedDevice, Times};
use terrace_media::crash::CrashClock;
use terrace_media::pm::{DurableWay, JournalError, JournalOptions, JournaledPm, OpenedJournal};
use terrace_media::{BlockMedium, DeviceError, MediaError, PmMedium};
use terrace_runtime::sync::Mutex;
use terrace_runtime::{ManualClock, Next};

const IMAGE: u64 = 64 << 10;
const UUID: [u8; 16] = [7; 16];
const DEVICE_BLOCKS: u64 = 6000;
const EIO: i32 = 5;
const OPTIONS: JournalOptions =
    JournalOptions { ring_bytes: 8 << 20, durable: DurableWay::Dsync, ..JournalOptions::DEFAULT };

fn new_journal() -> Arc<SimulatedDevice> {
    let device = SimulatedDevice::new(DEVICE_BLOCKS);
    JournaledPm::create(&device, Layout::new(IMAGE, MIN_LOG_BYTES).unwrap(), UUID).unwrap();
    Arc::new(device)
}

fn try_open(image: DeviceImage) -> Result<OpenedJournal, JournalError> {
    open_device(&Arc::new(SimulatedDevice::from_image(image)))
}

fn open_device(device: &Arc<SimulatedDevice>) -> Result<OpenedJournal, JournalError> {
    let device = Arc::clone(device) as Arc<dyn BlockMedium>;
    JournaledPm::open(device, OPTIONS, Arc::new(ManualClock::new(1)))
}

fn content(pm: &JournaledPm) -> Vec<u8> {
    let mut bytes = vec![0; pm.size() as usize];
    pm.read(PmOffset(0), &mut bytes).unwrap();
    bytes
}

fn rehome(pm: &JournaledPm, device: &Arc<SimulatedDevice>) -> Result<(), JournalError> {
    pm.rehome(Arc::clone(device) as Arc<dyn BlockMedium>, DurableWay::Dsync)
}

/// A journal with a home round, durable stores, and stores that its device refused.
fn failed_journal() -> (Arc<SimulatedDevice>, JournaledPm) {
    let device = new_journal();
    let pm = open_device(&device).unwrap().pm;
    pm.write(PmOffset(5000), &[1; 9000]).unwrap();
    assert!(pm.advance(usize::MAX).unwrap());
    pm.write(PmOffset(20_000), &[2; 100]).unwrap();
    pm.persist().unwrap();
    device.fail_next(Operation::Write, 0..DEVICE_BLOCKS, EIO, Times::Forever);
    pm.write(PmOffset(20_050), &[3; 20_000]).unwrap();
    pm.store(PmOffset(64), &[4; 8]).unwrap();
    assert!(pm.persist().is_err() && pm.write(PmOffset(0), &[9]).is_err());
    // A checkpoint that goes on behind this refusal.
    pm.write_back(PmOffset(64), 64);
    (device, pm)
}

#[test]
fn a_failed_journal_goes_on_on_another_device() {
    let (_, pm) = failed_journal();
    let expected = content(&pm);
    let other = Arc::new(SimulatedDevice::new(DEVICE_BLOCKS));
    rehome(&pm, &other).unwrap();
    assert_eq!(content(&pm), expected);
    assert_eq!(pm.journal_status().unwrap().failed, None);
    // The whole image is durable on the new device, before any store.
    let again = try_open(other.snapshot().image_none()).unwrap();
    assert_eq!((content(&again.pm), again.condemned), (expected, 0));
    for turn in 0..3000u64 {
        pm.write(PmOffset(turn * 4096 % (IMAGE - 8192)), &[turn as u8; 8000]).unwrap();
    }
    pm.persist().unwrap();
    let again = try_open(other.snapshot().image_none()).unwrap();
    assert_eq!((content(&again.pm), again.condemned), (content(&pm), 0));
    pm.close().unwrap();
    let closed = try_open(other.snapshot().image_none()).unwrap();
    assert_eq!((content(&closed.pm), closed.batches), (content(&pm), 0));
}

/// Calls that wait when the log fails get the error; later calls get an answer from the new device.
#[test]
fn calls_are_answered_on_the_new_device() {
    let (_, pm) = failed_journal();
    let other = Arc::new(SimulatedDevice::new(DEVICE_BLOCKS));
    rehome(&pm, &other).unwrap();
    pm.write(PmOffset(0), &[5; 100]).unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&told);
    if pm.persist_then(pm.point(), Box::new(move |result| kept.lock().push(result.is_ok()))) {
        pm.persist_waiting();
    }
    assert_eq!(*told.lock(), [true]);
    let again = try_open(other.snapshot().image_none()).unwrap();
    assert_eq!(content(&again.pm), content(&pm));
}

#[test]
fn the_old_device_is_a_journal_no_more() {
    let device = new_journal();
    let pm = open_device(&device).unwrap().pm;
    rehome(&pm, &Arc::new(SimulatedDevice::new(DEVICE_BLOCKS))).unwrap();
    let refused = try_open(device.snapshot().image_none()).err().unwrap();
    assert!(matches!(refused, JournalError::NotAJournal { .. }), "{refused}");
}

#[test]
fn an_old_log_of_the_same_journal_counts_no_more() {
    let old = new_journal();
    let copy = {
        let pm = open_device(&old).unwrap().pm;
        for turn in 1..200u8 {
            pm.write(PmOffset(0), &[turn; 5000]).unwrap();
            pm.persist().unwrap();
        }
        Arc::new(SimulatedDevice::from_image(old.snapshot().image_all()))
    };
    // Another history, with batches of the same positions, of a later opening.
    let device = new_journal();
    drop(open_device(&device).unwrap());
    let pm = open_device(&device).unwrap().pm;
    pm.write(PmOffset(0), &[201; 5000]).unwrap();
    rehome(&pm, &copy).unwrap();
    for turn in 202..205 {
        let again = try_open(copy.snapshot().image_none()).unwrap();
        assert_eq!(content(&again.pm), content(&pm));
        pm.write(PmOffset(0), &[turn; 5000]).unwrap();
        pm.persist().unwrap();
    }
}

/// Threads store counters, each in a page of its own, and persist; gives the counters that were acknowledged.
fn count(pm: &JournaledPm, moves: impl Fn(u64)) -> [AtomicU64; 4] {
    let acknowledged: [AtomicU64; 4] = std::array::from_fn(|_| AtomicU64::new(0));
    let running = AtomicU64::new(acknowledged.len() as u64);
    std::thread::scope(|scope| {
        for (page, last) in (0..).zip(&acknowledged) {
            let running = &running;
            scope.spawn(move || {
                for turn in 1..=3000u64 {
                    pm.write(PmOffset(page * 4096), &turn.to_le_bytes()).unwrap();
                    pm.write(PmOffset(32_768 + page * 4096 + turn % 512 * 8), &turn.to_le_bytes()).unwrap();
                    if turn % 3 == 0 {
                        pm.persist().unwrap();
                        last.store(turn, Ordering::SeqCst);
                    }
                }
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        let mut turn = 0;
        while running.load(Ordering::SeqCst) > 0 {
            moves(turn);
            turn += 1;
        }
    });
    acknowledged
}

#[test]
fn a_journal_moves_beside_stores_and_commits() {
    let devices: Vec<_> = std::iter::once(new_journal())
        .chain((0..12).map(|_| Arc::new(SimulatedDevice::new(DEVICE_BLOCKS))))
        .collect();
    let pm = open_device(&devices[0]).unwrap().pm;
    let newest = AtomicU64::new(0);
    let acknowledged = count(&pm, |turn| {
        let next = (turn + 1).min(devices.len() as u64 - 1);
        if next > newest.load(Ordering::SeqCst) {
            rehome(&pm, &devices[next as usize]).unwrap();
            newest.store(next, Ordering::SeqCst);
        }
        let _ = pm.advance(1);
    });
    let newest = newest.load(Ordering::SeqCst);
    assert!(newest > 0, "no move beside stores");
    let again = try_open(devices[newest as usize].snapshot().image_none()).unwrap();
    assert_eq!((content(&again.pm), again.condemned), (content(&pm), 0));
    assert!(acknowledged.iter().all(|last| last.load(Ordering::SeqCst) == 3000));
}

#[test]
fn a_failing_new_device_leaves_the_old_in_use() {
    for (operation, count) in [
        (Operation::Write, Times::Forever),
        (Operation::Flush, Times::Forever),
        (Operation::Flush, Times::Count(1)),
    ] {
        for skipped in 0..8 {
            let device = new_journal();
            let pm = open_device(&device).unwrap().pm;
            pm.write(PmOffset(0), &[1; 9000]).unwrap();
            pm.persist().unwrap();
            pm.write(PmOffset(30_000), &[2; 9000]).unwrap();
            let other = Arc::new(SimulatedDevice::new(DEVICE_BLOCKS));
            let blocks = if skipped == 0 { 0..DEVICE_BLOCKS } else { blocks_of(skipped) };
            other.fail_next(operation, blocks, EIO, count);
            if rehome(&pm, &other).is_ok() {
                assert!(skipped > 0);
                continue;
            }
            pm.persist().unwrap();
            pm.write(PmOffset(50_000), &[3; 100]).unwrap();
            pm.persist().unwrap();
            let again = try_open(device.snapshot().image_none()).unwrap();
            assert_eq!((content(&again.pm), again.condemned), (content(&pm), 0));
            // Pages that the move has taken go home there.
            pm.close().unwrap();
            let again = try_open(device.snapshot().image_none()).unwrap();
            assert_eq!((content(&again.pm), again.batches), (content(&pm), 0));
        }
    }
}

/// Parts of a device: anchors, tables, home.
fn blocks_of(part: u64) -> std::ops::Range<u64> {
    match part {
        1 => 0..1,
        2 => 256..257,
        3 => 512..513,
        4 => 513..514,
        _ => 768..784,
    }
}

#[test]
fn a_failure_stays_if_the_new_device_fails_too() {
    let (_, pm) = failed_journal();
    let expected = content(&pm);
    let other = Arc::new(SimulatedDevice::new(DEVICE_BLOCKS));
    other.fail_next(Operation::Flush, 0..DEVICE_BLOCKS, EIO, Times::Forever);
    assert!(rehome(&pm, &other).is_err());
    // Late: the tables.
    other.clear_failures();
    other.fail_next(Operation::Write, 512..513, EIO, Times::Forever);
    assert!(rehome(&pm, &other).is_err());
    assert!(pm.persist().is_err() && pm.write(PmOffset(0), &[9]).is_err());
    other.clear_failures();
    rehome(&pm, &other).unwrap();
    let again = try_open(other.snapshot().image_none()).unwrap();
    assert_eq!((content(&again.pm), content(&pm)), (expected.clone(), expected));
}

#[test]
fn a_short_device_is_refused() {
    let device = new_journal();
    let pm = open_device(&device).unwrap().pm;
    let short = Arc::new(SimulatedDevice::new(1000));
    assert!(matches!(rehome(&pm, &short), Err(JournalError::TooShort { .. })));
    pm.write(PmOffset(0), &[1]).unwrap();
    pm.persist().unwrap();
}

/// At every event of either device a crash leaves all persisted bytes: on the new device if it has a journal, else on the old.
#[test]
fn a_crash_amid_a_move_keeps_persisted_bytes() {
    for has_failed in [false, true] {
        let clock = CrashClock::new();
        let start = new_journal().visible_image();
        let device = Arc::new(SimulatedDevice::with_clock("old", start, &clock));
        let other = Arc::new(SimulatedDevice::with_clock("new", DeviceImage::zeroed(DEVICE_BLOCKS), &clock));
        let pm = open_device(&device).unwrap().pm;
        pm.write(PmOffset(0), &[1; 9000]).unwrap();
        assert!(pm.advance(usize::MAX).unwrap());
        pm.write(PmOffset(8192), &[2; 9000]).unwrap();
        pm.persist().unwrap();
        let persisted = content(&pm);
        pm.write(PmOffset(30_000), &[3; 9000]).unwrap();
        if has_failed {
            device.fail_next(Operation::Write, 0..DEVICE_BLOCKS, EIO, Times::Forever);
            assert!(pm.persist().is_err());
            device.clear_failures();
        }
        let stored = content(&pm);
        let moments: Arc<Mutex<Vec<[DeviceSnapshot; 2]>>> = Arc::default();
        let (kept, weak) = (Arc::clone(&moments), [&device, &other].map(Arc::downgrade));
        clock.on_event(Some(Box::new(move |_| {
            let [old, new] = &weak;
            if let (Some(old), Some(new)) = (old.upgrade(), new.upgrade()) {
                kept.lock().push([old.snapshot(), new.snapshot()]);
            }
        })));
        rehome(&pm, &other).unwrap();
        clock.on_event(None);
        let mut moments = std::mem::take(&mut *moments.lock());
        moments.push([device.snapshot(), other.snapshot()]);
        let mut seen = [0, 0];
        for ([old, new], seed) in moments.iter().flat_map(|moment| (0..6).map(move |seed| (moment, seed))) {
            let image = |moment: &DeviceSnapshot| match seed {
                0 => moment.image_none(),
                1 => moment.image_all(),
                _ => moment.image_random(seed),
            };
            let (opened, which) = match try_open(image(new)) {
                Ok(opened) => (opened, 1),
                Err(JournalError::NotAJournal { .. }) => (try_open(image(old)).unwrap(), 0),
                // A torn first anchor: the other copy is zeros.
                Err(JournalError::Damaged { .. }) => (try_open(image(old)).unwrap(), 0),
                Err(other) => panic!("{other}"),
            };
            let found = content(&opened.pm);
            assert_eq!(opened.condemned, 0);
            assert!(found == stored || which == 0 && found == persisted, "device {which}, seed {seed}");
            seen[which] += 1;
        }
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    }
}

/// A device; amid its first writes a thread stores to the medium.
struct Amid {
    below: Arc<SimulatedDevice>,
    pm: Mutex<Option<Arc<JournaledPm>>>,
    stores: AtomicU64,
    /// Writes of the last anchor fail.
    has_no_anchor: bool,
}

fn amid(below: &Arc<SimulatedDevice>, pm: Option<&Arc<JournaledPm>>, has_no_anchor: bool) -> Arc<Amid> {
    let (below, pm) = (Arc::clone(below), Mutex::new(pm.cloned()));
    Arc::new(Amid { below, pm, stores: AtomicU64::new(0), has_no_anchor })
}

impl BlockMedium for Amid {
    fn blocks(&self) -> u64 {
        self.below.blocks()
    }
    fn name(&self) -> &str {
        "amid"
    }
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        self.below.read(first, into)
    }
    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        let home = Layout::new(IMAGE, MIN_LOG_BYTES).unwrap().home();
        let pm = self.pm.lock().clone();
        if let Some(pm) = pm.filter(|_| first >= home) {
            // Behind the copies for this write: the next copies, or the ring, have these stores.
            let turn = self.stores.fetch_add(1, Ordering::SeqCst);
            pm.write(PmOffset(turn % 16 * 4096 + 8), &(turn + 1).to_le_bytes()).unwrap();
            pm.write(PmOffset((15 - turn % 16) * 4096 + 16), &(turn + 1).to_le_bytes()).unwrap();
        }
        if self.has_no_anchor && first.0 == 0 && from[0].0 != [0; 4096] {
            let (device, operation) = (self.name().to_string(), "write");
            return Err(DeviceError { device, operation, offset: 0, length: 4096, errno: EIO }.into());
        }
        self.below.write(first, from)
    }
    fn flush_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        self.below.flush_at(at)
    }
}

#[test]
fn stores_amid_the_copies_reach_the_new_device() {
    let device = new_journal();
    let pm = Arc::new(open_device(&device).unwrap().pm);
    pm.write(PmOffset(0), &[1; IMAGE as usize]).unwrap();
    let below = Arc::new(SimulatedDevice::new(DEVICE_BLOCKS));
    let amid = amid(&below, Some(&pm), false);
    pm.rehome(amid.clone(), DurableWay::Dsync).unwrap();
    *amid.pm.lock() = None;
    let stores = amid.stores.load(Ordering::SeqCst);
    assert!(stores >= 2, "a pass, and the last pages");
    // The first store came amid the first pass: the last pages have it.
    let again = try_open(below.snapshot().image_none()).unwrap();
    assert_eq!(again.pm.load_u64(PmOffset(8)).unwrap(), 1);
    assert_eq!(again.pm.load_u64(PmOffset(15 * 4096 + 16)).unwrap(), 1);
    pm.persist().unwrap();
    let again = try_open(below.snapshot().image_none()).unwrap();
    assert_eq!((content(&again.pm) == content(&pm), again.condemned), (true, 0));
}

/// A first anchor alone would be a journal that later stores are missing in.
#[test]
fn a_move_without_its_last_anchor_leaves_no_journal() {
    let (_, pm) = failed_journal();
    let below = Arc::new(SimulatedDevice::new(DEVICE_BLOCKS));
    assert!(pm.rehome(amid(&below, None, true), DurableWay::Dsync).is_err());
    let refused = try_open(below.snapshot().image_none()).err().unwrap();
    assert!(matches!(refused, JournalError::NotAJournal { .. }), "{refused}");
    assert!(pm.persist().is_err() && pm.write(PmOffset(0), &[9]).is_err());
}

#[test]
fn the_step_commits_again_after_a_move() {
    let (_, pm) = failed_journal();
    assert_ne!(pm.step(0), Next::Done, "a failure may end");
    rehome(&pm, &Arc::new(SimulatedDevice::new(DEVICE_BLOCKS))).unwrap();
    pm.write(PmOffset(0), &[5]).unwrap();
    for turn in 1..4 {
        let _ = pm.step(turn * 2_000_000_000);
    }
    assert_eq!(pm.backlog().waiting_bytes, 0);
}

#[test]
fn a_move_to_the_own_device_or_its_copy_is_refused() {
    let device = new_journal();
    let pm = open_device(&device).unwrap().pm;
    pm.write(PmOffset(0), &[5]).unwrap();
    pm.persist().unwrap();
    let copy = Arc::new(SimulatedDevice::from_image(device.visible_image()));
    for refused in [&device, &copy] {
        assert!(matches!(rehome(&pm, refused), Err(JournalError::OwnDevice { .. })));
    }
    pm.write(PmOffset(1), &[6]).unwrap();
    pm.persist().unwrap();
    let again = try_open(device.snapshot().image_none()).unwrap();
    assert_eq!(content(&again.pm)[..2], [5, 6]);
    rehome(&pm, &Arc::new(SimulatedDevice::new(DEVICE_BLOCKS))).unwrap();
}
