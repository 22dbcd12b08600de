//! The blocks of a removed file leave PM, whether or not the reclaimer gets a processor.

use terrace_engine::{FsResult, MountOptions, Simulation, Wait};
use terrace_testkit::{ROOT, SimulatedPool, create, write};

const W: Wait = Wait::Allowed;
const FILES: usize = 100;
const BLOCKS: usize = 4;

/// When the last reference to a removed file goes.
#[derive(Clone, Copy)]
enum Until {
    /// The kernel knows the inode when its name goes, and forgets it afterwards.
    Forgotten,
    /// The kernel has forgotten the inode before its name goes.
    Unlinked,
    /// The file is open when its name goes, and is closed afterwards.
    Closed,
}

/// Beside sixteen busy threads on one processor the reclaimer got a seventeenth of it: PM filled with removed
/// files, and half of the blocks that migration demoted belonged to removed files.
#[test]
fn a_removing_request_removes_content_when_the_reclaimer_does_not() -> FsResult<()> {
    for known_until in [Until::Forgotten, Until::Unlinked, Until::Closed] {
        let pool = SimulatedPool::new(8 << 20, 4096);
        let fs = pool.mount();
        fs.run_background(100);
        let (free, mut open) = (fs.statfs(W)?.free, Vec::new());
        for number in 0..FILES {
            let name = number.to_string();
            let ino = create(&fs, ROOT, &name);
            write(&fs, ino, 0, &vec![1; BLOCKS * 4096])?;
            match known_until {
                Until::Forgotten => {
                    fs.unlink(ROOT, name.as_bytes(), W)?;
                    fs.forget(ino, 1);
                }
                Until::Unlinked => {
                    fs.forget(ino, 1);
                    fs.unlink(ROOT, name.as_bytes(), W)?;
                }
                Until::Closed => {
                    fs.open(ino, false, true, W)?;
                    fs.forget(ino, 1);
                    fs.unlink(ROOT, name.as_bytes(), W)?;
                    open.push(ino);
                }
            }
        }
        open.into_iter().for_each(|ino| fs.release(ino));
        let waiting = free.saturating_sub(fs.statfs(W)?.free);
        assert!(waiting < (FILES * BLOCKS / 4) as u64, "{waiting} blocks wait");
        fs.run_background(1000);
        fs.unmount()?;
        pool.assert_clean();
    }
    Ok(())
}

/// A rename over a name leaves an orphan too, and the thread of the rename removes its content.
#[test]
fn a_replacing_rename_removes_the_old_content() -> FsResult<()> {
    let pool = SimulatedPool::new(8 << 20, 4096);
    let fs = pool.mount();
    fs.run_background(100);
    let free = fs.statfs(W)?.free;
    for _ in 0..FILES {
        let ino = create(&fs, ROOT, "new");
        write(&fs, ino, 0, &vec![1; BLOCKS * 4096])?;
        fs.forget(ino, 1);
        fs.rename(ROOT, b"new", ROOT, b"old", false, W)?;
    }
    let waiting = free.saturating_sub(fs.statfs(W)?.free);
    assert!(waiting < (FILES * BLOCKS / 4) as u64, "{waiting} blocks wait");
    Ok(())
}

/// A large file is not removed whole in the middle of another request: the request removes a few pieces, the
/// reclaimer the rest.
#[test]
fn a_large_file_is_left_to_the_reclaimer() -> FsResult<()> {
    let pool = SimulatedPool::new(32 << 20, 4096);
    let fs = pool.mount();
    fs.run_background(100);
    let free = fs.statfs(W)?.free;
    let large = create(&fs, ROOT, "large");
    for part in 0..16 {
        write(&fs, large, part << 20, &vec![1; 1 << 20])?;
    }
    fs.unlink(ROOT, b"large", W)?;
    fs.forget(large, 1);
    let after_large = fs.statfs(W)?.free;
    for number in 0..17 {
        let name = number.to_string();
        let ino = create(&fs, ROOT, &name);
        write(&fs, ino, 0, &[1; 4096])?;
        fs.unlink(ROOT, name.as_bytes(), W)?;
        fs.forget(ino, 1);
    }
    let removed = fs.statfs(W)?.free.saturating_sub(after_large);
    assert!(removed > 0, "nobody helped");
    assert!(removed < 2048, "{removed} blocks of 4096 in one request");
    fs.run_background(1000);
    assert!(fs.statfs(W)?.free + 16 >= free);
    fs.unmount()?;
    pool.assert_clean();
    Ok(())
}

/// A crash at any moment while the requests that remove files also remove their content. Each file is there
/// whole or gone, and a file that is gone has given all of its blocks back.
#[test]
fn a_crash_while_requests_remove_content_loses_no_room() -> FsResult<()> {
    const FEW: usize = 40;
    let content = vec![7; 2 * 4096];
    let (mut helped, mut crashes) = (0, 0);
    for seed in 0..80 {
        let pool = SimulatedPool::new(4 << 20, 1025);
        let fs = pool.mount_with(MountOptions::default());
        fs.run_background(1000);
        let free = fs.statfs(W)?.free;
        for number in 0..FEW {
            let ino = create(&fs, ROOT, &number.to_string());
            write(&fs, ino, 0, &content)?;
            fs.fsync(ino, false, W)?;
            fs.forget(ino, 1);
        }
        pool.events.set_crash_at(Some(pool.events.now() + seed * 10));
        for number in 0..FEW {
            fs.unlink(ROOT, number.to_string().as_bytes(), W)?;
        }
        helped += usize::from(fs.statfs(W)?.free + 2 * 20 > free);
        let Some(crashed) = pool.crash_then(seed) else { continue };
        crashes += 1;
        let fs = crashed.mount();
        fs.run_background(10_000);
        let mut left = 0;
        for number in 0..FEW {
            let Ok(found) = fs.lookup(ROOT, number.to_string().as_bytes()) else { continue };
            let mut bytes = vec![0; content.len()];
            assert_eq!(fs.read(found.ino, 0, &mut bytes, W)?, content.len());
            assert_eq!(bytes, content, "file {number}, seed {seed}");
            left += 2;
        }
        // Metadata pages that the files had needed may stay.
        let now = fs.statfs(W)?.free;
        assert!(now + left + 4 >= free, "seed {seed}: {now} of {free} blocks free, {left} in files");
        crashed.assert_clean_after(&fs)?;
    }
    assert!(helped > 40 && crashes > 40, "{helped} helped, {crashes} crashes");
    Ok(())
}
