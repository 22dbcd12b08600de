//! Mapped files: their writes are eager, after their lazy pages were written back (docs/write-buffer.md).

use std::sync::Arc;
use terrace_engine::{
    BufferOptions, Engine, FsError, FsResult, LazyAblation, LazyOption, Mappings, MountOptions, Simulation,
};
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_store::types::{Wait, WriteFlags};
use terrace_testkit::{ROOT, SimulatedPool, create, fill, read_all};

const BLOCK: usize = BLOCK_SIZE as usize;
const PAGES: WriteFlags = WriteFlags { sync: false, kill_set_id: false, pages: true };

fn mount(pool: &SimulatedPool) -> Arc<Engine> {
    let buffer = BufferOptions { lazy: LazyOption::On, ablation: LazyAblation::Always, ..Default::default() };
    pool.mount_with(MountOptions { buffer, ..MountOptions::default() })
}

fn pool() -> SimulatedPool {
    SimulatedPool::new(4 << 20, 64)
}

/// Writes a byte to two blocks from `block` on; gives the pages that wait afterwards.
fn write(fs: &Engine, ino: Ino, block: u64, byte: u8, flags: WriteFlags) -> FsResult<u64> {
    fs.write(ino, block * BLOCK_SIZE, &fill(2 * BLOCK, byte), flags, Wait::Allowed)?;
    Ok(fs.accounts()?.lazy_pages)
}

#[test]
fn a_page_of_the_kernel_makes_its_file_eager_until_the_last_close() -> FsResult<()> {
    let pool = pool();
    let fs = mount(&pool);
    let (ino, other) = (create(&fs, ROOT, "file"), create(&fs, ROOT, "other"));
    (0..2).try_for_each(|_| fs.open(ino, false, true, Wait::Allowed))?;
    assert_eq!(write(&fs, ino, 0, 1, WriteFlags::default())?, 2);
    let refused = fs.write(ino, 0, &fill(BLOCK, 2), PAGES, Wait::Never);
    assert!(matches!(refused, Err(FsError::WouldBlock)), "{refused:?}: pages wait");
    assert_eq!(write(&fs, ino, 4, 2, PAGES)?, 0, "the lazy pages are in PM as well");
    let after = read_all(&pool.crash_now(1).mount(), ino)?;
    assert!(after[..2 * BLOCK] == fill(2 * BLOCK, 1) && after[4 * BLOCK..] == fill(2 * BLOCK, 2));
    assert_eq!(write(&fs, ino, 0, 3, WriteFlags::default())?, 0, "a write beside the mapping");
    assert_eq!(write(&fs, other, 0, 3, WriteFlags::default())?, 2, "another file");
    fs.release(ino);
    assert_eq!(write(&fs, ino, 6, 4, WriteFlags::default())?, 2, "one descriptor is left");
    fs.release(ino);
    assert_eq!(write(&fs, ino, 8, 5, WriteFlags::default())?, 4, "after the last close");
    pool.assert_clean_after(&fs)
}

#[test]
fn a_mapping_of_a_client_has_the_same_effect_until_it_ends() -> FsResult<()> {
    let pool = pool();
    let fs = mount(&pool);
    let ino = create(&fs, ROOT, "file");
    assert_eq!(write(&fs, ino, 0, 1, WriteFlags::default())?, 2);
    assert!(matches!(fs.begin_mapping(ino, Wait::Never), Err(FsError::WouldBlock)));
    assert_eq!(write(&fs, ino, 0, 2, WriteFlags::default())?, 2, "that mapping was not begun");
    (0..2).try_for_each(|_| fs.begin_mapping(ino, Wait::Allowed))?;
    assert_eq!(fs.accounts()?.lazy_pages, 0);
    assert!(read_all(&pool.crash_now(1).mount(), ino)? == fill(2 * BLOCK, 2));
    fs.end_mapping(ino);
    assert_eq!(write(&fs, ino, 1, 3, WriteFlags::default())?, 0, "one mapping is left");
    fs.end_mapping(ino);
    assert_eq!(write(&fs, ino, 1, 4, WriteFlags::default())?, 2);
    fs.begin_mapping(ino, Wait::Allowed)?;
    fs.unlink(ROOT, b"file", Wait::Allowed)?;
    fs.forget(ino, 1);
    fs.run_background(100);
    assert!(fs.begin_mapping(ROOT, Wait::Allowed).is_err(), "a directory");
    let next = create(&fs, ROOT, "next");
    assert_eq!(write(&fs, next, 0, 5, WriteFlags::default())?, 2, "the next file, maybe of this inode");
    pool.assert_clean_after(&fs)
}
