//! Predictors, temperature and thresholds in the file system: on simulated media, by the injected clock.

use std::sync::Arc;
use std::time::Duration;
use terrace_engine::{
    Engine, FsResult, MountOptions, Movements, Parameters, PolicyKind, Simulation, Wait, Whereabouts,
    WriteFlags,
};
use terrace_format::Ino;
use terrace_placement::Home;
use terrace_testkit::{CALLER, ROOT, SimulatedPool, format_options, try_create};

const W: Wait = Wait::Allowed;
const BLOCK: u64 = 4096;

fn write(fs: &Engine, ino: Ino, block: u64, blocks: u64) -> FsResult<()> {
    let data = vec![block as u8 ^ ino.0 as u8; (blocks * BLOCK) as usize];
    fs.write(ino, block * BLOCK, &data, WriteFlags::default(), W)?;
    Ok(())
}

fn read(fs: &Engine, ino: Ino, block: u64, blocks: u64) -> FsResult<()> {
    fs.read(ino, block * BLOCK, &mut vec![0; (blocks * BLOCK) as usize], W)?;
    Ok(())
}

fn mount(pool: &SimulatedPool, parameters: Parameters) -> Arc<Engine> {
    pool.mount_with(MountOptions {
        policy: Some(PolicyKind::PREDICTIVE),
        parameters,
        ..MountOptions::default()
    })
}

/// As [`mount`], but every write has its home in PM.
fn mount_pm_only(pool: &SimulatedPool) -> Arc<Engine> {
    pool.mount_with(MountOptions {
        policy: Some(PolicyKind::PREDICTIVE),
        home: Some(Home::Pm),
        ..MountOptions::default()
    })
}

/// Lets the coarse clock see that the given time has passed, and does a little background work.
fn pass(pool: &SimulatedPool, fs: &Arc<Engine>, time: Duration) {
    pool.clock.advance(time);
    fs.run_background(3);
}

fn in_pm(found: &Whereabouts) -> u64 {
    found.tiers[0].1 / BLOCK
}

#[test]
fn fsync_at_short_intervals_is_predicted_and_tallied() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = mount(&pool, Parameters { sync_blocks: 64, ..Parameters::default() });
    let (log, copy) = (try_create(&fs, "log")?, try_create(&fs, "copy")?);
    for at in 0..8 {
        write(&fs, log, at, 1)?;
        fs.fsync(log, false, W)?;
        write(&fs, copy, at * 16, 16)?;
    }
    let says = |ino| fs.whereabouts(ino).map(|found| found.predictions);
    assert_eq!(says(log)?.sync_predicted, Some(true));
    assert_eq!(says(copy)?.sync_predicted, Some(false));
    let placement = fs.status()?.placement.ok_or(terrace_engine::FsError::Invalid)?;
    let confusion = placement.confusion;
    assert_eq!(placement.writes_seen, 16);
    assert_eq!((confusion.synchronous.synced_bytes, confusion.unjudged.synced_bytes), (7 * BLOCK, BLOCK));
    // The copy begins after the first fsync of the log beside it.
    let unsynced = [confusion.asynchronous, confusion.expected_synchronous].map(|row| row.unsynced_bytes);
    assert_eq!(unsynced, [64 * BLOCK; 2]);
    // An O_SYNC write makes the file synchronous at once.
    fs.write(copy, 0, &[1; 4096], WriteFlags { sync: true, ..WriteFlags::default() }, W)?;
    assert_eq!(says(copy)?.sync_predicted, Some(true));
    Ok(())
}

/// New files beside the unsynced files of a checkout are predicted asynchronous, new files beside synced logs
/// synchronous.
#[test]
fn a_new_file_is_predicted_like_the_files_beside_it() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = mount(&pool, Parameters::default());
    let directory =
        |parent, name: &str| fs.mkdir(parent, name.as_bytes(), 0o755, CALLER, W).map(|made| made.ino);
    let (tree, logs) = (directory(ROOT, "tree")?, directory(ROOT, "logs")?);
    let file = |parent, name: String, sync: bool| -> FsResult<Option<bool>> {
        let ino = fs.mknod(parent, name.as_bytes(), 0o100644, 0, CALLER, W)?.ino;
        let predicted = fs.whereabouts(ino)?.predictions.sync_predicted;
        fs.open(ino, false, true, W)?;
        write(&fs, ino, 0, 2)?;
        if sync {
            fs.fsync(ino, false, W)?;
        }
        fs.release(ino);
        Ok(predicted)
    };
    for number in 0..8 {
        assert_eq!(file(tree, format!("{number}.c"), false)?, Some(number == 0), "{number}");
        assert_eq!(file(logs, format!("{number}.log"), true)?, Some(true), "{number}");
    }
    // A new directory in the tree, and a file of another kind, are predicted like the tree; the prediction
    // for the logs does not change.
    let below = directory(tree, "below")?;
    assert_eq!(file(below, "a.h".into(), false)?, Some(false));
    assert_eq!(file(logs, "b.txt".into(), true)?, Some(true));
    // A file with two openers ends only when both have closed it.
    let other = directory(ROOT, "other")?;
    let shared = fs.mknod(other, b"a.two", 0o100644, 0, CALLER, W)?.ino;
    (0..2).try_for_each(|_| fs.open(shared, false, true, W).map(drop))?;
    write(&fs, shared, 0, 2)?;
    fs.release(shared);
    let next = |name: &str| -> FsResult<Option<bool>> {
        let ino = fs.mknod(other, name.as_bytes(), 0o100644, 0, CALLER, W)?.ino;
        Ok(fs.whereabouts(ino)?.predictions.sync_predicted)
    };
    assert_eq!(next("b.two")?, Some(true));
    fs.release(shared);
    assert_eq!(next("c.two")?, Some(false));
    let placement = fs.status()?.placement.ok_or(terrace_engine::FsError::Invalid)?;
    let (of_tree, of_logs) =
        (placement.confusion.expected_asynchronous, placement.confusion.expected_synchronous);
    assert_eq!((of_tree.synced_bytes, of_logs.synced_bytes), (0, 8 * 2 * BLOCK));
    assert_eq!((of_tree.unsynced_bytes, of_tree.open_bytes), (8 * 2 * BLOCK, 0), "a close decides");
    Ok(())
}

#[test]
fn a_stream_of_large_writes_is_predicted_large() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = mount(&pool, Parameters { sync_blocks: 32, ..Parameters::default() });
    let (copy, log) = (try_create(&fs, "copy")?, try_create(&fs, "log")?);
    let says = |ino| fs.whereabouts(ino).map(|found| found.predictions.large_predicted);
    for at in 0..8 {
        assert_eq!(says(copy)?, Some(at > 5), "{at}");
        write(&fs, copy, at * 16, 16)?;
        write(&fs, log, at, 1)?;
    }
    assert_eq!(says(log)?, Some(false));
    // A small write over the region resets the counter of its write entry.
    write(&fs, copy, 3, 1)?;
    assert_eq!(says(copy)?, Some(false));
    Ok(())
}

#[test]
fn reads_in_a_row_make_a_file_read_dominated_and_a_write_ends_it() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = mount(&pool, Parameters::default());
    let ino = try_create(&fs, "a")?;
    write(&fs, ino, 0, 8)?;
    let says = || fs.whereabouts(ino).map(|found| found.predictions.read_dominated);
    for _ in 0..2 {
        read(&fs, ino, 0, 8)?;
        assert_eq!(says()?, Some(false));
    }
    read(&fs, ino, 5, 1)?;
    assert_eq!(says()?, Some(true));
    write(&fs, ino, 2, 1)?;
    assert_eq!(says()?, Some(false));
    Ok(())
}

#[test]
fn the_write_coldest_files_go_first() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 8192);
    let fs = mount(&pool, Parameters::default());
    let (cold, warm) = (try_create(&fs, "cold")?, try_create(&fs, "warm")?);
    // The write-cold file is read all the time; the write-warm file has the next inode number.
    write(&fs, cold, 0, 200)?;
    pass(&pool, &fs, Duration::from_secs(40));
    write(&fs, warm, 0, 200)?;
    read(&fs, cold, 0, 200)?;
    assert_eq!(fs.whereabouts(cold)?.predictions.temperature, Some("read-hot"));
    assert_eq!(fs.whereabouts(warm)?.predictions.temperature, Some("write-hot"));
    let before = fs.status()?.threshold;
    assert_eq!(before, Some(70));
    // More writes: PM use rises above the threshold that a share of many writes gives.
    let more = try_create(&fs, "more")?;
    write(&fs, more, 0, 256)?;
    pass(&pool, &fs, Duration::from_secs(2));
    fs.run_background(200);
    let (cold_left, warm_left) = (in_pm(&fs.whereabouts(cold)?), in_pm(&fs.whereabouts(warm)?));
    assert!(cold_left < 200, "{cold_left} of 200 blocks left");
    assert_eq!(warm_left, 200);
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

#[test]
fn the_older_part_of_a_lately_written_file_is_demoted() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 8192);
    let fs = mount(&pool, Parameters::default());
    let ino = try_create(&fs, "a")?;
    write(&fs, ino, 0, 350)?;
    pass(&pool, &fs, Duration::from_secs(5));
    write(&fs, ino, 350, 350)?;
    pass(&pool, &fs, Duration::from_secs(1));
    fs.run_background(200);
    assert!(in_pm(&fs.whereabouts(ino)?) < 700);
    let old = fs.whereabouts_in(ino, terrace_engine::BlockRange::new(350.into_block(), 700.into_block()))?;
    assert_eq!(in_pm(&old), 350, "the newer part stays");
    Ok(())
}

trait IntoBlock {
    fn into_block(self) -> terrace_format::FileBlock;
}

impl IntoBlock for u64 {
    fn into_block(self) -> terrace_format::FileBlock {
        terrace_format::FileBlock(self)
    }
}

#[test]
fn without_cold_blocks_the_least_recently_used_are_demoted() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 8192);
    let fs = mount_pm_only(&pool);
    let ino = try_create(&fs, "a")?;
    // Far more data than PM holds, written at one instant of the coarse clock, so that no block is older than
    // the average.
    for at in 0..64 {
        write(&fs, ino, at * 64, 64)?;
    }
    let found = fs.whereabouts(ino)?;
    assert_eq!(found.tiers.iter().map(|(_, bytes)| bytes).sum::<u64>(), 64 * 64 * BLOCK);
    fs.run_background(1000);
    let status = fs.status()?;
    assert_eq!(status.migration.state, "demoting");
    assert!(status.tiers[0].used_bytes * 100 <= status.tiers[0].capacity_bytes * 91, "{status:?}");
    Ok(())
}

#[test]
fn the_threshold_follows_reads_and_writes() -> FsResult<()> {
    let pool = SimulatedPool::new(8 << 20, 8192);
    let fs = mount_pm_only(&pool);
    let ino = try_create(&fs, "a")?;
    let threshold = || fs.status().map(|status| status.threshold);
    pass(&pool, &fs, Duration::from_secs(1));
    assert_eq!(threshold()?, Some(70));
    for _ in 0..16 {
        write(&fs, ino, 0, 256)?;
    }
    pass(&pool, &fs, Duration::from_secs(1));
    assert_eq!(threshold()?, Some(50), "16 MiB written, 1 MiB counts as read");
    for _ in 0..32 {
        read(&fs, ino, 0, 256)?;
    }
    pass(&pool, &fs, Duration::from_secs(1));
    let placement = fs.status()?.placement.ok_or(terrace_engine::FsError::Invalid)?;
    assert_eq!((placement.pm_written_bytes, placement.pm_read_bytes), (14 << 20, 32 << 20));
    assert_eq!(threshold()?, Some(75));
    pass(&pool, &fs, Duration::from_secs(60));
    assert_eq!(threshold()?, Some(70), "long ago");
    Ok(())
}

#[test]
fn a_scan_of_cold_data_leaves_pm_alone() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 8192);
    let fs = mount(&pool, Parameters::default());
    let (cold, hot) = (try_create(&fs, "cold")?, try_create(&fs, "hot")?);
    for at in 0..80 {
        write(&fs, cold, at * 64, 64)?;
        pass(&pool, &fs, Duration::from_millis(10));
    }
    fs.sync_to(1, &mut |_| {})?;
    // The writes are long past, and no longer count as arrivals.
    (0..20).for_each(|_| pass(&pool, &fs, Duration::from_secs(1)));
    for at in 0..20 {
        write(&fs, hot, at * 10, 10)?;
        pass(&pool, &fs, Duration::from_secs(1));
    }
    let (before, hot_before) = (fs.status()?.migration, in_pm(&fs.whereabouts(hot)?));
    assert!(hot_before > 100);
    for at in 0..80 {
        read(&fs, cold, at * 64, 64)?;
        pass(&pool, &fs, Duration::from_millis(10));
    }
    let after = fs.status()?.migration;
    assert_eq!(after.promoted_bytes, before.promoted_bytes, "each block was touched once");
    assert_eq!(after.demoted_bytes, before.demoted_bytes);
    assert_eq!(in_pm(&fs.whereabouts(hot)?), hot_before);
    Ok(())
}

#[test]
fn read_dominated_files_are_promoted_while_pm_idles() -> FsResult<()> {
    let pool = SimulatedPool::new(8 << 20, 8192);
    let fs = mount(&pool, Parameters::default());
    let (often, once) = (try_create(&fs, "often")?, try_create(&fs, "once")?);
    (0..6).try_for_each(|at| write(&fs, often, at * 100, 100))?;
    (0..6).try_for_each(|at| write(&fs, once, at * 100, 100))?;
    fs.sync_to(1, &mut |_| {})?;
    pass(&pool, &fs, Duration::from_secs(30));
    read(&fs, once, 0, 600)?;
    // Each second another part of the file is read from DRAM. The last hundred blocks are never read, so only
    // this promotion brings them into PM.
    let last = terrace_engine::BlockRange::new(500.into_block(), 600.into_block());
    for second in 0..5 {
        (0..4).try_for_each(|_| read(&fs, often, second * 100, 100))?;
        assert_eq!(in_pm(&fs.whereabouts_in(often, last)?), 0);
        pass(&pool, &fs, Duration::from_secs(1));
    }
    assert_eq!(fs.status()?.placement.map(|placement| placement.dataflow_idle), Some("pm"));
    (0..40).for_each(|_| fs.run_background(5));
    assert_eq!(in_pm(&fs.whereabouts_in(often, last)?), 100);
    let found = fs.whereabouts(often)?;
    assert_eq!(in_pm(&found) + found.dram_bytes / BLOCK, 600, "what is in DRAM stays there");
    assert_eq!(in_pm(&fs.whereabouts(once)?), 0);
    Ok(())
}

#[test]
fn read_dominated_files_are_promoted_into_dram_while_dram_idles() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = mount_pm_only(&pool);
    let (often, other) = (try_create(&fs, "often")?, try_create(&fs, "other")?);
    write(&fs, often, 0, 100)?;
    write(&fs, other, 0, 100)?;
    pass(&pool, &fs, Duration::from_secs(1));
    for _ in 0..4 {
        assert_eq!(in_pm(&fs.whereabouts(often)?), 100);
        (0..4).try_for_each(|_| read(&fs, often, 0, 100))?;
        pass(&pool, &fs, Duration::from_secs(1));
    }
    (0..20).for_each(|_| fs.run_background(5));
    let found = fs.whereabouts(often)?;
    assert_eq!((in_pm(&found), found.dram_bytes), (0, 100 * BLOCK), "{:?}", fs.status()?.placement);
    assert_eq!(in_pm(&fs.whereabouts(other)?), 100, "not read");
    let migration = fs.status()?.migration;
    assert_eq!(migration.to_dram_bytes, 100 * BLOCK);
    // The promotion into DRAM starts after four seconds in which DRAM idled.
    assert!(migration.to_dram_first_seconds.is_some_and(|at| (4.0..7.0).contains(&at)), "{migration:?}");
    // Reads of the file in DRAM return the same bytes, and do not promote it into PM.
    let mut content = vec![0; (100 * BLOCK) as usize];
    (0..3).try_for_each(|_| fs.read(often, 0, &mut content, W).map(drop))?;
    assert!(content.iter().all(|byte| *byte == often.0 as u8));
    fs.run_background(20);
    assert_eq!(fs.status()?.migration.promoted_bytes, 0);
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// A benchmark compares the predictors with this mode, in which neither predictors nor temperature observe
/// any access.
#[test]
fn resting_predictors_note_no_access() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = mount(&pool, Parameters::default());
    let ino = try_create(&fs, "a")?;
    // Writes and reads of one block, of several, and a write of a part in place.
    let use_all = |fs: &Engine| -> FsResult<()> {
        write(fs, ino, 0, 1)?;
        write(fs, ino, 1, 3)?;
        fs.write(ino, 100, &[7; 64], WriteFlags::default(), W)?;
        read(fs, ino, 0, 1)?;
        read(fs, ino, 0, 4)
    };
    // Wall times, without the seconds that passed meanwhile.
    let times = |fs: &Engine| -> FsResult<_> {
        let says = fs.whereabouts(ino)?.predictions;
        Ok((says.average_mtime.map(f64::round), says.average_rtime.map(f64::round)))
    };
    let seen = |fs: &Engine| fs.status().map(|status| status.placement.map_or(0, |found| found.writes_seen));
    use_all(&fs)?;
    let (before, writes) = (times(&fs)?, seen(&fs)?);
    assert!(writes == 3 && before.0.is_some() && before.1.is_some());
    pass(&pool, &fs, Duration::from_secs(20));
    fs.let_predictors_rest(true);
    // An overwrite in place: a new block would have no time at all.
    fs.write(ino, 100, &[8; 64], WriteFlags::default(), W)?;
    read(&fs, ino, 0, 1)?;
    read(&fs, ino, 0, 4)?;
    assert_eq!((times(&fs)?, seen(&fs)?), (before, writes));
    write(&fs, ino, 0, 1)?;
    write(&fs, ino, 1, 3)?;
    assert_eq!(seen(&fs)?, writes);
    fs.let_predictors_rest(false);
    use_all(&fs)?;
    let after = times(&fs)?;
    assert_eq!(seen(&fs)?, 2 * writes);
    let later =
        |now: Option<f64>, then: Option<f64>| now.zip(then).is_some_and(|(now, then)| now - then > 15.0);
    assert!(later(after.0, before.0) && later(after.1, before.1), "{before:?} {after:?}");
    Ok(())
}

#[test]
fn static_and_anticache_predict_no_file() -> FsResult<()> {
    for policy in [PolicyKind::STATIC, PolicyKind::ANTICACHE] {
        let pool = SimulatedPool::new(2 << 20, 4096);
        let fs = pool.mount_with(MountOptions { policy: Some(policy), ..MountOptions::default() });
        let ino = try_create(&fs, "a")?;
        write(&fs, ino, 0, 4)?;
        assert!(fs.status()?.placement.is_none());
        let says = fs.whereabouts(ino)?.predictions;
        assert_eq!((says.sync_predicted, says.large_predicted, says.read_dominated), (None, None, None));
    }
    Ok(())
}

#[test]
fn every_policy_of_the_superblock_mounts() -> FsResult<()> {
    for (policy, name) in [
        (PolicyKind::STATIC, "static"),
        (PolicyKind::ANTICACHE, "anticache"),
        (PolicyKind::PREDICTIVE, "predictive"),
        (PolicyKind::WRITE_ONLY, "write-only"),
    ] {
        let pool = SimulatedPool::new(2 << 20, 4096);
        terrace_engine::format(
            &pool.media(),
            &terrace_engine::FormatOptions { policy, ..format_options(1) },
        )?;
        let fs = pool.mount();
        assert_eq!(fs.status()?.policy, name);
        fs.unmount()?;
        drop(fs);
        pool.assert_clean();
    }
    Ok(())
}

/// Mount parameters reach the parts of migration that use them: with the default values every check here
/// would fail.
#[test]
fn mount_parameters_reach_migration_and_change_its_decisions() -> FsResult<()> {
    let pool = SimulatedPool::new(8 << 20, 8192);
    let mut parameters = Parameters { read_times: 5, touches: 3, whole_after_s: 2, ..Parameters::default() };
    parameters.utilisation.even_percent = 40;
    parameters.utilisation.least_percent = 30;
    parameters.dataflow.seconds = 1;
    let fs = mount(&pool, parameters);
    let status = fs.status()?;
    assert_eq!(status.threshold, Some(40));
    let shown = status.parameters;
    assert_eq!(
        (shown.predictors.read_times, shown.predictors.touches, shown.predictors.whole_after_seconds),
        (5, 3, 2)
    );
    assert_eq!(
        (
            shown.threshold.threshold_even_percent,
            shown.threshold.threshold_min_percent,
            shown.flow.dataflow_seconds
        ),
        (40, 30, 1)
    );
    assert_eq!((shown.flow.dataflow_high, shown.flow.dataflow_low), (2.0, 0.5));
    assert_eq!(shown.memory.group_bytes, 15 * BLOCK, "a chunk of this pool without its summary");
    // The dataflow counts seconds from the first background step.
    pass(&pool, &fs, Duration::from_millis(1));
    let ino = try_create(&fs, "a")?;
    write(&fs, ino, 0, 100)?;
    let says = || fs.whereabouts(ino).map(|found| found.predictions);
    (0..5).try_for_each(|_| read(&fs, ino, 0, 100))?;
    assert_eq!(says()?.read_dominated, Some(false));
    read(&fs, ino, 0, 1)?;
    assert_eq!(says()?.read_dominated, Some(true));
    pass(&pool, &fs, Duration::from_secs(1));
    assert_eq!(
        fs.status()?.placement.map(|placement| placement.dataflow_idle),
        Some("dram"),
        "one second is enough"
    );
    // Another file, because the file that is read is promoted into DRAM now.
    let unused = try_create(&fs, "c")?;
    write(&fs, unused, 0, 10)?;
    pass(&pool, &fs, Duration::from_secs(2));
    assert_eq!(fs.whereabouts(unused)?.predictions.temperature, Some("cold"));
    // The second touch of a cold block leaves it on its tier, the third promotes it.
    let other = try_create(&fs, "b")?;
    write(&fs, other, 0, 10)?;
    fs.sync_to(1, &mut |_| {})?;
    for up in [0, 0, 10] {
        read(&fs, other, 0, 10)?;
        fs.run_background(5);
        assert_eq!(in_pm(&fs.whereabouts(other)?), up);
    }
    drop(fs);
    parameters.utilisation.most_percent = 20;
    let options = MountOptions { parameters, ..MountOptions::default() };
    let superblock =
        terrace_engine::read_superblock(&*pool.pm, true).map_err(|_| terrace_engine::FsError::Invalid)?.0;
    let refused = Engine::mount(pool.media(), superblock, options, pool.clock.clone()).err();
    assert!(
        refused.is_some_and(|error| error.to_string().contains("threshold_min=30 is above threshold_max=20"))
    );
    Ok(())
}

/// While half of PM is free, large writes have their home in PM, and later ones in DRAM. Under the published
/// policy all of them go to DRAM.
#[test]
fn large_writes_stay_in_pm_while_half_of_it_is_free() -> FsResult<()> {
    let below_of = |large_pm_percent| -> FsResult<u64> {
        let pool = SimulatedPool::new(4 << 20, 4096);
        let parameters = Parameters {
            sync_blocks: 32,
            large_after: 1,
            large_pm_percent: Some(large_pm_percent),
            ..Parameters::default()
        };
        let fs = mount(&pool, parameters);
        let copy = try_create(&fs, "copy")?;
        (0..48).try_for_each(|at| write(&fs, copy, at * 16, 16))?;
        let status = fs.status()?;
        assert_eq!(status.parameters.predictors.large_pm_percent, large_pm_percent);
        Ok(status.placement.map_or(0, |placement| placement.block_home_bytes) >> 16)
    };
    // The copy has 48 writes of 64 KiB; half of 4 MiB holds 32 of them, less the metadata of the pool.
    let (here, published) = (below_of(50)?, below_of(0)?);
    assert!((17..30).contains(&here), "{here}");
    assert!(published >= 44, "{published}");
    Ok(())
}

/// Just after a mount, before the scan had read the whole block table, PM counted as full, and large writes
/// had their home in DRAM.
#[test]
fn pm_counts_as_free_before_the_scan_after_a_mount() -> FsResult<()> {
    let pool = SimulatedPool::new(64 << 20, 4096);
    let fs = mount(&pool, Parameters { sync_blocks: 32, large_after: 1, ..Parameters::default() });
    let copy = try_create(&fs, "copy")?;
    (0..48).try_for_each(|at| write(&fs, copy, at * 16, 16))?;
    let below = fs.status()?.placement.map_or(0, |placement| placement.block_home_bytes);
    assert_eq!(below, 0, "of 3 MiB");
    Ok(())
}
