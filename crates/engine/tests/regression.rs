//! Faults that were found and mended, most of them by the model test. The comment of each test describes the
//! fault.

#![allow(clippy::unwrap_used)]

mod common;

use common::{CALLER, Pool, ROOT};
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use terrace_engine::{
    Allocate, Engine, FormatOptions, FsError, FsResult, MetadataMoves, MountOptions, Movements, PolicyKind,
    PoolMedia, RootDirectory, SetAttributes, Simulation, Wait, WriteFlags, format, read_superblock,
};
use terrace_format::inode::{SLOT_SIZE, SLOTS_PER_PAGE};
use terrace_format::table::{Owner, PageKind};
use terrace_format::{BLOCK_SIZE, FileBlock, Ino, PmBlock};
use terrace_media::PmMedium;
use terrace_media::block::{Operation, SimulatedDevice, Times};
use terrace_media::pm::Access;

const W: Wait = Wait::Allowed;

fn create(fs: &Engine, name: &str) -> FsResult<Ino> {
    Ok(fs.mknod(ROOT, name.as_bytes(), 0o100644, 0, CALLER, W)?.ino)
}

fn write(fs: &Engine, ino: Ino, offset: u64, bytes: &[u8]) -> FsResult<()> {
    fs.write(ino, offset, bytes, WriteFlags::default(), W).map(|_| ())
}

/// The owners of all PM blocks.
fn owners(pool: &Pool) -> Vec<(PmBlock, Owner)> {
    let geometry = read_superblock(&*pool.pm, false).unwrap().0.geometry();
    let owner = |block| Owner::decode(pool.pm.load_u64(geometry.table_entry(block)).unwrap()).unwrap();
    (0..geometry.block_count()).map(|block| (PmBlock(block), owner(PmBlock(block)))).collect()
}

/// Makes the map node with a block of a file unreadable.
fn poison_map_node(pool: &Pool, ino: Ino, block: FileBlock) {
    let owners = owners(pool);
    let data = Owner::File { ino, block, unwritten: false };
    let (data, _) = *owners.iter().find(|(_, owner)| *owner == data).unwrap();
    let names = |node: PmBlock| {
        let mut bytes = [0; BLOCK_SIZE as usize];
        pool.pm.read(node.offset(), &mut bytes).unwrap();
        bytes.as_chunks::<8>().0.iter().any(|word| u64::from_le_bytes(*word) & 0xffff_ffff == data.0)
    };
    let node = |owner| matches!(owner, Owner::Page { kind: PageKind::MapNode, .. });
    let (node, _) = *owners.iter().find(|(at, owner)| node(*owner) && names(*at)).unwrap();
    pool.pm.poison(node.offset().0..node.offset().0 + BLOCK_SIZE);
}

/// Clean PM blocks over a part of a longer cold extent were never dropped: the whole extent was counted and
/// compared with the part. A PM full of such blocks stayed full for ever, and writers looped.
#[test]
fn a_clean_part_of_an_extent_is_dropped() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let options = MountOptions {
        threshold_percent: Some(1),
        promote_first_touch: true,
        prefetch_bytes: 0,
        ..MountOptions::default()
    };
    let fs = pool.mount_with(options);
    let ino = create(&fs, "a")?;
    write(&fs, ino, 0, &[7; 16 * 4096])?;
    fs.sync_to(1, &mut |_| {})?;
    let written = pool.device.counters().blocks_written;
    fs.read(ino, 0, &mut [0; 5 * 4096], W)?;
    fs.run_background(20);
    let found = fs.status()?.migration;
    assert!(found.promoted_bytes > 0 && found.clean_evicted_bytes > 0, "{found:?}");
    // Dropping a clean block costs no write (S2).
    assert_eq!(pool.device.counters().blocks_written, written);
    assert_eq!(fs.whereabouts(ino)?.tiers[0].1, 0);
    Ok(())
}

/// After 497 days the coarse clock reached the number that marks blocks chosen as victims, and no block was
/// chosen any more.
#[test]
fn blocks_written_after_497_days_are_demoted() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let options = MountOptions { threshold_percent: Some(1), ..MountOptions::default() };
    let fs = pool.mount_with(options);
    pool.clock.sleep(Duration::from_secs(498 * 24 * 3600));
    fs.run_background(1);
    let ino = create(&fs, "a")?;
    write(&fs, ino, 0, &[7; 40 * 4096])?;
    fs.run_background(100);
    assert!(fs.status()?.migration.demoted_bytes > 0);
    write(&fs, ino, 0, &[8; 40 * 4096])?;
    fs.sync_to(1, &mut |_| {})?;
    assert_eq!(fs.whereabouts(ino)?.tiers[0].1, 0);
    Ok(())
}

/// A symlink whose name and target fall into one catalog leaf looped for ever: a split made room for the
/// target alone, and the name took that room again.
#[test]
fn a_symlink_and_its_name_fit_into_the_same_leaf() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let fs = pool.mount();
    // The shard of the root directory gets every fourth inode number, so the symlink gets 5.
    let other = create(&fs, "other")?;
    create(&fs, "3")?;
    create(&fs, "4")?;
    let (name, target) = ([b'n'; 200], [b'a'; 1900]);
    for index in 0..100 {
        fs.link(other, ROOT, format!("a filler, so that the leaf has every gap: {index}").as_bytes(), W)?;
        let link = fs.symlink(ROOT, &name, &target, CALLER, W)?.ino;
        assert_eq!((link, fs.readlink(link)?), (Ino(5), target.to_vec()));
        fs.unlink(ROOT, &name, W)?;
        fs.forget(link, 1);
        fs.run_background(100);
    }
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// After a failed demotion the pause outlived the next success: `sync_to` waited for its end, and no step
/// advanced the clock to it.
#[test]
fn success_ends_the_back_off() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let fs = pool.mount();
    let ino = create(&fs, "a")?;
    write(&fs, ino, 0, &vec![1; 440 * 4096])?;
    pool.device.fail_next(Operation::Write, 0..u64::MAX, 5, Times::Count(1));
    fs.run_background(2);
    assert!(fs.status()?.migration.reason.is_some());
    // The writer needs space and demotes blocks itself.
    write(&fs, ino, 440 * 4096, &vec![2; 60 * 4096])?;
    assert!(fs.status()?.migration.reason.is_none());
    fs.sync_to(1, &mut |_| {})?;
    let found = fs.whereabouts(ino)?;
    assert!(found.tiers[0].1 <= found.clean_bytes, "{found:?}");
    Ok(())
}

/// Under data=ordered a write with `Wait::Never` stored its first blocks in place, then met the cold last
/// block and answered `WouldBlock`, which promises an unchanged file.
#[test]
fn a_refused_write_leaves_the_file_unchanged() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let options = || MountOptions { data_ordered: Some(true), ..MountOptions::default() };
    let fs = pool.mount_with(options());
    let ino = create(&fs, "a")?;
    write(&fs, ino, 0, &[1; 3 * 4096])?;
    fs.sync_to(1, &mut |_| {})?;
    write(&fs, ino, 0, &[2; 2 * 4096])?;
    fs.unmount()?;
    drop(fs);
    let fs = pool.mount_with(options());
    let refused = fs.write(ino, 0, &[3; 10_000], WriteFlags::default(), Wait::Never);
    assert_eq!(refused.map_err(|error| error.errno()), Err(11));
    let mut first = [0; 4096];
    fs.read(ino, 0, &mut first, W)?;
    assert_eq!(first, [2; 4096]);
    fs.setattr(ino, &SetAttributes { size: Some(0), ..Default::default() }, W)?;
    Ok(())
}

/// A rename into a removed directory looked for its parents by inode number. Another file had got the number
/// of the parent meanwhile, and the answer was EINVAL, ENOTDIR or ESTALE instead of ENOENT.
#[test]
fn a_rename_into_a_removed_directory_is_enoent() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let fs = pool.mount();
    let parent = fs.mkdir(ROOT, b"parent", 0o755, CALLER, W)?.ino;
    let removed = fs.mkdir(parent, b"removed", 0o755, CALLER, W)?.ino;
    fs.rmdir(parent, b"removed", W)?;
    fs.forget(parent, 1);
    fs.rmdir(ROOT, b"parent", W)?;
    fs.run_background(100);
    assert_eq!(create(&fs, "a")?, parent, "the number is not used again");
    let renamed = fs.rename(ROOT, b"a", removed, b"b", false, W);
    assert_eq!(renamed.map_err(|error| error.errno()), Err(2));
    Ok(())
}

/// mkfs could only make a root directory owned by root: another owner required mounting and changing the new
/// pool.
#[test]
fn mkfs_sets_the_owner_of_the_root_directory() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let root = RootDirectory { uid: 1000, gid: 1001, mode: 0o1777 };
    format(&pool.media(), &FormatOptions { root, ..common::format_options(1) })?;
    pool.assert_clean();
    let found = pool.mount().getattr(ROOT)?;
    assert_eq!((found.uid, found.gid, found.mode), (1000, 1001, 0o041777));
    Ok(())
}

/// An orphan whose removal met an error of PM left the queue until the next mount.
#[test]
fn failed_removal_of_an_orphan_is_tried_again() -> FsResult<()> {
    let pool = Pool::new(8 << 20, 4096);
    let fs = pool.mount();
    fs.run_background(100);
    let ino = create(&fs, "a")?;
    let before = fs.statfs(W)?.free;
    write(&fs, ino, 0, &[1; 700 * 4096])?;
    fs.unlink(ROOT, b"a", W)?;
    poison_map_node(&pool, ino, FileBlock(600));
    fs.forget(ino, 1);
    fs.run_background(100);
    pool.pm.clear_poison();
    fs.run_background(100);
    assert!(fs.statfs(W)?.free < before, "tried again without a pause");
    pool.clock.sleep(Duration::from_secs(1));
    fs.run_background(100);
    assert!(fs.statfs(W)?.free >= before);
    Ok(())
}

/// A truncation that met an error of PM while it removed blocks answered EIO although the file was cut, and
/// its intent stayed until the next mount. So did an intent found by a mount, when its first try failed.
#[test]
fn failed_removal_of_a_cut_range_is_tried_again() -> FsResult<()> {
    let pool = Pool::new(8 << 20, 4096);
    let fs = pool.mount();
    fs.run_background(100);
    let ino = create(&fs, "a")?;
    write(&fs, ino, 0, &[1; 700 * 4096])?;
    poison_map_node(&pool, ino, FileBlock(600));
    fs.setattr(ino, &SetAttributes { size: Some(0), ..Default::default() }, W)?;
    assert_eq!(fs.getattr(ino)?.size, 0);
    drop(fs);
    let fs = pool.mount();
    fs.run_background(100);
    pool.pm.clear_poison();
    assert!(fs.getattr(ino)?.blocks > 0);
    pool.clock.sleep(Duration::from_secs(1));
    fs.run_background(100);
    assert_eq!(fs.getattr(ino)?.blocks, 0);
    fs.unmount()?;
    pool.assert_clean();
    Ok(())
}

fn fallocate(fs: &Engine, ino: Ino, blocks: u64) -> FsResult<()> {
    fs.fallocate(ino, 0, blocks * 4096, Allocate::Extend, W)
}

/// fallocate answered ENOSPC when the lower tier was full, although PM had room (I9).
#[test]
fn fallocate_takes_pm_when_the_tier_is_full() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 64);
    let fs = pool.mount();
    let (filler, ino) = (create(&fs, "filler")?, create(&fs, "a")?);
    write(&fs, filler, 0, &[2; 60 * 4096])?;
    fs.sync_to(1, &mut |_| {})?;
    fallocate(&fs, ino, 100)?;
    let found = fs.whereabouts(ino)?;
    assert_eq!((found.tiers[0].1, found.tiers[1].1), (97 * 4096, 3 * 4096), "{found:?}");
    assert_eq!(fs.getattr(ino)?.blocks, 800);
    let mut content = vec![1; 100 * 4096];
    fs.read(ino, 0, &mut content, W)?;
    assert!(content.iter().all(|byte| *byte == 0));
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// PM full of preallocated blocks stayed full: migration did not demote them, and a write into such a file
/// got ENOSPC although the lower tier had room again. Unlink and truncate never get ENOSPC.
#[test]
fn preallocated_blocks_are_demoted() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 512);
    let fs = pool.mount();
    let (filler, ino) = (create(&fs, "filler")?, create(&fs, "a")?);
    fallocate(&fs, filler, 511)?;
    let mut blocks = 511;
    while fallocate(&fs, ino, blocks).is_err() {
        blocks -= 1;
    }
    assert!(blocks > 350, "only {blocks}");
    // PM and the lower tier are full now.
    let full = write(&fs, filler, 0, &[1; 100 * 4096]);
    assert_eq!(full.map_err(|error| error.errno()), Err(28));
    fs.setattr(filler, &SetAttributes { size: Some(4096), ..Default::default() }, W)?;
    fs.unlink(ROOT, b"filler", W)?;
    fs.forget(filler, 1);
    fs.run_background(1000);
    write(&fs, ino, 0, &vec![3; blocks as usize * 4096])?;
    let mut content = vec![0; blocks as usize * 4096];
    fs.read(ino, 0, &mut content, W)?;
    assert!(content.iter().all(|byte| *byte == 3));
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// statfs scanned the whole block table and loaded all chunk bitmaps in the first thread that asked, a
/// request thread (L2). Now it answers `WouldBlock` until the scan after the mount has ended.
#[test]
fn statfs_does_not_scan_on_a_request_thread() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let fs = pool.mount();
    let refused = fs.statfs(Wait::Never).map(|_| ());
    assert_eq!(refused.map_err(|error| error.errno()), Err(11));
    fs.run_background(100);
    let counted = fs.statfs(Wait::Never)?;
    drop(fs);
    assert_eq!(counted.blocks, pool.mount().statfs(W)?.blocks);
    Ok(())
}

/// ".." of a removed directory that is still open named its parent by inode number. When the parent was
/// removed too and its number used again, readdirplus and lookup gave the attributes of an unrelated file
/// (`terrace-sim --config faults --seed 5001556`).
#[test]
fn removed_directory_names_no_other_file() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let fs = pool.mount();
    let parent = fs.mkdir(ROOT, b"parent", 0o755, CALLER, W)?.ino;
    let removed = fs.mkdir(parent, b"removed", 0o755, CALLER, W)?.ino;
    fs.rmdir(parent, b"removed", W)?;
    fs.forget(parent, 1);
    fs.rmdir(ROOT, b"parent", W)?;
    fs.run_background(100);
    assert_eq!(create(&fs, "a")?, parent, "the number is not used again");
    let mut found = Vec::new();
    fs.readdir_plus(removed, 0, &mut |entry, attributes| {
        found.push((entry.ino, attributes.mode & 0o170000));
        true
    })?;
    assert_eq!(found, [(removed, 0o040000); 2]);
    assert_eq!(fs.lookup(removed, b"..").map_err(|error| error.errno()), Err(libc::ESTALE));
    Ok(())
}

/// Under data=ordered a punch clears its first edge, then meets a cold block at the second one and answers
/// `WouldBlock`, which promises an unchanged file. It kept that promise only because so few bytes are stored
/// with the record; now every overwrite in place waits for the commit.
#[test]
fn a_refused_punch_leaves_the_file_unchanged() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let options = || MountOptions { data_ordered: Some(true), ..MountOptions::default() };
    let fs = pool.mount_with(options());
    let ino = create(&fs, "a")?;
    write(&fs, ino, 0, &[1; 3 * 4096])?;
    fs.sync_to(1, &mut |_| {})?;
    write(&fs, ino, 0, &[2; 4096])?;
    fs.unmount()?;
    drop(fs);
    let fs = pool.mount_with(options());
    fs.run_background(100);
    let punch = |wait| fs.fallocate(ino, 100, 2 * 4096, Allocate::PunchHole, wait);
    assert_eq!(punch(Wait::Never).map_err(|error| error.errno()), Err(11));
    let mut content = [0; 3 * 4096];
    fs.read(ino, 0, &mut content, W)?;
    assert_eq!(content[..4096], [2; 4096]);
    punch(W)?;
    fs.read(ino, 0, &mut content, W)?;
    let expected = |at| if at < 100 { 2 } else { u8::from(at >= 100 + 2 * 4096) };
    assert!(content.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
    Ok(())
}

/// The later pieces of a write above the atomic write size waited for a lower tier on the request thread
/// (L2).
#[test]
fn later_pieces_of_a_write_do_not_wait() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let fs = pool.mount();
    let ino = create(&fs, "a")?;
    write(&fs, ino, 0, &[1; 100 * 4096])?;
    fs.sync_to(1, &mut |_| {})?;
    fs.unmount()?;
    drop(fs);
    let fs = pool.mount();
    // The last block is cold and has to be merged with the new bytes. A piece has at most 56 blocks in so
    // small a pool.
    let data = vec![2; 99 * 4096 + 100];
    pool.device.stall_at_most(Duration::ZERO);
    let done = fs.write(ino, 0, &data, WriteFlags::default(), Wait::Never)?;
    assert_eq!(done, 56 * 4096);
    let refused = fs.write(ino, done as u64, &data[done..], WriteFlags::default(), Wait::Never);
    assert_eq!(refused.map_err(|error| error.errno()), Err(11));
    pool.device.unstall();
    assert_eq!(fs.write(ino, done as u64, &data[done..], WriteFlags::default(), W)?, data.len() - done);
    let mut content = vec![0; 100 * 4096];
    fs.read(ino, 0, &mut content, W)?;
    assert!(content.iter().enumerate().all(|(at, byte)| *byte == 1 + u8::from(at < data.len())));
    Ok(())
}

/// After a crash, `sync_to` counted blocks that an intent had already removed from the file, and returned
/// only if the reclaimer ran.
#[test]
fn sync_to_does_not_wait_for_intents() -> FsResult<()> {
    let pool = Pool::new(8 << 20, 4096);
    let fs = pool.mount();
    let ino = create(&fs, "a")?;
    write(&fs, ino, 0, &[1; 700 * 4096])?;
    poison_map_node(&pool, ino, FileBlock(600));
    fs.setattr(ino, &SetAttributes { size: Some(2 * 4096), ..Default::default() }, W)?;
    drop(fs);
    pool.pm.clear_poison();
    let fs = pool.mount();
    let other = create(&fs, "b")?;
    write(&fs, other, 0, &[2; 3 * 4096])?;
    let mut rounds = 0;
    fs.sync_to(1, &mut |_| {
        rounds += 1;
        assert!(rounds < 1000, "waits for somebody else");
    })?;
    let below = |ino| fs.whereabouts(ino).map(|found| (found.tiers[0].1, found.tiers[1].1));
    assert_eq!(below(ino)?, (0, 2 * 4096));
    assert_eq!(below(other)?, (0, 3 * 4096));
    assert!(fs.getattr(ino)?.blocks > 700, "the intent was not finished");
    Ok(())
}

/// The leaf with the intent of an unfinished truncation lay on a lower tier. Writers that needed room in PM
/// got EIO, because the blocks of that intent were chosen as victims.
#[test]
fn intents_on_a_lower_tier_fail_no_writer() -> FsResult<()> {
    let pool = Pool::new(8 << 20, 4096);
    let options = || MountOptions {
        policy: Some(PolicyKind::STATIC),
        metadata_moves: MetadataMoves::Always,
        ..Default::default()
    };
    let fs = pool.mount_with(options());
    let ino = create(&fs, "a")?;
    write(&fs, ino, 0, &[1; 700 * 4096])?;
    poison_map_node(&pool, ino, FileBlock(600));
    fs.setattr(ino, &SetAttributes { size: Some(2 * 4096), ..Default::default() }, W)?;
    // Names in the same shard, enough for leaves below the root page.
    let directory = loop {
        let name = format!("directory-{}", fs.getattr(ROOT)?.nlink);
        let made = fs.mkdir(ROOT, name.as_bytes(), 0o755, CALLER, W)?.ino;
        if made.0 % 4 == ino.0 % 4 {
            break made;
        }
    };
    for index in 0..600 {
        fs.forget(fs.mknod(directory, format!("name-{index}").as_bytes(), 0o100644, 0, CALLER, W)?.ino, 1);
    }
    fs.lower_metadata_now()?;
    let other = create(&fs, "b")?;
    for piece in 0..200u64 {
        fs.write(other, piece << 16, &[2; 65_536], WriteFlags::default(), W)?;
    }
    assert!(fs.getattr(ino)?.blocks > 600, "the intent was not finished");
    Ok(())
}

/// `sync_to` a failing device answered ENOSPC, whatever its error.
#[test]
fn sync_to_returns_the_error_of_the_device() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let fs = pool.mount();
    let ino = create(&fs, "a")?;
    write(&fs, ino, 0, &[1; 4096])?;
    pool.device.fail_next(Operation::Write, 0..u64::MAX, 5, Times::Forever);
    let refused = fs.sync_to(1, &mut |_| {});
    assert_eq!(refused.map_err(|error| error.errno()), Err(5));
    Ok(())
}

/// Blocks and pages that a record gives to a file were handed out again when PM failed while the record was
/// applied. The record may still be valid at the next mount, with its data blocks, map nodes and inode pages.
#[test]
fn blocks_of_a_failed_record_are_not_handed_out_again() -> FsResult<()> {
    type Change = fn(&Engine, Ino) -> FsResult<()>;
    let pool = Pool::new(2 << 20, 4096);
    let geometry = read_superblock(&*pool.pm, false).unwrap().0.geometry();
    let table = geometry.table_offset().0..geometry.first_pool_block().offset().0;
    let pages = geometry.inode_pages().0;
    // A change, the range of PM that fails its in-place stores, and the number of blocks that the record
    // gives away.
    let cases: [(Change, Range<u64>, u64); 3] = [
        (|fs, ino| write(fs, ino, 0, &[1; 3 * 4096]), table.clone(), 3),
        // A map node for block 100; the write itself fails before its record.
        (|fs, ino| write(fs, ino, 100 * 4096, &[1; 3 * 4096]), table, 1),
        (|fs, _| create(fs, "one more").map(|_| ()), pages..pages + 8, 1),
    ];
    for (change, poison, taken) in cases {
        let pool = Pool::new(2 << 20, 4096);
        let fs = pool.mount();
        let ino = create(&fs, "a")?;
        // The first page of the inode file is full.
        (3..32).try_for_each(|index| create(&fs, &index.to_string()).map(|_| ()))?;
        fs.run_background(100);
        let before = fs.statfs(W)?.free;
        pool.pm.poison(poison);
        assert_eq!(change(&fs, ino).map_err(|error| error.errno()), Err(5));
        assert_eq!(before - fs.statfs(W)?.free, taken);
    }
    Ok(())
}

/// An inode file with one page in two entries gave out the numbers of slots in use, and a create panicked
/// (I11).
#[test]
fn an_inode_page_with_two_entries_is_an_error() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let geometry = read_superblock(&*pool.pm, false).unwrap().0.geometry();
    // mkfs puts the map node of the inode file into the first block; the node gets a second entry.
    let node = geometry.first_pool_block().offset();
    let page = pool.pm.load_u64(node)?;
    pool.pm.write(node.plus(8), &page.to_le_bytes())?;
    pool.pm.write(geometry.inode_pages(), &2u64.to_le_bytes())?;
    let fs = pool.mount();
    fs.run_background(100);
    let made = (0..40).map(|index| create(&fs, &index.to_string()).map_err(|error| error.errno()));
    assert!(made.filter(|made| *made == Err(5)).count() > 0);
    Ok(())
}

/// An extended attribute with a NUL in its name panicked.
#[test]
fn xattr_name_with_a_nul_is_refused() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let fs = pool.mount();
    let set = fs.setxattr(ROOT, b"user.a\0b", b"value", terrace_engine::XattrMode::Any, W);
    assert_eq!(set.map_err(|error| error.errno()), Err(22));
    Ok(())
}

/// A file with an unreadable map node, or an unreadable block, kept all other blocks in PM: the demotion of
/// the group failed as a whole, and the same oldest blocks were chosen again. When PM was full every write
/// was EIO.
#[test]
fn a_damaged_file_does_not_keep_sound_files_in_pm() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let fs = pool.mount();
    let (damaged, partly, sound) = (create(&fs, "a")?, create(&fs, "b")?, create(&fs, "c")?);
    for ino in [damaged, partly, sound] {
        write(&fs, ino, 0, &[3; 20 * 4096])?;
    }
    poison_map_node(&pool, damaged, FileBlock(12));
    let lost = Owner::File { ino: partly, block: FileBlock(5), unwritten: false };
    let (lost, _) = *owners(&pool).iter().find(|(_, owner)| *owner == lost).unwrap();
    pool.pm.poison(lost.offset().0..lost.offset().0 + BLOCK_SIZE);
    assert_eq!(fs.sync_to(1, &mut |_| {}).map_err(|error| error.errno()), Err(5));
    let below = |ino| fs.whereabouts(ino).map(|found| (found.tiers[0].1, found.tiers[1].1));
    assert_eq!(below(sound)?, (0, 20 * 4096));
    assert_eq!(below(partly)?, (4096, 19 * 4096));
    assert_eq!(fs.read(partly, 5 * 4096, &mut [0; 4096], W).map_err(|error| error.errno()), Err(5));
    let mut content = vec![0; 20 * 4096];
    fs.read(sound, 0, &mut content, W)?;
    assert!(content.iter().all(|byte| *byte == 3));
    pool.pm.clear_poison();
    fs.sync_to(1, &mut |_| {})?;
    fs.read(damaged, 0, &mut content, W)?;
    assert!(content.iter().all(|byte| *byte == 3));
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// An unreadable entry of the block table ended every search for victims.
#[test]
fn sound_blocks_are_demoted_past_a_damaged_table_entry() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let fs = pool.mount_with(MountOptions { threshold_percent: Some(1), ..MountOptions::default() });
    let (damaged, sound) = (create(&fs, "a")?, create(&fs, "b")?);
    write(&fs, damaged, 0, &[3; 4096])?;
    write(&fs, sound, 0, &[3; 20 * 4096])?;
    fs.statfs(W)?;
    let owned = Owner::File { ino: damaged, block: FileBlock(0), unwritten: false };
    let (block, _) = *owners(&pool).iter().find(|(_, owner)| *owner == owned).unwrap();
    let entry = read_superblock(&*pool.pm, false).unwrap().0.geometry().table_entry(block).0;
    pool.pm.poison(entry..entry + 16);
    fs.run_background(100);
    assert!(fs.whereabouts(sound)?.tiers[1].1 > 0, "{:?}", fs.status()?.migration);
    Ok(())
}

/// An unreadable entry of the block table ended the scan after the mount. Demotion stopped, and writes failed
/// when the blocks found so far were used up.
#[test]
fn an_unreadable_table_entry_ends_no_scan() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let fs = pool.mount();
    let ino = create(&fs, "a")?;
    write(&fs, ino, 0, &[3; 20 * 4096])?;
    fs.unmount()?;
    drop(fs);
    let geometry = read_superblock(&*pool.pm, false).unwrap().0.geometry();
    let entry = geometry.table_entry(PmBlock(geometry.block_count() - 1)).0;
    pool.pm.poison(entry..entry + 16);
    let fs = pool.mount_with(MountOptions { threshold_percent: Some(1), ..MountOptions::default() });
    fs.run_background(100);
    assert!(fs.whereabouts(ino)?.tiers[1].1 > 0, "{:?}", fs.status()?.migration);
    // The file is larger than PM, so demotion goes on too.
    write(&fs, ino, 0, &vec![4; 4 << 20])?;
    pool.pm.clear_poison();
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// When PM was full and all blocks of the oldest group belonged to a damaged file, writers of sound files got
/// EIO.
#[test]
fn a_damaged_file_fails_no_writer_of_a_sound_file() -> FsResult<()> {
    let pool = Pool::new(8 << 20, 8192);
    let fs = pool.mount();
    let (damaged, sound) = (create(&fs, "a")?, create(&fs, "b")?);
    write(&fs, damaged, 0, &vec![3; 400 * 4096])?;
    write(&fs, sound, 0, &vec![4; 400 * 4096])?;
    poison_map_node(&pool, damaged, FileBlock(12));
    for round in 0..4 {
        write(&fs, sound, round * (4 << 20), &vec![5; 4 << 20])?;
    }
    pool.pm.clear_poison();
    let mut content = vec![0; 400 * 4096];
    fs.read(damaged, 0, &mut content, W)?;
    assert!(content.iter().all(|byte| *byte == 3));
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// When PM was full of unreadable blocks, or of blocks with unreadable entries in the block table, writes
/// failed with EIO although DRAM and the device had room.
#[test]
fn writes_go_into_dram_when_damage_keeps_pm_full() -> FsResult<()> {
    for entries in [true, false] {
        let pool = Pool::new(2 << 20, 4096);
        let fs = pool.mount();
        let ino = create(&fs, "a")?;
        let geometry = read_superblock(&*pool.pm, false).unwrap().0.geometry();
        for block in 0..600 {
            write(&fs, ino, block * BLOCK_SIZE, &[block as u8; BLOCK_SIZE as usize])?;
            let owner = Owner::File { ino, block: FileBlock(block), unwritten: false }.encode();
            let (image, mut word) = (pool.pm.visible_image(), [0; 8]);
            let mut is_owned = |block: &PmBlock| {
                image.read(geometry.table_entry(*block).0, &mut word) && u64::from_le_bytes(word) == owner
            };
            if let Some(taken) = (0..geometry.block_count()).map(PmBlock).find(&mut is_owned) {
                let (entry, data) = (geometry.table_entry(taken).0, taken.offset().0);
                let lost = if entries { entry..entry + 16 } else { data..data + BLOCK_SIZE };
                pool.pm.poison_for(lost, Access::Reads, Times::Forever);
            }
        }
        assert!(fs.status()?.dram.dirty_bytes > 0);
        fs.fsync(ino, false, W)?;
        // An unreadable block is overwritten, or the writer gets an error.
        let mut expected: Vec<u8> = (0..600).map(|block: u64| block as u8).collect();
        for (block, byte) in (0..).step_by(BLOCK_SIZE as usize).zip(&mut expected).take(20) {
            if write(&fs, ino, block, &[77; BLOCK_SIZE as usize]).is_ok() {
                *byte = 77;
            }
        }
        let told = fs.fsync(ino, false, W).map_err(|error| error.errno());
        assert!(matches!(told, Ok(()) | Err(5)), "{told:?}");
        pool.pm.clear_poison();
        fs.fsync(ino, false, W)?;
        fs.unmount()?;
        drop(fs);
        pool.assert_clean();
        let fs = pool.mount();
        let mut found = vec![0; 600 * BLOCK_SIZE as usize];
        fs.read(ino, 0, &mut found, W)?;
        assert!(found.chunks(BLOCK_SIZE as usize).zip(&expected).all(|(found, byte)| found == [*byte; 4096]));
    }
    Ok(())
}

/// A block whose entry in the block table could not be read once, in a search for victims, was never chosen
/// again: `sync_to` waited for ever for it. Found by `terrace_sim::drivers::faults`: a demotion with one unreadable
/// range of PM.
#[test]
fn a_block_is_a_victim_again_after_its_table_entry_failed_once() -> FsResult<()> {
    for after in (0..160).step_by(3) {
        let pool = Pool::new(2 << 20, 4096);
        let fs = pool.mount();
        let ino = create(&fs, "a")?;
        write(&fs, ino, 0, &[3; 20 * 4096])?;
        fs.statfs(W)?;
        let geometry = read_superblock(&*pool.pm, false).unwrap().0.geometry();
        let table = geometry.table_entry(geometry.first_pool_block()).0;
        let end = geometry.table_entry(PmBlock(geometry.block_count())).0;
        pool.pm.poison_for(table..end, Access::Reads, Times::After(after));
        let (tell, result) = mpsc::channel();
        let other = Arc::clone(&fs);
        let thread =
            terrace_runtime::thread::spawn("ends", move || _ = tell.send(other.sync_to(1, &mut |_| {})));
        assert!(thread.is_ok());
        let result = result.recv_timeout(Duration::from_secs(10));
        let result = result.unwrap_or_else(|_| panic!("does not end, {after} entries before the one"));
        assert!(result.is_ok() || pool.pm.poison_left() == 0, "{result:?}");
        pool.pm.clear_poison();
        fs.sync_to(1, &mut |_| {})?;
        assert_eq!(fs.whereabouts(ino)?.tiers[0].1, 0);
    }
    Ok(())
}

/// readdirplus left out names with an unreadable inode, so that an incomplete listing looked complete. Found
/// by `terrace-sim --config faults-pm --seed 8`.
#[test]
fn readdirplus_fails_at_an_unreadable_inode() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 1025);
    let fs = pool.mount();
    let names = (0..40).map(|index| create(&fs, &format!("f{index}"))).collect::<FsResult<Vec<Ino>>>()?;
    let lost = names[20];
    let owner = Owner::Page { kind: PageKind::InodePage, datum: (lost.0 / SLOTS_PER_PAGE) as u32 };
    let (page, _) = *owners(&pool).iter().find(|(_, found)| *found == owner).unwrap();
    let slot = page.offset().0 + lost.0 % SLOTS_PER_PAGE * SLOT_SIZE;
    pool.pm.poison(slot..slot + SLOT_SIZE);
    let (mut seen, mut cookie) = (Vec::new(), 0);
    let mut read = |seen: &mut Vec<Ino>| {
        let before = seen.len();
        let read = fs.readdir_plus(ROOT, cookie, &mut |entry, _| {
            cookie = entry.cookie;
            seen.push(entry.ino);
            true
        });
        read.map(|()| seen.len() > before)
    };
    let ended = loop {
        match read(&mut seen) {
            Ok(true) => {}
            other => break other,
        }
    };
    assert_eq!(ended.map_err(|error| error.errno()), Err(5), "{} of 42 names", seen.len());
    pool.pm.clear_poison();
    while read(&mut seen)? {}
    assert_eq!(seen.len(), 42);
    Ok(())
}

/// An inode page that could not be read, or found, ended the search for free inode numbers: when the numbers
/// found so far were used up, no file could be created. The first mount that can read the page uses its
/// numbers again.
#[test]
fn an_unreadable_inode_page_ends_no_search_for_numbers() -> FsResult<()> {
    for lost_place in [false, true] {
        let pool = Pool::new(4 << 20, 1025);
        let fs = pool.mount();
        let page_of = |ino: Ino| ino.0 / SLOTS_PER_PAGE;
        // Makes 64 files; gives the inode page of each.
        let make = |fs: &Engine, name: &str| -> FsResult<Vec<u64>> {
            (0..64).map(|index| Ok(page_of(create(fs, &format!("{name}{index}"))?))).collect()
        };
        let count = |pages: &[u64], page: u64| pages.iter().filter(|found| **found == page).count() as u64;
        for index in 0..4 * SLOTS_PER_PAGE {
            let ino = create(&fs, &format!("first{index}"))?;
            fs.forget(ino, 1);
            if [1, 2].contains(&page_of(ino)) {
                fs.unlink(ROOT, format!("first{index}").as_bytes(), W)?;
            }
        }
        fs.run_background(1000);
        fs.unmount()?;
        drop(fs);
        let owners = owners(&pool);
        let of_kind = |kind, datum| {
            let owner = Owner::Page { kind, datum };
            owners.iter().find(|(_, found)| *found == owner).unwrap().0.offset().0
        };
        let (page, node) = (of_kind(PageKind::InodePage, 1), of_kind(PageKind::InodeNode, 0));
        let damaged = if lost_place { node + 8..node + 16 } else { page..page + BLOCK_SIZE };
        pool.pm.poison(damaged);
        let fs = pool.mount();
        let made = make(&fs, "second")?;
        assert_eq!((count(&made, 1), count(&made, 2)), (0, SLOTS_PER_PAGE), "{made:?}");
        assert_eq!(count(&make(&fs, "third")?, 1), 0);
        fs.unmount()?;
        drop(fs);
        pool.pm.clear_poison();
        pool.assert_clean();
        let fs = pool.mount();
        let made = make(&fs, "fourth")?;
        assert_eq!(count(&made, 1), SLOTS_PER_PAGE, "{made:?}");
        fs.unmount()?;
        drop(fs);
        pool.assert_clean();
    }
    Ok(())
}

/// A write of several pieces answered ENOSPC when a later piece failed, although the first pieces were in the
/// file.
#[test]
fn a_write_with_a_failed_later_piece_is_short() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 64);
    let fs = pool.mount();
    let (filler, ino) = (create(&fs, "filler")?, create(&fs, "a")?);
    let mut blocks = 0;
    while write(&fs, filler, blocks * 4096, &[2; 4096]).is_ok() {
        blocks += 1;
    }
    // There is room for one piece of 56 blocks, not for two.
    fs.setattr(filler, &SetAttributes { size: Some((blocks - 80) * 4096), ..Default::default() }, W)?;
    fs.run_background(100);
    let written = fs.write(ino, 0, &[4; 140 * 4096], WriteFlags::default(), W)?;
    assert_eq!(written, 56 * 4096);
    assert_eq!(fs.getattr(ino)?.size, 56 * 4096);
    let refused = fs.write(ino, 56 * 4096, &[4; 84 * 4096], WriteFlags::default(), W);
    assert_eq!(refused.map_err(|error| error.errno()), Err(28));
    Ok(())
}

/// A read fetched whole cold extents, but compared only the versions of the 2 MiB regions it was asked for.
/// Blocks of an extent that reaches into the next region were cached in DRAM as current although they had
/// been demoted anew meanwhile. Later reads gave the old content, and partial writes merged with it.
#[test]
fn a_stale_extent_tail_in_the_next_region_is_not_cached() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let second = Arc::new(SimulatedDevice::new(4096));
    let media = || PoolMedia { pm: pool.pm.clone(), block: vec![pool.device.clone(), second.clone()] };
    format(&media(), &common::format_options(2)).unwrap();
    let policy = Some(PolicyKind::ANTICACHE);
    let options =
        MountOptions { policy, threshold_percent: Some(1), prefetch_bytes: 0, ..MountOptions::default() };
    let (superblock, _) = read_superblock(&*pool.pm, true).unwrap();
    let fs = Engine::mount(media(), superblock, options, Arc::clone(&pool.clock)).unwrap();
    let ino = create(&fs, "a")?;
    write(&fs, ino, 508 * 4096, &[1; 8 * 4096])?;
    fs.sync_to(1, &mut |_| {})?;
    write(&fs, ino, 514 * 4096, &[2; 4096])?;
    pool.device.stall();
    std::thread::scope(|threads| {
        let reader = threads.spawn(|| fs.read(ino, 508 * 4096, &mut [0; 4096], W));
        while pool.device.waiting() == 0 {
            std::thread::yield_now();
        }
        // The block is demoted to the other device, which has more room.
        fs.run_background(100);
        pool.device.unstall();
        reader.join().unwrap()
    })?;
    assert_eq!(fs.whereabouts(ino)?.tiers[0].1, 0, "not demoted");
    let mut content = [0; 4096];
    fs.read(ino, 514 * 4096, &mut content, W)?;
    assert!(content.iter().all(|byte| *byte == 2), "found {}", content[0]);
    Ok(())
}

/// A damaged copy of the superblock stayed damaged, so that damage of the second copy lost the pool. A mount
/// for writing rewrites the damaged copy, and touches nothing else.
#[test]
fn damaged_superblock_copy_is_rewritten() {
    use terrace_format::geometry::SUPERBLOCK_COPIES;
    for (index, copy) in SUPERBLOCK_COPIES.into_iter().enumerate() {
        let pool = Pool::new(4 << 20, 1024);
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

/// mkdir kept to the link limit (65,000) and rename did not: directories renamed into a full parent raised
/// its count beyond the limit.
#[test]
fn a_rename_keeps_to_the_link_limit() {
    let pool = Pool::new(64 << 20, 1025);
    let fs = pool.mount_with(MountOptions { policy: Some(PolicyKind::STATIC), ..Default::default() });
    let mkdir = |parent, name: &str| fs.mkdir(parent, name.as_bytes(), 0o755, CALLER, W).map(|made| made.ino);
    let (full, other) = (mkdir(ROOT, "full").unwrap(), mkdir(ROOT, "other").unwrap());
    (2..65_000).for_each(|number| _ = mkdir(full, &number.to_string()).unwrap());
    assert!(matches!(mkdir(full, "more"), Err(FsError::TooManyLinks)));
    mkdir(other, "more").unwrap();
    fs.mknod(other, b"file", 0o100644, 0, CALLER, W).unwrap();
    let rename =
        |from, name: &str, to: Ino, new: &str| fs.rename(from, name.as_bytes(), to, new.as_bytes(), false, W);
    assert!(matches!(rename(other, "more", full, "more"), Err(FsError::TooManyLinks)));
    assert_eq!(fs.getattr(full).unwrap().nlink, 65_000);
    // These renames add no link to the parent: a file, a new name in the same directory, and a replaced empty
    // directory.
    rename(other, "file", full, "file").unwrap();
    rename(full, "2", full, "two").unwrap();
    rename(other, "more", full, "3").unwrap();
    rename(full, "4", other, "4").unwrap();
    rename(other, "4", full, "4").unwrap();
    assert_eq!((fs.getattr(full).unwrap().nlink, fs.getattr(other).unwrap().nlink), (65_000, 2));
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// A write across the largest file size wrote nothing (EFBIG), where Linux writes the bytes that fit.
#[test]
fn a_write_across_the_largest_size_is_cut_to_fit() {
    let pool = Pool::new(2 << 20, 1025);
    let fs = pool.mount_with(MountOptions { policy: Some(PolicyKind::STATIC), ..Default::default() });
    let ino = fs.mknod(ROOT, b"a", 0o100644, 0, CALLER, W).unwrap().ino;
    let most = terrace_format::address::MAX_FILE_SIZE;
    let write = |offset, data: &[u8]| fs.write(ino, offset, data, WriteFlags::default(), W);
    assert_eq!(write(most - 5000, &[7; 10_000]).unwrap(), 5000);
    assert_eq!(fs.getattr(ino).unwrap().size, most);
    let mut end = [0; 6000];
    assert_eq!(fs.read(ino, most - 6000, &mut end, W).unwrap(), 6000);
    assert!(end[..1000].iter().all(|byte| *byte == 0) && end[1000..].iter().all(|byte| *byte == 7));
    for offset in [most, most + 1, u64::MAX] {
        assert!(matches!(write(offset, &[1]), Err(FsError::TooLarge)));
    }
}

/// Reads through descriptors with O_NOATIME changed the access time (LTP open12).
#[test]
fn a_read_without_touch_leaves_the_access_time() {
    let pool = Pool::new(2 << 20, 1025);
    let fs = pool.mount();
    let ino = fs.mknod(ROOT, b"a", 0o100644, 0, CALLER, W).unwrap().ino;
    fs.write(ino, 0, b"content", WriteFlags::default(), W).unwrap();
    let before = fs.getattr(ino).unwrap().atime_ns;
    let read = |touch| fs.read_to(ino, 0, 100, &mut Vec::new(), touch, W).unwrap();
    assert_eq!(read(false), 7);
    assert_eq!(fs.getattr(ino).unwrap().atime_ns, before);
    assert_eq!(read(true), 7);
    assert!(fs.getattr(ino).unwrap().atime_ns > before);
}

/// A file handle may carry any inode number, and a lookup by number found directories only.
#[test]
fn inodes_are_looked_up_by_number() {
    let pool = Pool::new(2 << 20, 1025);
    let fs = pool.mount();
    let file = fs.mknod(ROOT, b"a", 0o100644, 0, CALLER, W).unwrap();
    let dir = fs.mkdir(ROOT, b"d", 0o755, CALLER, W).unwrap();
    assert_eq!(fs.lookup(file.ino, b".").unwrap().ino, file.ino);
    assert_eq!(fs.lookup(dir.ino, b".").unwrap().ino, dir.ino);
    assert_eq!(fs.lookup(dir.ino, b"..").unwrap().ino, ROOT);
    assert_eq!(fs.lookup(ROOT, b"..").unwrap().ino, ROOT);
    for number in [0, file.ino.0 + 1000, u64::from(u32::MAX), (1 << 32) + file.ino.0, u64::MAX] {
        assert!(matches!(fs.lookup(Ino(number), b"."), Err(FsError::Stale)), "{number}");
    }
    // Each lookup counts as a reference of the kernel: the number is free when all are given back, and a
    // removed inode is not found by number even before.
    fs.unlink(ROOT, b"a", W).unwrap();
    assert!(matches!(fs.lookup(file.ino, b"."), Err(FsError::Stale)));
    fs.forget(file.ino, 1);
    fs.run_background(100);
    assert!(fs.getattr(file.ino).is_ok());
    fs.forget(file.ino, 1);
    fs.run_background(100);
    assert!(matches!(fs.getattr(file.ino), Err(FsError::Stale)));
    assert!(matches!(fs.lookup(file.ino, b"."), Err(FsError::Stale)));
}
