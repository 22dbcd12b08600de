//! Lazy writes to a file beside write-back of its pages into PM, reads, movements below PM, and fsync (docs/write-buffer.md). A
//! read sees a state of the file during the read. A crash after an fsync leaves the synced bytes or later ones.
//!
//! The first block of the file is in PM, and gets lines in place. The second block is a hole, and its page goes into a new block.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::ops::Range;
use std::sync::Arc;
use terrace_check::{Options, PoolView, check};
use terrace_engine::{
    BufferOptions, Engine, LazyAblation, LazyOption, MountOptions, PolicyKind, PoolMedia, SetAttributes,
    Simulation, Wait, WriteFlags, read_superblock,
};
use terrace_format::{FileBlock, Ino};
use terrace_media::block::{DeviceImage, SimulatedDevice};
use terrace_media::crash::CrashClock;
use terrace_media::pm::{PmImage, RecordedPm};
use terrace_models::file::{StatedFile, some_units, units};
use terrace_models::pool::{make_file, make_pool, media};
use terrace_models::{PM_SIZE, Schedules, below, explore, finds, once};
use terrace_placement::Home;
use terrace_runtime::planted::Mistake;
use terrace_runtime::sync::Mutex;
use terrace_runtime::thread::spawn;
use terrace_runtime::{ManualClock, Next, Step};
use terrace_store::inode::slot::load;
use terrace_store::moving::demote::demote;
use terrace_store::moving::victim::Victim;
use terrace_store::store::Store;

const W: Wait = Wait::Allowed;
const BLOCK: usize = 4096;
/// Four units in a block: each has 16 lines.
const UNIT: usize = 1024;
/// Units of the file, in two blocks.
const UNITS: usize = 8;
/// Writes, reads, movements.
const ROUNDS: usize = 3;
/// Persistence events among which power fails: about as many as a run has.
const EVENTS: u64 = 60;

/// Both media of a pool with the file.
#[derive(Clone)]
struct Images {
    pm: PmImage,
    device: DeviceImage,
    file: Ino,
}

fn mount(media: PoolMedia) -> Arc<Engine> {
    let (superblock, _) = read_superblock(&*media.pm, true).unwrap();
    let options = MountOptions {
        policy: Some(PolicyKind::STATIC),
        home: Some(Home::Pm),
        // All writes are lazy but those of O_SYNC, and steps write each page back at once.
        buffer: BufferOptions {
            lazy: LazyOption::On,
            ablation: LazyAblation::Always,
            low_percent: 99,
            high_percent: 100,
            steps: 2,
            ..BufferOptions::of(16 * BLOCK as u64)
        },
        group_bytes: 2 * BLOCK as u64,
        cache_bytes: 1 << 20,
        ..MountOptions::default()
    };
    Engine::mount(media, superblock, options, Arc::new(ManualClock::new(1 << 60))).unwrap()
}

fn first_content() -> Vec<u64> {
    (0..UNITS).map(|unit| if unit < UNITS / 2 { 1000 } else { 0 }).collect()
}

fn images() -> Images {
    let pm = Arc::new(RecordedPm::new(PM_SIZE));
    let device = Arc::new(SimulatedDevice::new(33));
    make_pool(&media(&pm, &device));
    let fs = mount(media(&pm, &device));
    let file = make_file(&fs, "file").unwrap();
    fs.write(file, 0, &units(1000, UNIT, UNITS / 2), WriteFlags::default(), W).unwrap();
    fs.setattr(file, &SetAttributes { size: Some(2 * BLOCK as u64), ..Default::default() }, W).unwrap();
    fs.unmount().unwrap();
    Images { pm: pm.visible_image(), device: device.visible_image(), file }
}

/// Writes some units; gives the number of the state.
fn write(fs: &Engine, file: &StatedFile, flags: WriteFlags) -> usize {
    write_units(fs, file, some_units(UNITS, 3), flags)
}

fn write_units(fs: &Engine, file: &StatedFile, range: Range<usize>, flags: WriteFlags) -> usize {
    let number = file.begin(|content, number| content[range.clone()].fill(number));
    let data = units(number as u64, UNIT, range.len());
    let written = fs.write(file.ino, (range.start * UNIT) as u64, &data, flags, W).unwrap();
    assert_eq!(written, data.len());
    file.end();
    number
}

/// The steps whose names begin so.
fn steps_named(fs: &Arc<Engine>, name: &str) -> Vec<Box<dyn Step>> {
    let steps = fs.background_steps().into_iter().map(|(step, _)| step);
    steps.filter(|step| step.name().starts_with(name)).collect()
}

/// Looks of a step in a row that find no page.
const IDLE: usize = 100;

/// Works until no page comes for a while.
fn write_back(step: &mut dyn Step) {
    let mut idle = 0;
    while idle < IDLE {
        idle = if step.step() == Next::Again { 0 } else { idle + 1 };
    }
}

/// A run of the model.
struct Run {
    pm: Arc<RecordedPm>,
    device: Arc<SimulatedDevice>,
    clock: Arc<CrashClock>,
    fs: Arc<Engine>,
    file: Arc<StatedFile>,
}

impl Run {
    fn begin(images: &Images) -> Run {
        let clock = CrashClock::new();
        let pm = Arc::new(RecordedPm::with_clock(images.pm.clone(), &clock));
        let device = Arc::new(SimulatedDevice::with_clock("below", images.device.clone(), &clock));
        let fs = mount(media(&pm, &device));
        let file = Arc::new(StatedFile::new(images.file, UNIT, first_content()));
        // The steps have a page at once, of which two runs of lines are stored in place.
        for unit in [0, 2] {
            write_units(&fs, &file, unit..unit + 1, WriteFlags::default());
        }
        Run { pm, device, clock, fs, file }
    }

    /// The file reads as written, from DRAM and, after an fsync, a crash and a mount, from media.
    fn end(self) {
        self.file.read(&self.fs, UNITS);
        self.fs.fsync(self.file.ino, false, W).unwrap();
        self.file.read(&self.fs, UNITS);
        let device = self.device.snapshot().image_none();
        let fs = judged_mount(self.pm.snapshot().image_oldest(), device);
        self.file.read(&fs, UNITS);
        self.fs.unmount().unwrap();
        let fs = judged_mount(self.pm.visible_image(), self.device.visible_image());
        self.file.read(&fs, UNITS);
    }
}

/// Mounts media without findings of check.
fn judged_mount(pm: PmImage, device: DeviceImage) -> Arc<Engine> {
    let (pm, device) = (Arc::new(RecordedPm::from_image(pm)), Arc::new(SimulatedDevice::from_image(device)));
    let view = PoolView::new(Arc::clone(&pm) as _, vec![Some(Arc::clone(&device) as _)]);
    let report = check(&view, &Options { read_cold: true, ..Default::default() });
    assert!(report.is_clean(), "{:#?}", report.findings);
    mount(media(&pm, &device))
}

/// A writer beside two steps of write-back, which take the same pages, and a reader.
fn beside_write_back(images: &Images, has_reader: bool) {
    let run = Run::begin(images);
    let mut threads = Vec::new();
    let (fs, file) = (Arc::clone(&run.fs), Arc::clone(&run.file));
    let body = move || {
        for _ in 0..ROUNDS {
            // A synced write takes the lazy lines of its blocks along.
            write(&fs, &file, WriteFlags { sync: below(4) == 0, ..WriteFlags::default() });
        }
    };
    threads.push(spawn("writer", body).unwrap());
    let steps = steps_named(&run.fs, "terrace-lazy");
    assert_eq!(steps.len(), 2, "two steps take the same pages");
    for mut step in steps {
        threads.push(spawn("write-back", move || write_back(&mut *step)).unwrap());
    }
    if has_reader {
        let (fs, file) = (Arc::clone(&run.fs), Arc::clone(&run.file));
        let body = move || (0..2 * ROUNDS).for_each(|_| file.read(&fs, UNITS));
        threads.push(spawn("reader", body).unwrap());
    }
    for thread in threads {
        thread.join().unwrap();
    }
    run.end();
}

/// Demotes what PM has of the file, as `terrace sync --to` does: dirty pages hold no block back.
fn demote_all(store: &Store, ino: Ino) {
    let victims = {
        let _guard = store.inodes.locks().read(ino);
        let inode = load(store, ino).unwrap();
        let victim = |block| {
            let mapping = store.persistent.map().lookup(&inode.map(), block).unwrap()?;
            Some(Victim { ino, block, pm: mapping.block })
        };
        [FileBlock(0), FileBlock(1)].into_iter().filter_map(victim).collect::<Vec<_>>()
    };
    demote(store, &victims).unwrap();
}

/// Lines are stored in place while their block moves below PM, and while another write comes. `is_partial`: the block lies below,
/// and PM has some of its lines.
fn moved_amid_stores(images: &Images, is_partial: bool) {
    let run = Run::begin(images);
    run.fs.store.pressure.begin_drain(1);
    if is_partial {
        run.fs.fsync(run.file.ino, false, W).unwrap();
        demote_all(&run.fs.store, run.file.ino);
        write_units(&run.fs, &run.file, 0..1, WriteFlags::default());
        run.fs.fsync(run.file.ino, false, W).unwrap();
        write_units(&run.fs, &run.file, 2..3, WriteFlags::default());
    }
    let mut step = steps_named(&run.fs, "terrace-lazy").swap_remove(0);
    let (moving, writing, file) = (Arc::clone(&run.fs), Arc::clone(&run.fs), Arc::clone(&run.file));
    let threads = [
        spawn("write-back", move || while step.step() == Next::Again {}).unwrap(),
        spawn("mover", move || (0..2).for_each(|_| demote_all(&moving.store, file.ino))).unwrap(),
    ];
    write(&writing, &run.file, WriteFlags::default());
    for thread in threads {
        thread.join().unwrap();
    }
    run.fs.store.pressure.end_drain();
    run.end();
}

/// The file is cut off and grows again while its lines are stored in place: zeros are read behind the cut.
fn cut_amid_stores(images: &Images) {
    let run = Run::begin(images);
    let mut step = steps_named(&run.fs, "terrace-lazy").swap_remove(0);
    let (cutting, file) = (Arc::clone(&run.fs), Arc::clone(&run.file));
    let body = move || {
        file.begin(|content, _| content[1..].fill(0));
        for units in [1, UNITS] {
            let size = Some((units * UNIT) as u64);
            cutting.setattr(file.ino, &SetAttributes { size, ..Default::default() }, W).unwrap();
        }
        file.end();
        cutting.fsync(file.ino, false, W).unwrap();
    };
    let threads = [
        spawn("write-back", move || while step.step() == Next::Again {}).unwrap(),
        spawn("cutter", body).unwrap(),
    ];
    for thread in threads {
        thread.join().unwrap();
    }
    run.end();
}

/// A writer that syncs beside the steps that write the same pages back; then power fails.
fn synced_beside_steps(images: &Images) {
    let run = Run::begin(images);
    let synced = Arc::new(Mutex::new(0));
    let at_crash = Arc::new(Mutex::new(None));
    let (keep, promised) = (Arc::clone(&at_crash), Arc::clone(&synced));
    let target = run.clock.now() + below(EVENTS);
    run.clock.set_crash_at(Some(target));
    run.clock.on_event(Some(Box::new(move |event| {
        if event.number == target {
            *keep.lock() = Some(*promised.lock());
        }
    })));
    let mut threads = Vec::new();
    for mut step in steps_named(&run.fs, "terrace-lazy") {
        threads.push(spawn("write-back", move || write_back(&mut *step)).unwrap());
    }
    let (fs, file, acknowledged) = (Arc::clone(&run.fs), Arc::clone(&run.file), Arc::clone(&synced));
    let body = move || {
        for _ in 0..ROUNDS {
            let number = write(&fs, &file, WriteFlags::default());
            fs.fsync(file.ino, false, W).unwrap();
            *acknowledged.lock() = number;
        }
    };
    threads.push(spawn("writer", body).unwrap());
    for thread in threads {
        thread.join().unwrap();
    }
    run.clock.on_event(None);
    if let (Some(synced), Some(pm), Some(device)) =
        (*at_crash.lock(), run.pm.take_snapshot(), run.device.take_snapshot())
    {
        let pm = if below(2) == 0 { pm.image_newest() } else { pm.image_random(below(u64::MAX)) };
        judge_crash(&run.file, &judged_mount(pm, device.image_none()), synced);
    }
    run.clock.set_crash_at(None);
    run.end();
}

/// Each aligned 8 bytes are those of the synced state or of a later one.
fn judge_crash(file: &StatedFile, fs: &Engine, synced: usize) {
    let mut data = vec![0; UNITS * UNIT];
    assert_eq!(fs.read(file.ino, 0, &mut data, W).unwrap(), data.len());
    let states = file.states.lock();
    for (index, bytes) in data.chunks(8).enumerate() {
        let word = u64::from_le_bytes(bytes.try_into().unwrap());
        let possible = |state: &Vec<u64>| state[index * 8 / UNIT] == word;
        assert!(states[synced..].iter().any(possible), "word {index} is {word}, state {synced} was synced");
    }
}

/// A model.
type Model = fn(&Images);

fn explore_and_find(model: Model, mistakes: &[Mistake]) {
    let images = once(images);
    let of = images.clone();
    explore("lazy", Schedules { random: 600, priorities: 600 }, move || model(&of));
    for mistake in mistakes {
        let images = images.clone();
        let schedules = Schedules { random: 300, priorities: 3000 };
        assert!(finds("lazy", *mistake, schedules, move || model(&images)), "{mistake:?} is not found");
    }
}

#[test]
fn the_last_write_counts_beside_write_backs_of_its_page() {
    let model: Model = |images| beside_write_back(images, false);
    explore_and_find(model, &[Mistake::LaterWriteForgotten, Mistake::LazyPageStays]);
}

#[test]
fn reads_see_a_state_of_the_file_beside_lazy_writes_and_write_back() {
    let model: Model = |images| beside_write_back(images, true);
    explore_and_find(model, &[Mistake::LazyReadBelow]);
}

#[test]
fn a_movement_keeps_lines_stored_in_place_meanwhile() {
    explore_and_find(|images| moved_amid_stores(images, false), &[]);
}

#[test]
fn a_movement_keeps_lines_of_a_partial_shadow_installed_meanwhile() {
    explore_and_find(|images| moved_amid_stores(images, true), &[Mistake::OneVersionInPlace]);
}

#[test]
fn stores_in_place_end_before_a_truncation() {
    explore_and_find(cut_amid_stores, &[Mistake::StoresNotWaitedFor]);
}

#[test]
fn an_fsync_waits_for_pages_in_flight_in_the_background() {
    explore_and_find(synced_beside_steps, &[Mistake::SyncSkipsInFlight]);
}
