//! Bad input for lazy writes: jumps of the clock, and thousands of files with one dirty line.

use std::sync::Arc;
use std::time::Duration;
use terrace_engine::{
    BufferOptions, Engine, FsResult, LazyAblation, LazyOption, MountOptions, PolicyKind, Simulation,
};
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_store::types::{Wait, WriteFlags};
use terrace_testkit::{ROOT, SimulatedPool, create, fill, mkdir, read_all};

const BLOCK: usize = BLOCK_SIZE as usize;

fn mount(pool: &SimulatedPool, buffer: BufferOptions) -> Arc<Engine> {
    let buffer = BufferOptions { lazy: LazyOption::On, ablation: LazyAblation::Always, ..buffer };
    pool.mount_with(MountOptions { buffer, policy: Some(PolicyKind::STATIC), ..MountOptions::default() })
}

fn write(fs: &Engine, ino: Ino, from: u64, bytes: &[u8]) -> FsResult<()> {
    fs.write(ino, from, bytes, WriteFlags::default(), Wait::Allowed).map(drop)
}

#[test]
fn a_jump_of_the_clock_ages_lazy_pages() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 64);
    let buffer = BufferOptions { age: Duration::from_secs(3600), ..BufferOptions::default() };
    let fs = mount(&pool, buffer);
    let ino = create(&fs, ROOT, "file");
    let day = Duration::from_secs(86_400);
    let jumps = [Duration::ZERO, Duration::from_secs(60), day, 3650 * day, Duration::from_nanos(1)];
    let mut expected = vec![0; BLOCK];
    for (round, jump) in jumps.into_iter().enumerate() {
        let byte = 1 + round as u8;
        expected[round * 64..][..64].fill(byte);
        write(&fs, ino, round as u64 * 64, &fill(64, byte))?;
        pool.clock.advance(jump);
        fs.run_background(1000);
        let waits = fs.accounts()?.lazy_pages;
        assert_eq!(waits, u64::from(jump < Duration::from_secs(3595)), "after {jump:?}");
        fs.fsync(ino, false, Wait::Allowed)?;
        let durable = read_all(&pool.crash_now(round as u64).mount(), ino)?;
        assert_eq!(durable, expected[..durable.len()]);
        assert_eq!(durable.len(), (round + 1) * 64);
    }
    pool.assert_clean_after(&fs)
}

/// `TERRACE_LAZY_FILES=1000000` takes a million files, and 10 GiB of memory.
#[test]
#[allow(clippy::disallowed_methods)]
fn many_files_with_a_lazy_line_each_take_bounded_memory() -> FsResult<()> {
    let wanted = std::env::var("TERRACE_LAZY_FILES").ok().and_then(|count| count.parse().ok());
    let count: u64 = wanted.unwrap_or(20_000);
    let pool = SimulatedPool::new(count << 13, 64);
    let buffer = BufferOptions { bytes: 1024 * BLOCK_SIZE, ..BufferOptions::default() };
    let fs = mount(&pool, buffer);
    let mut files = Vec::new();
    for number in 0..count {
        // Directories of 200 files.
        let directory = if number.is_multiple_of(200) {
            mkdir(&fs, ROOT, &format!("{}", number / 200))
        } else {
            files.last().map_or(ROOT, |(directory, _)| *directory)
        };
        let ino = create(&fs, directory, &format!("{number}"));
        write(&fs, ino, 0, &number.to_le_bytes())?;
        files.push((directory, ino));
        if number.is_multiple_of(64) {
            fs.run_background(10);
        }
        let cache = fs.store.dram.cache();
        let (pages, states) = (cache.dirty_pages(), cache.sync_states());
        // States of blocks with a page do not count when others are added.
        let most = 512 + 1024;
        assert!(pages <= 1024 && states <= most, "{pages} pages, {states} states after {number} files");
        assert!(
            cache.indexed_files() as u64 <= pages + states,
            "{} files in the index",
            cache.indexed_files()
        );
        assert!(fs.store.dram.volatile_sizes().files().len() as u64 <= pages);
    }
    assert!(fs.accounts()?.lazy_pages > 0);
    fs.sync()?;
    let cache = fs.store.dram.cache();
    assert_eq!((cache.dirty_pages(), fs.store.dram.volatile_sizes().files().len()), (0, 0));
    let mut found = [0; 8];
    for (number, (_, ino)) in files.iter().enumerate() {
        fs.read(*ino, 0, &mut found, Wait::Allowed)?;
        assert_eq!(found, (number as u64).to_le_bytes());
    }
    for (number, (directory, ino)) in files.iter().enumerate() {
        fs.unlink(*directory, format!("{number}").as_bytes(), Wait::Allowed)?;
        fs.forget(*ino, 1);
    }
    fs.run_background(100_000);
    // States of removed files go when there are too many.
    let (files, states) = (fs.store.dram.cache().indexed_files() as u64, fs.store.dram.cache().sync_states());
    assert!(files <= states && states <= 512 + 1024, "{files} files and {states} states are left");
    pool.assert_clean_after(&fs)
}

#[test]
fn lazy_pages_hold_promises_of_at_most_half_of_pm() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let buffer = BufferOptions { lazy: LazyOption::On, ..BufferOptions::of(64 << 20) };
    let fs = pool.mount_with(MountOptions { buffer, ..MountOptions::default() });
    let ino = create(&fs, ROOT, "file");
    let (blocks, written) = (1024, 640);
    let limit = fs.store.dram.write_back().lazy_limit_pages;
    assert!(limit <= blocks / 2, "{limit} lazy pages in front of {blocks} blocks");
    let mut is_drained = false;
    for block in 0..written {
        fs.write(ino, block * BLOCK_SIZE, &fill(BLOCK, 1), WriteFlags::default(), Wait::Allowed)?;
        let lazy = fs.accounts()?.lazy_pages;
        assert!(lazy <= limit, "{lazy} lazy pages after {block} blocks of {blocks}");
        if !is_drained && lazy * 100 > limit * 95 {
            // The marks of write-back hold for this limit, long before the buffer is full.
            fs.run_background(1_000);
            assert!(fs.accounts()?.lazy_pages * 100 <= limit * 80, "{} pages", fs.accounts()?.lazy_pages);
            is_drained = true;
        }
    }
    assert!(is_drained);
    fs.sync()?;
    assert_eq!(read_all(&fs, ino)?.len() as u64, written * BLOCK_SIZE);
    pool.assert_clean_after(&fs)
}

#[test]
fn a_lazy_write_waits_for_room_only_where_it_may() -> FsResult<()> {
    for (ablation, wait, is_lazy) in [
        (LazyAblation::Nothing, Wait::Allowed, true),
        (LazyAblation::Nothing, Wait::Never, false),
        (LazyAblation::PastFull, Wait::Allowed, false),
    ] {
        let pool = SimulatedPool::new(4 << 20, 64);
        let buffer = BufferOptions { lazy: LazyOption::On, ablation, ..BufferOptions::of(8 * BLOCK_SIZE) };
        let policy = Some(PolicyKind::STATIC);
        let fs = pool.mount_with(MountOptions { buffer, policy, ..MountOptions::default() });
        let (full, other) = (create(&fs, ROOT, "full"), create(&fs, ROOT, "other"));
        (0..8).try_for_each(|block| write(&fs, full, block * BLOCK_SIZE, &fill(BLOCK, 1)))?;
        assert_eq!(fs.accounts()?.lazy_pages, 8);
        fs.write(other, 0, &fill(BLOCK, 2), WriteFlags::default(), wait)?;
        assert_eq!(fs.whereabouts(other)?.dirty_bytes > 0, is_lazy, "{ablation:?} {wait:?}");
        assert!(fs.accounts()?.lazy_pages <= 8);
        assert_eq!(read_all(&fs, full)?, fill(8 * BLOCK, 1));
        assert_eq!(read_all(&fs, other)?, fill(BLOCK, 2));
        fs.sync()?;
        pool.assert_clean_after(&fs)?;
    }
    Ok(())
}
