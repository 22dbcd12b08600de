//! Demotion in place (design 7, M5): which blocks are written over their cold copies and which are not,
//! beside readers, changes and failures, on simulated media. crates/sim tests what a crash may leave.

use std::sync::Arc;
use std::time::Duration;
use terrace_catalog::DeviceRun;
use terrace_engine::{
    Allocate, Engine, FormatOptions, FsResult, InPlace, MigrationReport, MountOptions, Movements, PolicyKind,
    Wait, WriteFlags,
};
use terrace_format::{DeviceBlock, FileBlock, Ino};
use terrace_media::block::{AlignedBlock, Operation, Times};
use terrace_migration::demote::victims::{Victims, take_victims};
use terrace_runtime::{Clock, SystemClock, thread};
use terrace_store::lookup::cold_extents::cold_extents;
use terrace_store::moving::demote::demote;
use terrace_store::moving::free_shadowed::move_to_places;
use terrace_store::moving::victim::Victim;
use terrace_store::parts::pressure::WORKERS;
use terrace_store::types::BlockRange;
use terrace_testkit::{CALLER, ROOT, SimulatedPool, TrackedFile, TwoTierPool, format_options};

const W: Wait = Wait::Allowed;
const BLOCK: u64 = 4096;
/// Blocks of a file, in extents of at most 15 (a chunk of 16 with its summary).
const BLOCKS: u64 = 60;

fn options() -> MountOptions {
    // Under the static policy blocks move only when a test moves them.
    let in_place = InPlace { extent_blocks: 8, one_of: 8 };
    MountOptions { policy: Some(PolicyKind::STATIC), in_place, ..Default::default() }
}

/// A pool with a demoted file.
fn demoted() -> FsResult<TrackedFile> {
    let content: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| (at / 7) as u8 ^ (at >> 12) as u8).collect();
    TrackedFile::cold(SimulatedPool::new(2 << 20, 1025), options(), &content)
}

fn overwrite(file: &mut TrackedFile, block: u64, blocks: u64, byte: u8) -> FsResult<()> {
    file.write((block * BLOCK) as usize, &vec![byte; (blocks * BLOCK) as usize])
}

fn down(file: &TrackedFile) -> FsResult<MigrationReport> {
    file.fs.sync_to(1, &mut |_| {})?;
    Ok(file.fs.status()?.migration)
}

/// Compares the content now, and after another mount.
fn assert_sound(mut file: TrackedFile) -> FsResult<()> {
    file.assert_content();
    file.mount_again(options())?;
    file.assert_content();
    file.fs.unmount()?;
    file.pool.assert_clean();
    Ok(())
}

#[test]
fn scattered_blocks_of_a_group_are_written_over_the_cold_copies() -> FsResult<()> {
    let mut file = demoted()?;
    let free = file.fs.status()?.tiers[1].used_bytes;
    for (block, byte) in [(3, 1), (20, 2), (41, 3)] {
        overwrite(&mut file, block, 1, byte)?;
    }
    // Clean pages of the old content are in DRAM: demotion must not keep them for the new content.
    file.assert_content();
    let done = down(&file)?;
    assert_eq!((done.in_place_bytes, done.demoted_bytes, done.skipped_bytes), (3 * BLOCK, 3 * BLOCK, 0));
    assert_eq!(file.fs.status()?.tiers[1].used_bytes, free);
    // A second overwrite proves that the extent has the checksum of the first.
    overwrite(&mut file, 20, 1, 7)?;
    assert_eq!(down(&file)?.in_place_bytes, 4 * BLOCK);
    assert_sound(file)
}

#[test]
fn dense_overwrites_are_demoted_into_new_runs() -> FsResult<()> {
    let mut file = demoted()?;
    overwrite(&mut file, 16, 12, 5)?;
    overwrite(&mut file, 0, 2, 6)?;
    let done = down(&file)?;
    assert_eq!((done.in_place_bytes, done.demoted_bytes), (0, 14 * BLOCK));
    assert_sound(file)
}

/// The cold copy under a partial shadow has lines that PM lacks, so it is needed until the new copy is
/// durable.
#[test]
fn a_partial_block_is_never_written_in_place() -> FsResult<()> {
    let mut file = demoted()?;
    file.fs.write(file.ino, 5 * BLOCK + 128, &[9; 64], WriteFlags::default(), W)?;
    file.expected[5 * BLOCK as usize + 128..][..64].fill(9);
    let done = down(&file)?;
    assert_eq!((done.in_place_bytes, done.demoted_bytes), (0, BLOCK));
    assert_sound(file)
}

#[test]
fn a_block_refused_in_place_is_demoted_elsewhere() -> FsResult<()> {
    let mut file = demoted()?;
    overwrite(&mut file, 3, 1, 1)?;
    file.pool.device.fail_next(Operation::Write, 0..1025, 5, Times::Count(1));
    let done = down(&file)?;
    assert_eq!((done.in_place_bytes, done.demoted_bytes), (0, BLOCK));
    assert_sound(file)
}

/// The refused block came behind higher blocks of its file, which go to free space with it: the demotion panicked.
#[test]
fn a_block_refused_in_place_is_demoted_with_higher_blocks() -> FsResult<()> {
    let mut file = demoted()?;
    overwrite(&mut file, 3, 1, 1)?;
    overwrite(&mut file, 15, 15, 2)?;
    file.pool.device.fail_next(Operation::Write, 0..1025, 5, Times::Count(1));
    let done = down(&file)?;
    assert_eq!(done.demoted_bytes, 16 * BLOCK, "{done:?}");
    assert_sound(file)
}

/// A write in place that was cut short leaves a cold copy that matches no checksum. PM has the block, so
/// neither a read of its neighbours nor a check may report damage.
#[test]
fn a_torn_cold_copy_under_a_shadow_is_no_damage() -> FsResult<()> {
    let mut file = demoted()?;
    let mut block = [AlignedBlock::zeroed()];
    let mut place = None;
    for at in 1..1025 {
        terrace_media::BlockMedium::read(&*file.pool.device, DeviceBlock(at), &mut block).unwrap();
        if block[0].0[..] == file.expected[3 * BLOCK as usize..][..BLOCK as usize] {
            place = Some(DeviceBlock(at));
        }
    }
    overwrite(&mut file, 3, 1, 1)?;
    block[0].0[100..200].fill(0xdd);
    terrace_media::BlockMedium::write(&*file.pool.device, place.unwrap(), &block).unwrap();
    file.assert_content();
    assert_eq!(file.fs.status()?.tiers[1].devices[0].checksum_errors, 0);
    file.fs.unmount()?;
    file.pool.assert_clean();
    file.fs = file.pool.mount_with(options());
    // The torn cold copy is overwritten in place.
    assert_eq!(down(&file)?.in_place_bytes, BLOCK);
    assert_sound(file)
}

/// No block of the tier is free: the demoted file and a filler have all, summaries lie nowhere any more.
fn full_below() -> FsResult<TrackedFile> {
    let content: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| (at / 5) as u8 ^ (at >> 12) as u8).collect();
    let file = TrackedFile::cold(SimulatedPool::new(2 << 20, 65), options(), &content)?;
    fill_below(&file, 4)?;
    Ok(file)
}

/// Fills the last blocks of the tier.
fn fill_below(file: &TrackedFile, blocks: u64) -> FsResult<()> {
    let filler = file.fs.mknod(ROOT, b"filler", 0o100644, 0, CALLER, W)?.ino;
    file.fs.write(filler, 0, &vec![7; (blocks * BLOCK) as usize], WriteFlags::default(), W)?;
    file.fs.sync_to(1, &mut |_| {})?;
    let tier = &file.fs.status()?.tiers[1];
    assert_eq!(tier.used_bytes, tier.capacity_bytes, "blocks of the tier are free");
    Ok(())
}

/// Hidden cold copies were given up and each block became an extent of its own in their room, whose catalog pages took the
/// share of overwrites: on a full pool an overwrite of 17 blocks got ENOSPC with a share of 50.
#[test]
fn extents_of_a_full_tier_stay_whole_under_dense_overwrites() -> FsResult<()> {
    let mut file = full_below()?;
    let whole = BlockRange::new(FileBlock(0), FileBlock(BLOCKS));
    let places = |file: &TrackedFile| -> FsResult<Vec<_>> {
        let extents = cold_extents(&file.fs.store, file.ino, whole)?;
        Ok(extents.iter().map(|extent| (extent.first, extent.length, extent.start)).collect())
    };
    let extents = places(&file)?;
    for round in 0..3 {
        for block in (round % 2..BLOCKS).step_by(2) {
            overwrite(&mut file, block, 1, (block + 7 * round) as u8)?;
        }
        let done = down(&file)?;
        let moved = (round + 1) * BLOCK * BLOCKS / 2;
        let all = (moved, moved + 4 * BLOCK, 0);
        assert_eq!((done.in_place_bytes, done.demoted_bytes, done.skipped_bytes), all);
        assert_eq!(places(&file)?, extents);
    }
    assert_sound(file)
}

#[test]
fn a_full_tier_gives_hidden_copies_up_after_a_failed_write() -> FsResult<()> {
    let mut file = full_below()?;
    (0..BLOCKS).step_by(2).try_for_each(|block| overwrite(&mut file, block, 1, block as u8))?;
    file.pool.device.fail_next(Operation::Write, 0..65, 5, Times::Count(1));
    let done = down(&file)?;
    assert_eq!((done.in_place_bytes, done.demoted_bytes), (0, BLOCK * (4 + BLOCKS / 2)));
    assert_sound(file)
}

/// Each block becomes an extent of its own where it was laid out.
#[test]
fn scattered_writes_into_an_unwritten_extent_of_a_full_tier_stay_in_place() -> FsResult<()> {
    const LAID_OUT: u64 = 512;
    let large = FormatOptions { chunk_blocks: 512, ..format_options(1) };
    let mut file = TrackedFile::new(SimulatedPool::formatted(32 << 20, 1025, &large), options(), &[])?;
    file.fs.fallocate(file.ino, 0, LAID_OUT * BLOCK, Allocate::Extend, W)?;
    file.expected.resize((LAID_OUT * BLOCK) as usize, 0);
    file.fs.sync_to(1, &mut |_| {})?;
    let free = file.fs.status()?.tiers[1].clone();
    fill_below(&file, (free.capacity_bytes - free.used_bytes) / BLOCK)?;
    for block in (0..LAID_OUT).step_by(2) {
        overwrite(&mut file, block, 1, block as u8)?;
    }
    assert_eq!(down(&file)?.in_place_bytes, LAID_OUT / 2 * BLOCK);
    assert_sound(file)
}

/// A group took a few free blocks below, and its hidden copies became free in turn: each block became an extent of its own.
#[test]
fn extents_of_a_nearly_full_tier_stay_whole_under_dense_overwrites() -> FsResult<()> {
    for free in 1..4 {
        let content: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| (at / 3) as u8 ^ (at >> 12) as u8).collect();
        let mut file = TrackedFile::cold(SimulatedPool::new(2 << 20, 65), options(), &content)?;
        let filler = file.fs.mknod(ROOT, b"filler", 0o100644, 0, CALLER, W)?.ino;
        file.fs.write(filler, 0, &vec![7; ((4 - free) * BLOCK) as usize], WriteFlags::default(), W)?;
        file.fs.sync_to(1, &mut |_| {})?;
        let whole = BlockRange::new(FileBlock(0), FileBlock(BLOCKS));
        let extents = cold_extents(&file.fs.store, file.ino, whole)?.len();
        (0..BLOCKS).step_by(2).try_for_each(|block| overwrite(&mut file, block, 1, block as u8))?;
        assert_eq!(down(&file)?.in_place_bytes, BLOCKS / 2 * BLOCK, "{free} free blocks");
        assert_eq!(cold_extents(&file.fs.store, file.ino, whole)?.len(), extents);
        assert_sound(file)?;
    }
    Ok(())
}

/// The victims of several groups together.
fn all_victims(fs: &Engine) -> FsResult<Vec<Victim>> {
    let mut all = Vec::new();
    while let Victims::Group(victims) = take_victims(&fs.migration, 1000, WORKERS)? {
        all.extend(victims);
    }
    Ok(all)
}

/// Unwritten blocks without room below kept the written blocks of a group in PM.
#[test]
fn unwritten_blocks_without_room_do_not_keep_written_blocks_in_pm() -> FsResult<()> {
    let mut file = full_below()?;
    let laid_out = file.fs.mknod(ROOT, b"laid out", 0o100644, 0, CALLER, W)?.ino;
    file.fs.fallocate(laid_out, 0, 4 * BLOCK, Allocate::Extend, W)?;
    (0..BLOCKS).step_by(2).try_for_each(|block| overwrite(&mut file, block, 1, block as u8))?;
    let victims = all_victims(&file.fs)?;
    assert_eq!(victims.len() as u64, 4 + BLOCKS / 2);
    assert_eq!(demote(&file.fs.store, &victims)?, BLOCKS / 2);
    file.fs.store.pressure.end_group(victims.len());
    assert_eq!(file.fs.status()?.migration.in_place_bytes, BLOCKS / 2 * BLOCK);
    assert_sound(file)
}

/// The error of a failed device hid the freed blocks of a sound device: the waiting writer got EIO.
#[test]
fn a_failed_device_of_full_tiers_does_not_hide_the_freed_blocks() -> FsResult<()> {
    let pool = TwoTierPool::new(2 << 20, 65, 65);
    let fs = pool.mount_with(options());
    let put_down = |name: &[u8], blocks: u64| -> FsResult<_> {
        let ino = fs.mknod(ROOT, name, 0o100644, 0, CALLER, W)?.ino;
        fs.write(ino, 0, &vec![1; (blocks * BLOCK) as usize], WriteFlags::default(), W)?;
        fs.sync_to(1, &mut |_| {})?;
        Ok(ino)
    };
    let upper = put_down(b"upper", BLOCKS)?;
    put_down(b"filler", 4)?;
    let lower = put_down(b"lower", BLOCKS)?;
    put_down(b"filler below", 4)?;
    assert!(fs.status()?.tiers[1..].iter().all(|tier| tier.used_bytes == tier.capacity_bytes));
    for (ino, byte) in [(upper, 2), (lower, 3)] {
        fs.write(ino, 0, &vec![byte; (10 * BLOCK) as usize], WriteFlags::default(), W)?;
    }
    pool.devices[0].fail_next(Operation::Write, 0..65, 5, Times::Forever);
    let victims = all_victims(&fs)?;
    assert_eq!((victims.len(), demote(&fs.store, &victims)?), (20, 10));
    fs.store.pressure.end_group(victims.len());
    pool.devices[0].clear_failures();
    for (ino, byte) in [(upper, 2), (lower, 3)] {
        let mut content = vec![0; (BLOCKS * BLOCK) as usize];
        assert_eq!(fs.read(ino, 0, &mut content, W)?, content.len());
        let (new, old) = content.split_at((10 * BLOCK) as usize);
        assert!(new.iter().all(|found| *found == byte) && old.iter().all(|found| *found == 1));
    }
    fs.unmount()?;
    pool.assert_clean();
    Ok(())
}

/// A search that passes PM in parts gives victims of one part after the other, and a block again that a reader used: an
/// installation out of order, or of a block twice, stopped the write.
#[test]
fn victims_in_any_order_are_written_over_a_laid_out_extent() -> FsResult<()> {
    let mut file = TrackedFile::new(SimulatedPool::new(2 << 20, 65), options(), &[])?;
    file.fs.fallocate(file.ino, 0, BLOCKS * BLOCK, Allocate::Extend, W)?;
    file.expected.resize((BLOCKS * BLOCK) as usize, 0);
    file.fs.sync_to(1, &mut |_| {})?;
    (0..BLOCKS).step_by(3).try_for_each(|block| overwrite(&mut file, block, 1, block as u8))?;
    let mut victims = all_victims(&file.fs)?;
    file.fs.store.pressure.end_group(victims.len());
    victims.reverse();
    victims.extend_from_within(..3);
    assert_eq!(move_to_places(&file.fs.store, &victims)?, BLOCKS / 3);
    assert_sound(file)
}

/// On a full tier a write into a laid-out extent fails while a pin holds the place of a higher block.
#[test]
fn a_refused_block_of_a_laid_out_extent_keeps_its_content() -> FsResult<()> {
    let mut file = TrackedFile::new(SimulatedPool::new(2 << 20, 65), options(), &[])?;
    file.fs.fallocate(file.ino, 0, BLOCKS * BLOCK, Allocate::Extend, W)?;
    file.expected.resize((BLOCKS * BLOCK) as usize, 0);
    file.fs.sync_to(1, &mut |_| {})?;
    let free = file.fs.status()?.tiers[1].clone();
    fill_below(&file, (free.capacity_bytes - free.used_bytes) / BLOCK)?;
    [5, 10, 12].into_iter().try_for_each(|block| overwrite(&mut file, block, 1, block as u8))?;
    let held = cold_extents(&file.fs.store, file.ino, BlockRange::new(FileBlock(10), FileBlock(11)))?;
    let place = held[0].slice(FileBlock(10), FileBlock(11)).map(|slice| DeviceRun::from(&slice));
    let pin = file.fs.store.devices.space().pin_alone(place.unwrap()).unwrap();
    file.pool.device.fail_next(Operation::Write, 0..65, 5, Times::Count(1));
    // The pinned block finds no room.
    assert!(down(&file).is_err());
    drop(pin);
    assert_sound(file)
}

/// A pool that a file of single blocks fills, PM and the tier below.
fn full() -> FsResult<(SimulatedPool, Arc<Engine>, Ino)> {
    let large = FormatOptions { chunk_blocks: 512, ..format_options(1) };
    let pool = SimulatedPool::formatted(4 << 20, 1025, &large);
    let fs = pool.mount_with(options());
    let ino = fs.mknod(ROOT, b"file", 0o100644, 0, CALLER, W)?.ino;
    let mut blocks = 0;
    while fs.write(ino, blocks * BLOCK, &[1; BLOCK as usize], WriteFlags::default(), W).is_ok() {
        blocks += 1;
    }
    assert!(blocks > 1000, "{blocks} blocks");
    Ok((pool, fs, ino))
}

/// While another writer's group had all blocks over hidden copies, an overwrite of a full pool counted its waits, and got ENOSPC
/// after a quarter of a second: a busy disk takes longer.
#[test]
fn an_overwrite_of_a_full_pool_waits_for_the_group_of_another() -> FsResult<()> {
    let overwritten = |fs: &Engine, ino, at: u64| {
        fs.write(ino, at * BLOCK, &[2; BLOCK as usize], WriteFlags::default(), W).map(drop)
    };
    let (pool, fs, ino) = full()?;
    let descriptor = |victim: &Victim| fs.store.persistent.blocks().descriptor(victim.pm);
    let mut hiding = Vec::new();
    let mut share = 0;
    while overwritten(&fs, ino, share).is_ok() {
        // No other overwrite finds the block.
        let (new, others): (Vec<_>, Vec<_>) =
            all_victims(&fs)?.into_iter().partition(|victim| victim.block.0 == share);
        others.iter().for_each(|victim| descriptor(victim).touch_read(0));
        fs.store.pressure.end_group(new.len() + others.len());
        hiding.extend(new);
        share += 1;
    }
    assert!(share > 4 && hiding.len() as u64 == share, "{share} overwrites without room");
    fs.store.pressure.begin_group(hiding.len());
    let writer = {
        let fs = Arc::clone(&fs);
        thread::spawn("writer", move || overwritten(&fs, ino, share)).unwrap()
    };
    SystemClock::default().sleep(Duration::from_millis(1000));
    hiding.iter().for_each(|victim| descriptor(victim).touch_read(0));
    fs.store.pressure.end_group(hiding.len());
    writer.join().unwrap()?;
    fs.unmount()?;
    pool.assert_clean();
    Ok(())
}
