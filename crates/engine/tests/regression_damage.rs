//! Faults that tests on damaged pools brought to light (crates/engine/tests/damaged). The comment of each
//! test describes the fault.

mod common;

use common::{CALLER, Pool, ROOT};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use terrace_engine::{
    Allocate, Engine, FsError, FsResult, MountOptions, Movements, Simulation, Wait, WriteFlags,
    read_superblock,
};
use terrace_format::geometry::Geometry;
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE, pack_root};
use terrace_format::keys::Key;
use terrace_format::page::Page;
use terrace_format::table::{Owner, PageKind};
use terrace_format::{FileBlock, Ino, PmBlock, PmOffset};
use terrace_media::PmMedium;
use terrace_media::block::SimulatedDevice;
use terrace_media::crash::CrashClock;
use terrace_media::pm::RecordedPm;

const W: Wait = Wait::Allowed;

fn filled(fs: &Engine, name: &str, blocks: u64) -> FsResult<Ino> {
    let ino = fs.mknod(ROOT, name.as_bytes(), 0o100644, 0, CALLER, W)?.ino;
    for block in 0..blocks {
        fs.write(ino, block * 4096, &[block as u8; 4096], WriteFlags::default(), W)?;
    }
    Ok(ino)
}

/// The first block with an owner in the block table.
fn first_owned(pool: &Pool, owner: Owner) -> PmBlock {
    let geometry = geometry(pool);
    let blocks = geometry.first_pool_block().0..geometry.block_count();
    let found = blocks.map(PmBlock).find(|block| {
        pool.pm.load_u64(geometry.table_entry(*block)).is_ok_and(|word| word == owner.encode())
    });
    found.unwrap_or_else(|| panic!("{owner:?} owns nothing"))
}

fn geometry(pool: &Pool) -> Geometry {
    let Ok((superblock, _)) = read_superblock(&*pool.pm, false) else { panic!("the superblock is sound") };
    superblock.geometry()
}

/// The PM offset of the slot of an inode.
fn slot(pool: &Pool, ino: Ino) -> PmOffset {
    let page = Owner::Page { kind: PageKind::InodePage, datum: (ino.0 / SLOTS_PER_PAGE) as u32 };
    first_owned(pool, page).offset().plus(ino.0 % SLOTS_PER_PAGE * SLOT_SIZE)
}

fn poke(pool: &Pool, offset: PmOffset, word: u64) -> FsResult<()> {
    Ok(pool.pm.write(offset, &word.to_le_bytes())?)
}

/// Runs `run` on a thread, and fails when it does not end.
fn ends<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, result) = mpsc::channel();
    let thread = terrace_runtime::thread::spawn("ends", move || _ = tell.send(run()));
    assert!(thread.is_ok());
    result.recv_timeout(Duration::from_secs(30)).unwrap_or_else(|_| panic!("{what} does not end"))
}

/// After a crash with an unfinished truncation, punching a large hole elsewhere in the file looked for
/// intents while it held the lock of their shard: it waited for itself for ever, and held the lock of the
/// inode.
#[test]
fn a_punch_beside_an_unfinished_truncation_ends() -> FsResult<()> {
    let events = CrashClock::new();
    let first = Pool::new(2 << 20, 1025);
    let pool = Pool {
        pm: Arc::new(RecordedPm::with_clock(first.pm.visible_image(), &events)),
        device: Arc::new(SimulatedDevice::with_clock("device", first.device.visible_image(), &events)),
        clock: first.clock,
    };
    let fs = pool.mount();
    let ino = filled(&fs, "file", 240)?;
    pool.pm.set_crash_at(Some(pool.pm.event_count() + 40));
    fs.fallocate(ino, 4096 * 20, 4096 * 100, Allocate::PunchHole, W)?;
    let (Some(pm), Some(device)) = (pool.pm.take_snapshot(), pool.device.take_snapshot()) else {
        panic!("the hole was made before the crash");
    };
    let pool = Pool {
        pm: Arc::new(RecordedPm::from_image(pm.image_newest())),
        device: Arc::new(SimulatedDevice::from_image(device.image_all())),
        clock: pool.clock,
    };
    assert_eq!(pool.check().summary.intents, 1);
    let fs = pool.mount();
    let other = Arc::clone(&fs);
    ends("a hole", move || other.fallocate(ino, 4096 * 140, 4096 * 90, Allocate::PunchHole, W))?;
    fs.run_background(1000);
    let blocks = fs.getattr(ino)?.blocks / 8;
    assert_eq!(blocks, 240 - 100 - 90);
    fs.unmount()?;
    pool.assert_clean();
    Ok(())
}

/// `terrace sync --to 1` of a pool mounted read-only waited for ever for blocks that may not be moved.
#[test]
fn sync_to_a_tier_of_a_read_only_mount_is_refused() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 1025);
    let fs = pool.mount();
    filled(&fs, "file", 10)?;
    fs.unmount()?;
    let fs = pool.mount_with(MountOptions { read_only: true, ..Default::default() });
    let result = ends("sync", move || fs.sync_to(1, &mut |_| {}));
    assert!(matches!(result, Err(FsError::ReadOnly)), "{result:?}");
    Ok(())
}

/// A map node with itself in every entry stands for 2^36 blocks: `terrace where`, a truncation and a search
/// for data walked over all of them.
#[test]
fn a_walk_over_a_map_node_in_a_circle_ends() -> FsResult<()> {
    for height in [3, 4] {
        let pool = Pool::new(2 << 20, 1025);
        let fs = pool.mount();
        let ino = filled(&fs, "file", 20)?;
        let root = slot(&pool, ino).plus(InodeSlot::ROOT);
        let node = pool.pm.load_u64(root)? & 0xff_ffff;
        for (entry, child) in (0..512).map(|index| (PmBlock(node).offset().plus(8 * index), node)) {
            poke(&pool, entry, child)?;
        }
        poke(&pool, root, pack_root(height, node))?;
        poke(&pool, slot(&pool, ino).plus(InodeSlot::SIZE), 1 << 43)?;
        let walks = Arc::clone(&fs);
        ends("a walk", move || {
            assert!(walks.whereabouts(ino).is_err());
            assert!(walks.fallocate(ino, 1 << 20, 1 << 42, Allocate::PunchHole, W).is_err());
        });
    }
    Ok(())
}

/// As above, but the lowest node is empty: the walk meets no block, only 2^27 ways to an empty node.
#[test]
fn a_walk_over_many_ways_to_an_empty_node_ends() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 1025);
    let fs = pool.mount();
    let ino = filled(&fs, "file", 1)?;
    for far in [1 << 30, 1 << 35, 1 << 40] {
        fs.write(ino, far, b"far", WriteFlags::default(), W)?;
    }
    let root = slot(&pool, ino).plus(InodeSlot::ROOT);
    let mut node = pool.pm.load_u64(root)? & 0xff_ffff;
    for level in (0..4u32).rev() {
        let entries = (0..512).map(|index| PmBlock(node).offset().plus(8 * index)).collect::<Vec<_>>();
        let words = entries.iter().map(|entry| pool.pm.load_u64(*entry)).collect::<Result<Vec<_>, _>>()?;
        let child = words.into_iter().find(|word| *word != 0).unwrap_or(0);
        for entry in entries {
            poke(&pool, entry, if level == 0 { 0 } else { child })?;
        }
        node = child;
    }
    ends("a walk", move || assert!(fs.whereabouts(ino).is_err()));
    Ok(())
}

/// Two file blocks of a damaged inode named one PM block. Overwriting both freed the block twice: the
/// allocator counted one block too many and gave it to two files (a debug build panicked).
#[test]
fn a_block_with_two_owners_is_not_freed_twice() -> FsResult<()> {
    for length in [4096, 100] {
        let pool = Pool::new(2 << 20, 1025);
        let fs = pool.mount();
        let ino = filled(&fs, "file", 3)?;
        let direct = slot(&pool, ino).plus(InodeSlot::DIRECT);
        let word = pool.pm.load_u64(direct)?;
        poke(&pool, direct, (word & 0xffff_ffff) | word << 32)?;
        let write = |block: u64| fs.write(ino, block * 4096, &vec![1; length], WriteFlags::default(), W);
        assert!(write(1).is_err(), "a block of another place was freed");
        write(0)?;
        assert!(write(1).is_err(), "a free block was freed");
        fs.sync()?;
        write(2)?;
        let free = fs.statfs(W)?.free;
        fs.unmount()?;
        drop(fs);
        assert_eq!(pool.mount().statfs(W)?.free, free);
    }
    Ok(())
}

/// A file had lost the flag for its cold extents. The next demotion of its blocks met the old extents after
/// the shards were locked, without the shards of their chunks, and panicked.
#[test]
fn demotion_over_unflagged_cold_extents_is_refused() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 1025);
    let fs = pool.mount();
    let ino = filled(&fs, "file", 100)?;
    fs.sync_to(1, &mut |_| {})?;
    let flags = slot(&pool, ino).plus(InodeSlot::FLAGS);
    poke(&pool, flags, pool.pm.load_u64(flags)? & !0xffff_ffff)?;
    for block in 0..100 {
        fs.write(ino, block * 4096, &[7; 4096], WriteFlags::default(), W)?;
    }
    assert!(fs.sync_to(1, &mut |_| {}).is_err());
    let mut content = [0; 10];
    fs.read(ino, 50 * 4096, &mut content, W)?;
    assert_eq!(content, [7; 10]);
    Ok(())
}

/// The key of a name had lost two bytes, and counted as much smaller. A reader goes on after the last name
/// that it got, so it read the names between the two keys for ever.
#[test]
fn a_directory_out_of_order_is_read_to_an_end() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 1025);
    let fs = pool.mount();
    for index in 0..100 {
        fs.mknod(ROOT, format!("{index}").as_bytes(), 0o100644, 0, CALLER, W)?;
    }
    let owner = Owner::Page { kind: PageKind::CatalogPage, datum: 1 };
    let page = first_owned(&pool, owner).offset();
    // The key of the last name that one call reads.
    let mut cell = [0; 2];
    pool.pm.read(page.plus(16 + 2 * 61), &mut cell)?;
    pool.pm.write(page.plus(u64::from(u16::from_le_bytes(cell))), &[11])?;
    let names = ends("readdir", move || {
        let mut names = 0;
        let result = fs.readdir(ROOT, 0, &mut |_| {
            names += 1;
            names < 100_000
        });
        result.map(|()| names)
    });
    assert!(names.is_err(), "{names:?} names");
    Ok(())
}

/// Reading a metadata page with a wrong checksum gave EIO and a log line, and status still called PM healthy
/// (I8).
#[test]
fn status_counts_metadata_pages_with_wrong_checksums() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 1025);
    let fs = pool.mount();
    let ino = filled(&fs, "file", 1)?;
    fs.unmount()?;
    drop(fs);
    let size = slot(&pool, ino).plus(InodeSlot::SIZE);
    poke(&pool, size, pool.pm.load_u64(size)? ^ 1 << 5)?;
    let fs = pool.mount();
    assert!(fs.getattr(ino).is_err(), "a damaged size is shown");
    let status = fs.status()?;
    assert!(!status.healthy);
    let pm = &status.tiers[0].devices[0];
    assert_eq!((pm.health, pm.errors, pm.checksum_errors), ("degraded", 0, 1));
    assert_eq!(pm.reason.as_deref(), Some("metadata pages that do not match their checksums: 1"));
    Ok(())
}

/// Inner pages of the catalog with the same child in every cell stand for 177^5 pages: `terrace status`, and
/// an open for writing of a file with cold blocks, walked over all of them with the shard locked.
#[test]
fn a_walk_over_a_repeated_catalog_page_ends() -> FsResult<()> {
    let pool = Pool::new(4 << 20, 1025);
    let fs = pool.mount();
    let ino = filled(&fs, "file", 20)?;
    fs.sync_to(1, &mut |_| {})?;
    let shards = 4;
    let root = geometry(&pool).shard_root((ino.0 % shards) as u32);
    let owned = filled(&fs, "other", 6)?;
    let owner = |block| Owner::File { ino: owned, block: FileBlock(block), unwritten: false };
    let pages: Vec<PmBlock> = (0..6).map(|block| first_owned(&pool, owner(block))).collect();
    for (level, pair) in (1..).zip(pages.windows(2)) {
        let mut page = Page::new(level);
        let word = pair[0].0.to_le_bytes();
        assert!(page.insert(0, &[], &word));
        let key = |index: u64| Key::cold(ino, FileBlock(index)).0;
        (1..170).for_each(|index| assert!(page.insert(index as usize, &key(index), &word)));
        pool.pm.write(pair[1].offset(), &page.0[..])?;
    }
    pool.pm.write(pages[0].offset(), &Page::new(0).0[..])?;
    poke(&pool, root, pages[5].0)?;
    let other = Arc::clone(&fs);
    ends("an open", move || other.open(ino, false, true, W)).map(|_| ())?;
    let other = Arc::clone(&fs);
    ends("status", move || other.status().map(|_| ()).map_err(|error| error.errno())).unwrap_or_default();
    Ok(())
}
