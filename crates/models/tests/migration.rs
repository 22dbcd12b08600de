//! Files are written, cut, punched and read while their blocks are demoted and promoted (design 4.6, 7). A
//! read sees a state that the file had while the read ran, never an older state and never another file's, and
//! the pool is sound afterwards.
//!
//! Half of the schedules have the default policy, whose predictors send writes through DRAM; requested
//! movements move the files then, because this policy leaves half of PM alone. The other half has
//! `anticache`, which can be told to leave nothing in PM, and so demotes every block.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use terrace_check::{Options, PoolView, check};
use terrace_engine::{
    Allocate, BufferOptions, Caller, DeviceClass, Engine, FormatOptions, MountOptions, MoveRequest,
    Movements, NewDevice, PolicyKind, PoolMedia, SetAttributes, Simulation, Wait, WriteFlags, format,
    read_superblock,
};
use terrace_format::Ino;
use terrace_format::address::ROOT_INO;
use terrace_media::block::{DeviceImage, SimulatedDevice};
use terrace_media::pm::{PmImage, RecordedPm};
use terrace_models::{PM_SIZE, Schedules, UUID, below, explore, once};
use terrace_placement::Parameters;
use terrace_runtime::sync::Mutex;
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

/// A word for each unit: the tag of the change that wrote it, or 0.
type Content = Vec<u64>;

fn tag(file: usize, change: usize) -> u64 {
    (1 + change * FILES + file) as u64
}

/// A file and all its states. The writer records each state before it makes the change.
struct File {
    ino: Ino,
    index: usize,
    states: Mutex<Vec<Content>>,
    /// The last state that is complete.
    complete: AtomicUsize,
}

/// Both media of a pool with the files, all in PM.
#[derive(Clone)]
struct Images {
    pm: PmImage,
    device: DeviceImage,
    files: [Ino; FILES],
}

fn media(pm: &Arc<RecordedPm>, device: &Arc<SimulatedDevice>) -> PoolMedia {
    PoolMedia { pm: Arc::clone(pm) as _, block: vec![Arc::clone(device) as _] }
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
            large_pm_percent: 0,
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
    let options = FormatOptions {
        map: Default::default(),
        label: String::new(),
        uuid: UUID,
        hash_key: [9; 16],
        seal_secret: Some([9; 16]),
        policy: PolicyKind::PREDICTIVE,
        data_ordered: false,
        data_checksums: false,
        chunk_blocks: 8,
        created_ns: 1,
        root: Default::default(),
        devices: vec![NewDevice { tier: 1, class: DeviceClass::Ssd, uuid: [2; 16], path: "/tier".into() }],
    };
    format(&media(&pm, &device), &options).unwrap();
    let fs = mount(media(&pm, &device), PolicyKind::STATIC);
    let files = std::array::from_fn(|index| {
        let name = format!("file{index}");
        let caller = Caller { uid: 0, gid: 0 };
        let ino = fs.mknod(ROOT_INO, name.as_bytes(), 0o100644, 0, caller, W).unwrap().ino;
        fs.write(ino, 0, &bytes(tag(index, 0), UNITS), WriteFlags::default(), W).unwrap();
        ino
    });
    fs.unmount().unwrap();
    Images { pm: pm.visible_image(), device: device.visible_image(), files }
}

fn bytes(tag: u64, units: usize) -> Vec<u8> {
    tag.to_le_bytes().repeat(units * UNIT / 8)
}

impl File {
    fn change(&self, fs: &Engine) {
        let mut states = self.states.lock();
        let mut content = states.last().unwrap().clone();
        let tag = tag(self.index, states.len());
        let first = below(UNITS as u64) as usize;
        let end = (first + 1 + below(4) as usize).min(UNITS);
        let kind = below(4);
        match kind {
            0 => content.resize(first, 0),
            1 => content.iter_mut().take(end).skip(first).for_each(|unit| *unit = 0),
            _ => {
                content.resize(content.len().max(end), 0);
                content[first..end].fill(tag);
            }
        }
        states.push(content);
        drop(states);
        let (offset, length) = ((first * UNIT) as u64, ((end - first) * UNIT) as u64);
        match kind {
            0 => {
                let size = SetAttributes { size: Some(offset), ..Default::default() };
                fs.setattr(self.ino, &size, W).unwrap();
            }
            1 => fs.fallocate(self.ino, offset, length, Allocate::PunchHole, W).unwrap(),
            _ => {
                let data = bytes(tag, end - first);
                fs.write(self.ino, offset, &data, WriteFlags::default(), W).unwrap();
            }
        }
        self.complete.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self, fs: &Engine) {
        let from = self.complete.load(Ordering::Relaxed);
        let mut data = vec![0; UNITS * UNIT];
        let count = fs.read(self.ino, 0, &mut data, W).unwrap();
        let states = self.states.lock();
        let mut found = Content::new();
        for unit in data[..count].chunks(UNIT) {
            let word = u64::from_le_bytes(*unit.first_chunk().unwrap());
            assert_eq!(unit, &bytes(word, 1)[..unit.len()], "a unit of inode {} is torn", self.ino);
            found.push(word);
        }
        let possible = &states[from..];
        assert!(possible.contains(&found), "inode {}: {found:?} is none of {possible:?}", self.ino);
    }
}

fn model(images: &Images) {
    let pm = Arc::new(RecordedPm::from_image(images.pm.clone()));
    let device = Arc::new(SimulatedDevice::from_image(images.device.clone()));
    let by_hand = below(2) == 0;
    let policy = if by_hand { PolicyKind::PREDICTIVE } else { PolicyKind::ANTICACHE };
    let fs = mount(media(&pm, &device), policy);
    let file = |(index, ino): (usize, &Ino)| {
        let states = Mutex::new(vec![vec![tag(index, 0); UNITS]]);
        Arc::new(File { ino: *ino, index, states, complete: AtomicUsize::new(0) })
    };
    let files: Vec<_> = images.files.iter().enumerate().map(file).collect();
    let mut steps: Vec<Box<dyn Step>> = fs.background_steps().into_iter().map(|(step, _)| step).collect();
    // Demotes one group; the other victims are chosen and wait for the thread below.
    for step in &mut steps {
        step.step();
    }
    let mut threads = Vec::new();
    for file in &files {
        let (fs, file) = (Arc::clone(&fs), Arc::clone(file));
        threads.push(spawn("writer", move || (0..ROUNDS).for_each(|_| file.change(&fs))).unwrap());
    }
    let (reader, read) = (Arc::clone(&fs), files.clone());
    let body = move || (0..ROUNDS).for_each(|_| read.iter().for_each(|file| file.read(&reader)));
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
    files.iter().for_each(|file| file.read(&fs));
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
