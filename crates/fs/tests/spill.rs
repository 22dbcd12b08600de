//! A lower tier that is nearly full gives its coldest files to the next one by itself: on simulated media, by hand.
#![allow(clippy::unwrap_used)]

mod common;

use common::ROOT;
use common::tiers::*;
use std::sync::Arc;
use std::time::Duration;
use terrace_format::Ino;
use terrace_fs::{Fs, FsResult, HandMove, MountOptions, PolicyKind};
use terrace_runtime::{Clock, Next};

const BLOCK: u64 = 4096;
const FILES: u8 = 10;

fn options(policy: PolicyKind) -> MountOptions {
    MountOptions { policy: Some(policy), ..MountOptions::default() }
}

/// Ten files of 24 blocks on a tier of 255, each used later than the one before; then one more, which is too much.
fn filled(second: u64, policy: PolicyKind) -> FsResult<(Tiers, Arc<Fs>, Vec<Ino>)> {
    let pool = Tiers::new(4 << 20, 256, second);
    let fs = pool.mount_with(options(policy));
    if second < 100 {
        // Takes all of it.
        let other = create(&fs, ROOT, "other");
        write(&fs, other, 0, &vec![3; (second - 1) as usize * BLOCK as usize])?;
        pool.migrate_all(&fs, other, 2);
    }
    let mut files = Vec::new();
    for index in 0..FILES {
        let ino = create(&fs, ROOT, &format!("f{index}"));
        write(&fs, ino, 0, &content(index))?;
        files.push(ino);
        pool.clock.sleep(Duration::from_secs(60));
    }
    fs.sync_to(1, &mut |_| {})?;
    pass(&pool, &fs, 5);
    assert_eq!(below(&fs, &files), vec![[24, 0]; FILES.into()], "there was room");
    let last = create(&fs, ROOT, "last");
    write(&fs, last, 0, &vec![1; 6 * BLOCK as usize])?;
    fs.sync_to(1, &mut |_| {})?;
    Ok((pool, fs, files))
}

fn content(index: u8) -> Vec<u8> {
    pattern(24 * BLOCK as usize, index)
}

/// Blocks of files on tiers 1 and 2.
fn below(fs: &Fs, files: &[Ino]) -> Vec<[u64; 2]> {
    files.iter().map(|ino| bytes_on(fs, *ino)).map(|[_, one, two]| [one / BLOCK, two / BLOCK]).collect()
}

/// Lets background work run to its rest, and seconds pass, so often.
fn pass(pool: &Tiers, fs: &Arc<Fs>, seconds: u32) {
    for _ in 0..seconds {
        for _ in 0..200 {
            if fs.hand_step() != Next::Again {
                break;
            }
        }
        pool.clock.sleep(Duration::from_secs(1));
    }
}

#[test]
fn the_files_used_longest_ago_leave_a_tier_that_is_nearly_full() -> FsResult<()> {
    let (pool, fs, files) = filled(1024, PolicyKind::Predictive)?;
    // The first one was used again; the second is to stay.
    pool.clock.sleep(Duration::from_secs(60));
    fs.write(files[0], 0, &content(0)[..1], Default::default(), terrace_fs::Wait::Allowed)?;
    let pin = fs.move_by_hand(files[1], HandMove::Pin { tier: 1 })?;
    pool.finish(&fs, pin);
    pass(&pool, &fs, 5);
    // 17 blocks are enough to have 229 left.
    let places = below(&fs, &files);
    assert_eq!((places[1], places[2].iter().sum::<u64>(), places[3]), ([24, 0], 24, [24, 0]), "{places:?}");
    assert!(places[2][1] >= 17, "{places:?}");
    let report = fs.status()?.migration;
    // What had gone down before the pin came back.
    assert!(report.moved_below_bytes >= places[2][1] * BLOCK && report.reason.is_none(), "{report:?}");
    for (index, ino) in (0..).zip(&files) {
        assert_content(&fs, *ino, &content(index));
    }
    // It comes to rest.
    pass(&pool, &fs, 5);
    assert_eq!(below(&fs, &files), places);
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// The next tier is full: a reason, a pause, and the next attempt when there is room.
#[test]
fn a_full_target_is_a_reason_and_not_a_loop() -> FsResult<()> {
    let (pool, fs, files) = filled(17, PolicyKind::Predictive)?;
    pass(&pool, &fs, 2);
    let reason = fs.status()?.migration.reason.unwrap_or_default();
    assert!(reason.contains("nearly full"), "{reason}");
    let written = pool.devices[1].counters().writes;
    for _ in 0..100 {
        assert_ne!(fs.hand_step(), Next::Again, "it spins");
    }
    assert_eq!(pool.devices[1].counters().writes, written);
    let other = fs.lookup(ROOT, b"other")?.ino;
    fs.unlink(ROOT, b"other", terrace_fs::Wait::Allowed)?;
    fs.forget(other, 2);
    fs.run_background(100);
    pass(&pool, &fs, 30);
    assert!(below(&fs, &files)[0][1] > 0, "{:?}", below(&fs, &files));
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

#[test]
fn a_policy_that_never_demotes_moves_nothing_here_either() -> FsResult<()> {
    let (pool, fs, files) = filled(1024, PolicyKind::Static)?;
    pass(&pool, &fs, 5);
    assert_eq!(below(&fs, &files), vec![[24, 0]; FILES.into()]);
    Ok(())
}
