//! Lazy writes in `terrace status`, in `terrace where`, and in the flow of data into PM.

use std::sync::Arc;
use terrace_engine::{
    Allocate, BufferOptions, Engine, FsResult, LazyAblation, LazyOption, MountOptions, SetAttributes,
    Simulation,
};
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_store::types::{Wait, WriteFlags};
use terrace_testkit::{ROOT, SimulatedPool, create, fill};

const BLOCK: usize = BLOCK_SIZE as usize;

fn mount(pool: &SimulatedPool, ablation: LazyAblation) -> Arc<Engine> {
    let buffer = BufferOptions { lazy: LazyOption::On, ablation, ..Default::default() };
    pool.mount_with(MountOptions { buffer, ..MountOptions::default() })
}

fn pool() -> SimulatedPool {
    SimulatedPool::new(4 << 20, 64)
}

fn write(fs: &Engine, ino: Ino, from: usize, length: usize) -> FsResult<()> {
    fs.write(ino, from as u64, &fill(length, 7), WriteFlags::default(), Wait::Allowed).map(drop)
}

#[test]
fn status_counts_hits_merged_lines_and_bytes_of_dead_files() -> FsResult<()> {
    let pool = pool();
    let fs = mount(&pool, LazyAblation::Always);
    let ino = create(&fs, ROOT, "file");
    let lazy = || fs.status().map(|status| status.dram.lazy);
    assert_eq!((lazy()?.hit_ratio, lazy()?.agreement), (None, None));
    write(&fs, ino, 0, BLOCK)?;
    // Lines 1 to 3 wait already; appended lines do not.
    write(&fs, ino, 64, 3 * 64)?;
    write(&fs, ino, BLOCK, 64)?;
    write(&fs, ino, BLOCK + 64, 64)?;
    let now = lazy()?;
    assert_eq!((now.page_hits, now.page_misses, now.hit_ratio), (2, 2, Some(0.5)));
    assert_eq!((now.merged_lines, now.dead_bytes), (3, 0));
    fs.fallocate(ino, BLOCK_SIZE, BLOCK_SIZE, Allocate::PunchHole, Wait::Allowed)?;
    assert_eq!(lazy()?.dead_bytes, 128, "a punched hole");
    fs.setattr(ino, &SetAttributes { size: Some(0), ..Default::default() }, Wait::Allowed)?;
    assert_eq!(lazy()?.dead_bytes, 128 + BLOCK_SIZE, "a truncation");
    write(&fs, ino, 0, BLOCK)?;
    fs.fsync(ino, false, Wait::Allowed)?;
    assert_eq!(lazy()?.dead_bytes, 128 + BLOCK_SIZE, "what a sync writes back is not dead");
    write(&fs, ino, 0, 10)?;
    fs.unlink(ROOT, b"file", Wait::Allowed)?;
    fs.forget(ino, 1);
    fs.run_background(100);
    assert_eq!(lazy()?.dead_bytes, 128 + BLOCK_SIZE + 64, "a removal");
    pool.assert_clean_after(&fs)
}

#[test]
fn status_tells_lines_copied_twice_and_how_often_choices_agree() -> FsResult<()> {
    let pool = pool();
    let fs = mount(&pool, LazyAblation::Published);
    let ino = create(&fs, ROOT, "file");
    let lazy = || fs.status().map(|status| status.dram.lazy);
    let write_and_sync = |times: usize| -> FsResult<()> {
        (0..times).try_for_each(|_| write(&fs, ino, 0, BLOCK))?;
        fs.fsync(ino, false, Wait::Allowed)
    };
    // Written once for each sync: by way of DRAM the first time, directly from then on.
    write_and_sync(1)?;
    let first = lazy()?;
    assert_eq!((first.lines_copied_twice, first.made_again, first.agreement), (64, 0, None));
    write_and_sync(1)?;
    write_and_sync(5)?;
    let now = lazy()?;
    assert_eq!(now.lines_copied_twice, 64, "an eager write is copied once");
    assert_eq!((now.made_again, now.agreed, now.agreement), (2, 1, Some(0.5)));
    Ok(())
}

#[test]
fn where_tells_the_eager_blocks_of_a_file() -> FsResult<()> {
    let pool = pool();
    let fs = mount(&pool, LazyAblation::Published);
    let ino = create(&fs, ROOT, "file");
    write(&fs, ino, 0, 3 * BLOCK)?;
    let of = |fs: &Engine| fs.whereabouts(ino).map(|found| (found.judged_blocks, found.eager_blocks));
    assert_eq!((of(&fs)?, fs.whereabouts(ino)?.dirty_bytes), ((0, 0), 3 * BLOCK_SIZE));
    (0..5).try_for_each(|_| write(&fs, ino, BLOCK, BLOCK))?;
    fs.fsync(ino, false, Wait::Allowed)?;
    assert_eq!((of(&fs)?, fs.whereabouts(ino)?.dirty_bytes), ((3, 2), 0));
    Ok(())
}

#[test]
fn the_flow_into_pm_counts_lazy_bytes_at_write_back() -> FsResult<()> {
    let pool = pool();
    let fs = mount(&pool, LazyAblation::Always);
    let ino = create(&fs, ROOT, "file");
    let flow = || fs.store.steering.data_flows().total().pm_written;
    let to_pm = || fs.io_report().unwrap().tiers[0].sums.write_bytes;
    let before = to_pm();
    write(&fs, ino, 0, 2 * BLOCK)?;
    write(&fs, ino, 0, 2 * BLOCK)?;
    assert_eq!((flow(), to_pm()), (0, before), "nothing reached PM");
    assert_eq!(fs.store.steering.data_flows().steered().0, 2, "the predictors learn from each write");
    fs.fsync(ino, false, Wait::Allowed)?;
    assert_eq!((flow(), to_pm() - before), (2 * BLOCK_SIZE, 2 * BLOCK_SIZE), "new blocks");
    write(&fs, ino, 100, 10)?;
    fs.fsync(ino, false, Wait::Allowed)?;
    assert_eq!((flow(), to_pm() - before), (2 * BLOCK_SIZE + 64, 2 * BLOCK_SIZE + 64), "a line in place");
    let sync = WriteFlags { sync: true, ..WriteFlags::default() };
    write(&fs, ino, BLOCK, 64)?;
    fs.write(ino, BLOCK_SIZE + 128, &fill(64, 9), sync, Wait::Allowed)?;
    assert_eq!(flow(), 2 * BLOCK_SIZE + 64 + 128, "a direct write and the line that it takes along");
    write(&fs, ino, 0, BLOCK)?;
    fs.setattr(ino, &SetAttributes { size: Some(0), ..Default::default() }, Wait::Allowed)?;
    assert_eq!(flow(), 2 * BLOCK_SIZE + 64 + 128, "dropped bytes never reach PM");
    Ok(())
}

#[test]
fn status_tells_why_writes_do_not_wait() -> FsResult<()> {
    let pool = pool();
    for (bytes, lazy, read_only, reason) in [
        (4095, LazyOption::Auto, false, "the buffer has no page"),
        (4095, LazyOption::On, false, "the buffer has no page"),
        (1 << 20, LazyOption::Auto, true, "the mount is read-only"),
        (1 << 20, LazyOption::Off, true, "as the mount option lazy says"),
    ] {
        let buffer = BufferOptions { lazy, ..BufferOptions::of(bytes) };
        let fs = pool.mount_with(MountOptions { buffer, read_only, ..MountOptions::default() });
        let lazy = fs.status()?.dram.lazy;
        assert_eq!((lazy.on, lazy.reason), (false, reason));
        fs.unmount()?;
    }
    Ok(())
}
