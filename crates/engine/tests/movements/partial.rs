//! Partial shadows, made by small writes to cold blocks, on simulated media. crates/sim/tests/crash.rs tests
//! what a crash may leave of them.

use std::sync::Arc;
use terrace_blocks::BlockPool;
use terrace_check::Code;
use terrace_engine::{
    Allocate, FsError, FsResult, MountOptions, Movements, PolicyKind, SetAttributes, Simulation, Wait,
    WriteFlags,
};
use terrace_format::PmBlock;
use terrace_format::table::Owner;
use terrace_media::PmMedium;
use terrace_media::block::{Operation, Times};
use terrace_testkit::{CALLER, ROOT, SimulatedPool, TrackedFile, has_other_map, pattern};
use terrace_wal::{Tx, Wal};

const W: Wait = Wait::Allowed;
const SYNC: WriteFlags = WriteFlags { sync: true, kill_set_id: false, pages: false };
const EIO: i32 = 5;

fn options() -> MountOptions {
    // Under the static policy blocks move only when a test moves them.
    MountOptions { policy: Some(PolicyKind::STATIC), ..Default::default() }
}

/// A pool with one cold file.
fn cold_file(size: usize) -> FsResult<TrackedFile> {
    cold_file_under(options(), size)
}

fn cold_file_under(options: MountOptions, size: usize) -> FsResult<TrackedFile> {
    TrackedFile::cold(SimulatedPool::new(2 << 20, 2049), options, &pattern(size, 1))
}

/// Reads of the device.
fn device_reads(file: &TrackedFile) -> u64 {
    file.pool.device.counters().reads
}

/// Partial shadows in PM, as `check` counts them; the pool is sound. A copy is checked, so that its reads do not
/// count.
#[track_caller]
fn partial(file: &TrackedFile) -> u64 {
    let copy = file.pool.copied();
    copy.assert_clean();
    copy.check().summary.pm_blocks.partial
}

/// Compares the content now, after another mount, and after everything was demoted.
#[track_caller]
fn compare_everywhere(mut file: TrackedFile) -> FsResult<()> {
    file.assert_content();
    file.mount_again(options())?;
    file.assert_content();
    file.fs.sync_to(1, &mut |_| {})?;
    assert_eq!(file.fs.status()?.migration.reason, None);
    assert_eq!(partial(&file), 0, "all were completed");
    file.assert_content();
    assert_eq!(file.pool.check().summary.pm_blocks.files, 0, "nothing of it is left in PM");
    file.mount_again(MountOptions::default())?;
    file.assert_content();
    Ok(())
}

/// A write of whole lines over a cold block neither reads nor writes the device.
#[test]
fn a_small_overwrite_of_whole_lines_reads_no_device() -> FsResult<()> {
    let mut file = cold_file(40_960)?;
    let before = file.pool.device.counters();
    file.write(512, &[1; 512])?;
    file.write(3 * 4096 + 64, &[2; 64])?;
    file.write(4 * 4096 - 128, &[3; 256])?;
    let mut content = [0; 512];
    file.fs.read(file.ino, 512, &mut content, W)?;
    assert_eq!(content, [1; 512]);
    file.fs.fsync(file.ino, false, W)?;
    assert_eq!(file.pool.device.counters(), before);
    assert_eq!(partial(&file), 3);
    file.assert_content();
    assert!(device_reads(&file) > before.reads, "the rest comes from below");
    compare_everywhere(file)
}

/// Lines of several writes add up in one partial shadow, overlapping ones too.
#[test]
fn lines_of_several_writes_are_united() -> FsResult<()> {
    let mut file = cold_file(8192)?;
    for (index, (at, length)) in
        [(64, 64), (1024, 512), (128, 64), (960, 128), (4032, 64), (0, 64), (64, 1024)]
            .into_iter()
            .enumerate()
    {
        file.write(at, &vec![index as u8 + 7; length])?;
        assert_eq!(partial(&file), 1);
    }
    assert_eq!(device_reads(&file), 0);
    file.assert_content();
    // The last missing lines make the block whole.
    file.write(1536, &[99; 4032 - 1536])?;
    assert_eq!(partial(&file), 0);
    compare_everywhere(file)
}

/// An unaligned write needs the rest of the lines at its edges: it reads the cold block and leaves a whole
/// block. If PM has these lines already, no read is needed.
#[test]
fn an_unaligned_write_reads_only_missing_edge_lines() -> FsResult<()> {
    let mut file = cold_file(20_480)?;
    file.write(4096 + 100, &[1; 200])?;
    assert!(device_reads(&file) > 0);
    assert_eq!(partial(&file), 0);
    file.fs.unmount()?;
    file.fs = file.pool.mount_with(options());
    let reads = device_reads(&file);
    file.write(8192, &[2; 640])?;
    file.write(8192 + 100, &[3; 333])?;
    file.write(8192 + 600, &[4; 40])?;
    assert_eq!((device_reads(&file), partial(&file)), (reads, 1), "the edges are there");
    file.write(8192 + 630, &[5; 100])?;
    assert!(device_reads(&file) > reads, "the last line is not");
    assert_eq!(partial(&file), 0);
    compare_everywhere(file)
}

/// An append to a cold last block reads no device if it begins at a line, whatever its length.
#[test]
fn aligned_appends_to_a_cold_last_block_read_no_device() -> FsResult<()> {
    let mut file = cold_file(4096 + 640)?;
    file.write(4096 + 640, &[1; 100])?;
    file.write(4096 + 740, &[2; 30])?;
    file.write(4096 + 770, &[3; 1000])?;
    assert_eq!((device_reads(&file), partial(&file)), (0, 1));
    file.write(4096 + 1770, &[4; 5000])?;
    assert_eq!(device_reads(&file), 0);
    compare_everywhere(file)
}

/// A write that begins past the end of the file leaves zeros in the gap, also where the cold copy holds old
/// bytes.
#[test]
fn gaps_before_a_write_become_zeros() -> FsResult<()> {
    let mut file = cold_file(12_288)?;
    file.set_size(8192 + 512)?;
    assert_eq!((device_reads(&file), partial(&file)), (0, 0));
    file.write(8192 + 2048, &[1; 64])?;
    assert_eq!((device_reads(&file), partial(&file)), (0, 1));
    file.set_size(8192 + 1024)?;
    file.set_size(16_000)?;
    assert_eq!(device_reads(&file), 0);
    file.write(20_000, &[2; 1])?;
    compare_everywhere(file)
}

/// Truncation leaves lines past the end; a later growth clears them, in PM and over the cold copy.
#[test]
fn growth_after_truncation_clears_partial_blocks() -> FsResult<()> {
    for cut in [1, 63, 64, 100, 512, 600, 4095] {
        let mut file = cold_file(8192)?;
        file.write(4096 + 512, &[9; 512])?;
        file.set_size(4096 + cut)?;
        file.set_size(8192)?;
        compare_everywhere(file)?;
    }
    let mut file = cold_file(8192)?;
    file.write(64, &[9; 512])?;
    file.set_size(0)?;
    assert_eq!(partial(&file), 0);
    file.set_size(8192)?;
    compare_everywhere(file)
}

/// Holes over partial shadows, whole and with edges; fallocate afterwards loses no byte.
#[test]
fn punches_over_partial_blocks_lose_no_byte() -> FsResult<()> {
    for (from, to) in [(0, 8192), (4096, 8192), (1024, 2048), (1000, 2000), (4160, 12_000), (64, 12_224)] {
        let mut file = cold_file(12_288)?;
        file.write(4096 + 512, &[9; 512])?;
        file.write(1024, &[8; 1024])?;
        file.punch(from, to)?;
        file.fs.fallocate(file.ino, 0, 12_288, Allocate::Extend, W)?;
        compare_everywhere(file)?;
    }
    Ok(())
}

/// A write of the whole block makes the partial shadow a whole block; unlink frees the PM block and the cold
/// copy.
#[test]
fn a_whole_overwrite_completes_and_unlink_frees_both_copies() -> FsResult<()> {
    let mut file = cold_file(8192)?;
    file.write(0, &[1; 64])?;
    file.write(4096, &[1; 64])?;
    file.write(0, &[2; 4096])?;
    assert_eq!(partial(&file), 1);
    file.assert_content();
    file.fs.unlink(ROOT, b"file", W)?;
    file.fs.forget(file.ino, 1);
    file.fs.run_background(100);
    let summary = file.pool.check().summary;
    file.pool.assert_clean();
    assert_eq!((summary.pm_blocks.files, summary.cold_blocks), (0, 0));
    Ok(())
}

/// With data=ordered, lines that PM has are overwritten in place, and missing lines are added in place.
#[test]
fn ordered_data_is_written_into_partial_blocks_in_place() -> FsResult<()> {
    let ordered = MountOptions { data_ordered: Some(true), ..options() };
    let mut file = cold_file_under(ordered, 8192)?;
    file.write(512, &[1; 512])?;
    file.write(600, &[2; 100])?;
    file.write(960, &[3; 192])?;
    assert_eq!((device_reads(&file), partial(&file)), (0, 1));
    file.punch(1024, 1088)?;
    compare_everywhere(file)
}

/// A partial shadow that is read repeatedly is completed in PM.
#[test]
fn promotion_completes_a_partial_shadow() -> FsResult<()> {
    let mut file = cold_file_under(MountOptions { promote_first_touch: true, ..Default::default() }, 8192)?;
    file.write(512, &[1; 512])?;
    assert_eq!(partial(&file), 1);
    file.assert_content();
    file.fs.run_background(10);
    assert_eq!(partial(&file), 0);
    let reads = device_reads(&file);
    file.assert_content();
    assert_eq!(device_reads(&file), reads);
    compare_everywhere(file)
}

/// The device fails when demotion reads the missing lines. The report gives the reason, the lines in PM stay
/// readable and writable, and everything is demoted once the device works.
#[test]
fn a_failed_completion_gives_migration_a_reason() -> FsResult<()> {
    let mut file = cold_file(8192)?;
    file.write(512, &[1; 512])?;
    file.pool.device.fail_next(Operation::Read, 0..u64::MAX, EIO, Times::Forever);
    assert!(file.fs.sync_to(1, &mut |_| {}).is_err());
    let reason = file.fs.status()?.migration.reason;
    assert!(reason.is_some_and(|reason| reason.contains("read")), "the reason names what failed");
    let mut content = [0; 512];
    file.fs.read(file.ino, 512, &mut content, W)?;
    assert_eq!(content, [1; 512]);
    file.write(1024, &[2; 64])?;
    let error = file.fs.read(file.ino, 0, &mut content, W).unwrap_err();
    assert_eq!(error.errno(), EIO);
    file.pool.device.clear_failures();
    assert_eq!(partial(&file), 1);
    compare_everywhere(file)
}

/// A rotten cold copy must not complete a partial shadow (M4): the lines in PM stay readable, the rest of the
/// block is EIO.
#[test]
fn a_rotten_cold_copy_completes_no_partial_shadow() -> FsResult<()> {
    let mut file = cold_file(4096)?;
    file.write(512, &[1; 512])?;
    for block in 1..2049 {
        file.pool.device.corrupt(terrace_format::DeviceBlock(block), 2000, 1);
    }
    assert!(file.fs.sync_to(1, &mut |_| {}).is_err());
    let mut content = [0; 512];
    file.fs.read(file.ino, 512, &mut content, W)?;
    assert_eq!(content, [1; 512]);
    assert_eq!(file.fs.read(file.ino, 2048, &mut content, W).unwrap_err().errno(), EIO);
    assert!(file.pool.check().findings.iter().any(|finding| finding.code == Code::ColdChecksum));
    // A write over the whole block makes it sound again.
    file.write(0, &[7; 4096])?;
    compare_everywhere(file)
}

/// I10: while the device is stuck, aligned small writes to cold files and fsync go on. A stuck device answers
/// no read in this test: a read would fail at once.
#[test]
fn a_stuck_device_holds_up_no_small_write() -> FsResult<()> {
    let mut file = cold_file(40_960)?;
    file.pool.device.stall_without_waiting();
    let before = file.pool.device.counters();
    for index in 0..30 {
        file.write(index * 1280 / 64 * 64, &[index as u8; 512])?;
        file.fs.fsync(file.ino, false, W)?;
    }
    file.write(40_960, &[1; 300])?;
    assert_eq!(file.pool.device.counters(), before);
    file.pool.device.unstall();
    compare_everywhere(file)
}

/// With `no_partial_shadows`, as in the publications, a small write reads the cold block and leaves a whole block in
/// PM.
#[test]
fn a_small_write_under_read_first_reads_its_cold_block() -> FsResult<()> {
    let mut file = cold_file_under(MountOptions { no_partial_shadows: true, ..options() }, 8192)?;
    file.write(512, &[1; 512])?;
    assert_eq!((device_reads(&file), partial(&file)), (1, 0));
    compare_everywhere(file)
}

/// The lower tier is full of cold copies under partial shadows. The shadows are completed in PM and the
/// hidden copies given up, which makes the room to demote them (P1).
#[test]
fn partial_shadows_over_a_full_tier_are_completed_and_demoted() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 33);
    let fs = pool.mount();
    let ino = fs.mknod(ROOT, b"file", 0o100644, 0, CALLER, W)?.ino;
    let expected = pattern(32 * 4096, 1);
    let mut file = TrackedFile { expected, pool, fs, ino };
    file.fs.write(ino, 0, &file.expected, WriteFlags::default(), W)?;
    while file.pool.check().summary.cold_blocks < 32 {
        let before = file.pool.check().summary.cold_blocks;
        let _ = file.fs.sync_to(1, &mut |_| {});
        assert!(file.pool.check().summary.cold_blocks > before, "the tier fills");
    }
    for block in 0..32 {
        file.write(block * 4096 + 512, &[block as u8; 512])?;
    }
    assert_eq!(partial(&file), 32);
    compare_everywhere(file)
}

/// The partly filled last block of a file that is open, or was written a moment ago, stays in PM. Its
/// demotion writes zeros past the end.
#[test]
fn the_last_block_of_a_file_in_use_stays_in_pm() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 2049);
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
    pool.clock.advance(std::time::Duration::from_secs(31));
    assert_eq!(left(), 4096, "open");
    fs.release(ino);
    // Demotion does not look again at once at a block that had to stay.
    pool.clock.advance(std::time::Duration::from_secs(2));
    assert_eq!(left(), 0);
    Ok(())
}

/// A demoted block holds zeros past the end of the file, whatever PM held there.
#[test]
fn demotion_writes_zeros_past_the_end() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 2049);
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
fn a_small_write_to_an_older_pool_reads_its_cold_block() -> FsResult<()> {
    let mut file = cold_file(8192)?;
    file.fs.unmount()?;
    let (mut superblock, _) = terrace_engine::read_superblock(&*file.pool.pm, true).unwrap();
    superblock.features.incompatible = (superblock.features.incompatible.get() & !4).into();
    superblock.seal();
    for copy in terrace_format::geometry::SUPERBLOCK_COPIES {
        file.pool.pm.write(copy.offset(), zerocopy::IntoBytes::as_bytes(&superblock)).unwrap();
    }
    file.fs = file.pool.mount_with(options());
    file.write(512, &[1; 512])?;
    assert_eq!((device_reads(&file), partial(&file)), (1, 0));
    compare_everywhere(file)
}

/// A partial shadow without a cold copy is damage: the missing lines are EIO, never a loop (I11). Check
/// reports it and repairs it.
#[test]
fn a_partial_shadow_without_a_cold_copy_is_damage() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 2049);
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
    if has_other_map() {
        return Ok(());
    }
    let mut file = cold_file(8192)?;
    file.write(512, &[1; 512])?;
    file.fs.unmount()?;
    let (superblock, _) = terrace_engine::read_superblock(&*file.pool.pm, true).unwrap();
    let page = superblock.geometry().first_pool_block().0 + 1;
    let slot = terrace_format::PmOffset(page * 4096 + file.ino.0 * 128);
    let mut bytes = [0; 128];
    file.pool.pm.read(slot, &mut bytes).unwrap();
    let mut slot_found: terrace_format::inode::InodeSlot =
        zerocopy::FromBytes::read_from_bytes(&bytes).unwrap();
    assert_ne!(slot_found.direct[0].get(), 0, "the partial block is mapped there");
    slot_found.direct[0] = 0.into();
    file.pool.pm.write(slot, zerocopy::IntoBytes::as_bytes(&slot_found)).unwrap();
    let repair = terrace_repair::repair(&file.pool.repair_media(), &Default::default());
    // The slots of the changed page have no second copy: repair names their inodes.
    assert_eq!(repair.exit_status(), 5, "{:?}", repair.actions);
    assert_eq!(partial(&file), 1);
    file.fs = file.pool.mount_with(options());
    compare_everywhere(file)
}

/// A change was to replace a partial shadow before the scan of the block table had met it, and was given up.
/// The block stays partial: its missing lines hold bytes of no file.
#[test]
fn a_partial_block_stays_partial_when_its_release_is_cancelled() -> FsResult<()> {
    let mut file = cold_file(8192)?;
    file.write(512, &[1; 512])?;
    file.fs.unmount()?;
    let pm: Arc<dyn PmMedium> = file.pool.pm.clone();
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
