//! Metadata that can be read and is wrong (crates/engine/tests/damaged found most of these).

use super::helpers::{ASYNC, BLOCK, W, ends};
use super::metadata_words::{filled, first_owned, geometry, poke, slot};
use std::sync::Arc;
use terrace_engine::{Allocate, FsResult, Movements, Simulation, WriteFlags, read_superblock};
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE, pack_root};
use terrace_format::keys::Key;
use terrace_format::page::Page;
use terrace_format::table::{Owner, PageKind};
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_media::PmMedium;
use terrace_testkit::{
    CALLER, ROOT, SimulatedPool, TwoTierPool, assert_content, buffered, bytes_on, clear_used_bit, create,
    fill, has_other_map, pattern, read_all, try_create, write,
};

/// An inode file with one page in two entries gave out the numbers of slots in use, and a create panicked
/// (I11).
#[test]
fn an_inode_page_with_two_entries_is_an_error() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let geometry = read_superblock(&*pool.pm, false).unwrap().0.geometry();
    // mkfs puts the map node of the inode file into the first block; the node gets a second entry.
    let node = geometry.first_pool_block().offset();
    let page = pool.pm.load_u64(node)?;
    pool.pm.write(node.plus(8), &page.to_le_bytes())?;
    pool.pm.write(geometry.inode_pages(), &2u64.to_le_bytes())?;
    let fs = pool.mount();
    fs.run_background(100);
    let made = (0..40).map(|index| try_create(&fs, &index.to_string()).map_err(|error| error.errno()));
    assert!(made.filter(|made| *made == Err(5)).count() > 0);
    Ok(())
}

/// A damaged copy of the superblock stayed damaged, so that damage of the second copy lost the pool. A mount
/// for writing rewrites the damaged copy, and touches nothing else.
#[test]
fn a_damaged_superblock_copy_is_rewritten_by_a_mount() {
    use terrace_format::geometry::SUPERBLOCK_COPIES;
    for (index, copy) in SUPERBLOCK_COPIES.into_iter().enumerate() {
        let pool = SimulatedPool::new(4 << 20, 1024);
        let image = || {
            let mut bytes = vec![0; 4 << 20];
            pool.pm.read(terrace_format::PmOffset(0), &mut bytes).unwrap();
            bytes
        };
        let before = image();
        let (superblock, warning) = read_superblock(&*pool.pm, true).unwrap();
        assert_eq!(warning, None);
        assert!(!terrace_engine::mend_superblock(&*pool.pm, &superblock).unwrap(), "nothing to mend");
        pool.pm.write(copy.offset().plus(200), b"x").unwrap();
        let (superblock, warning) = read_superblock(&*pool.pm, true).unwrap();
        assert!(warning.unwrap().contains(&format!("copy {index} is damaged")));
        assert!(terrace_engine::mend_superblock(&*pool.pm, &superblock).unwrap());
        assert_eq!(read_superblock(&*pool.pm, true).unwrap().1, None);
        assert!(image() == before, "only the damaged copy was written");
    }
}

/// The file with the oldest dirty pages had an unreadable inode: it was chosen again and again, no file was
/// written back, and writers of other files got its error (I8).
#[test]
fn a_damaged_inode_holds_back_no_other_write_back() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = pool.mount_with(buffered(1 << 20));
    let (damaged, sound) = (create(&fs, ROOT, "a"), create(&fs, ROOT, "b"));
    fs.write(damaged, 0, &fill(16 << 10, 1), ASYNC, W)?;
    let (superblock, _) = read_superblock(&*pool.pm, false).unwrap();
    let geometry = superblock.geometry();
    let owner = Owner::Page { kind: PageKind::InodePage, datum: (damaged.0 / SLOTS_PER_PAGE) as u32 };
    let page = (geometry.first_pool_block().0..geometry.block_count())
        .map(PmBlock)
        .find(|block| pool.pm.load_u64(geometry.table_entry(*block)).unwrap() == owner.encode())
        .unwrap();
    let slot = page.offset().plus(damaged.0 % SLOTS_PER_PAGE * SLOT_SIZE);
    pool.pm.write(slot.plus(InodeSlot::FLAGS), &[0xff; 4])?;
    for piece in 0..64 {
        fs.write(sound, piece << 16, &fill(64 << 10, 2), ASYNC, W)?;
    }
    fs.fsync(sound, false, W)?;
    assert_eq!(read_all(&fs, sound)?, fill(64 << 16, 2));
    assert!(fs.fsync(damaged, false, W).is_err());
    Ok(())
}

/// A map node with itself in every entry stands for 2^36 blocks: `terrace where`, a truncation and a search
/// for data walked over all of them.
#[test]
fn a_walk_over_a_map_node_in_a_circle_ends() -> FsResult<()> {
    if terrace_testkit::has_shared_map() {
        return Ok(());
    }
    for height in [3, 4] {
        let pool = SimulatedPool::new(2 << 20, 1025);
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
    if has_other_map() {
        return Ok(());
    }
    let pool = SimulatedPool::new(2 << 20, 1025);
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
    if has_other_map() {
        return Ok(());
    }
    for length in [4096, 100] {
        let pool = SimulatedPool::new(2 << 20, 1025);
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
    let pool = SimulatedPool::new(2 << 20, 1025);
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
    let pool = SimulatedPool::new(2 << 20, 1025);
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
    let pool = SimulatedPool::new(2 << 20, 1025);
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
    let pool = SimulatedPool::new(4 << 20, 1025);
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

/// Damage of a structure that only one file uses, here a bit in the bitmap of a chunk, ended a whole `sync
/// --to`, and the requested movements and spills of all files in the same group.
#[test]
fn a_damaged_file_does_not_stop_relocation_of_sound_files() -> FsResult<()> {
    let pool = TwoTierPool::new(8 << 20, 1024, 1024);
    let fs = pool.mount();
    let contents: Vec<_> = (1..4).map(|seed| pattern(8 * BLOCK as usize, seed)).collect();
    let files: Vec<Ino> = (0..3).map(|index| create(&fs, ROOT, &format!("file-{index}"))).collect();
    files.iter().zip(&contents).try_for_each(|(file, content)| write(&fs, *file, 0, content))?;
    fs.sync_to(1, &mut |_| {})?;
    clear_used_bit(&pool.pm, &pool.devices[0], 0, &contents[0][..BLOCK as usize]);
    assert!(fs.sync_to(2, &mut |_| {}).is_err());
    assert!(bytes_on(&fs, files[0])[1] > 0);
    for (file, content) in files.iter().zip(&contents) {
        assert_content(&fs, *file, content);
    }
    for file in &files[1..] {
        assert_eq!(bytes_on(&fs, *file), [0, 0, 8 * BLOCK]);
    }
    Ok(())
}
