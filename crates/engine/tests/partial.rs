//! Partial shadows, made by small writes to cold blocks, on simulated media. crates/sim/tests/crash.rs tests
//! what a crash may leave of them.
#![allow(clippy::unwrap_used)]

mod common;

use common::{CALLER, Pool, ROOT};
use std::cell::Cell;
use std::sync::Arc;
use terrace_blocks::BlockPool;
use terrace_check::Code;
use terrace_engine::{
    Allocate, Engine, FsError, FsResult, MountOptions, Movements, PolicyKind, SetAttributes, Simulation,
    Wait, WriteFlags,
};
use terrace_format::table::Owner;
use terrace_format::{Ino, PmBlock};
use terrace_media::PmMedium;
use terrace_media::block::{Operation, Times};
use terrace_runtime::ManualClock;
use terrace_wal::{Tx, Wal};

const W: Wait = Wait::Allowed;
const SYNC: WriteFlags = WriteFlags { sync: true, kill_set_id: false, pages: false };
const EIO: i32 = 5;

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}

/// A pool with one cold file, and the content expected of the file.
struct World {
    pool: Pool,
    fs: Arc<Engine>,
    ino: Ino,
    expected: Vec<u8>,
    of_checks: Cell<u64>,
}

fn options() -> MountOptions {
    // Under the static policy blocks move only when a test moves them.
    MountOptions { policy: Some(PolicyKind::STATIC), ..Default::default() }
}

impl World {
    fn new(size: usize) -> FsResult<World> {
        World::with(size, options())
    }

    /// A demoted file in a pool that was mounted again since, so DRAM has no page of it.
    fn with(size: usize, options: MountOptions) -> FsResult<World> {
        let pool = Pool::new(2 << 20, 2049);
        let fs = pool.mount();
        let ino = fs.mknod(ROOT, b"file", 0o100644, 0, CALLER, W)?.ino;
        let expected = pattern(size, 1);
        fs.write(ino, 0, &expected, WriteFlags::default(), W)?;
        fs.sync_to(1, &mut |_| {})?;
        fs.unmount()?;
        drop(fs);
        let fs = pool.mount_with(options);
        fs.lookup(ROOT, b"file")?;
        Ok(World { pool, fs, ino, expected, of_checks: Cell::new(0) })
    }

    fn write(&mut self, offset: usize, data: &[u8]) -> FsResult<()> {
        self.fs.write(self.ino, offset as u64, data, SYNC, W)?;
        let end = offset + data.len();
        if self.expected.len() < end {
            self.expected.resize(end, 0);
        }
        self.expected[offset..end].copy_from_slice(data);
        Ok(())
    }

    fn set_size(&mut self, size: usize) -> FsResult<()> {
        self.fs.setattr(self.ino, &SetAttributes { size: Some(size as u64), ..Default::default() }, W)?;
        self.expected.resize(size, 0);
        Ok(())
    }

    fn punch(&mut self, from: usize, to: usize) -> FsResult<()> {
        self.fs.fallocate(self.ino, from as u64, (to - from) as u64, Allocate::PunchHole, W)?;
        let end = to.min(self.expected.len());
        self.expected[from..end].fill(0);
        Ok(())
    }

    /// Reads of the device by the file system, without the reads of `check`.
    fn reads(&self) -> u64 {
        self.pool.device.counters().reads - self.of_checks.get()
    }

    /// Partial shadows in PM, as `check` counts them; the pool is sound.
    #[track_caller]
    fn partial(&self) -> u64 {
        let before = self.pool.device.counters().reads;
        self.pool.assert_clean();
        let partial = self.pool.check().summary.pm_blocks.partial;
        self.of_checks.set(self.of_checks.get() + self.pool.device.counters().reads - before);
        partial
    }

    #[track_caller]
    fn compare(&self) {
        compare(&self.fs, self.ino, &self.expected);
    }

    /// Compares the content now, after another mount, and after everything was demoted.
    #[track_caller]
    fn compare_everywhere(mut self) -> FsResult<()> {
        self.compare();
        self.fs.unmount()?;
        self.fs = self.pool.mount_with(options());
        self.compare();
        self.fs.sync_to(1, &mut |_| {})?;
        assert_eq!(self.fs.status()?.migration.reason, None);
        assert_eq!(self.partial(), 0, "all were completed");
        self.compare();
        assert_eq!(self.pool.check().summary.pm_blocks.files, 0, "nothing of it is left in PM");
        self.fs.unmount()?;
        self.fs = self.pool.mount();
        self.compare();
        Ok(())
    }
}

#[track_caller]
fn compare(fs: &Engine, ino: Ino, expected: &[u8]) {
    let mut content = vec![0xaa; fs.getattr(ino).unwrap().size as usize];
    assert_eq!(content.len(), expected.len(), "size");
    assert_eq!(fs.read(ino, 0, &mut content, W).unwrap(), content.len());
    let differs = content.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(differs, None, "first byte that differs");
    // Small reads take other ways through the code.
    for (index, part) in expected.chunks(300).enumerate() {
        let mut content = vec![0; part.len()];
        fs.read(ino, index as u64 * 300, &mut content, W).unwrap();
        assert!(content == part, "bytes from {}", index * 300);
    }
}

/// A write of whole lines over a cold block neither reads nor writes the device.
#[test]
fn small_overwrite_reads_no_device() -> FsResult<()> {
    let mut world = World::new(40_960)?;
    let before = world.pool.device.counters();
    world.write(512, &[1; 512])?;
    world.write(3 * 4096 + 64, &[2; 64])?;
    world.write(4 * 4096 - 128, &[3; 256])?;
    let mut content = [0; 512];
    world.fs.read(world.ino, 512, &mut content, W)?;
    assert_eq!(content, [1; 512]);
    world.fs.fsync(world.ino, false, W)?;
    assert_eq!(world.pool.device.counters(), before);
    assert_eq!(world.partial(), 3);
    world.compare();
    assert!(world.reads() > before.reads, "the rest comes from below");
    world.compare_everywhere()
}

/// Lines of several writes add up in one partial shadow, overlapping ones too.
#[test]
fn lines_of_several_writes_are_united() -> FsResult<()> {
    let mut world = World::new(8192)?;
    for (index, (at, length)) in
        [(64, 64), (1024, 512), (128, 64), (960, 128), (4032, 64), (0, 64), (64, 1024)]
            .into_iter()
            .enumerate()
    {
        world.write(at, &vec![index as u8 + 7; length])?;
        assert_eq!(world.partial(), 1);
    }
    assert_eq!(world.reads(), 0);
    world.compare();
    // The last missing lines make the block whole.
    world.write(1536, &[99; 4032 - 1536])?;
    assert_eq!(world.partial(), 0);
    world.compare_everywhere()
}

/// An unaligned write needs the rest of the lines at its edges: it reads the cold block and leaves a whole
/// block. If PM has these lines already, no read is needed.
#[test]
fn an_unaligned_write_reads_only_missing_edge_lines() -> FsResult<()> {
    let mut world = World::new(20_480)?;
    world.write(4096 + 100, &[1; 200])?;
    assert!(world.reads() > 0);
    assert_eq!(world.partial(), 0);
    world.fs.unmount()?;
    world.fs = world.pool.mount_with(options());
    let reads = world.reads();
    world.write(8192, &[2; 640])?;
    world.write(8192 + 100, &[3; 333])?;
    world.write(8192 + 600, &[4; 40])?;
    assert_eq!((world.reads(), world.partial()), (reads, 1), "the edges are there");
    world.write(8192 + 630, &[5; 100])?;
    assert!(world.reads() > reads, "the last line is not");
    assert_eq!(world.partial(), 0);
    world.compare_everywhere()
}

/// An append to a cold last block reads no device if it begins at a line, whatever its length.
#[test]
fn aligned_appends_to_a_cold_last_block_read_no_device() -> FsResult<()> {
    let mut world = World::new(4096 + 640)?;
    world.write(4096 + 640, &[1; 100])?;
    world.write(4096 + 740, &[2; 30])?;
    world.write(4096 + 770, &[3; 1000])?;
    assert_eq!((world.reads(), world.partial()), (0, 1));
    world.write(4096 + 1770, &[4; 5000])?;
    assert_eq!(world.reads(), 0);
    world.compare_everywhere()
}

/// A write that begins past the end of the file leaves zeros in the gap, also where the cold copy holds old
/// bytes.
#[test]
fn gaps_before_a_write_become_zeros() -> FsResult<()> {
    let mut world = World::new(12_288)?;
    world.set_size(8192 + 512)?;
    assert_eq!((world.reads(), world.partial()), (0, 0));
    world.write(8192 + 2048, &[1; 64])?;
    assert_eq!((world.reads(), world.partial()), (0, 1));
    world.set_size(8192 + 1024)?;
    world.set_size(16_000)?;
    assert_eq!(world.reads(), 0);
    world.write(20_000, &[2; 1])?;
    world.compare_everywhere()
}

/// Truncation leaves lines past the end; a later growth clears them, in PM and over the cold copy.
#[test]
fn growth_after_truncation_clears_partial_blocks() -> FsResult<()> {
    for cut in [1, 63, 64, 100, 512, 600, 4095] {
        let mut world = World::new(8192)?;
        world.write(4096 + 512, &[9; 512])?;
        world.set_size(4096 + cut)?;
        world.set_size(8192)?;
        world.compare_everywhere()?;
    }
    let mut world = World::new(8192)?;
    world.write(64, &[9; 512])?;
    world.set_size(0)?;
    assert_eq!(world.partial(), 0);
    world.set_size(8192)?;
    world.compare_everywhere()
}

/// Holes over partial shadows, whole and with edges; fallocate afterwards loses no byte.
#[test]
fn punches_over_partial_blocks_lose_no_byte() -> FsResult<()> {
    for (from, to) in [(0, 8192), (4096, 8192), (1024, 2048), (1000, 2000), (4160, 12_000), (64, 12_224)] {
        let mut world = World::new(12_288)?;
        world.write(4096 + 512, &[9; 512])?;
        world.write(1024, &[8; 1024])?;
        world.punch(from, to)?;
        world.fs.fallocate(world.ino, 0, 12_288, Allocate::Extend, W)?;
        world.compare_everywhere()?;
    }
    Ok(())
}

/// A write of the whole block makes the partial shadow a whole block; unlink frees the PM block and the cold
/// copy.
#[test]
fn a_whole_overwrite_completes_and_unlink_frees_both_copies() -> FsResult<()> {
    let mut world = World::new(8192)?;
    world.write(0, &[1; 64])?;
    world.write(4096, &[1; 64])?;
    world.write(0, &[2; 4096])?;
    assert_eq!(world.partial(), 1);
    world.compare();
    world.fs.unlink(ROOT, b"file", W)?;
    world.fs.forget(world.ino, 1);
    world.fs.run_background(100);
    let summary = world.pool.check().summary;
    world.pool.assert_clean();
    assert_eq!((summary.pm_blocks.files, summary.cold_blocks), (0, 0));
    Ok(())
}

/// With data=ordered, lines that PM has are overwritten in place, and missing lines are added in place.
#[test]
fn ordered_data_is_written_into_partial_blocks_in_place() -> FsResult<()> {
    let ordered = MountOptions { data_ordered: Some(true), ..options() };
    let mut world = World::with(8192, ordered)?;
    world.write(512, &[1; 512])?;
    world.write(600, &[2; 100])?;
    world.write(960, &[3; 192])?;
    assert_eq!((world.reads(), world.partial()), (0, 1));
    world.punch(1024, 1088)?;
    world.compare_everywhere()
}

/// A partial shadow that is read repeatedly is completed in PM.
#[test]
fn promotion_completes_a_partial_shadow() -> FsResult<()> {
    let mut world = World::with(8192, MountOptions { promote_first_touch: true, ..Default::default() })?;
    world.write(512, &[1; 512])?;
    assert_eq!(world.partial(), 1);
    world.compare();
    world.fs.run_background(10);
    assert_eq!(world.partial(), 0);
    let reads = world.reads();
    world.compare();
    assert_eq!(world.reads(), reads);
    world.compare_everywhere()
}

/// The device fails when demotion reads the missing lines. The report gives the reason, the lines in PM stay
/// readable and writable, and everything is demoted once the device works.
#[test]
fn failed_completion_has_a_reason() -> FsResult<()> {
    let mut world = World::new(8192)?;
    world.write(512, &[1; 512])?;
    world.pool.device.fail_next(Operation::Read, 0..u64::MAX, EIO, Times::Forever);
    assert!(world.fs.sync_to(1, &mut |_| {}).is_err());
    let reason = world.fs.status()?.migration.reason;
    assert!(reason.is_some_and(|reason| reason.contains("read")), "the reason names what failed");
    let mut content = [0; 512];
    world.fs.read(world.ino, 512, &mut content, W)?;
    assert_eq!(content, [1; 512]);
    world.write(1024, &[2; 64])?;
    let error = world.fs.read(world.ino, 0, &mut content, W).unwrap_err();
    assert_eq!(error.errno(), EIO);
    world.pool.device.clear_failures();
    assert_eq!(world.partial(), 1);
    world.compare_everywhere()
}

/// A rotten cold copy must not complete a partial shadow (M4): the lines in PM stay readable, the rest of the
/// block is EIO.
#[test]
fn a_rotten_cold_copy_completes_no_partial_shadow() -> FsResult<()> {
    let mut world = World::new(4096)?;
    world.write(512, &[1; 512])?;
    for block in 1..2049 {
        world.pool.device.corrupt(terrace_format::DeviceBlock(block), 2000, 1);
    }
    assert!(world.fs.sync_to(1, &mut |_| {}).is_err());
    let mut content = [0; 512];
    world.fs.read(world.ino, 512, &mut content, W)?;
    assert_eq!(content, [1; 512]);
    assert_eq!(world.fs.read(world.ino, 2048, &mut content, W).unwrap_err().errno(), EIO);
    assert!(world.pool.check().findings.iter().any(|finding| finding.code == Code::ColdChecksum));
    // A write over the whole block makes it sound again.
    world.write(0, &[7; 4096])?;
    world.compare_everywhere()
}

/// I10: while the device is stuck, aligned small writes to cold files and fsync go on. A stuck device answers
/// no read in this test: a read would fail at once.
#[test]
fn a_stuck_device_holds_up_no_small_write() -> FsResult<()> {
    let mut world = World::new(40_960)?;
    world.pool.device.stall_without_waiting();
    let before = world.pool.device.counters();
    for index in 0..30 {
        world.write(index * 1280 / 64 * 64, &[index as u8; 512])?;
        world.fs.fsync(world.ino, false, W)?;
    }
    world.write(40_960, &[1; 300])?;
    assert_eq!(world.pool.device.counters(), before);
    world.pool.device.unstall();
    world.compare_everywhere()
}

/// With `read_first`, as in the publications, a small write reads the cold block and leaves a whole block in
/// PM.
#[test]
fn read_first_reads_first() -> FsResult<()> {
    let mut world = World::with(8192, MountOptions { read_first: true, ..options() })?;
    world.write(512, &[1; 512])?;
    assert_eq!((world.reads(), world.partial()), (1, 0));
    world.compare_everywhere()
}

/// The lower tier is full of cold copies under partial shadows. The shadows are completed in PM and the
/// hidden copies given up, which makes the room to demote them (P1).
#[test]
fn a_full_tier_under_partial_blocks() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 33);
    let fs = pool.mount();
    let ino = fs.mknod(ROOT, b"file", 0o100644, 0, CALLER, W)?.ino;
    let expected = pattern(32 * 4096, 1);
    let mut world = World { expected, pool, fs, ino, of_checks: Cell::new(0) };
    world.fs.write(ino, 0, &world.expected, WriteFlags::default(), W)?;
    while world.pool.check().summary.cold_blocks < 32 {
        let before = world.pool.check().summary.cold_blocks;
        let _ = world.fs.sync_to(1, &mut |_| {});
        assert!(world.pool.check().summary.cold_blocks > before, "the tier fills");
    }
    for block in 0..32 {
        world.write(block * 4096 + 512, &[block as u8; 512])?;
    }
    assert_eq!(world.partial(), 32);
    world.compare_everywhere()
}

/// The partly filled last block of a file that is open, or was written a moment ago, stays in PM. Its
/// demotion writes zeros past the end.
#[test]
fn last_block_stays_while_in_use() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 2049);
    let clock = Arc::new(ManualClock::new(1_700_000_000_000_000_000));
    let pool = Pool { clock: clock.clone(), ..pool };
    // The policy wants every block out of PM, although PM is not short.
    let fs = pool.mount_with(MountOptions { threshold_percent: Some(1), ..Default::default() });
    let ino = fs.mknod(ROOT, b"file", 0o100644, 0, CALLER, W)?.ino;
    fs.write(ino, 0, &[1; 40_960 + 100], WriteFlags::default(), W)?;
    let left = || {
        fs.run_background(50);
        fs.whereabouts(ino).unwrap().tiers[0].1
    };
    assert_eq!(left(), 4096, "written a moment ago");
    fs.open(ino, false, true, W)?;
    clock.advance(std::time::Duration::from_secs(31));
    assert_eq!(left(), 4096, "open");
    fs.release(ino);
    // Demotion does not look again at once at a block that had to stay.
    clock.advance(std::time::Duration::from_secs(2));
    assert_eq!(left(), 0);
    Ok(())
}

/// A demoted block holds zeros past the end of the file, whatever PM held there.
#[test]
fn demotion_writes_zeros_past_the_end() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 2049);
    let fs = pool.mount();
    let ino = fs.mknod(ROOT, b"file", 0o100644, 0, CALLER, W)?.ino;
    fs.write(ino, 0, &[0x5a; 4096], WriteFlags::default(), W)?;
    fs.setattr(ino, &SetAttributes { size: Some(100), ..Default::default() }, W)?;
    fs.sync_to(1, &mut |_| {})?;
    let image = pool.device.visible_image();
    let mut marks = 0;
    for block in 0..2049 {
        let bytes = image.block(terrace_format::DeviceBlock(block)).0;
        marks += bytes.iter().filter(|byte| **byte == 0x5a).count();
    }
    assert_eq!(marks, 100);
    Ok(())
}

/// A pool without the feature gets no partial shadows.
#[test]
fn older_pools_read_first() -> FsResult<()> {
    let mut world = World::new(8192)?;
    world.fs.unmount()?;
    let (mut superblock, _) = terrace_engine::read_superblock(&*world.pool.pm, true).unwrap();
    superblock.features.incompatible = (superblock.features.incompatible.get() & !4).into();
    superblock.seal();
    for copy in terrace_format::geometry::SUPERBLOCK_COPIES {
        world.pool.pm.write(copy.offset(), zerocopy::IntoBytes::as_bytes(&superblock)).unwrap();
    }
    world.fs = world.pool.mount_with(options());
    world.write(512, &[1; 512])?;
    assert_eq!((world.reads(), world.partial()), (1, 0));
    world.compare_everywhere()
}

/// A partial shadow without a cold copy is damage: the missing lines are EIO, never a loop (I11). Check
/// reports it and repairs it.
#[test]
fn a_shadow_alone_is_damage() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 2049);
    let fs = pool.mount();
    let ino = fs.mknod(ROOT, b"file", 0o100644, 0, CALLER, W)?.ino;
    fs.write(ino, 0, &[1; 4096], WriteFlags::default(), W)?;
    fs.unmount()?;
    let (superblock, _) = terrace_engine::read_superblock(&*pool.pm, true).unwrap();
    let geometry = superblock.geometry();
    let owner =
        terrace_format::table::Owner::File { ino, block: terrace_format::FileBlock(0), unwritten: false };
    for (mask, code) in [(0xffu64, Code::ShadowAlone), (0, Code::TableMask)] {
        let mut blocks = (0..geometry.block_count()).map(terrace_format::PmBlock);
        let word = |block| pool.pm.load_u64(geometry.table_entry(block)).unwrap();
        let block = blocks.find(|block| word(*block) == owner.encode()).unwrap();
        pool.pm.write(geometry.table_entry(block).plus(8), &mask.to_le_bytes()).unwrap();
        // As after a crash, when the page of the block table is open and has no checksum word.
        let page = geometry.table_entry(block).block();
        pool.pm.write(geometry.checksum_word(page), &[0; 8]).unwrap();
        assert!(pool.check().findings.iter().any(|finding| finding.code == code));
        let fs = pool.mount();
        let mut content = [0; 4096];
        let error: FsError = fs.read(ino, 0, &mut content, W).unwrap_err();
        assert_eq!(error.errno(), EIO);
        assert_eq!(fs.write(ino, 8, &[2; 8], SYNC, W).is_err(), mask == 0);
        assert!(fs.sync_to(1, &mut |_| {}).is_err());
        fs.unmount()?;
    }
    Ok(())
}

/// The file map has lost a partial shadow on which block table and cold map agree: repair puts it back, with
/// its lines.
#[test]
fn repair_keeps_partial_shadows() -> FsResult<()> {
    let mut world = World::new(8192)?;
    world.write(512, &[1; 512])?;
    world.fs.unmount()?;
    let (superblock, _) = terrace_engine::read_superblock(&*world.pool.pm, true).unwrap();
    let page = superblock.geometry().first_pool_block().0 + 1;
    let slot = terrace_format::PmOffset(page * 4096 + world.ino.0 * 128);
    let mut bytes = [0; 128];
    world.pool.pm.read(slot, &mut bytes).unwrap();
    let mut slot_found: terrace_format::inode::InodeSlot =
        zerocopy::FromBytes::read_from_bytes(&bytes).unwrap();
    assert_ne!(slot_found.direct[0].get(), 0, "the partial block is mapped there");
    slot_found.direct[0] = 0.into();
    world.pool.pm.write(slot, zerocopy::IntoBytes::as_bytes(&slot_found)).unwrap();
    let media = terrace_repair::Media {
        pm: world.pool.pm.clone(),
        block: vec![Some(world.pool.device.clone() as Arc<dyn terrace_media::BlockMedium>)],
    };
    let repair = terrace_repair::repair(&media, &Default::default());
    assert_eq!(repair.exit_status(), 1, "{:?}", repair.actions);
    assert_eq!(world.partial(), 1);
    world.fs = world.pool.mount_with(options());
    world.compare_everywhere()
}

/// A change was to replace a partial shadow before the scan of the block table had met it, and was given up.
/// The block stays partial: its missing lines hold bytes of no file.
#[test]
fn a_partial_block_stays_partial_when_its_release_is_cancelled() -> FsResult<()> {
    let mut world = World::new(8192)?;
    world.write(512, &[1; 512])?;
    world.fs.unmount()?;
    let pm: Arc<dyn PmMedium> = world.pool.pm.clone();
    let (superblock, _) = terrace_engine::read_superblock(&*pm, true).unwrap();
    let (wal, _) = Wal::open(pm, superblock.uuid, superblock.geometry()).unwrap();
    let blocks = BlockPool::new(Arc::new(wal));
    let all = (blocks.first_block().0..blocks.end_block().0).map(PmBlock);
    let lines = |block: &PmBlock| match blocks.owner(*block) {
        Ok(Owner::File { ino, block: of, unwritten: false }) => blocks.lines(*block, ino, of).ok(),
        _ => None,
    };
    let is_partial = |block: &PmBlock| lines(block).is_some_and(|lines| !lines.is_full());
    let partial: Vec<PmBlock> = all.filter(is_partial).collect();
    assert_eq!(partial.len(), 1);
    blocks.release(&mut Tx::new(), partial[0]);
    blocks.keep(partial[0]);
    assert!(is_partial(&partial[0]));
    Ok(())
}
