//! Lazy writes: they wait in DRAM with PM as their home, and write-back puts them there (docs/write-buffer.md).

use terrace_engine::{
    Allocate, BufferOptions, Engine, FormatOptions, FsResult, LazyAblation, LazyOption, MountOptions,
    PolicyKind, SetAttributes, Simulation,
};
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_store::types::{Wait, WriteFlags};
use terrace_testkit::{ROOT, SimulatedPool, TrackedFile, create, fill, format_options, pattern, read_all};

const BLOCK: usize = BLOCK_SIZE as usize;

fn lazy() -> MountOptions {
    MountOptions {
        buffer: BufferOptions { lazy: LazyOption::On, ablation: LazyAblation::Always, ..Default::default() },
        ..MountOptions::default()
    }
}

fn pool() -> SimulatedPool {
    SimulatedPool::new(4 << 20, 1024)
}

fn waiting(fs: &Engine) -> u64 {
    let accounts = fs.accounts().unwrap();
    assert_eq!(accounts.lazy_pages, accounts.promised_blocks, "each page has a promise");
    accounts.lazy_pages
}

fn written_to_pm(fs: &Engine) -> u64 {
    fs.io_report().unwrap().tiers[0].sums.write_bytes
}

/// A write without O_SYNC.
fn write(file: &mut TrackedFile, from: usize, bytes: &[u8]) -> FsResult<()> {
    file.fs.write(file.ino, from as u64, bytes, WriteFlags::default(), Wait::Allowed)?;
    file.expected.resize(file.expected.len().max(from + bytes.len()), 0);
    file.expected[from..from + bytes.len()].copy_from_slice(bytes);
    Ok(())
}

/// Files over each medium: whole blocks of PM, holes, cold blocks, partial shadows.
fn files() -> FsResult<Vec<TrackedFile>> {
    let content = pattern(3 * BLOCK - 700, 5);
    let mut holes = TrackedFile::new(pool(), lazy(), &content)?;
    holes.fs.fsync(holes.ino, false, Wait::Allowed)?;
    holes.punch(BLOCK, 2 * BLOCK)?;
    let in_pm = TrackedFile::new(pool(), lazy(), &content)?;
    in_pm.fs.fsync(in_pm.ino, false, Wait::Allowed)?;
    let mut partial = TrackedFile::cold(pool(), MountOptions::default(), &content)?;
    partial.write(BLOCK + 640, &fill(128, 9))?;
    partial.mount_again(lazy())?;
    Ok(vec![in_pm, holes, TrackedFile::cold(pool(), lazy(), &content)?, partial])
}

const WRITES: [(usize, usize); 8] = [
    (0, BLOCK),
    (BLOCK + 100, 300),
    (BLOCK + 64, 64),
    (2 * BLOCK - 5, 10),
    (10, 2 * BLOCK),
    (3 * BLOCK - 700, 300),
    (3 * BLOCK - 100, 50),
    (5 * BLOCK + 7, 100),
];

#[test]
fn a_lazy_write_is_read_at_once_and_is_on_media_after_fsync() -> FsResult<()> {
    for (from, length) in WRITES {
        for mut file in files()? {
            let before = written_to_pm(&file.fs);
            write(&mut file, from, &fill(length, 0xee))?;
            assert!(waiting(&file.fs) > 0);
            assert_eq!(written_to_pm(&file.fs), before, "nothing is written to PM");
            file.assert_content();
            file.fs.fsync(file.ino, false, Wait::Allowed)?;
            assert_eq!(waiting(&file.fs), 0);
            file.assert_content();
            file.pool = file.pool.crash_now(1);
            file.fs = file.pool.mount();
            file.assert_content();
            file.pool.assert_clean_after(&file.fs)?;
        }
    }
    Ok(())
}

/// HiNFS-NCLFW, for measurements: 10 bytes are written back as the 64 lines of their block.
#[test]
fn without_masks_every_line_of_a_block_is_written_back() -> FsResult<()> {
    for (ablation, lines) in [(LazyAblation::Blocks, 64), (LazyAblation::Nothing, 2)] {
        let buffer = BufferOptions { ablation, ..lazy().buffer };
        let options = MountOptions { buffer, ..lazy() };
        // After another mount nothing calls the file synchronous.
        let file = TrackedFile::new(pool(), MountOptions::default(), &pattern(3 * BLOCK, 5))?;
        let mut file = file.mounted_again(options)?;
        let before = written_to_pm(&file.fs);
        write(&mut file, BLOCK + 60, &fill(10, 0xee))?;
        assert_eq!(waiting(&file.fs), 1);
        file.assert_content();
        file.fs.sync()?;
        assert_eq!(written_to_pm(&file.fs) - before, lines * 64, "{ablation:?}");
        file.assert_content();
        file.pool.assert_clean_after(&file.fs)?;
    }
    Ok(())
}

#[test]
fn lazy_writes_of_one_block_merge() -> FsResult<()> {
    for mut file in files()? {
        for (from, length) in [(70, 20), (3000, 1000), (60, 100), (2500, 600), (64, 64)] {
            write(&mut file, BLOCK + from, &fill(length, from as u8))?;
            file.assert_content();
        }
        assert_eq!(waiting(&file.fs), 1);
        file.mount_again(lazy())?;
        file.assert_content();
        file.pool.assert_clean_after(&file.fs)?;
    }
    Ok(())
}

#[test]
fn old_lazy_pages_are_written_back_in_the_background() -> FsResult<()> {
    for mut file in files()? {
        write(&mut file, BLOCK + 100, &fill(3 * BLOCK, 0xee))?;
        file.pool.clock.advance(std::time::Duration::from_secs(31));
        file.fs.run_background(1000);
        assert_eq!(waiting(&file.fs), 0);
        file.assert_content();
        file.pool.assert_clean_after(&file.fs)?;
    }
    Ok(())
}

#[test]
fn a_crash_leaves_the_file_before_the_lazy_write() -> FsResult<()> {
    for mut file in files()? {
        let before = file.expected.clone();
        write(&mut file, 100, &fill(6 * BLOCK, 0xee))?;
        let pool = file.pool.crash_now(1);
        let fs = pool.mount();
        assert!(read_all(&fs, file.ino)? == before);
        pool.assert_clean_after(&fs)?;
    }
    Ok(())
}

#[test]
fn a_synced_write_takes_the_lazy_lines_of_its_blocks_along() -> FsResult<()> {
    for mut file in files()? {
        write(&mut file, BLOCK + 100, &fill(200, 0xaa))?;
        let flags = WriteFlags { sync: true, ..WriteFlags::default() };
        let bytes = fill(500, 0xee);
        file.fs.write(file.ino, (BLOCK + 250) as u64, &bytes, flags, Wait::Allowed)?;
        file.expected[BLOCK + 250..BLOCK + 750].copy_from_slice(&bytes);
        assert_eq!(waiting(&file.fs), 0);
        file.assert_content();
        let pool = file.pool.crash_now(1);
        let fs = pool.mount();
        assert!(read_all(&fs, file.ino)? == file.expected);
        pool.assert_clean_after(&fs)?;
    }
    Ok(())
}

#[test]
fn a_full_buffer_sends_lazy_writes_the_direct_way() -> FsResult<()> {
    let options = MountOptions { buffer: BufferOptions { bytes: 2 * BLOCK_SIZE, ..lazy().buffer }, ..lazy() };
    let mut file = TrackedFile::new(pool(), options, &[])?;
    for block in 0..20 {
        write(&mut file, block * 3000, &fill(3000, block as u8))?;
        assert!(waiting(&file.fs) <= 2);
        file.assert_content();
    }
    write(&mut file, 5, &fill(15 * BLOCK, 0xee))?;
    file.assert_content();
    file.mount_again(lazy())?;
    file.assert_content();
    file.pool.assert_clean_after(&file.fs)
}

fn write_all(fs: &Engine, ino: Ino, blocks: u64) -> FsResult<u64> {
    let mut done = 0;
    for block in 0..blocks {
        match fs.write(
            ino,
            block * BLOCK_SIZE,
            &fill(BLOCK, block as u8),
            WriteFlags::default(),
            Wait::Allowed,
        ) {
            Err(error) if error.errno() == libc::ENOSPC => break,
            written => done += (written? == BLOCK) as u64,
        }
    }
    Ok(done)
}

#[test]
fn write_back_into_a_full_pm_has_the_promised_blocks() -> FsResult<()> {
    for device_blocks in [64, 1024] {
        let pool = SimulatedPool::new(4 << 20, device_blocks);
        let fs = pool.mount_with(MountOptions { home: None, ..lazy() });
        let (lazily, other) = (create(&fs, ROOT, "lazy"), create(&fs, ROOT, "other"));
        let some = write_all(&fs, lazily, 100)?;
        let waits = waiting(&fs);
        assert!(some == 100 && waits > 0, "{waits} of {some} blocks wait");
        write_all(&fs, other, 4096)?;
        fs.fsync(lazily, false, Wait::Allowed)?;
        fs.sync()?;
        assert_eq!(waiting(&fs), 0);
        let content = read_all(&fs, lazily)?;
        let fs = pool.crash_now(1);
        let fs = fs.mount();
        assert!(read_all(&fs, lazily)? == content);
    }
    Ok(())
}

#[test]
fn a_dead_file_is_never_written_to_pm() -> FsResult<()> {
    let pool = pool();
    let fs = pool.mount_with(lazy());
    let ino = create(&fs, ROOT, "file");
    let before = written_to_pm(&fs);
    write_all(&fs, ino, 50)?;
    assert_eq!(waiting(&fs), 50);
    let size = SetAttributes { size: Some(10 * BLOCK_SIZE + 5), ..Default::default() };
    fs.setattr(ino, &size, Wait::Allowed)?;
    assert_eq!(waiting(&fs), 11);
    fs.unlink(ROOT, b"file", Wait::Allowed)?;
    fs.forget(ino, 1);
    fs.run_background(1000);
    assert_eq!((waiting(&fs), written_to_pm(&fs)), (0, before));
    pool.assert_clean_after(&fs)
}

/// Promises of pages over blocks in PM once made other writers fail, though write-back needs no block for such pages.
#[test]
fn promises_of_overwrites_leave_no_writer_without_space() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 64);
    let fs = pool.mount_with(MountOptions { policy: Some(PolicyKind::STATIC), ..lazy() });
    let (file, other) = (create(&fs, ROOT, "file"), create(&fs, ROOT, "other"));
    let blocks = 300;
    assert_eq!(write_all(&fs, file, blocks)?, blocks);
    fs.fsync(file, false, Wait::Allowed)?;
    let free = fs.store.persistent.blocks().free_hint();
    assert_eq!(write_all(&fs, file, blocks)?, blocks);
    assert_eq!(waiting(&fs), blocks);
    let fits = free - 40;
    let flags = WriteFlags { sync: true, ..WriteFlags::default() };
    for block in 0..fits {
        let bytes = fill(BLOCK, 7);
        fs.write(other, block * BLOCK_SIZE, &bytes, flags, Wait::Allowed)?;
    }
    fs.sync()?;
    assert!(read_all(&fs, file)?.iter().enumerate().all(|(at, byte)| *byte == (at / BLOCK) as u8));
    pool.assert_clean_after(&fs)
}

/// Pages of both kinds, some whole and some in new blocks, once went into PM out of order.
#[test]
fn pages_without_a_free_block_go_into_pm_in_order() -> FsResult<()> {
    let pool =
        SimulatedPool::formatted(4 << 20, 64, &FormatOptions { data_checksums: true, ..format_options(1) });
    let fs = pool.mount_with(MountOptions { policy: Some(PolicyKind::STATIC), ..lazy() });
    let (file, other) = (create(&fs, ROOT, "file"), create(&fs, ROOT, "other"));
    write_all(&fs, file, 10)?;
    fs.fsync(file, false, Wait::Allowed)?;
    fs.fallocate(file, 3 * BLOCK_SIZE, BLOCK_SIZE, Allocate::PunchHole, Wait::Allowed)?;
    let write = |block: u64| {
        fs.write(file, block * BLOCK_SIZE, &fill(BLOCK, 0xee), WriteFlags::default(), Wait::Allowed)
    };
    for block in [3, 5, 9] {
        write(block)?;
    }
    write_all(&fs, other, 4096)?;
    fs.fsync(file, false, Wait::Allowed)?;
    assert_eq!(fs.accounts()?.lazy_pages, fs.accounts()?.promised_blocks);
    let fs = pool.crash_now(1).mount();
    let content = read_all(&fs, file)?;
    assert!([3, 5, 9].iter().all(|block| content[block * BLOCK..][..BLOCK].iter().all(|byte| *byte == 0xee)));
    Ok(())
}

#[test]
fn an_append_behind_a_full_buffer_writes_back_a_group_and_no_whole_file() -> FsResult<()> {
    let pages = 1024;
    let mut options = lazy();
    options.buffer.bytes = pages * BLOCK_SIZE;
    let mut file = TrackedFile::new(SimulatedPool::new(16 << 20, 1024), options, &[])?;
    write(&mut file, 0, &fill(pages as usize * BLOCK, 3))?;
    assert_eq!(waiting(&file.fs), pages);
    write(&mut file, pages as usize * BLOCK, &fill(BLOCK, 4))?;
    let left = waiting(&file.fs);
    assert!((pages / 2..pages).contains(&left), "{left} of {pages} pages wait");
    file.assert_content();
    Ok(())
}
