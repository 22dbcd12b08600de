//! A full pool: reads need no space, and every space reservation is honoured (design P1, I9).

use std::panic::Location;
use std::sync::Arc;
use terrace_check::{Options, PoolView, check};
use terrace_engine::{
    Allocate, BufferOptions, Engine, FsError, FsResult, MetadataMoves, MountOptions, Movements, PoolMedia,
    Seek, Simulation, Wait, WriteFlags, XattrMode, format, read_superblock,
};
use terrace_format::DeviceBlock;
use terrace_format::{BLOCK_SIZE, Ino, PmOffset};
use terrace_media::block::{AlignedBlock, HostRoom, Operation, SimulatedDevice, Times};
use terrace_media::{BlockMedium, MediaError, PmMedium};
use terrace_testkit::{CALLER, ROOT, SimulatedPool, format_options};

const W: Wait = Wait::Allowed;
const FILES: u32 = 600;

fn name(index: u32) -> Vec<u8> {
    format!("a-rather-long-name-of-file-{index:06}").into_bytes()
}

fn create(fs: &Engine, directory: Ino, name: &[u8]) -> Ino {
    let found = fs.mknod(directory, name, 0o100644, 0, CALLER, W).unwrap();
    fs.forget(found.ino, 1);
    found.ino
}

/// Files with content, attributes and links; all blocks and all demotable metadata lie on the lower tier.
fn tree_below(fs: &Arc<Engine>) -> Ino {
    let directory = fs.mkdir(ROOT, b"directory", 0o755, CALLER, W).unwrap().ino;
    for index in 0..FILES {
        let file = create(fs, directory, &name(index));
        fs.setxattr(file, b"user.number", &index.to_le_bytes(), XattrMode::Any, W).unwrap();
        if index % 10 == 0 {
            fs.write(file, 0, &[index as u8; 4096], WriteFlags::default(), W).unwrap();
        }
        let link = [b"link-", name(index).as_slice()].concat();
        let link = fs.symlink(directory, &link, &name(index), CALLER, W).unwrap();
        fs.forget(link.ino, 1);
    }
    fs.forget(directory, 1);
    fs.sync_to(1, &mut |_| {}).unwrap();
    for _ in 0..4 {
        fs.run_background(1000);
    }
    directory
}

/// Writes block after block until neither PM nor the lower tier has room, and then a little into another
/// file.
fn fill_up(fs: &Engine, file: Ino) -> u64 {
    let mut end = fs.getattr(file).unwrap().size;
    loop {
        match fs.write(file, end, &[7; 4096], WriteFlags::default(), W) {
            Ok(_) => end += BLOCK_SIZE,
            Err(error) => {
                assert_eq!(error.errno(), libc::ENOSPC, "{error}");
                return end;
            }
        }
    }
}

/// Reads names, attributes, links and content of the whole tree, and compares.
#[track_caller]
fn assert_readable(fs: &Engine, directory: Ino) {
    let mut listed = 0;
    let mut next = 0;
    loop {
        let (before, after) = (listed, next);
        let visit = &mut |entry: &terrace_engine::DirectoryEntry, found: &terrace_engine::Attributes| {
            listed += 1;
            next = entry.cookie;
            assert!(entry.ino == found.ino);
            if entry.name != b"." && entry.name != b".." {
                fs.forget(entry.ino, 1);
            }
            true
        };
        fs.readdir_plus(directory, after, visit).unwrap();
        if listed == before {
            break;
        }
    }
    assert_eq!(listed, 2 + 2 * FILES);
    for index in 0..FILES {
        let found = fs.lookup(directory, &name(index)).unwrap();
        let file = found.ino;
        assert_eq!(fs.getattr(file).unwrap().mode, 0o100644);
        assert_eq!(fs.getxattr(file, b"user.number").unwrap(), index.to_le_bytes());
        assert_eq!(fs.listxattr(file).unwrap(), b"user.number\0");
        fs.open(file, false, false, W).unwrap();
        let mut content = [0; 8192];
        let read = fs.read(file, 0, &mut content, W).unwrap();
        if index % 10 == 0 {
            assert!(read == 4096 && content[..4096].iter().all(|byte| *byte == index as u8));
            assert_eq!(fs.seek(file, 0, Seek::Data).unwrap(), 0);
            assert_eq!(fs.seek(file, 0, Seek::Hole).unwrap(), 4096);
            assert_eq!(fs.whereabouts(file).unwrap().size_bytes, 4096);
        } else {
            assert_eq!(read, 0);
        }
        fs.release(file);
        fs.forget(file, 1);
        let link = [b"link-", name(index).as_slice()].concat();
        let link = fs.lookup(directory, &link).unwrap().ino;
        assert_eq!(fs.readlink(link).unwrap(), name(index));
        fs.forget(link, 1);
    }
}

fn eager() -> MountOptions {
    MountOptions { metadata_moves: MetadataMoves::Always, ..Default::default() }
}

/// A pool with full PM and a full lower tier, and a tree whose metadata lies on the lower tier. The filler
/// stays open.
fn full_pool() -> (SimulatedPool, Arc<Engine>, Ino, Ino) {
    let pool = SimulatedPool::new(4 << 20, 1200);
    let fs = pool.mount_with(eager());
    let directory = tree_below(&fs);
    let filler = create(&fs, ROOT, b"filler");
    fs.open(filler, false, true, W).unwrap();
    fill_up(&fs, filler);
    let below = pool.check().summary.metadata_below;
    assert!(below > 60, "{below}");
    (pool, fs, directory, filler)
}

/// read and readdir answered ENOSPC on a full pool: a metadata page on a lower tier was fetched into a PM
/// block, and none was free. In a saved image 4 files of 2,840 could not be read until a file was deleted.
#[test]
fn a_read_needs_no_space() {
    let (pool, fs, directory, filler) = full_pool();
    // The filler takes at once any block of the lower tier that a reader frees on its way.
    for index in (0..FILES).step_by(7) {
        let found = fs.lookup(directory, &name(index)).unwrap();
        assert_eq!(fs.getxattr(found.ino, b"user.number").unwrap(), index.to_le_bytes());
        fs.forget(found.ino, 1);
        fill_up(&fs, filler);
    }
    assert_readable(&fs, directory);
    // A request thread may not wait, and finds in DRAM the page that was read a moment ago.
    let last = fs.lookup(directory, &name(FILES - 1)).unwrap();
    assert!(fs.try_lookup(directory, &name(FILES - 1), Wait::Never).is_ok());
    // A change of such a file fetches its page into PM, which has room again.
    let attribute = fs.setxattr(last.ino, b"user.more", b"x", XattrMode::Any, W);
    assert!(attribute.is_ok() || attribute.is_err_and(|error| error.errno() == libc::ENOSPC));
    fs.release(filler);
    fs.unlink(ROOT, b"filler", W).unwrap();
    fs.run_background(1000);
    fs.setxattr(last.ino, b"user.number", &(FILES - 1).to_le_bytes(), XattrMode::Replace, W).unwrap();
    let _ = fs.removexattr(last.ino, b"user.more", W);
    assert_readable(&fs, directory);
    // Each block that the copies of metadata pages in DRAM had held back can be used.
    let filler = create(&fs, ROOT, b"filler");
    let again = fill_up(&fs, filler);
    assert!(again > 900 * BLOCK_SIZE, "{again}");
    assert_readable(&fs, directory);
    fs.unmount().unwrap();
    drop(fs);
    pool.assert_clean();
}

/// The same after a mount: for reading and writing, and read-only, which stores nothing to PM.
#[test]
fn a_full_pool_is_read_after_a_mount() {
    let (pool, fs, directory, filler) = full_pool();
    fs.release(filler);
    fs.unmount().unwrap();
    drop(fs);
    // The device refuses writes, like a file on a full file system.
    pool.device.fail_next(Operation::Write, 0..u64::MAX, libc::ENOSPC, Times::Forever);
    let fs = pool.mount_with(eager());
    assert_readable(&fs, directory);
    drop(fs);
    let fs = pool.mount_with(MountOptions { read_only: true, ..Default::default() });
    let image = || {
        let mut image = vec![0; pool.pm.size() as usize];
        pool.pm.read(PmOffset(0), &mut image).unwrap();
        image
    };
    let before = image();
    assert_readable(&fs, directory);
    assert!(image() == before, "a read-only mount stored to persistent memory");
    drop(fs);
    pool.assert_clean();
}

/// After PM had failed, reads that needed metadata of a lower tier gave EROFS, because a fetch could no
/// longer be recorded.
#[test]
fn cold_metadata_is_readable_after_pm_has_failed() {
    if terrace_testkit::is_table_map() {
        return;
    }
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    let directory = tree_below(&fs);
    let file = create(&fs, ROOT, b"file");
    // The record is written, then its in-place stores fail: the log stops.
    let geometry = read_superblock(&*pool.pm, false).unwrap().0.geometry();
    pool.pm.poison(geometry.table_offset().0..geometry.map_offset().0);
    let failed: FsResult<usize> = fs.write(file, 0, &[1; 4096], WriteFlags::default(), W);
    assert!(failed.is_err_and(|error| error.errno() == libc::EIO) && fs.is_stopped());
    pool.pm.clear_poison();
    assert!(matches!(fs.unlink(directory, &name(3), W), Err(FsError::Engine(_) | FsError::NotDurable)));
    assert_readable(&fs, directory);
}

fn media(pool: &SimulatedPool, has_tier: bool) -> PoolMedia {
    let mut media = pool.media();
    media.block.truncate(usize::from(has_tier));
    media
}

fn mount(pool: &SimulatedPool, has_tier: bool, options: MountOptions) -> Arc<Engine> {
    let (superblock, _) = read_superblock(&*pool.pm, true).unwrap();
    Engine::mount(media(pool, has_tier), superblock, options, pool.clock.clone()).unwrap()
}

fn write(fs: &Engine, file: Ino, from: u64, blocks: u64, byte: u8) -> FsResult<()> {
    let content = vec![byte; (blocks * BLOCK_SIZE) as usize];
    let done = fs.write(file, from * BLOCK_SIZE, &content, WriteFlags::default(), W)?;
    assert_eq!(done, content.len());
    Ok(())
}

#[track_caller]
fn assert_holds(fs: &Engine, file: Ino, blocks: u64, byte: u8) {
    let mut found = vec![0; (blocks * BLOCK_SIZE) as usize];
    assert_eq!(fs.read(file, 0, &mut found, W).unwrap(), found.len());
    let wrong = found.iter().position(|found| *found != byte);
    assert_eq!(wrong, None, "inode {file}: {byte} expected");
}

/// A full pool gave ENOSPC for overwrites, even of preallocated blocks, which breaks posix_fallocate for
/// every database; and dirty pages of mappings could not be written back and were lost (generic/274: 256 of
/// 256).
#[test]
fn a_full_pool_can_be_written_over() {
    // PM, blocks below, data=ordered, DRAM, blocks of one request.
    for (pm_mib, below, ordered, dram, step) in [
        (4, 512, false, true, 1),
        (4, 512, false, false, 6),
        (4, 512, true, true, 3),
        (16, 512, false, true, 16),
        (16, 512, true, false, 1),
        (4, 512, false, true, 8),
        (4, 0, false, true, 1),
        (4, 0, true, true, 96),
    ] {
        const BLOCKS: u64 = 96;
        let pool = SimulatedPool::new(pm_mib << 20, below.max(64));
        if below == 0 {
            format(&media(&pool, false), &format_options(0)).unwrap();
        }
        let buffer = BufferOptions::of(if dram { 4 << 20 } else { 0 });
        let options = MountOptions { data_ordered: Some(ordered), buffer, ..Default::default() };
        let fs = mount(&pool, below > 0, options);
        let [filler, old, laid_out, in_pm] =
            [&b"filler"[..], b"old", b"laid out", b"in pm"].map(|name| create(&fs, ROOT, name));
        write(&fs, old, 0, BLOCKS, 1).unwrap();
        if below > 0 {
            fs.sync_to(1, &mut |_| {}).unwrap();
        }
        fs.fallocate(laid_out, 0, BLOCKS * BLOCK_SIZE, Allocate::Extend, W).unwrap();
        write(&fs, in_pm, 0, BLOCKS, 1).unwrap();
        let full = fill_up(&fs, filler);
        for round in 2..6 {
            for at in (0..BLOCKS).step_by(step as usize) {
                let count = step.min(BLOCKS - at);
                write(&fs, old, at, count, round).unwrap();
                // Even blocks first, then odd ones, so that the preallocated run is divided into many.
                let scattered = if step == 1 { (at * 2) % BLOCKS + at * 2 / BLOCKS } else { at };
                write(&fs, laid_out, scattered, count, round + 10).unwrap();
                write(&fs, in_pm, at, count, round + 20).unwrap();
            }
            // The filler gets the few blocks that were spare, such as room for group summaries, but never the
            // reserve.
            let again = fill_up(&fs, filler);
            assert!(again <= full + 16 * BLOCK_SIZE, "{full} and then {again}");
        }
        let all = |fs: &Engine| {
            [(old, 5), (laid_out, 15), (in_pm, 25)]
                .into_iter()
                .for_each(|(file, byte)| assert_holds(fs, file, BLOCKS, byte));
        };
        all(&fs);
        fs.unmount().unwrap();
        drop(fs);
        let block = media(&pool, below > 0).block.into_iter().map(Some).collect();
        let view = PoolView::new(pool.pm.clone(), block);
        let report = check(&view, &Options { read_cold: true, ..Default::default() });
        assert!(report.is_clean(), "{:?}", report.findings);
        let fs = mount(&pool, below > 0, MountOptions::default());
        all(&fs);
        // A removal can use the reserve, and frees the space.
        fs.unlink(ROOT, b"filler", W).unwrap();
        fs.run_background(1000);
        let filler = create(&fs, ROOT, b"filler");
        let again = fill_up(&fs, filler);
        assert!(again * 10 >= full * 9, "{full} and then {again}");
    }
}

/// The kernel gathers more pages of a mapping than the reserve of a small full pool has blocks: msync got
/// ENOSPC, and the pages were lost.
#[test]
fn pages_of_a_mapping_go_in_pieces_on_a_full_pool() {
    const BLOCKS: u64 = 256;
    for (below, dram) in [(1200, true), (1200, false), (0, false)] {
        let pool = SimulatedPool::new(8 << 20, below.max(64));
        if below == 0 {
            format(&media(&pool, false), &format_options(0)).unwrap();
        }
        let buffer = BufferOptions::of(if dram { 4 << 20 } else { 0 });
        let fs = mount(&pool, below > 0, MountOptions { buffer, ..Default::default() });
        let [filler, mapped] = [&b"filler"[..], b"mapped"].map(|name| create(&fs, ROOT, name));
        (0..BLOCKS).step_by(16).for_each(|at| write(&fs, mapped, at, 16, 1).unwrap());
        fs.fsync(mapped, false, W).unwrap();
        fill_up(&fs, filler);
        let flags = WriteFlags { pages: true, ..Default::default() };
        for round in 2..5 {
            let content = vec![round; (BLOCKS * BLOCK_SIZE) as usize];
            let mut done = 0;
            while done < content.len() {
                done += fs.write(mapped, done as u64, &content[done..], flags, W).unwrap();
            }
            assert_holds(&fs, mapped, BLOCKS, round);
        }
        // A write by a program is all or nothing (C13).
        let refused = fs.write(mapped, 0, &[9; (BLOCKS * BLOCK_SIZE) as usize], WriteFlags::default(), W);
        assert!(refused.is_err_and(|error| error.errno() == libc::ENOSPC));
        assert_holds(&fs, mapped, BLOCKS, 4);
    }
}

/// After a file was deleted df showed 256 KiB free, and a write of 128 KiB got ENOSPC (generic/275).
#[test]
fn space_shown_by_df_after_a_removal_can_be_written() {
    for blocks in [32, 64, 100, 300] {
        let pool = SimulatedPool::new(4 << 20, 1200);
        let fs = pool.mount();
        let small = create(&fs, ROOT, b"small");
        write(&fs, small, 0, blocks, 1).unwrap();
        fs.sync_to(1, &mut |_| {}).unwrap();
        let filler = create(&fs, ROOT, b"filler");
        fill_up(&fs, filler);
        fs.fsync(filler, false, W).unwrap();
        let before = fs.statfs(W).unwrap().available;
        fs.unlink(ROOT, b"small", W).unwrap();
        // The reclaimer has not run: the writer removes the content itself.
        let next = create(&fs, ROOT, b"next");
        let mut written = 0;
        while written < blocks && write(&fs, next, written, 1, 2).is_ok() {
            written += 1;
        }
        assert!(written * 10 >= blocks * 9, "{written} of {blocks} that were given back, {before} before");
        // The space that df shows afterwards can be written too.
        let shown = fs.statfs(W).unwrap().available;
        fs.unlink(ROOT, b"next", W).unwrap();
        fs.run_background(1000);
        let again = fs.statfs(W).unwrap().available;
        assert!(again > shown, "{again}");
        let next = create(&fs, ROOT, b"next");
        write(&fs, next, 0, (again * 3 / 4).min(32), 3).unwrap();
    }
}

/// df showed up to 4 MiB more than fallocate gets (generic/103): the room for metadata was not subtracted.
#[test]
fn fallocate_gets_the_space_shown_by_df() {
    // From 64 MiB of PM on the catalog has 64 shards: the first key of each takes a page.
    for (pm_mib, below, used) in
        [(4, 0, 0), (4, 512, 0), (4, 4096, 100), (32, 0, 300), (32, 20_000, 5000), (64, 3000, 9000)]
    {
        let pool = SimulatedPool::new(pm_mib << 20, below.max(64));
        if below == 0 {
            format(&media(&pool, false), &format_options(0)).unwrap();
        }
        let fs = mount(&pool, below > 0, MountOptions::default());
        let file = create(&fs, ROOT, b"used");
        (0..used).step_by(50).for_each(|at| write(&fs, file, at, 50, 1).unwrap());
        let shown = fs.statfs(W).unwrap();
        let file = create(&fs, ROOT, b"laid out");
        fs.fallocate(file, 0, shown.available * BLOCK_SIZE, Allocate::Extend, W).unwrap_or_else(|error| {
            panic!("{pm_mib} MiB, {below} below: {error}: {shown:?}, then {:?}", fs.statfs(W))
        });
        // df does not show much less than fallocate gets, either.
        let left = fs.statfs(W).unwrap().available;
        assert!(left * 20 <= shown.available, "{left} of {} are left", shown.available);
    }
}

/// A device that is a file on a file system with the given room left.
struct OnHost {
    device: Arc<SimulatedDevice>,
    room: HostRoom,
}

impl BlockMedium for OnHost {
    fn blocks(&self) -> u64 {
        self.device.blocks()
    }
    fn name(&self) -> &str {
        self.device.name()
    }
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        self.device.read(first, into)
    }
    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        self.device.write(first, from)
    }
    fn flush_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        self.device.flush_at(at)
    }
    fn host_room(&self) -> Option<HostRoom> {
        Some(self.room)
    }
}

/// df did not count the room that is left on the file system below a tier.
#[test]
fn df_counts_the_room_of_the_host_file_system() {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let available = |room: Option<HostRoom>| {
        let mut media = pool.media();
        if let Some(room) = room {
            media.block = vec![Arc::new(OnHost { device: pool.device.clone(), room })];
        }
        let (superblock, _) = read_superblock(&*pool.pm, true).unwrap();
        let options = MountOptions { read_only: true, ..Default::default() };
        let fs = Engine::mount(media, superblock, options, pool.clock.clone()).unwrap();
        fs.statfs(W).unwrap().available
    };
    let room = |free: u64, allocated: u64| {
        Some(HostRoom { host: 7, free_bytes: free * BLOCK_SIZE, allocated_bytes: allocated * BLOCK_SIZE })
    };
    let all = available(None);
    assert_eq!(available(room(10_000, 1)), all);
    // Blocks that the file has already need no room on the file system below.
    assert_eq!(available(room(0, 4096)), all);
    let (none, some) = (available(room(0, 1)), available(room(1000, 501)));
    assert!(none + 4000 < all && (1490..=1510).contains(&(some - none)), "{none}, {some} of {all}");
}
