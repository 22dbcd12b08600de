//! Files are written, cut, punched and read while their blocks are demoted and promoted (design 4.6, 7). A
//! read sees a state that the file had while the read ran, never an older state and never another file's, and
//! the pool is sound afterwards.
//!
//! Half of the schedules have the default policy, whose predictors send writes through DRAM; requested
//! movements move the files then, because this policy leaves half of PM alone. The other half has
//! `anticache`, which can be told to leave nothing in PM, and so demotes every block.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use terrace_check::{Options, PoolView, check};
use terrace_engine::{
    Allocate, BufferOptions, Engine, MountOptions, MoveRequest, Movements, PolicyKind, PoolMedia,
    SetAttributes, Simulation, Wait, WriteFlags, read_superblock,
};
use terrace_format::Ino;
use terrace_media::block::{DeviceImage, SimulatedDevice};
use terrace_media::pm::{PmImage, RecordedPm};
use terrace_models::file::{StatedFile, some_units, units};
use terrace_models::pool::{make_file, make_pool, media};
use terrace_models::{PM_SIZE, Schedules, below, explore, once};
use terrace_placement::Parameters;
use terrace_runtime::thread::spawn;
use terrace_runtime::{ManualClock, Step};

const W: Wait = Wait::Allowed;
const FILES: usize = 2;
/// A write has at least half a block, so that writes are merged with cold blocks.
const UNIT: usize = 2048;
/// Units of a file before the first change, and at most.
const UNITS: usize = 8;
/// Changes of each file, reads of it, rounds of migration.
const ROUNDS: usize = 3;
/// Pieces of requested movements in a round.
const PIECES: usize = 6;

fn tag(file: usize, change: usize) -> u64 {
    (1 + change * FILES + file) as u64
}

/// Both media of a pool with the files, all in PM.
#[derive(Clone)]
struct Images {
    pm: PmImage,
    device: DeviceImage,
    files: [Ino; FILES],
}

fn mount(media: PoolMedia, policy: PolicyKind) -> Arc<Engine> {
    let (superblock, _) = read_superblock(&*media.pm, true).unwrap();
    let options = MountOptions {
        policy: Some(policy),
        threshold_percent: Some(0),
        // Every write that is not the first of a file is large, and no file is synced.
        parameters: Parameters {
            sync_blocks: 1,
            large_after: 0,
            large_min: UNIT as u64,
            large_pm_percent: Some(0),
            ..Parameters::PUBLISHED
        },
        buffer: BufferOptions::of(16 * 4096),
        group_bytes: 2 * 4096,
        cache_bytes: 1 << 20,
        prefetch_bytes: 2 * 4096,
        promote_first_touch: true,
        ..MountOptions::default()
    };
    Engine::mount(media, superblock, options, Arc::new(ManualClock::new(1 << 60))).unwrap()
}

fn images() -> Images {
    let pm = Arc::new(RecordedPm::new(PM_SIZE));
    let device = Arc::new(SimulatedDevice::new(33));
    make_pool(&media(&pm, &device));
    let fs = mount(media(&pm, &device), PolicyKind::STATIC);
    let files = std::array::from_fn(|index| {
        let ino = make_file(&fs, &format!("file{index}")).unwrap();
        fs.write(ino, 0, &units(tag(index, 0), UNIT, UNITS), WriteFlags::default(), W).unwrap();
        ino
    });
    fs.unmount().unwrap();
    Images { pm: pm.visible_image(), device: device.visible_image(), files }
}

/// Writes, cuts or punches a file.
fn change(fs: &Engine, index: usize, file: &StatedFile) {
    let (range, kind) = (some_units(UNITS, 4), below(4));
    let number = file.begin(|content, number| match kind {
        0 => content.resize(range.start, 0),
        1 => content.iter_mut().take(range.end).skip(range.start).for_each(|unit| *unit = 0),
        _ => {
            content.resize(content.len().max(range.end), 0);
            content[range.clone()].fill(tag(index, number as usize));
        }
    });
    let (offset, length) = ((range.start * UNIT) as u64, (range.len() * UNIT) as u64);
    match kind {
        0 => {
            let size = SetAttributes { size: Some(offset), ..Default::default() };
            fs.setattr(file.ino, &size, W).unwrap();
        }
        1 => fs.fallocate(file.ino, offset, length, Allocate::PunchHole, W).unwrap(),
        _ => {
            let data = units(tag(index, number), UNIT, range.len());
            fs.write(file.ino, offset, &data, WriteFlags::default(), W).unwrap();
        }
    }
    file.end();
}

fn model(images: &Images) {
    let pm = Arc::new(RecordedPm::from_image(images.pm.clone()));
    let device = Arc::new(SimulatedDevice::from_image(images.device.clone()));
    let by_hand = below(2) == 0;
    let policy = if by_hand { PolicyKind::PREDICTIVE } else { PolicyKind::ANTICACHE };
    let fs = mount(media(&pm, &device), policy);
    let file =
        |(index, ino): (usize, &Ino)| Arc::new(StatedFile::new(*ino, UNIT, vec![tag(index, 0); UNITS]));
    let files: Vec<_> = images.files.iter().enumerate().map(file).collect();
    let mut steps: Vec<Box<dyn Step>> = fs.background_steps().into_iter().map(|(step, _)| step).collect();
    // Demotes one group; the other victims are chosen and wait for the thread below.
    for step in &mut steps {
        step.step();
    }
    let mut threads = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let (fs, file) = (Arc::clone(&fs), Arc::clone(file));
        threads.push(spawn("writer", move || (0..ROUNDS).for_each(|_| change(&fs, index, &file))).unwrap());
    }
    let (reader, read) = (Arc::clone(&fs), files.clone());
    let body = move || (0..ROUNDS).for_each(|_| read.iter().for_each(|file| file.read(&reader, UNITS)));
    threads.push(spawn("reader", body).unwrap());
    let (moving, moved) = (Arc::clone(&fs), images.files);
    let body = move || {
        for _ in 0..ROUNDS {
            if by_hand {
                let to = u8::from(below(3) > 0);
                moved.iter().for_each(|ino| {
                    let job = moving.request_move(*ino, MoveRequest::Migrate { to });
                    assert!(job.is_ok(), "{job:?}");
                });
                for _ in 0..PIECES {
                    moving.request_step();
                }
            }
            for step in &mut steps {
                step.step();
            }
        }
    };
    threads.push(spawn("migration", body).unwrap());
    for thread in threads {
        thread.join().unwrap();
    }
    files.iter().for_each(|file| file.read(&fs, UNITS));
    fs.unmount().unwrap();
    drop(fs);
    let report =
        check(&PoolView::new(pm, vec![Some(device)]), &Options { read_cold: true, ..Default::default() });
    assert!(report.is_clean(), "{:#?}", report.findings);
}

#[test]
fn reads_see_a_state_of_the_file_during_the_read() {
    let images = once(images);
    explore("migration", Schedules { random: 1000, priorities: 1000 }, move || model(&images));
}
