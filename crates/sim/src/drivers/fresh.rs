//! mkfs over an older pool, crashed before each of its persistence events. The crash leaves the old pool, a
//! pool that no mount accepts, or the new, empty pool (C25).

use crate::config::{Config, Tier0};
use crate::drivers::acts::SMALL;
use crate::drivers::run::Wrong;
use crate::drivers::systematic::{Effort, Explored, judged};
use crate::media::{Media, Setup, soon_after_change};
use crate::subsets::{Random, all_subsets, some_subsets};
use crate::world::{World, format_options};
use std::collections::HashSet;
use std::sync::Arc;
use terrace_check::Code;
use terrace_engine::{Engine, MountOptions, Simulation, Wait, format, read_superblock};
use terrace_format::{DeviceBlock, Ino};
use terrace_media::block::DeviceImage;
use terrace_media::pm::PmImage;
use terrace_runtime::ManualClock;

const OLD: [u8; 16] = [7; 16];
const NEW: [u8; 16] = [8; 16];

/// Explores mkfs.
pub fn explore(effort: Effort, persist_only: bool, wrong: Wrong) -> Explored {
    let setup = Setup { tier0: Tier0::of_mode(persist_only), change: wrong.ordering, ..Setup::default() };
    judged(|explored| run(effort, &setup, explored))
}

fn run(effort: Effort, setup: &Setup, explored: &mut Explored) {
    let world = World::new(Config { tier0: setup.tier0, ..SMALL }, 1, Setup::default());
    let (pm, device) = {
        let mut world = world.borrow_mut();
        world.leave_a_file();
        (world.pool.media.tier0_content(), world.pool.media.device_images().pop())
    };
    let header = device.as_ref().map(|device| device.block(DeviceBlock(0)));
    let media = Media::from_images(pm, device, setup);
    let made = || format(&media.pool(), &format_options(SMALL, NEW, [3; 16]));
    let (moments, made) = media.camera().film(made);
    made.unwrap();
    explored.events = moments.len() as u64;
    explored.points = media.clock.ordering().points().into_iter().collect();
    explored.passed = explored.points.clone();
    if effort.samples == 0 {
        return;
    }
    let chosen = match setup.change {
        Some(_) if effort.soon > 0 => soon_after_change(&moments, effort.soon),
        _ => (0..moments.len()).collect(),
    };
    let mut seen = HashSet::new();
    for (index, moment) in chosen.into_iter().map(|index| (index, &moments[index])) {
        let done = index + 1 == moments.len();
        let device = moment.devices.first();
        let mut random = Random(index as u64);
        // On PM where only `persist` makes durable: the oldest epoch, the newest, and two at random.
        let epochs = moment.pm.epoch_count() as usize;
        let last = epochs as u64 - 1;
        let turns = [last, 0, random.below(epochs) as u64, random.below(epochs) as u64];
        let images = turns.into_iter().take(epochs.min(turns.len())).flat_map(|epoch| {
            let pm = moment.pm.in_epoch(epoch);
            let choices = all_subsets(&pm, effort.lines)
                .unwrap_or_else(|| some_subsets(&pm, effort.samples, index as u64));
            choices.into_iter().map(move |choice| pm.image_here(&|line| choice[line]))
        });
        let images: Vec<PmImage> = images.collect();
        for image in images {
            let device = device.map(|device| match random.below(3) {
                0 => device.image_none(),
                1 => device.image_all(),
                _ => device.image_random(random.below(1 << 30) as u64),
            });
            let hash = image.hash() ^ device.as_ref().map_or(0, DeviceImage::hash).rotate_left(17);
            if !done && !seen.insert(hash) {
                continue;
            }
            explored.states += 1;
            let is_old =
                device.as_ref().map(|device| device.block(DeviceBlock(0)).0) == header.as_ref().map(|h| h.0);
            judge(image, device, is_old, done, &format!("mkfs, crash before event {index}"));
        }
    }
}

fn judge(pm: PmImage, device: Option<DeviceImage>, old_header: bool, done: bool, what: &str) {
    let media = Media::from_images(pm, device, &Setup::default());
    let superblock = match read_superblock(&*media.pm, true) {
        Ok((superblock, _)) => superblock,
        Err(refused) => {
            assert!(!done, "{what}: {refused} after mkfs returned");
            return;
        }
    };
    assert!(superblock.uuid == NEW || superblock.uuid == OLD && !done, "{what}: pool {:?}", superblock.uuid);
    let old = superblock.uuid == OLD;
    // The old pool is gone before mkfs overwrites a header of its devices.
    assert!(old_header || !old, "{what}: the old pool, with a header of the new one");
    if !old {
        let report = media.check();
        // A crash may come between the writes of the two superblock copies (C5, C25).
        let one_copy = !done && report.findings.iter().all(|finding| finding.code == Code::SuperblockCopy);
        assert!(report.is_clean() || one_copy, "{what}: check: {:#?}", report.findings);
    }
    let clock = Arc::new(ManualClock::new(1_800_000_000_000_000_000));
    let fs = Engine::mount(media.pool(), superblock, MountOptions::default(), clock);
    let fs = fs.unwrap_or_else(|error| panic!("{what}: mount: {error}"));
    let found = fs.lookup(Ino(1), b"old").is_ok();
    assert_eq!(found, old, "{what}: the file of the old pool");
    if !old {
        let space = fs.statfs(Wait::Allowed).unwrap();
        assert!(space.free > 0, "{what}: no space in a new pool");
        fs.run_background(1000);
        fs.unmount().unwrap();
    }
}
