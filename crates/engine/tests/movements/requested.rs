//! Requested movements between any two of three tiers: with a full target, a failing device, damage, changes
//! meanwhile, and a crash at every moment.

use std::collections::BTreeSet;
use terrace_engine::{
    Allocate, Engine, FsResult, MountOptions, MoveRequest, Movements, PolicyKind, RequestState,
    SetAttributes, Simulation, Wait,
};
use terrace_format::Ino;
use terrace_media::block::{Operation, SimulatedDevice, Times};
use terrace_runtime::Next;
use terrace_testkit::{
    ROOT, TwoTierImages, TwoTierPool, assert_content, bytes_on, create, find, mkdir, pattern, write,
};

const W: Wait = Wait::Allowed;
const BLOCK: u64 = 4096;

/// Every pair of source and target among three tiers, for files and for a whole directory. Content and
/// locations are right afterwards, a file with two hard links moves once, and the pool is sound.
#[test]
fn files_move_between_any_two_of_three_tiers() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let file = create(&fs, ROOT, "file");
    let content = pattern(45 * BLOCK as usize + 100, 1);
    write(&fs, file, 0, &content)?;
    let (outer, other) = (mkdir(&fs, ROOT, "outer"), create(&fs, ROOT, "other"));
    let inner = mkdir(&fs, outer, "inner");
    let mut below = Vec::new();
    for index in 0..70u8 {
        let ino = create(&fs, if index % 2 == 0 { outer } else { inner }, &format!("f{index}"));
        write(&fs, ino, u64::from(index % 3) * BLOCK, &pattern(3000 + 100 * usize::from(index), index))?;
        below.push(ino);
    }
    fs.link(below[0], inner, b"second name", W)?;
    write(&fs, other, 0, &pattern(5000, 9))?;
    let all = 46 * BLOCK;
    for to in [2, 1, 0, 1, 2, 0] {
        pool.migrate_all(&fs, file, to);
        let mut expected = [0; 3];
        expected[usize::from(to)] = all;
        assert_eq!(bytes_on(&fs, file), expected, "to tier {to}");
        assert_content(&fs, file, &content);
        pool.migrate_all(&fs, outer, to);
        for ino in &below {
            let places = bytes_on(&fs, *ino);
            assert_eq!(places.iter().sum::<u64>(), places[usize::from(to)], "{places:?}");
        }
    }
    // The file outside the directory has not moved.
    assert_eq!(bytes_on(&fs, other), [2 * BLOCK, 0, 0]);
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    let fs = pool.mount();
    assert_content(&fs, file, &content);
    for (index, ino) in (0u8..).zip(below) {
        let mut expected = vec![0; usize::from(index % 3) * BLOCK as usize];
        expected.extend(pattern(3000 + 100 * usize::from(index), index));
        assert_content(&fs, ino, &expected);
    }
    Ok(())
}

/// A file that is nearly all hole was counted in ranges of 1 GiB, holes included: 10,000 steps for one block
/// at 5 TiB.
#[test]
fn holes_are_not_counted_piece_by_piece() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let file = create(&fs, ROOT, "file");
    let far = (5 << 40) + 3 * BLOCK;
    for (offset, seed) in [(0, 1), (1 << 40, 2), (far, 3)] {
        write(&fs, file, offset, &pattern(BLOCK as usize, seed))?;
    }
    // The last round drops the clean blocks in PM and relocates their cold copies from tier 1 to tier 2: each
    // block counts once, not twice.
    for to in [2, 1, 0, 2] {
        let job = fs.request_move(file, MoveRequest::Migrate { to })?;
        let ended = |fs: &Engine| fs.request_report(job).is_some_and(|report| report.state.has_ended());
        let steps = (0..100).take_while(|_| !ended(&fs) && fs.request_step() == Next::Again).count();
        let report = fs.request_report(job).unwrap();
        assert_eq!((report.state, report.left_bytes), (RequestState::Done, 0));
        assert_eq!((report.total_bytes, report.done_bytes), (3 * BLOCK, 3 * BLOCK));
        assert!(steps < 40, "{steps}");
        let mut expected = [0; 3];
        expected[usize::from(to)] = 3 * BLOCK;
        assert_eq!(bytes_on(&fs, file), expected, "to tier {to}");
    }
    let mut found = vec![0; BLOCK as usize];
    fs.read(file, far, &mut found, W)?;
    assert_eq!(found, pattern(BLOCK as usize, 3));
    Ok(())
}

/// Holes, preallocated blocks and an end of file inside a block are unchanged by a movement. A block with a
/// newer copy in PM is moved from PM, never from its older cold copy.
#[test]
fn holes_and_preallocated_blocks_move() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let file = create(&fs, ROOT, "file");
    write(&fs, file, 10 * BLOCK, &pattern(3 * BLOCK as usize, 1))?;
    fs.fallocate(file, 0, 5 * BLOCK, Allocate::KeepSize, W)?;
    write(&fs, file, 600 * BLOCK, &pattern(700, 2))?;
    let mut expected = vec![0; 600 * BLOCK as usize + 700];
    expected[10 * BLOCK as usize..13 * BLOCK as usize].copy_from_slice(&pattern(3 * BLOCK as usize, 1));
    expected[600 * BLOCK as usize..].copy_from_slice(&pattern(700, 2));
    for to in [1, 2] {
        pool.migrate_all(&fs, file, to);
        assert_content(&fs, file, &expected);
    }
    write(&fs, file, 11 * BLOCK + 5, b"newer")?;
    expected[11 * BLOCK as usize + 5..][..5].copy_from_slice(b"newer");
    assert_eq!(bytes_on(&fs, file)[0], BLOCK);
    for to in [1, 2, 0] {
        pool.migrate_all(&fs, file, to);
        assert_content(&fs, file, &expected);
    }
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// A dry run reports the bytes that would move, and leaves every block where it is.
#[test]
fn a_dry_run_leaves_every_block_in_place() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let directory = mkdir(&fs, ROOT, "d");
    let (first, second) = (create(&fs, directory, "a"), create(&fs, directory, "b"));
    write(&fs, first, 0, &pattern(8 * BLOCK as usize, 1))?;
    pool.migrate_all(&fs, first, 1);
    write(&fs, second, 0, &pattern(3 * BLOCK as usize, 2))?;
    let plan = fs.plan_move(directory, MoveRequest::Migrate { to: 2 })?;
    assert_eq!((plan.files, plan.move_bytes), (3, 11 * BLOCK));
    assert_eq!(plan.tiers, [(0, 3 * BLOCK), (1, 8 * BLOCK)]);
    assert_eq!(fs.plan_move(directory, MoveRequest::Migrate { to: 1 })?.move_bytes, 3 * BLOCK);
    assert_eq!((bytes_on(&fs, first), bytes_on(&fs, second)), ([0, 8 * BLOCK, 0], [3 * BLOCK, 0, 0]));
    Ok(())
}

/// A tier that does not exist, a read-only mount and a file that vanishes give errors with a reason, and no
/// call hangs.
#[test]
fn an_impossible_movement_fails_with_a_reason() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let file = create(&fs, ROOT, "a");
    write(&fs, file, 0, &pattern(5000, 1))?;
    let errno =
        |fs: &Engine, ino, to| fs.request_move(ino, MoveRequest::Migrate { to }).map_err(|e| e.errno());
    assert_eq!(errno(&fs, file, 3), Err(libc::EINVAL));
    assert_eq!(errno(&fs, Ino(77), 1), Err(libc::ESTALE));
    let id = fs.request_move(file, MoveRequest::Migrate { to: 1 })?;
    fs.forget(file, 1);
    fs.unlink(ROOT, b"a", W)?;
    fs.run_background(100);
    let report = pool.finish(&fs, id);
    assert_eq!(report.state, RequestState::Failed);
    assert!(report.reason.unwrap().contains("vanished"));
    fs.unmount()?;
    drop(fs);
    let fs = pool.mount_with(MountOptions { read_only: true, ..MountOptions::default() });
    assert_eq!(errno(&fs, ROOT, 1), Err(libc::EROFS));
    assert_eq!(fs.plan_move(ROOT, MoveRequest::Migrate { to: 1 }).map_err(|e| e.errno()), Err(libc::EROFS));
    Ok(())
}

/// A tier that becomes full ends the movement. The blocks moved so far stay on the target, the rest at their
/// old locations, and all of the file is readable.
#[test]
fn a_full_tier_ends_the_movement() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 24);
    let fs = pool.mount();
    let file = create(&fs, ROOT, "a");
    let content = pattern(100 * BLOCK as usize, 1);
    write(&fs, file, 0, &content)?;
    for from in [0, 1] {
        pool.migrate_all(&fs, file, from);
        let report = pool.migrate(&fs, file, 2);
        assert_eq!((report.state, report.reason.as_deref()), (RequestState::Failed, Some("tier 2 is full")));
        let places = bytes_on(&fs, file);
        assert!(places[2] > 0 && places[2] <= 23 * BLOCK, "{places:?}");
        assert_eq!(report.done_bytes, places[2]);
        assert_eq!((report.left_bytes, places.iter().sum()), (100 * BLOCK - places[2], 100 * BLOCK));
        assert_content(&fs, file, &content);
    }
    // The way back works, because the space on tier 1 is free again.
    pool.migrate_all(&fs, file, 1);
    assert_eq!(bytes_on(&fs, file), [0, 100 * BLOCK, 0]);
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// A requested promotion fills PM only up to the policy's threshold, so that no later write of a user meets
/// ENOSPC.
#[test]
fn requested_promotion_fills_pm_up_to_the_threshold() -> FsResult<()> {
    let pool = TwoTierPool::new(2 << 20, 2048, 1024);
    let options = || MountOptions { policy: Some(PolicyKind::ANTICACHE), ..MountOptions::default() };
    let fs = pool.mount_with(options());
    let file = create(&fs, ROOT, "a");
    let content = pattern(300 * BLOCK as usize, 1);
    for part in 0..3 {
        write(
            &fs,
            file,
            part * 100 * BLOCK,
            &content[(part * 100 * BLOCK) as usize..][..100 * BLOCK as usize],
        )?;
        pool.migrate_all(&fs, file, 1);
    }
    let other = create(&fs, ROOT, "b");
    write(&fs, other, 0, &pattern(200 * BLOCK as usize, 2))?;
    let report = pool.migrate(&fs, file, 0);
    assert_eq!(report.state, RequestState::Failed);
    assert!(report.reason.unwrap().contains("tier 0 is full"));
    let places = bytes_on(&fs, file);
    assert!(places[0] > 0 && places[1] > 0, "{places:?}");
    assert_content(&fs, file, &content);
    write(&fs, other, 200 * BLOCK, &pattern(50 * BLOCK as usize, 3))?;
    Ok(())
}

/// While a device fails for a moment, the movement waits, with a reason in its report, and goes on. A device
/// that keeps failing ends the movement (M6).
#[test]
fn a_failing_device_is_tried_again_and_then_no_more() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let file = create(&fs, ROOT, "a");
    let content = pattern(60 * BLOCK as usize, 1);
    write(&fs, file, 0, &content)?;
    for (from, operation) in [(0, Operation::Write), (1, Operation::Write), (1, Operation::Flush)] {
        pool.migrate_all(&fs, file, from);
        pool.devices[1].fail_next(operation, 0..u64::MAX, 5, Times::Count(1));
        let id = fs.request_move(file, MoveRequest::Migrate { to: 2 })?;
        let mut waited = false;
        for _ in 0..50 {
            waited |= fs.request_report(id).unwrap().state == RequestState::Waiting;
            if let Next::After(pause) = fs.request_step() {
                pool.clock.advance(pause);
            }
        }
        let report = pool.finish(&fs, id);
        assert!(
            waited && report.state == RequestState::Done && report.left_bytes == 0,
            "{operation:?}: {report:?}"
        );
        assert_content(&fs, file, &content);
    }
    pool.migrate_all(&fs, file, 1);
    pool.devices[1].fail_next(Operation::Write, 0..u64::MAX, 5, Times::Forever);
    let report = pool.migrate(&fs, file, 2);
    assert_eq!((report.state, report.done_bytes), (RequestState::Failed, 0));
    assert!(report.reason.unwrap().contains("tier2"));
    assert_eq!(bytes_on(&fs, file), [0, 60 * BLOCK, 0]);
    assert_content(&fs, file, &content);
    Ok(())
}

/// Blocks that cannot be read, or have a wrong checksum, stay at their locations. All sound blocks move, the
/// report says that the movement failed, and no read returns wrong bytes (I8).
#[test]
fn sound_blocks_move_past_damaged_blocks() -> FsResult<()> {
    for wrong_checksum in [false, true] {
        let mut pool = TwoTierPool::new(4 << 20, 1024, 1024);
        let fs = pool.mount();
        let file = create(&fs, ROOT, "a");
        let content = pattern(30 * BLOCK as usize, 1);
        write(&fs, file, 0, &content)?;
        pool.migrate_all(&fs, file, 1);
        fs.unmount()?;
        drop(fs);
        if wrong_checksum {
            let mut images = pool.images();
            let image = &mut images.devices[0];
            let at = (0..image.blocks()).map(terrace_format::DeviceBlock);
            let at = at.clone().find(|at| image.block(*at).0[..] == content[7 * 4096..8 * 4096]).unwrap();
            let mut block = image.block(at);
            block.0[17] ^= 1;
            image.set_block(at, block);
            pool = TwoTierPool::from_images(images);
        }
        let fs = pool.mount();
        if !wrong_checksum {
            pool.devices[0].fail_next(Operation::Read, 0..u64::MAX, 5, Times::Forever);
        }
        let report = pool.migrate(&fs, file, 2);
        assert_eq!(report.state, RequestState::Failed, "{report:?}");
        let left = if wrong_checksum { 1 } else { 30 };
        assert_eq!(
            (report.left_bytes, bytes_on(&fs, file)),
            (left * BLOCK, [0, left * BLOCK, (30 - left) * BLOCK])
        );
        if wrong_checksum {
            assert!(report.reason.unwrap().contains("CRC"));
            let mut block = [0; 4096];
            assert_eq!(fs.read(file, 7 * BLOCK, &mut block, W).map_err(|e| e.errno()), Err(libc::EIO));
            fs.read(file, 8 * BLOCK, &mut block, W)?;
            assert_eq!(block[..], content[8 * 4096..9 * 4096]);
        }
    }
    Ok(())
}

/// `sync --to 2` moves the blocks of PM and of tier 1 to tier 2, and reports how many bytes are left to move.
#[test]
fn sync_to_a_tier_empties_all_above_it() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let mut files = Vec::new();
    for index in 0..6u8 {
        let ino = create(&fs, ROOT, &format!("f{index}"));
        write(&fs, ino, 0, &pattern(20_000, index))?;
        if index % 3 > 0 {
            pool.migrate_all(&fs, ino, index % 3);
        }
        files.push(ino);
    }
    let mut left = Vec::new();
    fs.sync_to(2, &mut |blocks| left.push(blocks))?;
    assert!(left[0] >= 20 && left.last() == Some(&0), "{left:?}");
    for (index, ino) in (0u8..).zip(&files) {
        assert_eq!(bytes_on(&fs, *ino), [0, 0, 5 * BLOCK]);
        assert_content(&fs, *ino, &pattern(20_000, index));
    }
    // `sync --to 1` leaves blocks of tier 2 on tier 2.
    write(&fs, files[0], 0, &pattern(5000, 77))?;
    fs.sync_to(1, &mut |_| {})?;
    assert_eq!(bytes_on(&fs, files[0]), [0, 2 * BLOCK, 3 * BLOCK]);
    assert_eq!(bytes_on(&fs, files[1]), [0, 0, 5 * BLOCK]);
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// A clean block in PM over a cold copy on tier 1 stayed, with that copy, although `sync --to 2` answered
/// success. A clean block whose cold copy lies on tier 2 may stay: its copy is on the wanted tier.
#[test]
fn sync_to_a_tier_takes_clean_copies_over_faster_ones() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let files: Vec<Ino> = (1..3).map(|tier| create(&fs, ROOT, &format!("f{tier}"))).collect();
    for (tier, ino) in (1..).zip(&files) {
        write(&fs, *ino, 0, &pattern(20_000, tier))?;
        for to in [tier, 0] {
            pool.migrate_all(&fs, *ino, to);
        }
        assert_eq!(bytes_on(&fs, *ino), [5 * BLOCK, 0, 0]);
    }
    assert_eq!(fs.plan_sync_to(2)?.tiers, [(0, 5 * BLOCK), (1, 0)]);
    fs.sync_to(2, &mut |_| {})?;
    assert_eq!(bytes_on(&fs, files[0]), [0, 0, 5 * BLOCK]);
    let [above, between, there] = bytes_on(&fs, files[1]);
    assert_eq!((above + there, between), (5 * BLOCK, 0));
    for (tier, ino) in (1..).zip(&files) {
        assert_content(&fs, *ino, &pattern(20_000, tier));
    }
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// While the tail of a log is demoted, an append keeps the whole last block in PM, older bytes included.
/// `sync --to` did not report these bytes.
#[test]
fn sync_to_a_tier_reports_bytes_written_meanwhile() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let (log, other) = (create(&fs, ROOT, "log"), create(&fs, ROOT, "other"));
    write(&fs, log, 0, &pattern(3000, 1))?;
    write(&fs, other, 0, &pattern(40_000, 2))?;
    assert_eq!(fs.sync_to(1, &mut |_| {})?, 0);
    write(&fs, log, 3000, &pattern(100, 3))?;
    write(&fs, other, 0, &pattern(40_000, 2))?;
    let mut end = 3100;
    let stayed = fs.sync_to(1, &mut |_| {
        write(&fs, log, end, b"more").unwrap();
        end += 4;
    })?;
    assert_eq!(stayed, BLOCK);
    assert_eq!(bytes_on(&fs, log)[0], BLOCK);
    assert_eq!(bytes_on(&fs, other), [0, 10 * BLOCK, 0]);
    assert_eq!(fs.sync_to(1, &mut |_| {})?, 0);
    assert_eq!(bytes_on(&fs, log)[0], 0);
    Ok(())
}

/// `sync --to` a tier with too little room gives ENOSPC, and every file is still whole.
#[test]
fn sync_to_a_full_tier_is_enospc() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 24);
    let fs = pool.mount();
    let file = create(&fs, ROOT, "a");
    write(&fs, file, 0, &pattern(40 * BLOCK as usize, 1))?;
    assert_eq!(fs.sync_to(2, &mut |_| {}).map_err(|error| error.errno()), Err(libc::ENOSPC));
    assert_content(&fs, file, &pattern(40 * BLOCK as usize, 1));
    Ok(())
}

/// The I/O counters of each tier equal the bytes written and moved.
#[test]
fn io_is_counted_by_tier() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let file = create(&fs, ROOT, "a");
    let content = pattern(16 * BLOCK as usize, 1);
    write(&fs, file, 0, &content)?;
    assert_content(&fs, file, &content);
    let report = fs.io_report()?;
    let pm = report.tiers[0].sums;
    assert_eq!((pm.write_bytes, pm.read_bytes), (16 * BLOCK, 16 * BLOCK));
    assert!(pm.writes >= 1 && pm.reads >= 1);
    pool.migrate_all(&fs, file, 1);
    pool.migrate_all(&fs, file, 2);
    assert_content(&fs, file, &content);
    let report = fs.io_report()?;
    let [first, second] = [report.tiers[1].sums, report.tiers[2].sums];
    // Each device got 16 blocks and a group summary; reading also reads ahead.
    assert_eq!((first.write_bytes, first.read_bytes), (17 * BLOCK, 16 * BLOCK));
    assert_eq!((second.write_bytes, second.read_bytes), (17 * BLOCK, 16 * BLOCK));
    assert!(first.flushes >= 1 && second.flushes >= 1);
    assert_eq!((report.demoted_bytes, report.moved_below_bytes), (16 * BLOCK, 16 * BLOCK));
    assert_eq!(report.dram.write_bytes, 16 * BLOCK);
    assert_content(&fs, file, &content);
    assert!(fs.io_report()?.dram.read_bytes > 0);
    Ok(())
}

/// A crash at every persistence event of a movement of each kind, with unfenced stores lost, kept or mixed:
/// after the mount the content is whole, the pool is sound, and the movement can be requested again (I7).
#[test]
fn a_crash_amid_a_movement_leaves_old_or_new_locations() {
    let content = pattern(21 * BLOCK as usize + 9, 1);
    for (from, to) in [(0u8, 2u8), (1, 2), (2, 1), (2, 0)] {
        let base = {
            let pool = TwoTierPool::new(2 << 20, 256, 256);
            let fs = pool.mount();
            let file = create(&fs, ROOT, "a");
            write(&fs, file, 0, &content).unwrap();
            pool.migrate_all(&fs, file, from);
            fs.unmount().unwrap();
            pool.images()
        };
        let run = |crash_at: Option<u64>| {
            let pool = TwoTierPool::from_images(base.clone());
            let fs = pool.mount();
            fs.run_background(100);
            let file = find(&fs, "a");
            let begin = pool.events.now();
            pool.events.set_crash_at(crash_at.map(|event| begin + event));
            pool.migrate_all(&fs, file, to);
            let events = pool.events.now() - begin;
            (pool, events)
        };
        let (_, events) = run(None);
        assert!(events > 10, "{from} to {to}: {events}");
        let mut places = BTreeSet::new();
        // Every third event crashes; the four movements together use all seeds.
        for event in (0..events).step_by(3) {
            let (pool, _) = run(Some(event));
            let pm = pool.pm.take_snapshot().unwrap();
            let devices = pool.devices.each_ref().map(|device| device.take_snapshot().unwrap());
            for seed in 0..4 {
                let pm = match seed {
                    0 => pm.image_oldest(),
                    1 => pm.image_newest(),
                    seed => pm.image_random(seed + event),
                };
                let devices = devices.each_ref().map(|device| match seed {
                    0 => device.image_none(),
                    1 => device.image_all(),
                    seed => device.image_random(seed + event),
                });
                let crashed = TwoTierPool::from_images(TwoTierImages { pm, devices });
                let fs = crashed.mount();
                let file = find(&fs, "a");
                assert_content(&fs, file, &content);
                places.insert(bytes_on(&fs, file));
                fs.run_background(100);
                crashed.migrate_all(&fs, file, to);
                assert_content(&fs, file, &content);
                fs.unmount().unwrap();
                drop(fs);
                crashed.assert_clean();
            }
        }
        let all = 22 * BLOCK;
        let [before, after] = [from, to].map(|tier| {
            let mut places = [0; 3];
            places[usize::from(tier)] = all;
            places
        });
        assert!(places.contains(&before) && places.contains(&after), "{from} to {to}: {places:?}");
    }
}

/// A directory queued for pinning was removed, and its inode number given to a new directory elsewhere: the
/// files of the new directory were pinned. The generation now tells the two apart.
#[test]
fn a_reused_inode_number_is_not_pinned_for_the_removed_directory() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let (inside, outside) = (mkdir(&fs, ROOT, "A"), mkdir(&fs, ROOT, "B"));
    mkdir(&fs, inside, "s1");
    mkdir(&fs, inside, "s2");
    let mut listed = Vec::new();
    fs.readdir(inside, 2, &mut |entry| {
        listed.push((entry.ino, entry.name.clone()));
        true
    })?;
    // The walk reads first the directory that is listed last.
    let [(first, name), (second, _)] = &listed[..] else { panic!("{listed:?}") };
    let (first, second) = (*first, *second);
    let files: Vec<Ino> = (0..200).map(|index| create(&fs, second, &format!("f{index}"))).collect();
    let pinned = |ino| fs.pinned(ino).unwrap() == Some(1);
    let job = fs.request_move(inside, MoveRequest::Pin { tier: 1 })?;
    // The second walk sets the pins, in several pieces.
    while !files.iter().any(|ino| pinned(*ino)) {
        assert_eq!(fs.request_step(), Next::Again);
    }
    assert!(!files.iter().all(|ino| pinned(*ino)) && pinned(first));
    fs.rmdir(inside, name, W)?;
    fs.forget(first, 1);
    let again = (0..100).map(|index| mkdir(&fs, outside, &format!("x{index}"))).find(|ino| *ino == first);
    let other = create(&fs, again.unwrap(), "f");
    let report = pool.finish(&fs, job);
    assert_eq!((report.state, &report.reason), (RequestState::Done, &None));
    assert!(files.iter().all(|ino| pinned(*ino)));
    assert_eq!((fs.pinned(first)?, fs.pinned(other)?), (None, None));
    Ok(())
}

/// An overwritten block that was demoted again, and a relocated block, had a stale page in DRAM: reads went
/// to the device, while the stale page, like the pages of removed files, took the room of a useful one.
#[test]
fn pages_in_dram_outlive_overwrites_and_relocations() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let file = create(&fs, ROOT, "file");
    let mut content = pattern(40 * BLOCK as usize, 1);
    write(&fs, file, 0, &content)?;
    pool.migrate_all(&fs, file, 1);
    assert_content(&fs, file, &content);
    let is_in_dram = |content: &[u8]| {
        let reads = |device: &SimulatedDevice| {
            device.fail_next(Operation::Read, 0..u64::MAX, 5, Times::Forever);
        };
        pool.devices.iter().for_each(|device| reads(device));
        assert_content(&fs, file, content);
        pool.devices.iter().for_each(|device| device.clear_failures());
    };
    is_in_dram(&content);
    pool.migrate_all(&fs, file, 2);
    is_in_dram(&content);
    for (to, first, blocks) in [(1, 3, 9), (2, 20, 1)] {
        let range = (first * BLOCK) as usize..((first + blocks) * BLOCK) as usize;
        content[range.clone()].copy_from_slice(&pattern(range.len(), 7 + first as u8));
        write(&fs, file, first * BLOCK, &content[range])?;
        pool.migrate_all(&fs, file, to);
        assert_eq!(bytes_on(&fs, file)[to as usize], 40 * BLOCK);
        is_in_dram(&content);
    }
    assert_eq!(fs.status()?.dram.cache_bytes, 40 * BLOCK);
    let half = SetAttributes { size: Some(20 * BLOCK), ..Default::default() };
    fs.setattr(file, &half, W)?;
    fs.run_background(1000);
    assert_eq!(fs.status()?.dram.cache_bytes, 20 * BLOCK);
    fs.unlink(ROOT, b"file", W)?;
    fs.forget(file, 1);
    fs.run_background(1000);
    assert_eq!(fs.status()?.dram.cache_bytes, 0);
    pool.assert_clean();
    Ok(())
}
