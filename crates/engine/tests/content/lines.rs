//! Dirty pages without some lines of their blocks: reads, writes and write-back take these lines from the media below.

use terrace_cache::{Lines, Page};
use terrace_engine::{FsResult, MountOptions, Simulation};
use terrace_format::{BLOCK_SIZE, FileBlock};
use terrace_placement::Home;
use terrace_store::inode::load::load_regular;
use terrace_store::types::inode::Pending;
use terrace_store::types::{Wait, WriteFlags};
use terrace_testkit::{SimulatedPool, TrackedFile, bytes_on, fill, pattern};

const BLOCK: usize = BLOCK_SIZE as usize;
/// The block with the page, and the lines that the page has.
const AT: FileBlock = FileBlock(1);
const HAS: Lines = Lines(0b0011_1000_0100_0000);

/// Media below the page.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Below {
    Pm,
    Hole,
    Cold,
    Partial,
}

const ALL: [Below; 4] = [Below::Pm, Below::Hole, Below::Cold, Below::Partial];

fn file_over(below: Below) -> FsResult<TrackedFile> {
    let pool = SimulatedPool::new(4 << 20, 1024);
    let content = pattern(3 * BLOCK - 700, 5);
    let mut file = match below {
        Below::Pm | Below::Hole => TrackedFile::new(pool, MountOptions::default(), &content)?,
        Below::Cold | Below::Partial => TrackedFile::cold(pool, MountOptions::default(), &content)?,
    };
    match below {
        Below::Hole => file.punch(BLOCK, 2 * BLOCK)?,
        Below::Partial => file.write(BLOCK + 640, &fill(128, 9))?,
        Below::Pm | Below::Cold => {}
    }
    add_page(&mut file);
    Ok(file)
}

/// Adds the page as a lazy write does, with bytes of its own in its lines.
fn add_page(file: &mut TrackedFile) {
    let store = &file.fs.store;
    let _guard = store.inodes.locks().write(file.ino);
    let inode = load_regular(store, file.ino).unwrap();
    let mut page = Page::zeroed();
    let now = store.clock.monotonic_ns();
    for (part, _) in HAS.cut(0, BLOCK).filter(|(_, has)| *has) {
        page.bytes_mut()[part.clone()].fill(0xcd);
        file.expected[BLOCK + part.start..BLOCK + part.end].fill(0xcd);
    }
    store.persistent.blocks().promises().give(1).unwrap();
    store.dram.cache().add_dirty(inode.page_key(AT), Home::Pm, (HAS, HAS), page, now);
    let generation = inode.slot.generation.get();
    let pending = Pending { generation, size: inode.size(), mtime_ns: None, new_blocks: 0 };
    let pending = inode.pending.unwrap_or(pending);
    store.dram.volatile_sizes().set(file.ino, pending);
}

/// The page is gone, and all bytes are on media.
fn assert_settled(mut file: TrackedFile) -> FsResult<()> {
    file.fs.fsync(file.ino, false, Wait::Allowed)?;
    assert_eq!(file.fs.store.dram.cache().dirty_pages(), 0);
    file.assert_content();
    file.mount_again(MountOptions::default())?;
    file.assert_content();
    file.pool.assert_clean_after(&file.fs)
}

#[test]
fn a_read_takes_lines_from_dram_and_the_rest_from_below() -> FsResult<()> {
    for below in ALL {
        let file = file_over(below)?;
        file.assert_content();
        assert_settled(file)?;
    }
    Ok(())
}

#[test]
fn lines_of_an_old_page_come_into_pm_in_the_background() -> FsResult<()> {
    for below in ALL {
        let file = file_over(below)?;
        file.pool.clock.advance(std::time::Duration::from_secs(31));
        file.fs.run_background(1000);
        assert_eq!(file.fs.store.dram.cache().dirty_pages(), 0, "{below:?}");
        file.assert_content();
        assert_settled(file)?;
    }
    Ok(())
}

/// A page for a device lies behind the durable end, or before the page for PM.
#[test]
fn pages_of_both_homes_are_written_back_each_to_its_own() -> FsResult<()> {
    for at in [0, 5 * BLOCK] {
        for in_background in [true, false] {
            let mut file = file_over(Below::Pm)?;
            file.mount_again(MountOptions { home: Some(Home::Block), ..MountOptions::default() })?;
            let (flags, wait) = (WriteFlags::default(), Wait::Allowed);
            let bytes = fill(BLOCK, 0xee);
            file.fs.write(file.ino, at as u64, &bytes, flags, wait)?;
            file.expected.resize(file.expected.len().max(at + BLOCK), 0);
            file.expected[at..at + BLOCK].copy_from_slice(&bytes);
            add_page(&mut file);
            file.assert_content();
            match in_background {
                true => {
                    file.pool.clock.advance(std::time::Duration::from_secs(31));
                    file.fs.run_background(1000);
                }
                false => file.fs.fsync(file.ino, false, wait)?,
            }
            assert_eq!(file.fs.store.dram.cache().dirty_pages(), 0, "{at}");
            assert_eq!(bytes_on(&file.fs, file.ino)[1], BLOCK_SIZE, "{at}: one block is below");
            assert_settled(file)?;
        }
    }
    Ok(())
}

#[test]
fn a_write_to_pm_settles_the_lines_of_a_page() -> FsResult<()> {
    for below in ALL {
        for (from, length) in [(100, 300), (384, 64), (700, 9), (0, BLOCK), (3000, 2000)] {
            let mut file = file_over(below)?;
            file.write(BLOCK + from, &fill(length, 0xee))?;
            assert_eq!(file.fs.store.dram.cache().dirty_pages(), 0, "{below:?}, {length} bytes at {from}");
            file.assert_content();
            assert_settled(file)?;
        }
    }
    Ok(())
}

#[test]
fn a_write_into_dram_completes_its_edge_lines_alone() -> FsResult<()> {
    for below in ALL {
        for (from, length) in [(100, 300), (10, 20), (384, 64), (700, 9), (64, 64)] {
            let mut file = file_over(below)?;
            // The mount's choice of homes is forced for this write alone.
            let options = MountOptions { home: Some(Home::Block), ..MountOptions::default() };
            file.mount_again(options)?;
            add_page(&mut file);
            let bytes = fill(length, 0xee);
            let flags = WriteFlags::default();
            let wait = Wait::Allowed;
            file.fs.write(file.ino, (BLOCK + from) as u64, &bytes, flags, wait)?;
            file.expected[BLOCK + from..BLOCK + from + length].copy_from_slice(&bytes);
            let key = {
                let _guard = file.fs.store.inodes.locks().read(file.ino);
                load_regular(&file.fs.store, file.ino)?.page_key(AT)
            };
            let page = file.fs.store.dram.cache().dirty(key).expect("the page stays");
            let lines = HAS.union(Lines::touched(from, from + length));
            assert_eq!((page.home, page.valid, page.dirty), (Home::Pm, lines, lines), "{below:?}");
            file.assert_content();
            assert_settled(file)?;
        }
    }
    Ok(())
}

#[test]
fn a_cut_and_a_punch_zero_lines_in_dram_and_below() -> FsResult<()> {
    for below in ALL {
        for cut in [10, 400, 420, 2000] {
            let mut file = file_over(below)?;
            file.set_size(BLOCK + cut)?;
            file.assert_content();
            file.set_size(2 * BLOCK)?;
            file.assert_content();
            assert_settled(file)?;
            let mut file = file_over(below)?;
            file.punch(BLOCK + cut, BLOCK + cut + 500)?;
            file.assert_content();
            assert_settled(file)?;
        }
    }
    Ok(())
}
