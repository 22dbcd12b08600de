//! Faults that a review of placement, write-back and migration found. The comment of each test describes the
//! fault.
#![allow(clippy::unwrap_used)]

mod common;

use common::buffered::{World, buffered, fill, read_all};
use common::tiers::{Tiers, assert_content, bytes_on, create, find, pattern, write};
use common::{Pool, ROOT};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use terrace_engine::{
    Allocate, Engine, FsError, FsResult, HandMove, HandState, MountOptions, Movements, PolicyKind, PoolMedia,
    SetAttributes, Wait, WriteFlags, XattrMode, read_superblock,
};
use terrace_format::{DeviceBlock, Ino};
use terrace_media::block::{AlignedBlock, Operation, SimulatedDevice, Times};
use terrace_media::{BlockMedium, MediaError, PmMedium};

const W: Wait = Wait::Allowed;
const ASYNC: WriteFlags = WriteFlags { sync: false, kill_set_id: false, pages: false };
const BLOCK: u64 = 4096;
const EIO: i32 = 5;

fn dirty(fs: &Engine) -> u64 {
    fs.status().unwrap().dram.dirty_bytes
}

fn quiet() -> MountOptions {
    MountOptions { policy: Some(PolicyKind::STATIC), ..MountOptions::default() }
}

/// An unreadable sector made every block up to 2 MiB before it unreadable, because one request read the
/// wanted block and the blocks ahead of it.
#[test]
fn a_bad_sector_concerns_no_neighbour() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 1025);
    let fs = pool.mount_with(quiet());
    let ino = create(&fs, ROOT, "a");
    let content = pattern(40 * BLOCK as usize, 1);
    write(&fs, ino, 0, &content)?;
    fs.sync_to(1, &mut |_| {})?;
    fs.unmount()?;
    drop(fs);
    let fs = pool.mount_with(quiet());
    pool.device.fail_next(Operation::Read, 8..9, EIO, Times::Forever);
    let mut failed = 0;
    for block in 0..40 {
        let mut found = vec![0; BLOCK as usize];
        match fs.read(find(&fs, "a"), block * BLOCK, &mut found, W) {
            Ok(_) => assert!(found == content[(block * BLOCK) as usize..][..BLOCK as usize]),
            Err(error) => {
                assert_eq!(error.errno(), EIO);
                failed += 1;
            }
        }
    }
    assert_eq!(failed, 1);
    Ok(())
}

/// No neighbour of an unreadable sector could be moved by a requested movement.
#[test]
fn a_bad_sector_stays_alone() -> FsResult<()> {
    let pool = Tiers::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let ino = create(&fs, ROOT, "a");
    write(&fs, ino, 0, &pattern(64 * BLOCK as usize, 1))?;
    pool.migrate_all(&fs, ino, 1);
    pool.devices[0].fail_next(Operation::Read, 8..9, EIO, Times::Forever);
    let report = pool.migrate(&fs, ino, 2);
    assert_eq!((report.state, report.left_bytes), (HandState::Failed, BLOCK), "{report:?}");
    assert_eq!(bytes_on(&fs, ino), [0, BLOCK, 63 * BLOCK]);
    let report = pool.migrate(&fs, ino, 0);
    assert_eq!((report.state, report.left_bytes), (HandState::Failed, BLOCK), "{report:?}");
    assert_eq!(bytes_on(&fs, ino), [63 * BLOCK, BLOCK, 0]);
    Ok(())
}

/// A read of a fast tier waited for a slow tier that held only blocks to be read ahead.
#[test]
fn read_ahead_stays_on_one_device() -> FsResult<()> {
    let pool = Tiers::new(4 << 20, 17, 1024);
    let fs = pool.mount();
    let ino = create(&fs, ROOT, "a");
    let content = pattern(32 * BLOCK as usize, 1);
    write(&fs, ino, 0, &content)?;
    fs.sync_to(1, &mut |_| {})?;
    let [_, first, second] = bytes_on(&fs, ino);
    assert!(first > 0 && second > 0, "{first} {second}");
    fs.unmount()?;
    drop(fs);
    let fs = pool.mount();
    let before = pool.devices[1].counters().reads;
    let mut found = vec![0; BLOCK as usize];
    assert_eq!(fs.read(find(&fs, "a"), 0, &mut found, W)?, found.len());
    assert_eq!(pool.devices[1].counters().reads, before);
    assert_content(&fs, ino, &content);
    Ok(())
}

/// Large writes to a file that is pinned to PM had their home in DRAM, and went to a lower tier.
#[test]
fn writes_to_a_file_pinned_to_pm_stay_in_pm() -> FsResult<()> {
    let pool = Tiers::new(4 << 20, 1024, 1024);
    let fs = pool.mount_with(buffered(1 << 20));
    let ino = create(&fs, ROOT, "a");
    let pinned = pool.finish(&fs, fs.move_by_hand(ino, HandMove::Pin { tier: 0 })?);
    assert_eq!(pinned.state, HandState::Done, "{pinned:?}");
    write(&fs, ino, 0, &pattern(20 * BLOCK as usize, 1))?;
    fs.fsync(ino, false, W)?;
    assert_eq!(bytes_on(&fs, ino), [20 * BLOCK, 0, 0]);
    Ok(())
}

/// Large writes to a file that is pinned to a lower tier were written back to the fastest lower tier, and
/// stayed there.
#[test]
fn a_file_pinned_to_a_lower_tier_is_written_back_to_it() -> FsResult<()> {
    let pool = Tiers::new(4 << 20, 1024, 1024);
    let fs = pool.mount_with(buffered(1 << 20));
    let ino = create(&fs, ROOT, "a");
    let pinned = pool.finish(&fs, fs.move_by_hand(ino, HandMove::Pin { tier: 2 })?);
    assert_eq!(pinned.state, HandState::Done, "{pinned:?}");
    write(&fs, ino, 0, &pattern(20 * BLOCK as usize, 1))?;
    fs.fsync(ino, false, W)?;
    assert_eq!(bytes_on(&fs, ino), [0, 0, 20 * BLOCK]);
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// A device that runs a hook during each of its reads.
struct Busy {
    device: Arc<SimulatedDevice>,
    reads: AtomicU32,
    #[allow(clippy::type_complexity)] // the hook
    meanwhile: terrace_runtime::sync::Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl BlockMedium for Busy {
    fn blocks(&self) -> u64 {
        self.device.blocks()
    }
    fn name(&self) -> &str {
        self.device.name()
    }
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        if self.reads.fetch_add(1, Ordering::Relaxed) < 50
            && let Some(act) = &*self.meanwhile.lock()
        {
            act();
        }
        self.device.read(first, into)
    }
    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        self.device.write(first, from)
    }
    fn flush_at(&self, at: &'static std::panic::Location<'static>) -> Result<(), MediaError> {
        self.device.flush_at(at)
    }
}

/// A reader read the cold block again and again while other blocks within 2 MiB were cut, punched or moved
/// faster than the device answered.
#[test]
fn a_reader_beside_a_busy_neighbour_ends() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 1025);
    let fs = pool.mount_with(quiet());
    let ino = create(&fs, ROOT, "a");
    let content = pattern(40 * BLOCK as usize, 1);
    write(&fs, ino, 0, &content)?;
    fs.sync_to(1, &mut |_| {})?;
    fs.unmount()?;
    drop(fs);
    let device = Busy {
        device: pool.device.clone(),
        reads: AtomicU32::new(0),
        meanwhile: terrace_runtime::sync::Mutex::new(None),
    };
    let device = Arc::new(device);
    let (superblock, _) = read_superblock(&*pool.pm, true).unwrap();
    let media = PoolMedia { pm: pool.pm.clone(), block: vec![device.clone()] };
    let fs = Engine::mount(media, superblock, quiet(), Arc::clone(&pool.clock))?;
    let ino = find(&fs, "a");
    let other = Arc::downgrade(&fs);
    *device.meanwhile.lock() = Some(Box::new(move || {
        if let Some(fs) = other.upgrade() {
            fs.fallocate(ino, 300 * BLOCK, BLOCK, Allocate::PunchHole, W).unwrap();
        }
    }));
    let mut found = vec![0; BLOCK as usize];
    assert_eq!(fs.read(ino, 0, &mut found, W)?, found.len());
    assert!(found == content[..BLOCK as usize]);
    let reads = device.reads.load(Ordering::Relaxed);
    assert!(reads < 20, "{reads} reads");
    *device.meanwhile.lock() = None;
    Ok(())
}

/// When no lower tier had room, a request thread settled all dirty pages of a file, which may have to wait.
#[test]
fn a_request_thread_does_not_settle_dirty_pages() -> FsResult<()> {
    let world = World::new(4 << 20, 33);
    let fs = world.mount(buffered(4 << 20));
    let ino = create(&fs, ROOT, "a");
    assert_eq!(fs.write(ino, 0, &fill(20 * 4096, 1), ASYNC, W)?, 20 * 4096);
    let more = fill(20 * 4096, 2);
    let refused = fs.write(ino, 20 * BLOCK, &more, ASYNC, Wait::Never);
    assert!(matches!(refused, Err(FsError::WouldBlock)), "{refused:?}");
    assert_eq!(dirty(&fs), 20 * BLOCK);
    assert_eq!(fs.write(ino, 20 * BLOCK, &more, ASYNC, W)?, more.len());
    let mut expected = fill(20 * 4096, 1);
    expected.extend(more);
    assert_eq!(read_all(&fs, ino)?, expected);
    world.assert_clean_after(&fs)
}

/// A cold copy under a partial shadow stayed above the tier of a `sync --to`, because the shadow was made
/// during the movement.
#[test]
fn a_cold_copy_under_a_partial_shadow_is_relocated() -> FsResult<()> {
    let pool = Tiers::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let ino = create(&fs, ROOT, "a");
    let mut content = pattern(20 * BLOCK as usize, 1);
    write(&fs, ino, 0, &content)?;
    pool.migrate_all(&fs, ino, 1);
    // The first report comes after the rounds over PM, which was empty.
    let mut written = false;
    fs.sync_to(2, &mut |_| {
        if !std::mem::replace(&mut written, true) {
            write(&fs, ino, 5 * BLOCK + 64, &[9; 128]).unwrap();
        }
    })?;
    assert!(written);
    let at = 5 * BLOCK as usize + 64;
    content[at..at + 128].fill(9);
    assert_content(&fs, ino, &content);
    let tiers = fs.status()?.tiers;
    let used = |tier: usize| tiers[tier].devices.iter().map(|device| device.used_bytes).sum::<u64>();
    assert!(used(1) == 0 && used(2) >= 20 * BLOCK, "{} {}", used(1), used(2));
    assert_eq!(bytes_on(&fs, ino)[0], BLOCK);
    Ok(())
}

/// Dirty pages that no lower tier takes were settled one by one, each in a transaction of its own.
#[test]
fn dirty_pages_go_into_persistent_memory_in_runs() -> FsResult<()> {
    let world = World::new(8 << 20, 4096);
    let fs = world.mount(buffered(8 << 20));
    let ino = create(&fs, ROOT, "a");
    let content = fill(256 * 4096 + 100, 1);
    fs.write(ino, 0, &content, ASYNC, W)?;
    // A hole, a single block, and another hole.
    fs.fallocate(ino, 7 * BLOCK, BLOCK, Allocate::PunchHole, W)?;
    fs.fallocate(ino, 9 * BLOCK, BLOCK, Allocate::PunchHole, W)?;
    world.device.fail_next(Operation::Write, 0..u64::MAX, EIO, Times::Forever);
    let before = world.pm.counters().fences;
    fs.unmount()?;
    let fences = world.pm.counters().fences - before;
    assert!(fences < 150, "{fences} fences for 257 blocks");
    drop(fs);
    world.device.clear_failures();
    let fs = world.mount(buffered(8 << 20));
    let mut expected = content;
    for hole in [7, 9] {
        expected[hole * 4096..(hole + 1) * 4096].fill(0);
    }
    assert_eq!(read_all(&fs, find(&fs, "a"))?, expected);
    world.assert_clean_after(&fs)
}

/// A file kept its capabilities when an unprivileged user wrote to it: the written program ran with them.
#[test]
fn file_capabilities_end_with_an_unprivileged_change() -> FsResult<()> {
    const CAPABILITY: &[u8] = b"security.capability";
    let killing = WriteFlags { sync: false, kill_set_id: true, pages: false };
    let write =
        |offset, length| move |fs: &Engine, ino, wait| fs.write(ino, offset, &vec![7; length], killing, wait);
    let change =
        |change: SetAttributes| move |fs: &Engine, ino, wait| fs.setattr(ino, &change, wait).map(|_| 0);
    let cut = SetAttributes { size: Some(10), kill_set_id: true, ..Default::default() };
    let chown = SetAttributes { uid: Some(1000), ..Default::default() };
    type Change = Box<dyn Fn(&Engine, Ino, Wait) -> FsResult<usize>>;
    let changes: [(&str, Change); 6] = [
        ("a whole block", Box::new(write(BLOCK, BLOCK as usize))),
        ("a part of a block", Box::new(write(100, 50))),
        ("several blocks", Box::new(write(3 * BLOCK + 1, 5 * BLOCK as usize))),
        ("a new size", Box::new(change(cut))),
        ("a new owner", Box::new(change(chown))),
        ("O_TRUNC", Box::new(|fs: &Engine, ino, wait| fs.open(ino, true, true, wait).map(|_| 0))),
    ];
    for options in [quiet(), buffered(8 << 20)] {
        let world = World::new(8 << 20, 1024);
        let fs = world.mount(options);
        for (name, change) in &changes {
            for wait in [Wait::Never, W] {
                let ino = create(&fs, ROOT, &format!("{name}, {wait:?}"));
                fs.write(ino, 0, &fill(4 * BLOCK as usize, 1), ASYNC, W)?;
                fs.setxattr(ino, CAPABILITY, b"all", XattrMode::Any, W)?;
                fs.setxattr(ino, b"user.x", b"stays", XattrMode::Any, W)?;
                // A write by a privileged user leaves the capabilities.
                fs.write(ino, 0, &fill(BLOCK as usize, 2), ASYNC, W)?;
                assert_eq!(fs.getxattr(ino, CAPABILITY)?, b"all", "{name}");
                change(&fs, ino, wait)?;
                let found = fs.getxattr(ino, CAPABILITY);
                assert!(matches!(found, Err(FsError::NoAttribute)), "{name}: {found:?}");
                assert_eq!(fs.getxattr(ino, b"user.x")?, b"stays", "{name}");
            }
        }
        world.assert_clean_after(&fs)?;
    }
    Ok(())
}
