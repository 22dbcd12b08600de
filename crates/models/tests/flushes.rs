//! Several workers demote while a writer's data is written back from DRAM, and flushes of the device fail now
//! and then (design 7, M1; I5). A flush serves every thread that asked before it began. After a crash no
//! metadata names a device block whose content the device lost, and data that an fsync acknowledged is there.
//!
//! A flush of this device makes the writes before its beginning durable and ends some time later, as a flush
//! of a drive may. A failed flush loses all writes before it, and the device reports the loss once.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use terrace_check::{Options, PoolView, check};
use terrace_engine::{
    BufferOptions, Engine, MountOptions, PolicyKind, PoolMedia, Simulation, Wait, WriteFlags, read_superblock,
};
use terrace_format::Ino;
use terrace_media::BlockMedium;
use terrace_media::block::{DeviceImage, Operation, SimulatedDevice, Times};
use terrace_media::crash::CrashClock;
use terrace_media::pm::{PmImage, RecordedPm};
use terrace_models::pool::{make_file, make_pool};
use terrace_models::slow::Slow;
use terrace_models::{PM_SIZE, Schedules, below, explore, once};
use terrace_placement::Home;
use terrace_runtime::sync::Mutex;
use terrace_runtime::thread::spawn;
use terrace_runtime::{ManualClock, Step};

const W: Wait = Wait::Allowed;
const EIO: i32 = 5;
const BLOCK: usize = 4096;
/// Files that are demoted, and blocks of each: a group has two blocks.
const FILES: usize = 3;
const BLOCKS: usize = 3;
/// Steps of each worker; writes of the writer, each followed by an fsync.
const STEPS: usize = 2;
const WRITES: usize = 2;
/// Persistence events among which power fails: about as many as a run has.
const EVENTS: u64 = 160;

/// Both media of a pool with the files, all in PM.
#[derive(Clone)]
struct Images {
    pm: PmImage,
    device: DeviceImage,
    files: [Ino; FILES],
    /// The file that is written through DRAM.
    waiting: Ino,
}

fn media(pm: &Arc<RecordedPm>, device: &Arc<SimulatedDevice>) -> PoolMedia {
    let slow = Slow::new(device);
    PoolMedia { pm: Arc::clone(pm) as _, block: vec![Arc::new(slow) as _] }
}

fn mount(media: PoolMedia, home: Option<Home>) -> Arc<Engine> {
    let (superblock, _) = read_superblock(&*media.pm, true).unwrap();
    let options = MountOptions {
        // Demotes all blocks, in at least as many groups as workers.
        policy: Some(PolicyKind::ANTICACHE),
        threshold_percent: Some(0),
        group_bytes: 2 * BLOCK as u64,
        cache_bytes: 1 << 20,
        buffer: BufferOptions::of(16 * BLOCK as u64),
        home,
        ..MountOptions::default()
    };
    Engine::mount(media, superblock, options, Arc::new(ManualClock::new(1 << 60))).unwrap()
}

fn content(file: usize, block: usize) -> Vec<u8> {
    vec![(1 + file * BLOCKS + block) as u8; BLOCK]
}

/// The content of the writer's n-th write.
fn written(times: usize) -> Vec<u8> {
    vec![100 + times as u8; BLOCK]
}

fn images() -> Images {
    let (pm, device) = (Arc::new(RecordedPm::new(PM_SIZE)), Arc::new(SimulatedDevice::new(65)));
    make_pool(&media(&pm, &device));
    let fs = mount(media(&pm, &device), None);
    let make = |name: String| make_file(&fs, &name).unwrap();
    let files = std::array::from_fn(|file| {
        let ino = make(format!("file{file}"));
        for block in 0..BLOCKS {
            let offset = (block * BLOCK) as u64;
            fs.write(ino, offset, &content(file, block), WriteFlags::default(), W).unwrap();
        }
        ino
    });
    let waiting = make("waiting".into());
    fs.write(waiting, 0, &written(0), WriteFlags::default(), W).unwrap();
    fs.unmount().unwrap();
    Images { pm: pm.visible_image(), device: device.visible_image(), files, waiting }
}

/// Mounts the media after a crash: nothing is damaged, the demoted files are unchanged, and the written file
/// shows the acknowledged version or a later one.
fn judge(images: &Images, pm: PmImage, device: DeviceImage, synced: usize) {
    let (pm, device) = (Arc::new(RecordedPm::from_image(pm)), Arc::new(SimulatedDevice::from_image(device)));
    let view = PoolView::new(Arc::clone(&pm) as _, vec![Some(Arc::clone(&device) as _)]);
    let report = check(&view, &Options { read_cold: true, ..Default::default() });
    assert!(report.is_clean(), "{:#?}", report.findings);
    let fs = mount(media(&pm, &device), None);
    for (file, ino) in images.files.iter().enumerate() {
        for block in 0..BLOCKS {
            let mut found = vec![0; BLOCK];
            assert_eq!(fs.read(*ino, (block * BLOCK) as u64, &mut found, W).unwrap(), BLOCK);
            assert!(found == content(file, block), "file {file}, block {block}: {}", found[0]);
        }
    }
    let mut found = vec![0; BLOCK];
    fs.read(images.waiting, 0, &mut found, W).unwrap();
    let possible = |times: usize| found == written(times);
    assert!((synced..=WRITES).any(possible), "{} is there, version {synced} was synced", found[0]);
}

fn model(images: &Images) {
    let clock = CrashClock::new();
    let pm = Arc::new(RecordedPm::with_clock(images.pm.clone(), &clock));
    let device = Arc::new(SimulatedDevice::with_clock("slow", images.device.clone(), &clock));
    let fs = mount(media(&pm, &device), Some(Home::Block));
    // Up to two of the first flushes fail.
    if below(2) == 0 {
        let times = if below(2) == 0 { Times::OnceAfter(below(4)) } else { Times::Count(2) };
        device.fail_next(Operation::Flush, 0..device.blocks(), EIO, times);
    }
    let synced = Arc::new(Mutex::new(0));
    // The number of acknowledged writes when power failed.
    let at_crash = Arc::new(Mutex::new(None));
    let (keep, promised) = (Arc::clone(&at_crash), Arc::clone(&synced));
    let target = clock.now() + below(EVENTS);
    clock.set_crash_at(Some(target));
    clock.on_event(Some(Box::new(move |event| {
        if event.number == target {
            *keep.lock() = Some(*promised.lock());
        }
    })));
    let steps: Vec<Box<dyn Step>> = fs.background_steps().into_iter().map(|(step, _)| step).collect();
    let (workers, others): (Vec<_>, Vec<_>) =
        steps.into_iter().partition(|step| step.name().starts_with("terrace-move"));
    assert!(workers.len() >= 3, "fewer workers than are modelled");
    drop(others);
    let mut threads = Vec::new();
    for mut worker in workers.into_iter().take(3) {
        let body = move || {
            for _ in 0..STEPS {
                worker.step();
            }
        };
        threads.push(spawn("worker", body).unwrap());
    }
    let (writing, ino) = (Arc::clone(&fs), images.waiting);
    let body = move || {
        for times in 1..=WRITES {
            writing.write(ino, 0, &written(times), WriteFlags::default(), W).unwrap();
            match writing.fsync(ino, false, W) {
                Ok(()) => *synced.lock() = times,
                Err(error) => assert_eq!(error.errno(), EIO, "{error}"),
            }
        }
    };
    threads.push(spawn("writer", body).unwrap());
    for thread in threads {
        thread.join().unwrap();
    }
    clock.on_event(None);
    if let (Some(synced), Some(pm), Some(device)) =
        (*at_crash.lock(), pm.take_snapshot(), device.take_snapshot())
    {
        // The device keeps flushed writes alone, and still has to have every block that PM names.
        let pm = if below(2) == 0 { pm.image_newest() } else { pm.image_random(below(u64::MAX)) };
        judge(images, pm, device.image_none(), synced);
    }
    // A failed write-back is tried again, and then no data is lost either.
    device.clear_failures();
    fs.unmount().unwrap();
    drop(fs);
    judge(images, pm.visible_image(), device.snapshot().image_none(), WRITES);
}

#[test]
fn a_flush_serves_all_requests_made_before_it_began() {
    let images = once(images);
    explore("flushes", Schedules { random: 1500, priorities: 1500 }, move || model(&images));
}
