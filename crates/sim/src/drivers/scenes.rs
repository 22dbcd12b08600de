//! Scenes: short sequences with other work at one point in their middle, each the shape of a mistake that
//! random histories meet too seldom. A scene panics if a rule is violated.

use crate::config::{Buffer, Config};
use crate::drivers::acts::SMALL;
use crate::media::{Media, Setup};
use crate::world::{Shared, World};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_engine::{Allocate, Caller, Engine, MetadataMoves, Movements, Simulation, Wait, WriteFlags};
use terrace_format::Ino;
use terrace_format::clustered_map::PIECE_BLOCKS;
use terrace_format::map_kind::MapKind;
use terrace_media::crash::EventKind;
use terrace_reference::{BLOCK, data};
use terrace_runtime::interleave;
use terrace_runtime::sync::Mutex;

/// A sequence and its name.
pub struct Scene {
    /// For messages.
    pub name: &'static str,
    /// The file map that the scene is about.
    pub map: Option<MapKind>,
    /// Plays the scene.
    pub play: fn(),
}

impl Scene {
    const fn of_any_map(name: &'static str, play: fn()) -> Scene {
        Scene { name, map: None, play }
    }

    const fn of_map(map: MapKind, name: &'static str, play: fn()) -> Scene {
        Scene { name, map: Some(map), play }
    }
}

/// All scenes.
pub const SCENES: [Scene; 9] = [
    Scene::of_any_map("blocks are punched while they are fetched", punched_while_fetched),
    Scene::of_any_map("an inode page is to move while a number is taken", page_moves_amid_number),
    Scene::of_any_map("a gap shrinks while room for it is claimed", gap_shrinks_amid_claim),
    Scene::of_any_map("others free and take blocks while a writer searches", taken_amid_search),
    Scene::of_any_map(
        "power fails while a lazy page goes over bytes that a record names",
        named_bytes_in_place,
    ),
    Scene::of_map(
        MapKind::Cuckoo,
        "power fails while entries of the cuckoo map move",
        entries_move_amid_crash,
    ),
    Scene::of_map(MapKind::HashfsLinear, "power fails while the reach of a block table grows", || {
        reach_grows_amid_crash(MapKind::HashfsLinear);
    }),
    Scene::of_map(MapKind::Hashfs, "power fails while the reach of hashfs grows", || {
        reach_grows_amid_crash(MapKind::Hashfs);
    }),
    Scene::of_map(MapKind::Clustered, "power fails while the reach of the clustered map grows", || {
        reach_grows_amid_crash(MapKind::Clustered);
    }),
];

const ROOT: Ino = Ino(1);
const W: Wait = Wait::Allowed;
const B: u64 = BLOCK as u64;

fn mounted(config: Config) -> (Shared, Arc<Engine>) {
    let world = World::new(config, 1, Setup::default());
    let fs = Arc::clone(world.borrow().pool.fs());
    (world, fs)
}

/// An empty file without references.
fn create(fs: &Engine, name: &str) -> Ino {
    let made = fs.mknod(ROOT, name.as_bytes(), 0o100644, 0, Caller { uid: 0, gid: 0 }, W).unwrap();
    fs.forget(made.ino, 1);
    made.ino
}

fn write(fs: &Engine, ino: Ino, offset: u64, bytes: &[u8]) {
    assert_eq!(fs.write(ino, offset, bytes, WriteFlags::default(), W).unwrap(), bytes.len());
}

/// Runs `run`, and at the first `times` passes of a point `others`, which gets the number of passes before.
fn amid(point: &'static str, times: u64, others: impl Fn(u64) + 'static, run: impl FnOnce()) {
    let count = Rc::new(Cell::new(0));
    let passed = Rc::clone(&count);
    interleave::set_hook(Some(Rc::new(move |at| {
        let before = passed.get();
        if at == point && before < times {
            passed.set(before + 1);
            others(before);
        }
    })));
    run();
    interleave::set_hook(None);
    assert_eq!(count.get(), times, "{point} was not passed so often");
}

/// A fetch whose blocks changed in each attempt gives up, and keeps the blocks that the cold map still names.
/// The fetch had read the last punched block before its punch.
fn punched_while_fetched() {
    let (_world, fs) = mounted(SMALL);
    let (f, mut content) = (create(&fs, "f"), data(8 * BLOCK, 3));
    write(&fs, f, 0, &content);
    fs.sync_to(1, &mut |_| {}).unwrap();
    let puncher = Arc::clone(&fs);
    let punch = move |before| {
        puncher.fallocate(f, (1 + before) * B, B, Allocate::PunchHole, W).unwrap();
    };
    let mut found = vec![0xaa; 8 * BLOCK];
    amid("cold:read", 3, punch, || _ = fs.read(f, 0, &mut found, W).unwrap());
    content[BLOCK..4 * BLOCK].fill(0);
    assert!(found == content, "a page of before a hole was read");
    fs.read(f, 0, &mut found, W).unwrap();
    assert!(found == content, "a page of before a hole was kept");
}

/// A page demoted between the choice and the use of a number would come back with the number free, and a
/// second file would get the number.
fn page_moves_amid_number() {
    let (world, fs) = mounted(Config { metadata: MetadataMoves::Always, ..SMALL });
    // The first inode page stays in PM in any case, so the new file needs a later page.
    (0..40).for_each(|index| _ = create(&fs, &format!("file {index}")));
    let mover = Arc::clone(&fs);
    let mut made = ROOT;
    amid("number:taken", 1, move |_| _ = mover.lower_metadata_now().unwrap(), || made = create(&fs, "new"));
    world.borrow_mut().judge_leaks();
    let more: Vec<Ino> = (0..30).map(|index| create(&fs, &format!("more {index}"))).collect();
    assert!(!more.contains(&made), "{made} is two files");
}

/// Blocks claimed for a part of the gap that another write has filled are given back.
fn gap_shrinks_amid_claim() {
    let (world, fs) = mounted(SMALL);
    let f = create(&fs, "f");
    let writer = Arc::clone(&fs);
    let fill = move |_| write(&writer, f, 10 * B, &data(BLOCK, 5));
    let allocate = || fs.fallocate(f, 0, 20 * B, Allocate::KeepSize, W).unwrap();
    amid("fallocate:claimed", 1, fill, allocate);
    world.borrow_mut().judge_leaks();
}

/// A writer on a full pool finds no victim for which a tier has room. Then others make such room, and take the PM blocks
/// that they free: their blocks can be demoted, so the writer must not get ENOSPC.
fn taken_amid_search() {
    let (_world, fs) = mounted(Config { device_blocks: 129, ..SMALL });
    let [cold, warm, others, f] = ["cold", "warm", "others", "f"].map(|name| create(&fs, name));
    write(&fs, cold, 0, &data(40 * BLOCK, 1));
    fs.sync_to(1, &mut |_| {}).unwrap();
    let append = |block: u64| fs.write(warm, block * B, &data(BLOCK, 2), WriteFlags::default(), W);
    let blocks = (0..).find(|block| append(*block).is_err()).unwrap();
    assert!(blocks > 300, "{blocks} blocks fill the pool");
    let user = Arc::clone(&fs);
    let take = move |_| {
        user.fallocate(cold, 0, 32 * B, Allocate::PunchHole, W).unwrap();
        user.fallocate(warm, (blocks - 4) * B, 4 * B, Allocate::PunchHole, W).unwrap();
        write(&user, others, 0, &data(4 * BLOCK, 3));
    };
    amid("space:not-found", 1, take, || write(&fs, f, 0, &data(BLOCK, 4)));
}

/// The last record of a lane names the bytes of a synced write. Lines of a lazy page are stored over them, and power fails
/// before the next record of the lane: the synced write is there.
fn named_bytes_in_place() {
    let (world, fs) = mounted(Config { buffer: Buffer::ALWAYS, ..SMALL });
    let (f, content) = (create(&fs, "f"), data(BLOCK, 6));
    let synced = WriteFlags { sync: true, ..WriteFlags::default() };
    fs.write(f, 0, &content, synced, W).unwrap();
    write(&fs, f, 1024, &[0xee; 64]);
    let media = Rc::new(std::cell::RefCell::new(None));
    let (taken, of) = (Rc::clone(&media), Rc::clone(&world));
    let take = move |_| *taken.borrow_mut() = Some(of.borrow().pool.media.now());
    amid("lazy:looked", 1, take, || fs.fsync(f, false, W).unwrap());
    let Some(moment) = media.borrow_mut().take() else { return };
    for seed in 0..8 {
        let after = Media::after(&moment, seed, &Setup::default());
        let mounted = world.borrow().pool.mount(&after);
        let mut found = vec![0; BLOCK];
        assert_eq!(mounted.read(f, 0, &mut found, W).unwrap(), BLOCK, "a synced write is lost (I5)");
        found[1024..1088].copy_from_slice(&content[1024..1088]);
        assert!(found == content, "bytes of a synced write differ (I5)");
    }
}

/// Entries of the cuckoo map move to make room.
fn entries_move_amid_crash() {
    let Some((moments, _)) = room_made_amid_crash(MapKind::Cuckoo, 430) else { return };
    assert!(moments >= 4, "room was made at {moments} moments only");
}

/// The reach of a table grows before a block lies so far from its home.
fn reach_grows_amid_crash(map: MapKind) {
    let Some((moments, reaches)) = room_made_amid_crash(map, u64::MAX) else { return };
    assert!(reaches.len() >= 2, "{map:?}: {moments} moments, reaches of {reaches:?}");
}

/// Fills PM with up to `blocks` blocks, one by one. A crash while the map makes room, or after the write that asked for it,
/// leaves each block where the map finds it. Gives the number of moments and the reaches of the map; `None` when the pools of
/// this run have another map.
fn room_made_amid_crash(map: MapKind, blocks: u64) -> Option<(usize, BTreeSet<Option<u64>>)> {
    let config = Config { map, device_blocks: 0, ..SMALL };
    if config.file_map() != map {
        return None;
    }
    let (world, fs) = mounted(config);
    let f = create(&fs, "f");
    let pm = Arc::clone(&world.borrow().pool.media.pm);
    let is_lacking = Arc::new(AtomicBool::new(false));
    let lacks = Arc::clone(&is_lacking);
    interleave::set_hook(Some(Rc::new(move |at| {
        if at == "op:between-attempts" {
            lacks.store(true, Ordering::Relaxed);
        }
    })));
    let moments = Arc::new(Mutex::new(Vec::new()));
    let (taken, lacks, weak) = (Arc::clone(&moments), Arc::clone(&is_lacking), Arc::downgrade(&pm));
    pm.clock().on_event(Some(Box::new(move |event| {
        let is_fence = matches!(event.kind, EventKind::Order | EventKind::Persist);
        if is_fence
            && lacks.load(Ordering::Relaxed)
            && let Some(pm) = weak.upgrade()
        {
            taken.lock().push(pm.snapshot());
        }
    })));
    // No block is in a run with the one before, or in a line with it.
    let stride = if map == MapKind::Clustered { PIECE_BLOCKS } else { 2 };
    for block in 0..blocks {
        let written = fs.write(f, stride * block * B, &data(BLOCK, block), WriteFlags::default(), W);
        if written.is_err_and(|error| error.errno() == libc::ENOSPC) {
            break;
        }
        if is_lacking.swap(false, Ordering::Relaxed) {
            moments.lock().push(pm.snapshot());
        }
    }
    pm.clock().on_event(None);
    interleave::set_hook(None);
    let moments = std::mem::take(&mut *moments.lock());
    let mut reaches = BTreeSet::new();
    for (number, moment) in moments.iter().enumerate() {
        for seed in 0..6 {
            let media = Media::from_images(moment.image_random(seed), Vec::new(), &Setup::default());
            let report = media.check();
            assert!(
                report.exit_status() & 4 == 0,
                "{map:?}, moment {number}, image {seed}: {:?}",
                report.findings
            );
            reaches.insert(report.summary.map.reach);
        }
    }
    Some((moments.len(), reaches))
}
