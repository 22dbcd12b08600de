//! The sequences behind T3 to T8, 4.2, S2, S3, S5, S6, M1 and M5 of the design, each as a named test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod crash_support;

use crash_support::*;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrace_engine::{
    Allocate, Engine, MountOptions, Movements, SetAttributes, Simulation, Wait, WriteFlags, XattrMode,
    format, read_superblock,
};
use terrace_format::{DeviceBlock, PmBlock};
use terrace_media::block::{AlignedBlock, DeviceImage, Operation, SimulatedDevice, Times};
use terrace_media::pm::CrashSnapshot;
use terrace_media::{BlockMedium, MediaError};
use terrace_runtime::sync::Mutex;

type Hook = Box<dyn FnOnce() + Send>;

/// A device that calls a hook at the end of its next write or flush.
struct Interposed {
    inner: Arc<SimulatedDevice>,
    after_write: Mutex<Option<Hook>>,
    after_flush: Mutex<Option<Hook>>,
}

impl Interposed {
    fn new(inner: &Arc<SimulatedDevice>) -> Arc<Interposed> {
        Arc::new(Interposed {
            inner: inner.clone(),
            after_write: Mutex::new(None),
            after_flush: Mutex::new(None),
        })
    }
    fn run(place: &Mutex<Option<Hook>>) {
        let hook = place.lock().take();
        if let Some(hook) = hook {
            hook();
        }
    }
}

impl BlockMedium for Interposed {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        self.inner.read(first, into)
    }
    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        let done = self.inner.write(first, from);
        Self::run(&self.after_write);
        done
    }
    fn flush_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        let done = self.inner.flush_at(at);
        Self::run(&self.after_flush);
        done
    }
    fn error_count(&self) -> u64 {
        self.inner.error_count()
    }
}

fn mount_interposed(world: &World, ordered: bool) -> (Arc<Engine>, Arc<Interposed>) {
    let device = Interposed::new(&world.device);
    let (superblock, _) = read_superblock(&*world.pm, true).unwrap();
    let options = MountOptions { data_ordered: Some(ordered), ..options() };
    let fs =
        Engine::mount(world.media_with(device.clone()), superblock, options, world.time.clone()).unwrap();
    (fs, device)
}

/// Every image that a crash now can leave shows one of these contents for each file of the root.
#[track_caller]
fn assert_left(world: &World, files: &[(&str, &[&[u8]])]) {
    let (pm, device) = (world.pm.snapshot(), world.device.snapshot());
    let mut devices = vec![device.image_none(), device.image_all()];
    devices.extend((0..2).map(|seed| device.image_random(seed)));
    for (index, image) in pm.images(8, 24, 5).take(300).enumerate() {
        let left = World::from_images(world.shape, image, devices[index % devices.len()].clone());
        left.assert_clean();
        let fs = left.mount();
        for (name, contents) in files {
            let found = read(&fs, find(&fs, name));
            assert!(contents.contains(&found.as_slice()), "{name} has {} wrong bytes", found.len());
        }
        fs.run_background(1000);
        fs.unmount().unwrap();
        left.assert_clean();
    }
}

// ---- T3 ----------------------------------------------------------------------------------------

/// Records of the ring's last lap, and of the epoch before a crash, do not come back.
#[test]
fn t3_stale_records_stay_dead() {
    let world = World::new(SMALL);
    let fs = world.mount();
    let f = create(&fs, ROOT, "f");
    // Several laps in both lanes, so that the whole ring is full of old records.
    for lap in 0..120u8 {
        in_lane(usize::from(lap % 2), 2, || {
            for step in 0..8u8 {
                write(&fs, f, 0, &pattern(64, lap.wrapping_add(step)));
            }
        });
    }
    write(&fs, f, 0, b"newest");
    let expected = read(&fs, f);
    assert_left(&world, &[("f", &[&expected])]);
    // Crash, recover, crash at once: the lanes hold records of the old epoch behind the new tails.
    let mut world = world.crashed(true);
    for round in 0..4 {
        let fs = world.mount();
        assert_eq!(read(&fs, find(&fs, "f")), expected, "round {round}");
        drop(fs);
        world = world.crashed(round % 2 == 0);
        world.assert_clean();
    }
    // A shorter history in the new epoch, then a crash: the records behind it in the ring are of the old
    // epoch.
    let fs = world.mount();
    write(&fs, find(&fs, "f"), 0, b"later");
    let expected = read(&fs, find(&fs, "f"));
    drop(fs);
    assert_left(&world, &[("f", &[&expected])]);
}

/// A record dropped for missing data stays dropped, although the same bytes come to the same block later, for
/// another file: recovery raised the epoch.
#[test]
fn t3_a_dropped_record_does_not_come_back_with_its_data() {
    let world = World::new(SMALL);
    let fs = world.mount();
    let (f, g) = (create(&fs, ROOT, "f"), create(&fs, ROOT, "g"));
    world.pm.persist().unwrap();
    // Just before the fence the record is there, and its data is not.
    let moments: Arc<Mutex<Vec<_>>> = Arc::default();
    let (weak, kept) = (Arc::downgrade(&world.pm), Arc::clone(&moments));
    world.clock.on_event(Some(Box::new(move |event| {
        if event.kind == terrace_media::crash::EventKind::Order {
            kept.lock().push(weak.upgrade().unwrap().snapshot());
        }
    })));
    in_lane(0, 2, || write(&fs, f, 0, &pattern(4096, 1)));
    world.clock.on_event(None);
    let snapshot = std::mem::take(&mut *moments.lock()).remove(0);
    let lanes = 8 * 4096..16 * 4096;
    let in_lanes = |index: usize| lanes.contains(&snapshot.pending[index].offset().0);
    let image = snapshot.image(&|index| if in_lanes(index) { usize::MAX } else { 0 });
    let world = World::from_images(SMALL, image, world.device.snapshot().image_all());
    let fs = world.mount();
    assert_eq!(read(&fs, f), b"", "the write was not acknowledged and is gone");
    in_lane(1, 2, || write(&fs, g, 0, &pattern(4096, 1)));
    drop(fs);
    let world = world.crashed(false);
    world.assert_clean();
    let fs = world.mount();
    assert_eq!(read(&fs, f), b"");
    assert_eq!(read(&fs, g), pattern(4096, 1));
}

/// A file with a byte-for-byte copy of the lanes is only a file: its bytes never count as records, even when
/// they lie in the ring as the data of records.
#[test]
fn t3_copies_of_records_in_user_data_are_no_records() {
    let world = World::new(SMALL);
    let fs = world.mount();
    let f = create(&fs, ROOT, "f");
    write(&fs, f, 0, b"original");
    let lanes: Vec<u8> = world.pm.visible_image().to_vec()[8 * 4096..16 * 4096].to_vec();
    let copy = create(&fs, ROOT, "copy");
    write(&fs, copy, 0, &lanes);
    // Xattr values and names travel inside records, so record bytes lie inside records.
    for (index, piece) in lanes.chunks(900).take(12).enumerate() {
        set_xattr(&fs, copy, &format!("user.{index}"), piece);
    }
    write(&fs, f, 0, b"modified");
    assert_left(&world, &[("f", &[b"modified"]), ("copy", &[&lanes])]);
}

/// An unreadable line in a live lane refuses the mount: it may have held a committed record.
#[test]
fn t3_unreadable_line_in_a_live_lane_refuses_the_mount() {
    let world = World::new(SMALL);
    let fs = world.mount();
    let f = create(&fs, ROOT, "f");
    for _ in 0..3 {
        in_lane(0, 2, || write(&fs, f, 0, b"a"));
        in_lane(1, 2, || write(&fs, f, 0, b"b"));
    }
    drop(fs);
    for lane in 0..2u64 {
        let left = world.crashed(true);
        let start = (8 * 4096) + lane * (16 << 10);
        // The whole lane is unreadable, as a failed DIMM page leaves it.
        left.pm.poison(start..start + (16 << 10));
        assert!(left.mount_with(options()).is_err(), "lane {lane}");
        left.pm.clear_poison();
        let fs = left.mount();
        assert_eq!(read(&fs, find(&fs, "f")), b"b");
    }
}

/// The crash snapshots of PM before each event of `run`.
fn photographed(world: &World, run: impl FnOnce()) -> Vec<CrashSnapshot> {
    let moments: Arc<Mutex<Vec<_>>> = Arc::default();
    let (weak, kept) = (Arc::downgrade(&world.pm), Arc::clone(&moments));
    world.clock.on_event(Some(Box::new(move |_| kept.lock().push(weak.upgrade().unwrap().snapshot()))));
    run();
    world.clock.on_event(None);
    moments.lock().split_off(0)
}

/// The contents of the file "f" after crashes at these moments; each pool must be sound.
fn contents_after(world: &World, moments: &[CrashSnapshot]) -> Vec<Vec<u8>> {
    let images = moments.iter().flat_map(|moment| moment.images(8, 24, 7).take(64));
    let content = |image| {
        let left = World::from_images(world.shape, image, world.device.snapshot().image_all());
        left.assert_clean();
        let fs = left.mount();
        read(&fs, find(&fs, "f"))
    };
    images.map(content).collect()
}

// ---- T4 ----------------------------------------------------------------------------------------

/// A record names its data; then the next append changes the same block in place, through the other lane.
/// Recovery must not judge the first record by bytes that were overwritten.
#[test]
fn t4_append_in_place_after_a_named_write() {
    for named in 0..2usize {
        let world = World::new(SMALL);
        let fs = world.mount();
        let f = create(&fs, ROOT, "f");
        in_lane(named, 2, || write(&fs, f, 0, &[1; 100]));
        let before = read(&fs, f);
        // Snapshots inside the append: its data is stored over the bytes that the first record named.
        let moments = photographed(&world, || in_lane(1 - named, 2, || write(&fs, f, 100, &[2; 200])));
        let after = read(&fs, f);
        for found in contents_after(&world, &moments) {
            assert!(found == before || found == after, "{} bytes", found.len());
        }
    }
}

/// A truncation inside the named range, then an append from another lane: zeros and new bytes go into the
/// named block in place. The acknowledged first write and the truncation survive every crash.
#[test]
fn t4_truncate_in_the_named_range_then_append() {
    let world = World::new(SMALL);
    let fs = world.mount();
    let f = create(&fs, ROOT, "f");
    in_lane(0, 2, || write(&fs, f, 0, &pattern(4000, 1)));
    // The truncation uses the other lane, so the write stays its lane's last record.
    in_lane(1, 2, || set_size(&fs, f, 50));
    let before = read(&fs, f);
    let moments = photographed(&world, || in_lane(1, 2, || write(&fs, f, 1000, &[9; 64])));
    let after = read(&fs, f);
    for found in contents_after(&world, &moments) {
        assert!(found == before || found == after, "{} bytes", found.len());
    }
}

/// The same under data=ordered, where every overwrite is in place: the size and the bytes outside the written
/// range survive.
#[test]
fn t4_ordered_overwrites_of_named_bytes() {
    let world = World::new(Shape { ordered: true, ..SMALL });
    let fs = world.mount();
    let f = create(&fs, ROOT, "f");
    in_lane(0, 2, || write(&fs, f, 0, &pattern(4096, 1)));
    let moments = photographed(&world, || in_lane(1, 2, || write(&fs, f, 512, &[9; 512])));
    let (old, mut new) = (pattern(4096, 1), pattern(4096, 1));
    new[512..1024].fill(9);
    for found in contents_after(&world, &moments) {
        assert_eq!(found.len(), 4096, "an acknowledged write is gone");
        for word in 0..512 {
            let at = word * 8..word * 8 + 8;
            assert!(found[at.clone()] == old[at.clone()] || found[at.clone()] == new[at], "word {word}");
        }
    }
}

// ---- T5 ----------------------------------------------------------------------------------------

/// Records below the checkpoint have durable stores: an image without the old records of the lanes loses no
/// change. Idle lanes do not hold the checkpoint back.
#[test]
fn t5_records_below_the_checkpoint_are_not_needed() {
    let world = World::new(SMALL);
    let fs = world.mount();
    let f = create(&fs, ROOT, "f");
    // A single record in lane 1, then no more; lane 0 goes round several times.
    in_lane(1, 2, || create(&fs, ROOT, "idle"));
    in_lane(0, 2, || {
        for round in 0..300u32 {
            write(&fs, f, u64::from(round % 7) * 500, &round.to_le_bytes());
        }
    });
    let expected = read(&fs, f);
    let mut image = world.pm.snapshot().image_oldest().to_vec();
    let geometry = read_superblock(&*world.pm, false).unwrap().0.geometry();
    let found = terrace_wal::recovery::read_checkpoint(&*world.pm, &[7; 16], &geometry).unwrap();
    let tails = &found.point.tails;
    assert!(tails[0] > 2 * geometry.lane_size, "the checkpoint moved on: {tails:?}");
    // The idle lane 1 is erased whole, because the checkpoint has passed its record.
    let lane = geometry.lane_offset(1).0 as usize;
    image[lane..lane + geometry.lane_size as usize].fill(0xee);
    let left = World::from_images(SMALL, image, world.device.snapshot().image_none());
    left.assert_clean();
    let fs = left.mount();
    assert_eq!(read(&fs, find(&fs, "f")), expected);
    find(&fs, "idle");
}

/// A crash may tear either copy of the checkpoint.
#[test]
fn t5_either_copy_torn() {
    let world = World::new(SMALL);
    let fs = world.mount();
    let f = create(&fs, ROOT, "f");
    write(&fs, f, 0, b"kept");
    drop(fs);
    for copy in [4, 5u64] {
        let mut image = world.pm.snapshot().image_newest().to_vec();
        image[PmBlock(copy).offset().0 as usize + 33] ^= 0x40;
        let left = World::from_images(SMALL, image.clone(), world.device.snapshot().image_all());
        left.assert_clean();
        let fs = left.mount();
        assert_eq!(read(&fs, find(&fs, "f")), b"kept");
        assert_eq!(fs.status().unwrap().recovery.warnings.len(), 1);
        drop(fs);
        left.assert_clean();
        let fs = left.crashed(true).mount();
        assert!(fs.status().unwrap().recovery.warnings.is_empty(), "recovery repairs the copy");
    }
}

// ---- T6 ----------------------------------------------------------------------------------------

/// PM is full; a catalog page is edited and freed, and data needs its block at once. The lanes still hold the
/// old edits, which recovery must not replay into the data.
#[test]
fn t6_freed_blocks_rest_until_the_checkpoint() {
    let world = World::new(SMALL);
    let still = MountOptions { policy: Some(terrace_engine::PolicyKind::STATIC), ..options() };
    let fs = world.mount_with(still).unwrap();
    // The directory's page is in a shard of its own, and in a low block that is claimed first again.
    let d = mkdir(&fs, ROOT, "d");
    create(&fs, d, "first");
    let keep = create(&fs, ROOT, "keep");
    write(&fs, keep, 0, &pattern(4096, 0));
    let full = create(&fs, ROOT, "full");
    let mut blocks = 0;
    while fs.write(full, blocks * 4096, &[3; 4096], WriteFlags::default(), Wait::Never).is_ok() {
        blocks += 1;
        assert!(blocks < 1000, "PM never fills");
    }
    fs.unlink(d, b"first", W).unwrap();
    for round in 1..6u8 {
        set_size(&fs, full, (blocks - u64::from(round)) * 4096);
        fs.run_background(20);
        // A single page for the directory's names.
        create(&fs, d, "some name in the page");
        create(&fs, d, "another");
        fs.unlink(d, b"another", W).unwrap();
        while fs.write(full, blocks * 4096, &[3; 4096], WriteFlags::default(), Wait::Never).is_ok() {
            blocks += 1;
        }
        fs.unlink(d, b"some name in the page", W).unwrap();
        let _ = fs.write(keep, 0, &pattern(4096, round), WriteFlags::default(), Wait::Never);
        let expected = read(&fs, keep);
        assert_left(&world, &[("keep", &[&expected])]);
    }
}

// ---- T7 ----------------------------------------------------------------------------------------

/// The largest records of every operation fit a quarter of the smallest lane; the pages are filled so that
/// shifts are long.
#[test]
fn t7_largest_records_fit_the_smallest_lanes() {
    let world = World::new(Shape { device_blocks: 4097, ..SMALL });
    let fs = world.mount();
    // Small dentries make long slot arrays; names of 255 bytes make large cells and splits.
    let d = mkdir(&fs, ROOT, "d");
    for index in 0..150 {
        create(&fs, d, &format!("{index:x}"));
    }
    for index in 0..60 {
        create(&fs, d, &format!("{index:0>255}"));
    }
    for index in 0..60 {
        let (old, new) = (format!("{index:0>255}"), format!("{index:y>255}"));
        let to = if index % 2 == 0 { d } else { ROOT };
        fs.rename(d, old.as_bytes(), to, new.as_bytes(), false, W).unwrap();
    }
    for index in 0..40 {
        let name = format!("{index:z>250}");
        let ino = fs.symlink(d, name.as_bytes(), &[b't'; 2048], CALLER, W).unwrap().ino;
        fs.forget(ino, 1);
        assert_eq!(fs.readlink(ino).unwrap().len(), 2048);
    }
    let f = create(&fs, d, "xattrs");
    for index in 0..60 {
        set_xattr(&fs, f, &format!("user.{index}"), b"small");
    }
    for index in 0..12 {
        let name = format!("user.{index:0>250}");
        for size in [2048, 1, 1500, 2048] {
            fs.setxattr(f, name.as_bytes(), &vec![index as u8; size], XattrMode::Any, W).unwrap();
            assert_eq!(fs.getxattr(f, name.as_bytes()).unwrap().len(), size);
        }
        fs.removexattr(f, name.as_bytes(), W).unwrap();
    }
    // The largest writes, over blocks scattered in PM and in the map.
    let w = create(&fs, d, "writes");
    for block in (0..120u64).rev() {
        write(&fs, w, block * 4096, &[1; 4096]);
    }
    for offset in [0, 1, 4095, 100, 56 * 4096] {
        write(&fs, w, offset, &pattern(70 * 4096, 3));
    }
    set_size(&fs, w, 20_000);
    fs.unmount().unwrap();
    world.assert_clean();
}

/// Broke: an install over a cold map of single blocks took more than the smallest lane's largest record.
#[test]
fn t7_fragmented_cold_maps_can_be_replaced_cut_and_given_up() {
    let world = World::new(Shape { device_blocks: 2049, ..SMALL });
    let fs = world.mount();
    let f = create(&fs, ROOT, "f");
    let mut expected = vec![0; 128 * 4096];
    // Every block is an extent of its own: the blocks are demoted singly, and not in the file's order.
    for step in 0..128u64 {
        let block = (step * 37) % 128;
        let content = pattern(4096, step as u8);
        write(&fs, f, block * 4096, &content);
        expected[block as usize * 4096..][..4096].copy_from_slice(&content);
        fs.sync_to(1, &mut |_| {}).unwrap();
    }
    assert_eq!(read(&fs, f), expected);
    world.assert_clean();
    // Overwrites the whole file, and installs it over the fragments.
    expected = pattern(128 * 4096, 200);
    write(&fs, f, 0, &expected);
    fs.sync_to(1, &mut |_| {}).unwrap();
    assert_eq!(read(&fs, f), expected);
    set_size(&fs, f, 100);
    punch(&fs, f, 0, 50);
    fs.unmount().unwrap();
    world.assert_clean();
}

/// As above on a tier so full that cold copies under shadows have to be given up first.
#[test]
fn t7_fragmented_shadows_can_be_given_up() {
    let world = World::new(Shape { device_blocks: 130, ..SMALL });
    let fs = world.mount();
    let f = create(&fs, ROOT, "f");
    for step in 0..128u64 {
        write(&fs, f, (step * 37) % 128 * 4096, &pattern(4096, step as u8));
        fs.sync_to(1, &mut |_| {}).unwrap();
    }
    let expected = pattern(128 * 4096, 200);
    write(&fs, f, 0, &expected);
    fs.sync_to(1, &mut |_| {}).unwrap();
    assert_eq!(read(&fs, f), expected);
    fs.unmount().unwrap();
    world.assert_clean();
}

/// An intent survives several crashes between its pieces, and is finished after the mount.
#[test]
fn t7_intents_survive_crashes() {
    let mut world = World::new(SMALL);
    let fs = world.mount();
    let f = create(&fs, ROOT, "f");
    write(&fs, f, 0, &pattern(300 * 4096, 1));
    let after_intent = Arc::new(AtomicU64::new(0));
    // Images right after the intent: the size has changed, and the blocks are still there.
    let kept: Arc<Mutex<Vec<_>>> = Arc::default();
    let (weak, list, count) = (Arc::downgrade(&world.pm), Arc::clone(&kept), after_intent.clone());
    world.clock.on_event(Some(Box::new(move |_| {
        if count.fetch_add(1, Ordering::Relaxed) % 40 == 30 {
            list.lock().push(weak.upgrade().unwrap().snapshot().image_newest());
        }
    })));
    set_size(&fs, f, 5000);
    world.clock.on_event(None);
    let images = std::mem::take(&mut *kept.lock());
    assert!(images.len() > 2);
    for image in images {
        world = World::from_images(SMALL, image, world.device.snapshot().image_all());
        for round in 0..3 {
            world.assert_clean();
            let fs = world.mount();
            let ino = find(&fs, "f");
            assert_eq!(read(&fs, ino), &pattern(300 * 4096, 1)[..5000]);
            // The raised size shows zeros, whether or not the blocks are removed yet.
            if round == 1 {
                set_size(&fs, ino, 1 << 20);
                assert!(read(&fs, ino)[5000..].iter().all(|byte| *byte == 0));
                write(&fs, ino, 50 * 4096, b"inside the range");
                assert_eq!(&read(&fs, ino)[50 * 4096..50 * 4096 + 6], b"inside");
                set_size(&fs, ino, 5000);
            }
            if round == 2 {
                fs.run_background(1000);
                assert_eq!(fs.getattr(ino).unwrap().blocks, 16);
            }
            drop(fs);
            world = world.crashed(round != 0);
        }
        world.assert_clean();
    }
}

// ---- 4.2: the table scan ---------------------------------------------------------------------------

/// Claims and frees go on during the scan of the block table after a crash: no interleaving gives a block to
/// two claims.
#[test]
fn table_scan_meets_frees_and_claims() {
    let world = World::new(Shape { pm_bytes: 48 << 20, ..SMALL });
    let fs = world.mount();
    let f = create(&fs, ROOT, "f");
    write(&fs, f, 0, &pattern(600 * 4096, 1));
    drop(fs);
    for steps in 0..4 {
        let left = world.crashed(true);
        let fs = left.mount();
        let ino = find(&fs, "f");
        // Frees of blocks that the scan has not seen yet, claims, and scan steps between them.
        for round in 0..30u64 {
            write(&fs, ino, round * 20 * 4096, &pattern(5 * 4096, round as u8));
            if round % 7 == 0 {
                fs.run_background(steps);
            }
        }
        set_size(&fs, ino, 40 * 4096);
        let g = create(&fs, ROOT, "g");
        write(&fs, g, 0, &pattern(200 * 4096, 7));
        fs.run_background(10_000);
        let content = read(&fs, ino);
        left.assert_clean();
        drop(fs);
        let left = left.crashed(steps % 2 == 0);
        left.assert_clean();
        let fs = left.mount();
        assert_eq!(read(&fs, find(&fs, "f")), content);
        assert_eq!(read(&fs, find(&fs, "g")), pattern(200 * 4096, 7));
    }
}

// ---- S2, S3, S6: migration against writes -----------------------------------------------------------

/// An overwrite of a demoted block writes PM only, and no crash shows the stale cold copy.
#[test]
fn s2_overwrite_of_a_demoted_block() {
    let world = World::new(SMALL);
    let fs = world.mount();
    let f = create(&fs, ROOT, "f");
    write(&fs, f, 0, &pattern(20_000, 1));
    fs.sync_to(1, &mut |_| {}).unwrap();
    let writes = world.device.counters().writes;
    let mut expected = pattern(20_000, 1);
    write(&fs, f, 4096, &[7; 4096]);
    expected[4096..8192].fill(7);
    write(&fs, f, 9000, &[8; 10]);
    expected[9000..9010].fill(8);
    assert_eq!(world.device.counters().writes, writes, "nothing is written below");
    assert_left(&world, &[("f", &[&expected])]);
    fs.sync_to(1, &mut |_| {}).unwrap();
    assert_left(&world, &[("f", &[&expected])]);
}

/// A clean promoted block is demoted without a write. A block written since its promotion is not clean,
/// however it was written (whole, in part, by an append in place, under data=ordered in place).
#[test]
fn s2_clean_is_lost_by_every_kind_of_write() {
    for ordered in [false, true] {
        for kind in 0..5 {
            let world = World::new(Shape { ordered, ..SMALL });
            let fs = world.mount();
            let f = create(&fs, ROOT, "f");
            let mut expected = pattern(10_000, 1);
            write(&fs, f, 0, &expected);
            fs.sync_to(1, &mut |_| {}).unwrap();
            for _ in 0..3 {
                read(&fs, f);
            }
            fs.run_background(50);
            assert_eq!(fs.status().unwrap().migration.promoted_bytes, 3 * 4096);
            match kind {
                0 => write(&fs, f, 0, &[5; 4096]),
                1 => write(&fs, f, 5000, &[5; 9]),
                2 => write(&fs, f, 10_000, &[5; 9]),
                3 => set_size(&fs, f, 10_100),
                _ => punch(&fs, f, 100, 50),
            }
            match kind {
                0 => expected[..4096].fill(5),
                1 => expected[5000..5009].fill(5),
                2 => expected.extend_from_slice(&[5; 9]),
                3 => expected.resize(10_100, 0),
                _ => expected[100..150].fill(0),
            }
            // A block of another file to demote, so that clean blocks are dropped on the way.
            let other = create(&fs, ROOT, "other");
            write(&fs, other, 0, b"dirty");
            fs.sync_to(1, &mut |_| {}).unwrap();
            assert_eq!(read(&fs, f), expected, "kind {kind} ordered {ordered}");
            assert_left(&world, &[("f", &[&expected])]);
        }
    }
}

/// A write, truncation or punch between a demotion's copy and its commit (from inside the device's flush)
/// wins: the copy is given up (S3, M2).
#[test]
fn s3_changes_during_a_demotion() {
    for ordered in [false, true] {
        for kind in 0..6 {
            for at_write in [true, false] {
                let world = World::new(Shape { ordered, ..SMALL });
                let (fs, device) = mount_interposed(&world, ordered);
                let f = create(&fs, ROOT, "f");
                let mut expected = pattern(20_000, 1);
                write(&fs, f, 0, &expected);
                let inner = Arc::downgrade(&fs);
                let change: Hook = Box::new(move || {
                    let fs = inner.upgrade().unwrap();
                    match kind {
                        0 => write(&fs, f, 4096, &[9; 4096]),
                        1 => write(&fs, f, 5000, &[9; 3]),
                        2 => write(&fs, f, 20_000, &[9; 100]),
                        3 => set_size(&fs, f, 5000),
                        4 => punch(&fs, f, 0, 8192),
                        _ => {
                            set_size(&fs, f, 0);
                            write(&fs, f, 0, &[9; 10_000]);
                        }
                    }
                });
                let place = if at_write { &device.after_write } else { &device.after_flush };
                *place.lock() = Some(change);
                fs.sync_to(1, &mut |_| {}).unwrap();
                match kind {
                    0 => expected[4096..8192].fill(9),
                    1 => expected[5000..5003].fill(9),
                    2 => expected.extend_from_slice(&[9; 100]),
                    3 => expected.truncate(5000),
                    4 => expected[..8192].fill(0),
                    _ => expected = vec![9; 10_000],
                }
                assert_eq!(read(&fs, f), expected, "kind {kind}");
                fs.run_background(100);
                fs.sync_to(1, &mut |_| {}).unwrap();
                assert_eq!(read(&fs, f), expected, "kind {kind}, demoted");
                assert_left(&world, &[("f", &[&expected])]);
            }
        }
    }
}

/// A file is removed and its inode number used for a new file, while its blocks are demoted (S6: a generation
/// counts as a version).
#[test]
fn s6_the_inode_number_is_reused_during_a_demotion() {
    let world = World::new(SMALL);
    let (fs, device) = mount_interposed(&world, false);
    let f = create(&fs, ROOT, "f");
    write(&fs, f, 0, &pattern(20_000, 1));
    let inner = Arc::downgrade(&fs);
    *device.after_flush.lock() = Some(Box::new(move || {
        let fs = inner.upgrade().unwrap();
        fs.unlink(ROOT, b"f", W).unwrap();
        fs.run_background(100);
        let again = create(&fs, ROOT, "other");
        assert_eq!(again, f, "the number is used again");
        write(&fs, again, 0, &pattern(9000, 2));
    }));
    fs.sync_to(1, &mut |_| {}).unwrap();
    assert_eq!(read(&fs, find(&fs, "other")), pattern(9000, 2));
    let expected = pattern(9000, 2);
    assert_left(&world, &[("other", &[&expected])]);
}

// ---- S5 ----------------------------------------------------------------------------------------

/// Bytes cut off by a truncation never come back when truncate, write or fallocate raises the size again, in
/// PM and cold, also with a crash in between.
#[test]
fn s5_raised_sizes_show_zeros() {
    for cold in [false, true] {
        for ordered in [false, true] {
            for raise in 0..4 {
                let mut world = World::new(Shape { ordered, ..SMALL });
                let mut fs = world.mount();
                let f = create(&fs, ROOT, "f");
                write(&fs, f, 0, &[7; 3000]);
                if cold {
                    fs.sync_to(1, &mut |_| {}).unwrap();
                }
                set_size(&fs, f, 100);
                if raise % 2 == 1 {
                    drop(fs);
                    world = world.crashed(true);
                    fs = world.mount();
                }
                let before = read(&fs, f);
                let moments: Arc<Mutex<Vec<_>>> = Arc::default();
                let (weak, kept) = (Arc::downgrade(&world.pm), Arc::clone(&moments));
                world.clock.on_event(Some(Box::new(move |_| {
                    kept.lock().push(weak.upgrade().unwrap().snapshot());
                })));
                match raise {
                    0 => set_size(&fs, f, 200),
                    1 => write(&fs, f, 2500, &[8; 10]),
                    2 => fs.fallocate(f, 0, 9000, Allocate::Extend, W).unwrap(),
                    _ => write(&fs, f, 12_288, &[8; 4096]),
                }
                world.clock.on_event(None);
                let after = read(&fs, f);
                assert!(after[100..].iter().all(|byte| *byte == 0 || *byte == 8));
                for snapshot in moments.lock().iter() {
                    for image in snapshot.images(8, 12, 3).take(40) {
                        let left =
                            World::from_images(world.shape, image, world.device.snapshot().image_all());
                        left.assert_clean();
                        let fs = left.mount();
                        let ino = find(&fs, "f");
                        let found = read(&fs, ino);
                        assert!(found == before || found == after, "cold {cold} raise {raise}");
                        // The same raise once more, after the crash.
                        let size = found.len() as u64;
                        set_size(&fs, ino, size + 3000);
                        assert!(read(&fs, ino)[size as usize..].iter().all(|byte| *byte == 0));
                    }
                }
            }
        }
    }
}

/// Broke in a pool without a lower tier, where preallocated blocks lie in PM: a whole block written over a
/// preallocated one past the end raised the size without clearing the tail of the old last block.
#[test]
fn s5_preallocated_blocks_past_the_end_without_a_tier() {
    let pm = Arc::new(terrace_media::pm::RecordedPm::new(2 << 20));
    let media = || terrace_engine::PoolMedia { pm: pm.clone(), block: Vec::new() };
    let mut bare = format_options(false);
    bare.devices.clear();
    let superblock = format(&media(), &bare).unwrap();
    let time = Arc::new(terrace_runtime::ManualClock::new(1));
    let fs = Engine::mount(media(), superblock, options(), time).unwrap();
    let f = create(&fs, ROOT, "f");
    write(&fs, f, 0, &[7; 3000]);
    set_size(&fs, f, 100);
    fs.fallocate(f, 0, 20_000, Allocate::KeepSize, W).unwrap();
    write(&fs, f, 8192, &[9; 4096]);
    let found = read(&fs, f);
    assert!(found[..100] == [7; 100] && found[8192..] == [9; 4096]);
    assert!(found[100..8192].iter().all(|byte| *byte == 0), "bytes that were cut off are back");
}

// ---- M1, M5, I8, I9 ------------------------------------------------------------------------------

/// After a failed flush or write all blocks stay in PM, no cold map names a block that is not durable, and
/// the demotion succeeds later.
#[test]
fn m1_failed_writes_and_flushes_drop_no_block() {
    for operation in [Operation::Write, Operation::Flush] {
        let world = World::new(SMALL);
        let fs = world.mount();
        let f = create(&fs, ROOT, "f");
        let expected = pattern(40_000, 1);
        write(&fs, f, 0, &expected);
        world.device.fail_next(operation, 0..u64::MAX, 5, Times::Count(1));
        fs.run_background(5);
        let _ = fs.sync_to(1, &mut |_| {});
        assert_eq!(read(&fs, f), expected);
        assert_left(&world, &[("f", &[&expected])]);
        world.device.clear_failures();
        fs.sync_to(1, &mut |_| {}).unwrap();
        assert_eq!(fs.whereabouts(f).unwrap().tiers[0].1, 0);
        assert_left(&world, &[("f", &[&expected])]);
    }
}

/// Broke: a flush that failed for one caller (the kernel reports it once) lost another worker's writes before
/// it, yet this worker's own, successful flush let it commit and drop the PM copies.
#[test]
fn m1_a_failed_flush_counts_against_every_group() {
    let world = World::new(SMALL);
    let (fs, device) = mount_interposed(&world, false);
    let f = create(&fs, ROOT, "f");
    // Blocks for more than one group.
    let expected = pattern(160_000, 1);
    write(&fs, f, 0, &expected);
    let (inner, media) = (Arc::downgrade(&fs), world.device.clone());
    *device.after_write.lock() = Some(Box::new(move || {
        media.fail_next(Operation::Flush, 0..u64::MAX, 5, Times::Count(1));
        for (mut step, _) in inner.upgrade().unwrap().background_steps() {
            step.step();
        }
        assert_eq!(media.error_count(), 1, "the flush of another group fails");
    }));
    let _ = fs.sync_to(1, &mut |_| {});
    assert_left(&world, &[("f", &[&expected])]);
}

/// Write-back of overwritten cold blocks goes to free space, or over the cold copy of a block that PM holds
/// whole (decisions/0016). Every other block in the cold map keeps its bytes until the transaction that
/// replaces it, so a crash amid the write-back leaves neighbours and shadows whole.
#[test]
fn m5_write_back_in_place_covers_whole_shadows_only() {
    for ordered in [false, true] {
        let world = World::new(Shape { ordered, ..SMALL });
        let (fs, device) = mount_interposed(&world, ordered);
        let f = create(&fs, ROOT, "f");
        let mut expected = pattern(10 * 4096, 1);
        write(&fs, f, 0, &expected);
        fs.sync_to(1, &mut |_| {}).unwrap();
        let before = world.device.visible_image();
        let content = |image: &DeviceImage, block: u64| image.block(DeviceBlock(block)).0.to_vec();
        let lies_at =
            |chunk: &[u8]| (0..before.blocks()).filter(|block| chunk == content(&before, *block)).collect();
        let places: Vec<Vec<u64>> = expected.chunks(4096).map(lies_at).collect();
        assert!(
            places.iter().all(|places| places.len() == 1),
            "each block of the file lies on the device once"
        );
        // Every cold block except the one that is overwritten whole.
        let named: Vec<u64> =
            places.iter().enumerate().filter(|(block, _)| *block != 2).map(|(_, places)| places[0]).collect();
        write(&fs, f, 2 * 4096, &[9; 4096]);
        expected[2 * 4096..3 * 4096].fill(9);
        // A write of whole lines reads nothing, and PM then holds a partial shadow.
        write(&fs, f, 5 * 4096 + 64, &[8; 128]);
        expected[5 * 4096 + 64..5 * 4096 + 192].fill(8);
        let seen = Arc::new(AtomicBool::new(false));
        let (medium, flushed) = (world.device.clone(), seen.clone());
        *device.after_flush.lock() = Some(Box::new(move || {
            let now = medium.visible_image();
            for block in &named {
                assert!(content(&now, *block) == content(&before, *block), "block {block} was written");
            }
            flushed.store(true, Ordering::SeqCst);
        }));
        fs.sync_to(1, &mut |_| {}).unwrap();
        assert!(seen.load(Ordering::SeqCst), "nothing was written back");
        assert_eq!(read(&fs, f), expected);
        assert_left(&world, &[("f", &[&expected])]);
    }
}

/// On a full tier the rest stays in PM; unlink and truncate still work, and no data is lost.
#[test]
fn i9_full_tier() {
    let world = World::new(Shape { device_blocks: 33, ..SMALL });
    let fs = world.mount();
    let f = create(&fs, ROOT, "f");
    let expected = pattern(60 * 4096, 1);
    write(&fs, f, 0, &expected);
    assert!(fs.sync_to(1, &mut |_| {}).is_err(), "60 blocks do not fit in 32");
    assert_eq!(read(&fs, f), expected);
    assert_left(&world, &[("f", &[&expected])]);
    set_size(&fs, f, 10 * 4096);
    fs.sync_to(1, &mut |_| {}).unwrap();
    fs.unlink(ROOT, b"f", W).unwrap();
    fs.run_background(100);
    fs.unmount().unwrap();
    world.assert_clean();
}

/// A rotten cold block gives its reader EIO, never wrong data; the rest of the file is fine.
#[test]
fn i8_rot_is_an_error() {
    let world = World::new(SMALL);
    let fs = world.mount();
    let f = create(&fs, ROOT, "f");
    write(&fs, f, 0, &pattern(12_288, 1));
    fs.sync_to(1, &mut |_| {}).unwrap();
    let bad = (1..64)
        .map(DeviceBlock)
        .find(|block| world.device.visible_image().block(*block).0[..64] == pattern(12_288, 1)[4096..4160]);
    world.device.corrupt(bad.unwrap(), 70, 1);
    let mut buffer = vec![0; 4096];
    assert_eq!(fs.read(f, 4096, &mut buffer, W).unwrap_err().errno(), 5);
    assert_eq!(fs.read(f, 8192, &mut buffer, W).unwrap(), 4096);
    assert!(!fs.status().unwrap().healthy);
    // A part of the rotten block cannot be overwritten, because its other bytes are unknown; the whole block
    // can.
    assert!(fs.write(f, 5000, &[1; 5], WriteFlags::default(), W).is_err());
    write(&fs, f, 4096, &[1; 4096]);
    assert_eq!(fs.read(f, 4096, &mut buffer, W).unwrap(), 4096);
}

// ---- PM that fails -------------------------------------------------------------------------------

/// Broke: blocks that a half applied record had given to its file were claimed again, and the checkpoint of
/// the unmount passed this record.
#[test]
fn pm_failure_in_the_middle_of_an_operation() {
    for target in 0..4 {
        let world = World::new(SMALL);
        let fs = world.mount();
        let f = create(&fs, ROOT, "f");
        let g = create(&fs, ROOT, "g");
        write(&fs, g, 0, &pattern(9000, 3));
        let old = pattern(9000, 1);
        write(&fs, f, 0, &old);
        let geometry = read_superblock(&*world.pm, false).unwrap().0.geometry();
        // PM refuses stores to a part of the words that the next write changes in place.
        let table = geometry.table_entry(PmBlock(geometry.first_pool_block().0)).0;
        let range = match target {
            0 => table..table + 4096,
            1 => table + 512..table + 1024,
            2 => geometry.first_pool_block().offset().0..(geometry.first_pool_block().0 + 2) * 4096,
            _ => geometry.lane_offset(0).0 + 2048..geometry.lane_offset(2).0,
        };
        let new = pattern(9000, 2);
        if target == 2 {
            // The line of the inode slot alone.
            let slot = (geometry.first_pool_block().0 + 1) * 4096 + f.0 * 128;
            world.pm.poison(slot + 64..slot + 128);
        } else {
            world.pm.poison(range);
        }
        let done = fs.write(f, 0, &new, WriteFlags::default(), W);
        let _ = fs.write(g, 0, &pattern(9000, 4), WriteFlags::default(), W);
        fs.run_background(20);
        let _ = fs.unmount();
        drop(fs);
        world.pm.clear_poison();
        let left = world.crashed(true);
        left.assert_clean();
        let fs = left.mount();
        let found = read(&fs, find(&fs, "f"));
        assert!(found == new || (done.is_err() && found == old), "target {target}: torn");
        let other = read(&fs, find(&fs, "g"));
        assert!(other == pattern(9000, 3) || other == pattern(9000, 4));
    }
}

// ---- mkfs ----------------------------------------------------------------------------------------

/// Broke: mkfs over an old pool cleared superblock, checkpoint and block table without an order. A crash
/// among the stores could leave an old superblock over a half cleared block table, and such a pool mounted.
#[test]
fn an_interrupted_mkfs_leaves_the_old_pool_the_new_pool_or_no_pool() {
    let world = World::new(SMALL);
    let fs = world.mount();
    let f = create(&fs, ROOT, "f");
    write(&fs, f, 0, &pattern(9000, 1));
    fs.unmount().unwrap();
    drop(fs);
    let world = world.crashed(true);
    let moments: Arc<Mutex<Vec<_>>> = Arc::default();
    let (weak, kept) = (Arc::downgrade(&world.pm), Arc::clone(&moments));
    let count = AtomicU64::new(0);
    world.clock.on_event(Some(Box::new(move |event| {
        let fence = matches!(
            event.kind,
            terrace_media::crash::EventKind::Order | terrace_media::crash::EventKind::Persist
        );
        if fence || count.fetch_add(1, Ordering::Relaxed).is_multiple_of(4) {
            kept.lock().push(weak.upgrade().unwrap().snapshot());
        }
    })));
    let mut options = format_options(false);
    options.uuid = [8; 16];
    options.devices[0].uuid = [2; 16];
    format(&world.media(), &options).unwrap();
    world.clock.on_event(None);
    let mut mounted = [0, 0];
    for (index, snapshot) in moments.lock().iter().enumerate() {
        for image in snapshot.images(6, 30, index as u64 * 100).take(80) {
            let left = World::from_images(SMALL, image, world.device.snapshot().image_none());
            let Ok((superblock, _)) = read_superblock(&*left.pm, true) else { continue };
            let Ok(fs) = Engine::mount(left.media(), superblock, crash_support::options(), left.time.clone())
            else {
                continue;
            };
            if superblock.uuid == [7; 16] {
                // mkfs has touched only the superblocks: the old pool is whole.
                mounted[0] += 1;
                assert_eq!(read(&fs, find(&fs, "f")), pattern(9000, 1));
            } else {
                mounted[1] += 1;
                assert_eq!(Dump::of(&fs).0.len(), 1);
            }
        }
    }
    assert!(mounted[1] > 0, "{mounted:?}");
}

/// A hostile inode slot: impossible sizes and counts are refused, not computed with.
#[test]
fn i11_hostile_inode_slots() {
    let world = World::new(SMALL);
    let fs = world.mount();
    let f = create(&fs, ROOT, "f");
    write(&fs, f, 0, &pattern(9000, 1));
    fs.unmount().unwrap();
    drop(fs);
    let geometry = read_superblock(&*world.pm, false).unwrap().0.geometry();
    let slot = (geometry.first_pool_block().0 + 1) * 4096 + f.0 * 128;
    for (field, value) in
        [(16, u64::MAX), (16, 1 << 50), (24, u64::MAX), (32, i64::MAX as u64), (40, u64::MAX / 2)]
    {
        let mut image = world.pm.snapshot().image_newest().to_vec();
        image[slot as usize + field..slot as usize + field + 8].copy_from_slice(&value.to_le_bytes());
        let left = World::from_images(SMALL, image, world.device.snapshot().image_all());
        let fs = left.mount_with(MountOptions::default()).unwrap();
        let _ = fs.lookup(ROOT, b"f");
        let _ = fs.getattr(f);
        let mut buffer = [0; 100];
        let _ = fs.read(f, 0, &mut buffer, W);
        let _ = fs.read(f, u64::MAX - 50, &mut buffer, W);
        let _ = fs.write(f, 10, b"x", WriteFlags::default(), W);
        let _ = fs.setattr(f, &SetAttributes { size: Some(10_000), ..Default::default() }, W);
        let _ = fs.seek(f, 0, terrace_engine::Seek::Hole);
        let _ = fs.unlink(ROOT, b"f", W);
        fs.run_background(200);
        let _ = fs.unmount();
    }
}
