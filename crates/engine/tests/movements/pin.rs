//! Tier pins: set on existing files, inherited by new ones, invisible to users, kept over a mount. Blocks
//! pinned to PM stay there under pressure and cost no user space; blocks pinned to a lower tier are demoted
//! soon.

use std::time::Duration;
use terrace_engine::{
    Engine, FsResult, MountOptions, MoveRequest, Movements, PolicyKind, RequestState, Simulation, Wait,
    XattrMode,
};
use terrace_format::Ino;
use terrace_runtime::Next;
use terrace_testkit::{
    CALLER, ROOT, TwoTierImages, TwoTierPool, assert_content, bytes_on, create, find, mkdir, pattern, write,
};

const W: Wait = Wait::Allowed;
const BLOCK: u64 = 4096;

fn anticache() -> MountOptions {
    MountOptions {
        policy: Some(PolicyKind::ANTICACHE),
        threshold_percent: Some(50),
        ..MountOptions::default()
    }
}

#[track_caller]
fn pin(pool: &TwoTierPool, fs: &Engine, ino: Ino, tier: u8) {
    let report = pool.finish(fs, fs.request_move(ino, MoveRequest::Pin { tier }).unwrap());
    assert_eq!((report.state, &report.reason), (RequestState::Done, &None), "{report:?}");
}

/// Lets time pass and does all background work, the search for files that are pinned to a lower tier
/// included.
fn later(pool: &TwoTierPool, fs: &std::sync::Arc<Engine>) {
    let mut steps = fs.background_steps();
    for _ in 0..15 {
        pool.clock.advance(Duration::from_millis(200));
        for (step, _) in &mut steps {
            while step.step() == Next::Again {}
        }
        while fs.request_step() == Next::Again {}
    }
}

/// A pin of a directory pins and moves everything in it, and new files inherit it. A rename changes no pin,
/// and unpinning removes every one. All of this holds after a mount.
#[test]
fn pins_are_inherited_and_survive_a_mount() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let outer = mkdir(&fs, ROOT, "outer");
    let inner = mkdir(&fs, outer, "inner");
    let (old, elsewhere) = (create(&fs, inner, "old"), create(&fs, ROOT, "elsewhere"));
    write(&fs, old, 0, &pattern(20_000, 1))?;
    pin(&pool, &fs, outer, 2);
    assert_eq!(bytes_on(&fs, old), [0, 0, 5 * BLOCK]);
    let (directory, new) = (mkdir(&fs, inner, "directory"), create(&fs, inner, "new"));
    let newer = create(&fs, directory, "newer");
    let link = fs.symlink(inner, b"link", b"target", CALLER, W)?.ino;
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    let fs = pool.mount();
    for ino in [outer, inner, old, directory, new, newer] {
        assert_eq!(fs.pinned(ino)?, Some(2), "inode {ino}");
    }
    for ino in [ROOT, elsewhere, link] {
        assert_eq!(fs.pinned(ino)?, None, "inode {ino}");
    }
    assert_eq!(fs.whereabouts(old)?.pinned_tier, Some(2));
    fs.rename(ROOT, b"elsewhere", inner, b"moved in", false, W)?;
    fs.rename(inner, b"new", ROOT, b"moved out", false, W)?;
    assert_eq!((fs.pinned(elsewhere)?, fs.pinned(new)?), (None, Some(2)));
    let report = pool.finish(&fs, fs.request_move(outer, MoveRequest::Unpin)?);
    assert_eq!((report.state, report.files), (RequestState::Done, 6), "{report:?}");
    for ino in [outer, inner, old, directory, newer] {
        assert_eq!(fs.pinned(ino)?, None, "inode {ino}");
    }
    assert_eq!(fs.pinned(create(&fs, inner, "last"))?, None);
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// Users cannot see, read, set or remove a pin.
#[test]
fn pins_are_no_attributes_of_users() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let file = create(&fs, ROOT, "a");
    fs.setxattr(file, b"user.own", b"value", XattrMode::Any, W)?;
    let ctime = fs.getattr(file)?.ctime_ns;
    pin(&pool, &fs, file, 1);
    assert_eq!(fs.pinned(file)?, Some(1));
    assert_eq!(fs.listxattr(file)?, b"user.own\0");
    assert_eq!(fs.getattr(file)?.ctime_ns, ctime);
    let names: [&[u8]; 3] = [b"terrace.pin", b"terrace.swept", b"terrace.other"];
    for name in names {
        assert_eq!(fs.getxattr(file, name).map_err(|error| error.errno()), Err(libc::EOPNOTSUPP));
        let set = fs.setxattr(file, name, &[0], XattrMode::Any, W);
        assert_eq!(set.map_err(|error| error.errno()), Err(libc::EOPNOTSUPP));
        assert_eq!(fs.removexattr(file, name, W).map_err(|error| error.errno()), Err(libc::EOPNOTSUPP));
    }
    assert_eq!((fs.pinned(file)?, fs.listxattr(ROOT)?), (Some(1), Vec::new()));
    Ok(())
}

/// Under pressure the policy demotes every block but the ones pinned to PM; after unpinning it demotes them
/// too.
#[test]
fn blocks_pinned_to_persistent_memory_survive_pressure() -> FsResult<()> {
    let pool = TwoTierPool::new(2 << 20, 4096, 1024);
    let fs = pool.mount_with(anticache());
    let file = create(&fs, ROOT, "pinned");
    let content = pattern(80 * BLOCK as usize, 1);
    write(&fs, file, 0, &content)?;
    pin(&pool, &fs, file, 0);
    let other = create(&fs, ROOT, "other");
    let mixed = || -> FsResult<()> {
        for round in 0..10u8 {
            write(&fs, other, u64::from(round) * 100 * BLOCK, &pattern(100 * BLOCK as usize, round))?;
            later(&pool, &fs);
        }
        Ok(())
    };
    mixed()?;
    assert_eq!(bytes_on(&fs, file), [80 * BLOCK, 0, 0]);
    assert!(bytes_on(&fs, other)[1] > 700 * BLOCK);
    // A requested movement of the pinned file is refused; one of a whole tree passes over it.
    let report = pool.migrate(&fs, file, 1);
    assert!(
        report.state == RequestState::Failed && report.reason.as_ref().unwrap().contains("unpin"),
        "{report:?}"
    );
    let report = pool.migrate(&fs, ROOT, 1);
    assert_eq!((report.state, report.pinned_files), (RequestState::Done, 1));
    assert_eq!(bytes_on(&fs, file), [80 * BLOCK, 0, 0]);
    pool.finish(&fs, fs.request_move(file, MoveRequest::Unpin)?);
    mixed()?;
    assert_eq!(bytes_on(&fs, file)[0], 0);
    assert_content(&fs, file, &content);
    Ok(())
}

/// Pins to PM cover at most half of PM: a pin beyond that is refused with a reason. Writes to a pinned file
/// that grows beyond it succeed, and the excess is demoted (P1, I9). `sync --to` demotes all of the file.
#[test]
fn persistent_memory_full_of_pins_takes_writes() -> FsResult<()> {
    let pool = TwoTierPool::new(2 << 20, 4096, 1024);
    let fs = pool.mount_with(anticache());
    let (big, small) = (create(&fs, ROOT, "big"), create(&fs, ROOT, "small"));
    let total = fs.status()?.tiers[0].capacity_bytes / BLOCK;
    write(&fs, big, 0, &pattern((total * 6 / 10 * BLOCK) as usize, 1))?;
    let id = fs.request_move(big, MoveRequest::Pin { tier: 0 })?;
    let report = pool.finish(&fs, id);
    assert_eq!(report.state, RequestState::Failed);
    assert!(report.reason.unwrap().contains("may take half of it"));
    assert_eq!(fs.pinned(big)?, None);
    assert!(fs.plan_move(big, MoveRequest::Pin { tier: 0 })?.refused.is_some());
    // An empty file may be pinned, and then grows to four times PM.
    pin(&pool, &fs, small, 0);
    let content = pattern((4 * total * BLOCK) as usize, 2);
    for (index, part) in content.chunks(50 * BLOCK as usize).enumerate() {
        write(&fs, small, index as u64 * 50 * BLOCK, part)?;
        if index % 5 == 0 {
            later(&pool, &fs);
        }
    }
    later(&pool, &fs);
    let places = bytes_on(&fs, small);
    assert!(places[1] >= 3 * total * BLOCK, "{places:?} of {total}");
    assert!(places[0] >= total * BLOCK / 3, "{places:?} of {total}");
    assert_content(&fs, small, &content);
    // Writes to other files succeed all the same.
    write(&fs, big, 0, &pattern((total * 6 / 10 * BLOCK) as usize, 3))?;
    fs.sync_to(1, &mut |_| {})?;
    assert_eq!((bytes_on(&fs, small)[0], bytes_on(&fs, big)[0]), (0, 0));
    assert_content(&fs, small, &content);
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// When no other block can be demoted, blocks pinned to PM are: metadata or claims may take the other half of
/// PM, and a pin is never a reason for ENOSPC (I9).
#[test]
fn pinned_blocks_are_demoted_when_no_other_block_can_be() -> FsResult<()> {
    let pool = TwoTierPool::new(2 << 20, 4096, 1024);
    // The policy never reaches the threshold, so demotion begins only when an operation lacks space.
    let fs = pool.mount_with(MountOptions { threshold_percent: Some(99), ..anticache() });
    let file = create(&fs, ROOT, "pinned");
    write(&fs, file, 0, &pattern(150 * BLOCK as usize, 1))?;
    pin(&pool, &fs, file, 0);
    // New names until PM is full: the metadata pages of these names stay in PM.
    let mut names = 0;
    while names < 100_000 {
        match fs.mknod(ROOT, format!("{names:0>200}").as_bytes(), 0o100644, 0, CALLER, W) {
            Ok(_) => names += 1,
            Err(error) => {
                assert_eq!(error.errno(), libc::ENOSPC);
                break;
            }
        }
    }
    let places = bytes_on(&fs, file);
    assert_eq!(places[0], 0, "{places:?} after {names} names");
    assert_content(&fs, file, &pattern(150 * BLOCK as usize, 1));
    Ok(())
}

/// Data written to a file that is pinned to a lower tier goes to PM at first and soon to its tier, after a
/// mount too, and reading does not promote it. If its tier is full the data stays in PM, and writes to other
/// files succeed.
#[test]
fn writes_to_a_file_pinned_to_a_lower_tier_are_demoted_soon() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 40);
    let fs = pool.mount_with(anticache());
    let (file, other) = (create(&fs, ROOT, "a"), create(&fs, ROOT, "b"));
    write(&fs, other, 0, &pattern(20 * BLOCK as usize, 9))?;
    pin(&pool, &fs, file, 2);
    let content = pattern(20 * BLOCK as usize, 1);
    write(&fs, file, 0, &content)?;
    assert_eq!(bytes_on(&fs, file)[0], 20 * BLOCK);
    later(&pool, &fs);
    assert_eq!((bytes_on(&fs, file), bytes_on(&fs, other)), ([0, 0, 20 * BLOCK], [20 * BLOCK, 0, 0]));
    fs.unmount()?;
    drop(fs);
    let options = MountOptions { promote_first_touch: true, ..anticache() };
    let fs = pool.mount_with(options);
    write(&fs, file, 3 * BLOCK, &content[3 * 4096..4 * 4096])?;
    assert_eq!(bytes_on(&fs, file)[0], BLOCK);
    later(&pool, &fs);
    for _ in 0..3 {
        assert_content(&fs, file, &content);
        later(&pool, &fs);
    }
    assert_eq!(bytes_on(&fs, file), [0, 0, 20 * BLOCK]);
    // The tier has 39 usable blocks.
    let more = pattern(60 * BLOCK as usize, 2);
    write(&fs, file, 0, &more)?;
    later(&pool, &fs);
    let places = bytes_on(&fs, file);
    assert!(places[0] > 0 && places.iter().sum::<u64>() == 60 * BLOCK, "{places:?}");
    assert_content(&fs, file, &more);
    write(&fs, other, 0, &pattern(20 * BLOCK as usize, 8))?;
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// A crash while a tree is pinned: each inode is pinned or not, and pinning again completes the tree.
#[test]
fn a_crash_amid_pinning_leaves_whole_pins() {
    let base = {
        let pool = TwoTierPool::new(2 << 20, 256, 256);
        let fs = pool.mount();
        let directory = mkdir(&fs, ROOT, "d");
        for index in 0..4u8 {
            let ino = create(&fs, directory, &format!("f{index}"));
            write(&fs, ino, 0, &pattern(5000, index)).unwrap();
        }
        fs.unmount().unwrap();
        pool.images()
    };
    let run = |crash_at: Option<u64>| {
        let pool = TwoTierPool::from_images(base.clone());
        let fs = pool.mount();
        let begin = pool.events.now();
        pool.events.set_crash_at(crash_at.map(|event| begin + event));
        pin(&pool, &fs, find(&fs, "d"), 1);
        create(&fs, find(&fs, "d"), "new");
        let events = pool.events.now() - begin;
        (pool, events)
    };
    let (_, events) = run(None);
    for event in (0..events).step_by(2) {
        let (pool, _) = run(Some(event));
        let pm = pool.pm.take_snapshot().unwrap().image_random(event);
        let devices =
            pool.devices.each_ref().map(|device| device.take_snapshot().unwrap().image_random(event));
        let crashed = TwoTierPool::from_images(TwoTierImages { pm, devices });
        crashed.mount().unmount().unwrap();
        crashed.assert_clean();
        let fs = crashed.mount();
        let directory = find(&fs, "d");
        for index in 0..4u8 {
            let ino = fs.lookup(directory, format!("f{index}").as_bytes()).unwrap().ino;
            assert!(matches!(fs.pinned(ino).unwrap(), None | Some(1)));
            assert_content(&fs, ino, &pattern(5000, index));
        }
        pin(&crashed, &fs, directory, 1);
        let made = create(&fs, directory, "made later");
        assert_eq!(fs.pinned(made).unwrap(), Some(1));
    }
}

/// Metadata is demoted when data cannot make room. It was also demoted while data could, whenever a worker
/// found no victims because another worker had them, or found pinned blocks only: inode pages and leaves in
/// use were demoted and fetched all the time.
#[test]
fn metadata_stays_while_data_moves() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 2048, 1024);
    let options = MountOptions { threshold_percent: Some(20), ..anticache() };
    let fs = pool.mount_with(options);
    let (kept, other) = (create(&fs, ROOT, "kept"), create(&fs, ROOT, "other"));
    write(&fs, kept, 0, &vec![1; 1 << 20])?;
    pin(&pool, &fs, kept, 0);
    for index in 0..500 {
        fs.forget(create(&fs, ROOT, &format!("file-{index}")), 1);
    }
    write(&fs, other, 0, &vec![2; 1 << 20])?;
    let mut steps = fs.background_steps();
    for _ in 0..20 {
        pool.clock.advance(Duration::from_millis(10));
        for (step, _) in &mut steps {
            step.step();
        }
    }
    assert_eq!(bytes_on(&fs, other), [0, 1 << 20, 0]);
    assert_eq!(fs.status()?.metadata.lowered_pages, 0);
    // No other data can be demoted, and PM is above the threshold.
    drop(steps);
    later(&pool, &fs);
    assert!(fs.status()?.metadata.lowered_pages > 10, "{:?}", fs.status()?.metadata);
    fs.unmount()
}
