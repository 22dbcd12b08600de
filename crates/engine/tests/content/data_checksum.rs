//! Checksums of file data in PM (docs/decisions/0026), on simulated media. crates/sim/tests/model.rs tests
//! the checksums that a crash leaves.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_check::Code;
use terrace_engine::{
    Allocate, BufferOptions, Engine, FormatOptions, FsResult, InPlace, LazyAblation, LazyOption,
    MountOptions, Movements, PolicyKind, Simulation, Wait, WriteFlags, format, read_superblock,
};
use terrace_format::table::{Entry, Owner};
use terrace_format::{BLOCK_SIZE, FileBlock, Ino, PmBlock, PmOffset};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_placement::Home;
use terrace_testkit::{CALLER, ROOT, SimulatedPool, TrackedFile, fill, format_options, pattern};

const W: Wait = Wait::Allowed;
const SYNC: WriteFlags = WriteFlags { sync: true, kill_set_id: false, pages: false };
const EIO: i32 = 5;

fn checksummed() -> FormatOptions {
    FormatOptions { data_checksums: true, ..format_options(1) }
}

fn options() -> MountOptions {
    // Under the static policy blocks move only when a test moves them.
    MountOptions { policy: Some(PolicyKind::STATIC), ..Default::default() }
}

/// Options under which a write without O_SYNC makes a dirty page in DRAM.
fn in_dram() -> MountOptions {
    MountOptions { home: Some(Home::Block), buffer: BufferOptions::of(1 << 20), ..options() }
}

/// A pool with checksums, and one file of the given size.
fn checksummed_file(size: usize) -> FsResult<TrackedFile> {
    let pool = SimulatedPool::formatted(2 << 20, 2049, &checksummed());
    TrackedFile::new(pool, options(), &pattern(size, 1))
}

/// Compares the content; the pool is clean.
#[track_caller]
fn compare(file: &TrackedFile) {
    file.assert_content();
    file.pool.assert_clean();
}

/// The PM block of a file block, with its entry.
fn place_in(file: &TrackedFile, block: u64) -> (PmBlock, Entry) {
    place(&file.pool.pm, file.ino, block).unwrap()
}

/// Changes bits of a byte of the file, in PM.
fn damage(file: &TrackedFile, offset: usize, bits: u8) {
    let (pm, _) = place_in(file, offset as u64 / BLOCK_SIZE);
    let at = pm.offset().plus(offset as u64 % BLOCK_SIZE);
    let mut byte = [0];
    file.pool.pm.read(at, &mut byte).unwrap();
    file.pool.pm.write(at, &[byte[0] ^ bits]).unwrap();
}

fn blocks_with_checksum(file: &TrackedFile) -> u64 {
    file.pool.check().summary.pm_blocks.checksums
}

fn place(pm: &RecordedPm, ino: Ino, block: u64) -> Option<(PmBlock, Entry)> {
    let geometry = read_superblock(pm, false).unwrap().0.geometry();
    (geometry.first_pool_block().0..geometry.block_count()).find_map(|number| {
        let at = geometry.table_entry(PmBlock(number));
        let words = [pm.load_u64(at).unwrap(), pm.load_u64(at.plus(8)).unwrap()];
        let entry = Entry::decode(words)?;
        let wanted = Owner::File { ino, block: FileBlock(block), unwritten: false };
        (entry.owner == wanted).then_some((PmBlock(number), entry))
    })
}

#[track_caller]
fn is_eio<T: std::fmt::Debug>(result: FsResult<T>) {
    assert_eq!(result.unwrap_err().errno(), EIO);
}

/// Writes of many kinds: short, with data that the record names and with data that it does not, aligned or
/// not, over new and old blocks, and zeros over parts.
#[test]
fn every_written_block_gets_a_checksum() -> FsResult<()> {
    let mut file = checksummed_file(0)?;
    for (offset, length) in [
        (0, 4096),
        (4096, 3),
        (8192, 8192),
        (16384, 40_960),
        (5000, 100),
        (100, 8000),
        (57_344, 77),
        (12_000, 30_000),
    ] {
        file.write(offset, &pattern(length, offset as u8))?;
        compare(&file);
        let blocks = file.expected.len().div_ceil(4096) as u64;
        let holes = (0..blocks).filter(|block| place(&file.pool.pm, file.ino, *block).is_none());
        assert_eq!(blocks_with_checksum(&file), blocks - holes.count() as u64, "after {offset}, {length}");
    }
    file.fs.fallocate(file.ino, 1000, 9000, Allocate::PunchHole, W)?;
    file.expected[1000..10_000].fill(0);
    compare(&file);
    file.mount_again(options())?;
    compare(&file);
    // Preallocated blocks are written in place.
    let end = file.expected.len() as u64;
    file.fs.fallocate(file.ino, 80_000, 20_000, Allocate::Extend, W)?;
    file.expected.resize(100_000, 0);
    assert!(end < 80_000);
    compare(&file);
    let before = blocks_with_checksum(&file);
    file.write(86_016, &pattern(4096, 9))?;
    file.write(90_200, &pattern(40, 9))?;
    compare(&file);
    assert_eq!(blocks_with_checksum(&file), before + 2);
    Ok(())
}

/// The checksum of a last block covers the bytes before the end of the file, so the next append can go on in
/// place.
#[test]
fn appends_stay_in_place_and_extend_the_checksum() -> FsResult<()> {
    let mut file = checksummed_file(100)?;
    let (first, entry) = place_in(&file, 0);
    assert_eq!(entry.checksum.unwrap().covered(), 100);
    for length in [1, 63, 500, 64, 1000] {
        let at = file.expected.len();
        file.write(at, &pattern(length, 3))?;
        let (pm, entry) = place_in(&file, 0);
        assert_eq!((pm, entry.checksum.unwrap().covered()), (first, at + length));
        compare(&file);
    }
    // A gap before the write becomes zeros, in the same block.
    file.write(3000, b"behind a gap")?;
    assert_eq!(place_in(&file, 0).0, first);
    compare(&file);
    file.set_size(3500)?;
    assert_eq!((place_in(&file, 0).0, place_in(&file, 0).1.checksum.unwrap().covered()), (first, 3500));
    // A write that runs past the end of the block.
    file.write(3500, &pattern(2000, 5))?;
    compare(&file);
    damage(&file, 3400, 1);
    is_eio(file.read(0, 10));
    Ok(())
}

/// After a truncation the checksum still covers the bytes past the new end. The next write past the end would
/// change bytes under the old checksum, so it takes a new block.
#[test]
fn a_shorter_file_keeps_the_checksum_until_its_end_is_written() -> FsResult<()> {
    let mut file = checksummed_file(4096)?;
    let (first, _) = place_in(&file, 0);
    file.set_size(1000)?;
    assert_eq!(place_in(&file, 0).1.checksum.unwrap().covered(), 4096);
    compare(&file);
    file.write(1000, b"more")?;
    let (moved, entry) = place_in(&file, 0);
    assert_ne!(moved, first);
    assert_eq!(entry.checksum.unwrap().covered(), 1004);
    compare(&file);
    file.set_size(700)?;
    file.set_size(3000)?;
    compare(&file);
    Ok(())
}

/// A flipped bit at many positions of the file gives an error, counted and with the file named, never wrong
/// bytes.
#[test]
fn a_flipped_bit_is_eio_for_its_block_alone() -> FsResult<()> {
    let mut file = checksummed_file(10_000)?;
    let mut random = StdRng::seed_from_u64(5);
    for round in 0..400 {
        let (at, bit) = (random.random_range(0..10_000usize), random.random_range(0..8));
        damage(&file, at, 1 << bit);
        let block = at / 4096;
        is_eio(file.read(at, 1));
        is_eio(file.read(0, 10_000));
        let of_block = (block * 4096, 4096.min(10_000 - block * 4096));
        is_eio(file.read(of_block.0, of_block.1));
        // A partial write is refused: it would put new bytes beside damaged ones under a sound checksum.
        let within = of_block.0 + random.random_range(1..of_block.1 - 10);
        is_eio(file.fs.write(file.ino, within as u64, b"part", SYNC, W));
        for other in (0..3).filter(|other| *other != block) {
            let (from, to) = (other * 4096, (other * 4096 + 4096).min(10_000));
            assert!(file.read(from, to - from)? == file.expected[from..to], "round {round}");
        }
        let report = file.pool.check();
        let found: Vec<Code> = report.findings.iter().map(|finding| finding.code).collect();
        assert_eq!(found, [Code::DataChecksum]);
        damage(&file, at, 1 << bit);
    }
    compare(&file);
    let tiers = file.fs.status()?.tiers;
    assert!(tiers[0].devices[0].checksum_errors >= 400);
    assert!(tiers[0].devices[0].reason.as_ref().is_some_and(|reason| reason.contains("checksum")));
    // A write of a whole block makes it sound, however damaged it was.
    damage(&file, 5000, 0x40);
    file.write(4096, &pattern(4096, 8))?;
    compare(&file);
    Ok(())
}

/// Demotion leaves a damaged block in PM: with a fresh checksum its damage would pass as the sound content of
/// a cold block.
#[test]
fn damaged_data_is_not_demoted() -> FsResult<()> {
    let mut file = checksummed_file(40_960)?;
    damage(&file, 20_000, 2);
    assert!(file.fs.sync_to(1, &mut |_| {}).is_err());
    is_eio(file.read(16_384, 4096));
    assert!(file.read(0, 16_384)? == file.expected[..16_384]);
    assert!(file.read(20_480, 20_480)? == file.expected[20_480..]);
    // All other blocks are demoted, and get checksums when they are promoted.
    assert_eq!(file.pool.check().summary.pm_blocks.files, 1);
    file.write(16_384, &pattern(4096, 7))?;
    file.fs.sync_to(1, &mut |_| {})?;
    assert_eq!(file.pool.check().summary.pm_blocks.files, 0);
    compare(&file);
    Ok(())
}

/// A write of a part of a damaged block into DRAM is refused: write-back would give the damaged bytes a sound
/// checksum on the lower tier.
#[test]
fn damaged_data_does_not_come_into_dram() -> FsResult<()> {
    let mut file = checksummed_file(12_288)?.mounted_again(in_dram())?;
    damage(&file, 5000, 2);
    is_eio(file.fs.write(file.ino, 4200, &[1; 100], WriteFlags::default(), W));
    is_eio(file.read(4096, 4096));
    file.fs.write(file.ino, 8200, &[2; 100], WriteFlags::default(), W)?;
    file.expected[8200..8300].fill(2);
    file.fs.fsync(file.ino, false, W)?;
    is_eio(file.read(4096, 4096));
    // A write of the whole block makes it sound.
    file.fs.write(file.ino, 4096, &[3; 4096], WriteFlags::default(), W)?;
    file.expected[4096..8192].fill(3);
    file.fs.fsync(file.ino, false, W)?;
    compare(&file);
    Ok(())
}

/// A write further on must make zeros of the tail of the last block. A damaged last block cannot be changed,
/// which must not make fsync of the write fail.
#[test]
fn a_damaged_last_block_hinders_no_fsync_of_later_blocks() -> FsResult<()> {
    let mut file = checksummed_file(5000)?;
    file.set_size(4500)?;
    let file = file.mounted_again(in_dram())?;
    // The damage lies past the end of the file, where no read meets it.
    damage(&file, 4700, 8);
    file.fs.write(file.ino, 12_288, &[7; 8192], WriteFlags::default(), W)?;
    file.fs.fsync(file.ino, false, W)?;
    let mut file = file.mounted_again(options())?;
    is_eio(file.read(4096, 400));
    assert_eq!(file.read(12_288, 8192)?, [7; 8192]);
    assert_eq!(file.read(8192, 4096)?, [0; 4096]);
    file.write(4096, &pattern(4096, 2))?;
    file.expected.resize(12_288, 0);
    file.expected.resize(20_480, 7);
    compare(&file);
    Ok(())
}

/// When a block has rotted in PM, its cold copy may be the last sound one.
#[test]
fn damaged_data_is_not_written_over_its_cold_copy() -> FsResult<()> {
    let in_place = InPlace { extent_blocks: 2, one_of: 1 };
    let options = MountOptions { in_place, ..options() };
    let mut file = checksummed_file(40_960)?.mounted_again(options.clone())?;
    file.fs.sync_to(1, &mut |_| {})?;
    let below = file.pool.device.visible_image().to_bytes();
    file.write(8192, &pattern(4096, 6))?;
    damage(&file, 8200, 1);
    assert!(file.fs.sync_to(1, &mut |_| {}).is_err());
    let now = file.pool.device.visible_image().to_bytes();
    let old = pattern(40_960, 1)[8192..12_288].to_vec();
    let place = below.chunks(4096).position(|block| block == old).unwrap();
    assert!(now[place * 4096..][..4096] == old, "the copy below was written over");
    // A sound block is written there.
    damage(&file, 8200, 1);
    file.fs.sync_to(1, &mut |_| {})?;
    assert!(file.fs.status()?.migration.in_place_bytes > 0);
    compare(&file);
    Ok(())
}

/// A partial shadow has a mask of lines instead of a checksum; a completed block has a checksum.
#[test]
fn a_partial_block_gets_a_checksum_when_completed() -> FsResult<()> {
    let mut file = checksummed_file(12_288)?;
    file.fs.sync_to(1, &mut |_| {})?;
    file.mount_again(options())?;
    file.write(512, &[1; 512])?;
    file.write(640, &[2; 64])?;
    assert_eq!(blocks_with_checksum(&file), 0);
    compare(&file);
    // An unaligned write needs the cold copy, and makes a whole block.
    file.write(5001, b"unaligned")?;
    assert_eq!(blocks_with_checksum(&file), 1);
    compare(&file);
    file.fs.sync_to(1, &mut |_| {})?;
    compare(&file);
    Ok(())
}

/// A pool without the feature has no checksums; with the feature `data=ordered` is refused.
#[test]
fn the_feature_is_asked_for_and_excludes_data_ordered() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 2049);
    let fs = pool.mount_with(options());
    let ino = fs.mknod(ROOT, b"file", 0o100644, 0, CALLER, W)?.ino;
    fs.write(ino, 0, &[1; 4096], SYNC, W)?;
    assert_eq!(pool.check().summary.pm_blocks.checksums, 0);
    let ordered = FormatOptions { data_ordered: true, ..checksummed() };
    assert!(format(&pool.media(), &ordered).unwrap_err().to_string().contains("data=atomic"));
    let file = checksummed_file(4096)?;
    file.fs.unmount()?;
    let (superblock, _) = read_superblock(&*file.pool.pm, true).unwrap();
    let ordered = MountOptions { data_ordered: Some(true), ..options() };
    let refused = Engine::mount(file.pool.media(), superblock, ordered, file.pool.clock.clone());
    assert!(refused.err().unwrap().to_string().contains("data=atomic"));
    assert!(file.pool.check().summary.clean_unmount, "the refused mount changed nothing");
    Ok(())
}

/// A damaged checksum of data is caught by the checksum of its page of the block table; while that page is
/// open it has none, and the data does not match the damaged word.
#[test]
fn a_damaged_checksum_is_eio_too() -> FsResult<()> {
    let file = checksummed_file(8192)?;
    let geometry = read_superblock(&*file.pool.pm, false).unwrap().0.geometry();
    let (pm, _) = place_in(&file, 1);
    let at = geometry.table_entry(pm).0 + 8;
    let mut byte = [0];
    file.pool.pm.read(PmOffset(at), &mut byte).unwrap();
    file.pool.pm.write(PmOffset(at), &[byte[0] ^ 4]).unwrap();
    is_eio(file.read(4096, 4096));
    assert!(file.read(0, 4096)? == file.expected[..4096]);
    Ok(())
}

/// A write-back once left all pages of the file in DRAM, again and again, when the old content of one block was damaged.
#[test]
fn a_damaged_block_holds_back_no_other_lazy_page() -> FsResult<()> {
    let size = 6 * BLOCK_SIZE as usize;
    let mut file = checksummed_file(size)?;
    damage(&file, 200, 1);
    let always = BufferOptions { lazy: LazyOption::On, ablation: LazyAblation::Always, ..Default::default() };
    file.mount_again(MountOptions { buffer: always, ..options() })?;
    let write = |at: usize, length: usize| {
        file.fs.write(file.ino, at as u64, &fill(length, 0xee), WriteFlags::default(), Wait::Allowed)
    };
    // A line of the damaged block, and all of the others but one.
    write(640, 64)?;
    for block in [1, 2, 3, 5] {
        write(block * BLOCK_SIZE as usize, BLOCK_SIZE as usize)?;
    }
    let synced = file.fs.fsync(file.ino, false, Wait::Allowed);
    assert_eq!(synced.map_err(|error| error.errno()), Err(libc::EIO));
    let accounts = file.fs.accounts()?;
    assert_eq!((accounts.lazy_pages, accounts.promised_blocks), (1, 1), "the damaged block alone waits");
    // The write of the whole block makes it sound.
    write(0, BLOCK_SIZE as usize)?;
    file.fs.fsync(file.ino, false, Wait::Allowed)?;
    for block in [0, 1, 2, 3, 5] {
        let from = block * BLOCK_SIZE as usize;
        file.expected[from..from + BLOCK_SIZE as usize].fill(0xee);
    }
    file.mount_again(options())?;
    compare(&file);
    Ok(())
}

/// The search for space writes lazy pages back, and once gave a writer the error of another file's page (I8).
#[test]
fn a_writer_without_space_gets_no_error_of_another_file() -> FsResult<()> {
    let mut file = checksummed_file(2 * BLOCK_SIZE as usize)?;
    damage(&file, 200, 1);
    let always = BufferOptions { lazy: LazyOption::On, ablation: LazyAblation::Always, ..Default::default() };
    file.mount_again(MountOptions { buffer: always, ..options() })?;
    file.fs.write(file.ino, 640, &fill(64, 0xee), WriteFlags::default(), Wait::Allowed)?;
    assert_eq!(file.fs.accounts()?.lazy_pages, 1);
    let other = file.fs.mknod(ROOT, b"other", 0o100644, 0, CALLER, W)?.ino;
    let append = |block: u64| file.fs.write(other, block * BLOCK_SIZE, &fill(4096, 7), SYNC, W);
    let errno = (0..4096).find_map(|block| append(block).err()).map(|error| error.errno());
    assert_eq!(errno, Some(libc::ENOSPC));
    Ok(())
}
