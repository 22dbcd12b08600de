//! Movements of blocks between the tiers that ended early, or never.

use super::helpers::{BLOCK, W, ends};
use super::metadata_words::filled;
use std::time::Duration;
use terrace_engine::{
    FsError, FsResult, MetadataMoves, MountOptions, MoveRequest, Movements, RequestState, Simulation,
};
use terrace_media::block::{Operation, Times};
use terrace_testkit::{
    ROOT, SimulatedPool, TwoTierPool, assert_content, bytes_on, create, mkdir, pattern, write,
};

/// Clean PM blocks over a part of a longer cold extent were never dropped: the whole extent was counted and
/// compared with the part. A PM full of such blocks stayed full for ever, and writers looped.
#[test]
fn clean_blocks_over_a_part_of_a_cold_extent_are_dropped() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let options = MountOptions {
        threshold_percent: Some(1),
        promote_first_touch: true,
        prefetch_bytes: 0,
        ..MountOptions::default()
    };
    let fs = pool.mount_with(options);
    let ino = create(&fs, ROOT, "a");
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
    let pool = SimulatedPool::new(2 << 20, 4096);
    let options = MountOptions { threshold_percent: Some(1), ..MountOptions::default() };
    let fs = pool.mount_with(options);
    pool.clock.advance(Duration::from_secs(498 * 24 * 3600));
    fs.run_background(1);
    let ino = create(&fs, ROOT, "a");
    write(&fs, ino, 0, &[7; 40 * 4096])?;
    fs.run_background(100);
    assert!(fs.status()?.migration.demoted_bytes > 0);
    write(&fs, ino, 0, &[8; 40 * 4096])?;
    fs.sync_to(1, &mut |_| {})?;
    assert_eq!(fs.whereabouts(ino)?.tiers[0].1, 0);
    Ok(())
}

/// `terrace sync --to 1` of a pool mounted read-only waited for ever for blocks that may not be moved.
#[test]
fn sync_to_a_tier_of_a_read_only_mount_is_refused() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 1025);
    let fs = pool.mount();
    filled(&fs, "file", 10)?;
    fs.unmount()?;
    let fs = pool.mount_with(MountOptions { read_only: true, ..Default::default() });
    let result = ends("sync", move || fs.sync_to(1, &mut |_| {}));
    assert!(matches!(result, Err(FsError::ReadOnly)), "{result:?}");
    Ok(())
}

/// A requested movement passed over a directory with names on a lower tier, or, after an error in the middle,
/// counted it twice with all of its files.
#[test]
fn a_movement_of_a_directory_counts_each_file_once() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 4096, 4096);
    let fs = pool.mount_with(MountOptions { metadata_moves: MetadataMoves::Always, ..Default::default() });
    let outer = mkdir(&fs, ROOT, "outer");
    let inner = mkdir(&fs, outer, "inner");
    let mut files = Vec::new();
    for index in 0..600u64 {
        let ino = create(&fs, if index % 2 == 0 { outer } else { inner }, &format!("file-{index:04}"));
        if index % 20 == 0 {
            write(&fs, ino, 0, &pattern(BLOCK as usize, index as u8))?;
            files.push((ino, index as u8));
        }
        fs.forget(ino, 1);
    }
    [outer, inner].iter().for_each(|ino| fs.forget(*ino, 1));
    for round in 0..4u64 {
        fs.sync_to(1 + (round % 2) as u8, &mut |_| {})?;
        fs.lower_metadata_now()?;
        let to = 2 - (round % 2) as u8;
        // A read fails once in the middle of the movement.
        for device in &pool.devices {
            device.fail_next(Operation::Read, 0..4096, libc::EIO, Times::OnceAfter(3 * round));
        }
        let report = pool.finish(&fs, fs.request_move(outer, MoveRequest::Migrate { to })?);
        pool.devices.iter().for_each(|device| device.clear_failures());
        assert_eq!((report.state, report.files), (RequestState::Done, 602), "round {round}: {report:?}");
        for (ino, _) in &files {
            assert_eq!(bytes_on(&fs, *ino)[usize::from(to)], BLOCK, "round {round}");
        }
    }
    files.iter().for_each(|(ino, seed)| assert_content(&fs, *ino, &pattern(BLOCK as usize, *seed)));
    Ok(())
}

/// A cold copy under a partial shadow stayed above the tier of a `sync --to`, because the shadow was made
/// during the movement.
#[test]
fn a_cold_copy_under_a_partial_shadow_is_relocated() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
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
