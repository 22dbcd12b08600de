//! Parts of PM that cannot be read or written.

use super::helpers::W;
use super::metadata_words::{owners, poison_map_node};
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use terrace_engine::{Engine, FsResult, MountOptions, Movements, Simulation, read_superblock};
use terrace_format::inode::{SLOT_SIZE, SLOTS_PER_PAGE};
use terrace_format::table::{Owner, PageKind};
use terrace_format::{BLOCK_SIZE, FileBlock, Ino, PmBlock};
use terrace_media::block::Times;
use terrace_media::pm::Access;
use terrace_testkit::{ROOT, SimulatedPool, create, has_other_map, try_create, write};

/// Blocks and pages that a record gives to a file were handed out again when PM failed while the record was
/// applied. The record may still be valid at the next mount, with its data blocks, map nodes and inode pages.
#[test]
fn blocks_of_a_failed_record_are_not_handed_out_again() -> FsResult<()> {
    if has_other_map() {
        return Ok(());
    }
    type Change = fn(&Engine, Ino) -> FsResult<()>;
    let pool = SimulatedPool::new(2 << 20, 4096);
    let geometry = read_superblock(&*pool.pm, false).unwrap().0.geometry();
    let table = geometry.table_offset().0..geometry.first_pool_block().offset().0;
    let pages = geometry.inode_pages().0;
    // A change, the range of PM that fails its in-place stores, and the number of blocks that the record
    // gives away.
    let cases: [(Change, Range<u64>, u64); 3] = [
        (|fs, ino| write(fs, ino, 0, &[1; 3 * 4096]), table.clone(), 3),
        // A map node for block 100; the write itself fails before its record.
        (|fs, ino| write(fs, ino, 100 * 4096, &[1; 3 * 4096]), table, 1),
        (|fs, _| try_create(fs, "one more").map(|_| ()), pages..pages + 8, 1),
    ];
    for (change, poison, taken) in cases {
        let pool = SimulatedPool::new(2 << 20, 4096);
        let fs = pool.mount();
        let ino = create(&fs, ROOT, "a");
        // The first page of the inode file is full.
        (3..32).try_for_each(|index| try_create(&fs, &index.to_string()).map(|_| ()))?;
        fs.run_background(100);
        let before = fs.statfs(W)?.free;
        pool.pm.poison(poison);
        assert_eq!(change(&fs, ino).map_err(|error| error.errno()), Err(5));
        assert_eq!(before - fs.statfs(W)?.free, taken);
    }
    Ok(())
}

/// A file with an unreadable map node, or an unreadable block, kept all other blocks in PM: the demotion of
/// the group failed as a whole, and the same oldest blocks were chosen again. When PM was full every write
/// was EIO.
#[test]
fn a_damaged_file_does_not_keep_sound_files_in_pm() -> FsResult<()> {
    if has_other_map() {
        return Ok(());
    }
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount();
    let (damaged, partly, sound) = (create(&fs, ROOT, "a"), create(&fs, ROOT, "b"), create(&fs, ROOT, "c"));
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
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount_with(MountOptions { threshold_percent: Some(1), ..MountOptions::default() });
    let (damaged, sound) = (create(&fs, ROOT, "a"), create(&fs, ROOT, "b"));
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
fn the_scan_after_a_mount_goes_on_past_an_unreadable_table_entry() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount();
    let ino = create(&fs, ROOT, "a");
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
    if has_other_map() {
        return Ok(());
    }
    let pool = SimulatedPool::new(8 << 20, 8192);
    let fs = pool.mount();
    let (damaged, sound) = (create(&fs, ROOT, "a"), create(&fs, ROOT, "b"));
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
    if terrace_testkit::is_table_map() {
        return Ok(());
    }
    for entries in [true, false] {
        let pool = SimulatedPool::new(2 << 20, 4096);
        let fs = pool.mount();
        let ino = create(&fs, ROOT, "a");
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
/// again: `sync_to` waited for ever for it. Found by `terrace_sim::faults`: a demotion with one unreadable
/// range of PM.
#[test]
fn a_block_is_a_victim_again_after_its_table_entry_failed_once() -> FsResult<()> {
    for after in (0..160).step_by(3) {
        let pool = SimulatedPool::new(2 << 20, 4096);
        let fs = pool.mount();
        let ino = create(&fs, ROOT, "a");
        write(&fs, ino, 0, &[3; 20 * 4096])?;
        fs.statfs(W)?;
        let geometry = read_superblock(&*pool.pm, false).unwrap().0.geometry();
        let table = geometry.table_entry(geometry.first_pool_block()).0;
        let end = geometry.table_entry(PmBlock(geometry.block_count())).0;
        pool.pm.poison_for(table..end, Access::Reads, Times::OnceAfter(after));
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
    let pool = SimulatedPool::new(2 << 20, 1025);
    let fs = pool.mount();
    let names = (0..40).map(|index| try_create(&fs, &format!("f{index}"))).collect::<FsResult<Vec<Ino>>>()?;
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
fn the_search_for_inode_numbers_goes_on_past_an_unreadable_page() -> FsResult<()> {
    for lost_place in [false, true] {
        let pool = SimulatedPool::new(4 << 20, 1025);
        let fs = pool.mount();
        let page_of = |ino: Ino| ino.0 / SLOTS_PER_PAGE;
        // Makes 64 files; gives the inode page of each.
        let make = |fs: &Engine, name: &str| -> FsResult<Vec<u64>> {
            (0..64).map(|index| Ok(page_of(create(fs, ROOT, &format!("{name}{index}"))))).collect()
        };
        let count = |pages: &[u64], page: u64| pages.iter().filter(|found| **found == page).count() as u64;
        for index in 0..4 * SLOTS_PER_PAGE {
            let ino = create(&fs, ROOT, &format!("first{index}"));
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
