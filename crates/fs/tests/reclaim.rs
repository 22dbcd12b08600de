//! What is removed leaves PM, whether or not the reclaimer gets a processor.
#![allow(clippy::unwrap_used)]

mod common;

use common::tiers::{create, write};
use common::{Pool, ROOT};
use terrace_fs::{FsResult, Wait};

const W: Wait = Wait::Allowed;
const FILES: usize = 100;
const BLOCKS: usize = 4;

/// When the last that refers to a removed file goes.
#[derive(Clone, Copy)]
enum Until {
    /// The kernel knows it when its name goes.
    Forgotten,
    /// It does not.
    Unlinked,
    /// Somebody has it open then.
    Closed,
}

/// Beside sixteen busy threads on one processor the reclaimer got a seventeenth of it: PM filled with removed files, half of
/// what migration wrote below was one of them.
#[test]
fn who_removes_files_removes_their_content_when_the_reclaimer_does_not() -> FsResult<()> {
    for known_until in [Until::Forgotten, Until::Unlinked, Until::Closed] {
        let pool = Pool::new(8 << 20, 4096);
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

/// What replaces a name by rename leaves an orphan, too.
#[test]
fn who_replaces_files_removes_their_content() -> FsResult<()> {
    let pool = Pool::new(8 << 20, 4096);
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

/// A large file is not removed in the middle of somebody else's request: a piece, and the rest by the reclaimer.
#[test]
fn a_large_file_is_left_to_the_reclaimer() -> FsResult<()> {
    let pool = Pool::new(32 << 20, 4096);
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
