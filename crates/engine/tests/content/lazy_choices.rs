//! Choices between lazy and eager that outlive their states in the index (docs/write-buffer.md).

use std::sync::Arc;
use std::time::Duration;
use terrace_engine::{
    BufferOptions, Engine, FsError, FsResult, LazyAblation, LazyOption, MountOptions, SetAttributes,
    Simulation,
};
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_store::types::{Wait, WriteFlags};
use terrace_testkit::{ROOT, SimulatedPool, create, fill, read_all};

const BLOCK: usize = BLOCK_SIZE as usize;

/// A mount with room for few states of blocks without a page.
fn mount(pool: &SimulatedPool) -> Arc<Engine> {
    let buffer = BufferOptions {
        bytes: 64 * BLOCK_SIZE,
        lazy: LazyOption::On,
        ablation: LazyAblation::Published,
        ..Default::default()
    };
    pool.mount_with(MountOptions { buffer, ..MountOptions::default() })
}

/// A mount with all parts of the choice, and a mode of data.
fn mount_with_mode(pool: &SimulatedPool, data_ordered: bool) -> Arc<Engine> {
    let buffer = BufferOptions { bytes: 64 * BLOCK_SIZE, lazy: LazyOption::On, ..Default::default() };
    pool.mount_with(MountOptions { buffer, data_ordered: Some(data_ordered), ..MountOptions::default() })
}

/// Writes `length` bytes at the begin of a block; gives the pages that wait afterwards.
fn write(fs: &Engine, ino: Ino, block: u64, length: usize) -> FsResult<u64> {
    fs.write(ino, block * BLOCK_SIZE, &fill(length, block as u8), WriteFlags::default(), Wait::Allowed)?;
    Ok(fs.accounts()?.lazy_pages)
}

/// Makes blocks eager: one write for each sync.
fn make_eager(fs: &Engine, ino: Ino, blocks: std::ops::Range<u64>) -> FsResult<()> {
    for block in blocks {
        write(fs, ino, block, BLOCK)?;
        fs.fsync(ino, false, Wait::Allowed)?;
    }
    assert!(fs.store.dram.cache().sync_states() <= 3, "states were dropped");
    Ok(())
}

#[test]
fn an_eager_block_without_a_state_stays_eager_until_the_unmount() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 64);
    let fs = mount(&pool);
    let ino = create(&fs, ROOT, "file");
    make_eager(&fs, ino, 0..9)?;
    let found = fs.whereabouts(ino)?;
    assert_eq!((found.judged_blocks, found.eager_blocks), (9, 9));
    // A whole new block, most of a block, and again after that: the flag moves with the block.
    for (block, length) in [(0, BLOCK), (1, 4_000), (0, BLOCK), (1, 4_000), (2, 2 * BLOCK)] {
        assert_eq!(write(&fs, ino, block, length)?, 0, "block {block} is eager");
        assert_eq!(fs.whereabouts(ino)?.eager_blocks, 9, "block {block} after a write, before a sync");
        make_eager(&fs, ino, 6..9)?;
    }
    assert_eq!(write(&fs, ino, 9, BLOCK)?, 1, "a new block is lazy");
    fs.fsync(ino, false, Wait::Allowed)?;
    pool.clock.advance(Duration::from_secs(5));
    assert_eq!(write(&fs, ino, 0, BLOCK)?, 1, "without a sync for long a file is lazy");
    fs.unmount()?;
    let fs = mount(&pool);
    make_eager(&fs, ino, 4..9)?;
    assert_eq!(write(&fs, ino, 1, BLOCK)?, 1, "after a mount a block is lazy");
    assert_eq!(read_all(&fs, ino)?[..BLOCK], fill(BLOCK, 0));
    pool.assert_clean_after(&fs)
}

#[test]
fn a_block_loses_its_flag_when_a_sync_chooses_lazy() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 64);
    let fs = mount(&pool);
    let ino = create(&fs, ROOT, "file");
    make_eager(&fs, ino, 0..6)?;
    // Five stores of each line for one sync.
    (0..5).try_for_each(|_| write(&fs, ino, 0, BLOCK).map(drop))?;
    make_eager(&fs, ino, 3..6)?;
    assert_eq!(fs.whereabouts(ino)?.eager_blocks, 5);
    assert_eq!(write(&fs, ino, 0, BLOCK)?, 1);
    Ok(())
}

#[test]
fn a_synced_part_of_a_block_is_lazy_where_a_direct_write_stores_the_whole_block() -> FsResult<()> {
    for data_ordered in [false, true] {
        let pool = SimulatedPool::new(4 << 20, 64);
        let fs = mount_with_mode(&pool, data_ordered);
        let ino = create(&fs, ROOT, "file");
        // The first sync makes the file eager.
        for length in [2 * BLOCK, 100] {
            write(&fs, ino, 0, length)?;
            fs.fsync(ino, false, Wait::Allowed)?;
        }
        let lazy_pages = write(&fs, ino, 0, 100)?;
        assert_eq!(lazy_pages, u64::from(!data_ordered), "data=ordered {data_ordered}");
        assert_eq!(fs.whereabouts(ino)?.eager_blocks, 1 + u64::from(data_ordered));
        pool.assert_clean_after(&fs)?;
    }
    Ok(())
}

#[test]
fn a_first_write_to_part_of_a_block_is_lazy_in_an_eager_file_where_a_direct_write_stores_the_whole_block()
-> FsResult<()> {
    for data_ordered in [false, true] {
        let pool = SimulatedPool::new(4 << 20, 64);
        let fs = mount_with_mode(&pool, data_ordered);
        let ino = create(&fs, ROOT, "file");
        // Blocks that are appended alone have no choice; the sync makes the file eager.
        write(&fs, ino, 0, 8 * BLOCK)?;
        fs.fsync(ino, false, Wait::Allowed)?;
        write(&fs, ino, 8, 8 * BLOCK)?;
        fs.fsync(ino, false, Wait::Allowed)?;
        let size = SetAttributes { size: Some(20 * BLOCK_SIZE), ..SetAttributes::default() };
        fs.setattr(ino, &size, Wait::Allowed)?;
        let write_at = |offset: u64, length: usize, sync: bool| {
            let flags = WriteFlags { sync, ..WriteFlags::default() };
            fs.write(ino, offset, &fill(length, 7), flags, Wait::Allowed)?;
            Ok::<u64, FsError>(fs.accounts()?.lazy_pages)
        };
        for (offset, length, what) in [
            (3 * BLOCK_SIZE, BLOCK, "a whole block"),
            (4 * BLOCK_SIZE, 4_000, "most of a block"),
            (5 * BLOCK_SIZE + 100, 2 * BLOCK, "a whole block between parts"),
            (17 * BLOCK_SIZE, 100, "a hole"),
            (20 * BLOCK_SIZE, 100, "an append"),
            (20 * BLOCK_SIZE + 50, 100, "a part and an append behind it"),
        ] {
            assert_eq!(write_at(offset, length, false)?, 0, "{what}");
        }
        assert_eq!(write_at(8 * BLOCK_SIZE, 100, true)?, 0, "O_SYNC");
        let parts = u64::from(!data_ordered);
        assert_eq!(write_at(9 * BLOCK_SIZE, 100, false)?, parts, "data=ordered {data_ordered}: a part");
        assert_eq!(write_at(12 * BLOCK_SIZE - 50, 100, false)?, 3 * parts, "parts of two blocks");
        let content = read_all(&fs, ino)?;
        for at in [9 * BLOCK, 12 * BLOCK - 50] {
            assert_eq!(content[at..][..100], fill(100, 7));
        }
        fs.fsync(ino, false, Wait::Allowed)?;
        assert_eq!(fs.accounts()?.lazy_pages, 0);
        assert_eq!(read_all(&fs, ino)?, content);
        pool.assert_clean_after(&fs)?;
    }
    Ok(())
}
