//! Operations at points within lazy writes and their write-back (docs/write-buffer.md).
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use terrace_engine::{
    BufferOptions, Engine, FsResult, LazyAblation, LazyOption, Mappings, MountOptions, PolicyKind,
    Simulation, Wait, WriteFlags,
};
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_runtime::interleave;
use terrace_testkit::{ROOT, SimulatedPool, create, fill, read_all};

const BLOCK: usize = BLOCK_SIZE as usize;

fn mount(pool: &SimulatedPool) -> Arc<Engine> {
    let buffer = BufferOptions { lazy: LazyOption::On, ablation: LazyAblation::Always, ..Default::default() };
    pool.mount_with(MountOptions { buffer, policy: Some(PolicyKind::STATIC), ..MountOptions::default() })
}

fn write(fs: &Engine, ino: Ino, from: u64, bytes: &[u8]) -> FsResult<()> {
    fs.write(ino, from, bytes, WriteFlags::default(), Wait::Allowed).map(drop)
}

/// Begins a mapping when the home of a write's run number `nth` is chosen: the first, or a run behind pages in DRAM.
fn map_amid(fs: &Arc<Engine>, ino: Ino, nth: u32) -> Rc<Cell<u32>> {
    let (amid, chosen) = (Arc::clone(fs), Rc::new(Cell::new(0)));
    let count = Rc::clone(&chosen);
    interleave::set_hook(Some(Rc::new(move |point| {
        if point == "write:chosen" {
            count.set(count.get() + 1);
            if count.get() == nth {
                interleave::set_hook(None);
                amid.begin_mapping(ino, Wait::Allowed).unwrap();
            }
        }
    })));
    chosen
}

#[test]
fn a_write_begun_before_a_mapping_leaves_no_lazy_page() -> FsResult<()> {
    // The write ends with the run: bytes behind it would settle its pages.
    for (nth, blocks) in [(1, 20), (2, 300)] {
        let pool = SimulatedPool::new(4 << 20, 64);
        let fs = mount(&pool);
        let ino = create(&fs, ROOT, "file");
        let bytes = fill(blocks * BLOCK, 7);
        let chosen = map_amid(&fs, ino, nth);
        let mut done = 0;
        while done < bytes.len() {
            done += fs.write(ino, done as u64, &bytes[done..], WriteFlags::default(), Wait::Allowed)?;
        }
        interleave::set_hook(None);
        assert_eq!(chosen.get(), nth, "no mapping was begun");
        assert_eq!(fs.accounts()?.lazy_pages, 0, "run {nth}");
        fs.end_mapping(ino);
        assert!(read_all(&pool.crash_now(1).mount(), ino)? == bytes);
        pool.assert_clean_after(&fs)?;
    }
    Ok(())
}

#[test]
fn a_wait_for_room_holds_no_promise() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 64);
    let buffer = BufferOptions {
        lazy: LazyOption::On,
        ablation: LazyAblation::Always,
        ..BufferOptions::of(8 * BLOCK_SIZE)
    };
    let fs =
        pool.mount_with(MountOptions { buffer, policy: Some(PolicyKind::STATIC), ..MountOptions::default() });
    let ino = create(&fs, ROOT, "file");
    write(&fs, ino, 0, &fill(4 * BLOCK, 1))?;
    write(&fs, ino, 4 * BLOCK_SIZE, &fill(4 * BLOCK, 1))?;
    let (amid, seen) = (Arc::clone(&fs), Rc::new(Cell::new(0)));
    let count = Rc::clone(&seen);
    interleave::set_hook(Some(Rc::new(move |point| {
        if point == "lazy:looked" {
            let accounts = amid.accounts().unwrap();
            assert_eq!(accounts.lazy_pages, accounts.promised_blocks);
            count.set(count.get() + 1);
        }
    })));
    write(&fs, ino, 8 * BLOCK_SIZE, &fill(4 * BLOCK, 2))?;
    interleave::set_hook(None);
    assert!(seen.get() > 0, "no writer waited");
    pool.assert_clean_after(&fs)
}

/// Removes a file at a point of its write-back. The inode and the blocks may go to a new file.
fn remove_amid(fs: &Arc<Engine>, ino: Ino, at: &'static str) {
    let amid = Arc::clone(fs);
    interleave::set_hook(Some(Rc::new(move |point| {
        if point == at {
            interleave::set_hook(None);
            amid.unlink(ROOT, b"file", Wait::Allowed).unwrap();
            amid.forget(ino, 1);
            amid.run_background(1000);
            let next = create(&amid, ROOT, "next");
            write(&amid, next, 0, &fill(20 * BLOCK, 9)).unwrap();
        }
    })));
}

#[test]
fn a_removal_amid_write_back_frees_all_pages_and_blocks() -> FsResult<()> {
    for at in ["lazy:looked", "lazy:streamed"] {
        for is_there in [false, true] {
            let pool = SimulatedPool::new(4 << 20, 64);
            let fs = mount(&pool);
            let ino = create(&fs, ROOT, "file");
            write(&fs, ino, 0, &fill(20 * BLOCK, 1))?;
            if is_there {
                fs.fsync(ino, false, Wait::Allowed)?;
                write(&fs, ino, 100, &fill(10 * BLOCK, 2))?;
            }
            remove_amid(&fs, ino, at);
            fs.fsync(ino, false, Wait::Allowed)?;
            interleave::set_hook(None);
            let accounts = fs.accounts()?;
            // The sync may go on with the new file, if that has got the inode.
            let waiting = accounts.lazy_pages;
            assert!(
                waiting == accounts.promised_blocks && [0, 20].contains(&waiting),
                "{accounts:?} at {at}"
            );
            let next = fs.lookup(ROOT, b"next")?.ino;
            fs.fsync(next, false, Wait::Allowed)?;
            assert!(read_all(&pool.crash_now(1).mount(), next)? == fill(20 * BLOCK, 9), "{at}");
            pool.assert_clean_after(&fs)?;
        }
    }
    Ok(())
}
