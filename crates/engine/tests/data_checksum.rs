//! Checksums of file data in PM (docs/decisions/0026), on simulated media. crates/sim/tests/model.rs tests
//! the checksums that a crash leaves.
#![allow(clippy::unwrap_used)]

mod common;

use common::{CALLER, Pool, ROOT, format_options};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use terrace_check::Code;
use terrace_engine::{
    Allocate, Engine, FormatOptions, FsResult, InPlace, MountOptions, Movements, PolicyKind, SetAttributes,
    Wait, WriteFlags, format, read_superblock,
};
use terrace_format::table::{Entry, Owner};
use terrace_format::{BLOCK_SIZE, FileBlock, Ino, PmBlock, PmOffset};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_placement::Home;

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
    MountOptions { home: Some(Home::Block), buffer_bytes: 1 << 20, ..options() }
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}

/// A pool with checksums, one file, and the content expected of the file.
struct World {
    pool: Pool,
    fs: Arc<Engine>,
    ino: Ino,
    expected: Vec<u8>,
}

impl World {
    fn new(size: usize) -> FsResult<World> {
        let pool = Pool::of(2 << 20, 2049, &checksummed());
        let fs = pool.mount_with(options());
        let ino = fs.mknod(ROOT, b"file", 0o100644, 0, CALLER, W)?.ino;
        let mut world = World { pool, fs, ino, expected: Vec::new() };
        if size > 0 {
            world.write(0, &pattern(size, 1))?;
        }
        Ok(world)
    }

    fn mounted_again(mut self, options: MountOptions) -> FsResult<World> {
        self.fs.unmount()?;
        self.fs = self.pool.mount_with(options);
        self.fs.lookup(ROOT, b"file")?;
        Ok(self)
    }

    fn write(&mut self, offset: usize, data: &[u8]) -> FsResult<()> {
        self.fs.write(self.ino, offset as u64, data, SYNC, W)?;
        let end = offset + data.len();
        self.expected.resize(self.expected.len().max(end), 0);
        self.expected[offset..end].copy_from_slice(data);
        Ok(())
    }

    fn set_size(&mut self, size: usize) -> FsResult<()> {
        self.fs.setattr(self.ino, &SetAttributes { size: Some(size as u64), ..Default::default() }, W)?;
        self.expected.resize(size, 0);
        Ok(())
    }

    fn read(&self, offset: usize, length: usize) -> FsResult<Vec<u8>> {
        let mut content = vec![0; length];
        let count = self.fs.read(self.ino, offset as u64, &mut content, W)?;
        content.truncate(count);
        Ok(content)
    }

    /// Compares the content, read as a whole and block by block. The pool is clean.
    #[track_caller]
    fn compare(&self) {
        assert!(self.read(0, self.expected.len() + 1).unwrap() == self.expected);
        for (index, block) in self.expected.chunks(BLOCK_SIZE as usize).enumerate() {
            let at = index * BLOCK_SIZE as usize;
            assert!(self.read(at, block.len()).unwrap() == block, "block {index} alone");
        }
        self.pool.assert_clean();
    }

    /// The PM block of a file block, with its entry.
    fn place(&self, block: u64) -> (PmBlock, Entry) {
        place(&self.pool.pm, self.ino, block).unwrap()
    }

    /// Changes bits of a byte of the file, in PM.
    fn damage(&self, offset: usize, bits: u8) {
        let (pm, _) = self.place(offset as u64 / BLOCK_SIZE);
        let at = pm.offset().plus(offset as u64 % BLOCK_SIZE);
        let mut byte = [0];
        self.pool.pm.read(at, &mut byte).unwrap();
        self.pool.pm.write(at, &[byte[0] ^ bits]).unwrap();
    }

    fn blocks_with_checksum(&self) -> u64 {
        self.pool.check().summary.pm_blocks.checksums
    }
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
    let mut world = World::new(0)?;
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
        world.write(offset, &pattern(length, offset as u8))?;
        world.compare();
        let blocks = world.expected.len().div_ceil(4096) as u64;
        let holes = (0..blocks).filter(|block| place(&world.pool.pm, world.ino, *block).is_none());
        assert_eq!(world.blocks_with_checksum(), blocks - holes.count() as u64, "after {offset}, {length}");
    }
    world.fs.fallocate(world.ino, 1000, 9000, Allocate::PunchHole, W)?;
    world.expected[1000..10_000].fill(0);
    world.compare();
    world.fs.unmount()?;
    world.fs = world.pool.mount_with(options());
    world.compare();
    // Preallocated blocks are written in place.
    let end = world.expected.len() as u64;
    world.fs.fallocate(world.ino, 80_000, 20_000, Allocate::Extend, W)?;
    world.expected.resize(100_000, 0);
    assert!(end < 80_000);
    world.compare();
    let before = world.blocks_with_checksum();
    world.write(86_016, &pattern(4096, 9))?;
    world.write(90_200, &pattern(40, 9))?;
    world.compare();
    assert_eq!(world.blocks_with_checksum(), before + 2);
    Ok(())
}

/// The checksum of a last block covers the bytes before the end of the file, so the next append can go on in
/// place.
#[test]
fn appends_stay_in_place_and_extend_the_checksum() -> FsResult<()> {
    let mut world = World::new(100)?;
    let (first, entry) = world.place(0);
    assert_eq!(entry.checksum.unwrap().covered(), 100);
    for length in [1, 63, 500, 64, 1000] {
        let at = world.expected.len();
        world.write(at, &pattern(length, 3))?;
        let (pm, entry) = world.place(0);
        assert_eq!((pm, entry.checksum.unwrap().covered()), (first, at + length));
        world.compare();
    }
    // A gap before the write becomes zeros, in the same block.
    world.write(3000, b"behind a gap")?;
    assert_eq!(world.place(0).0, first);
    world.compare();
    world.set_size(3500)?;
    assert_eq!((world.place(0).0, world.place(0).1.checksum.unwrap().covered()), (first, 3500));
    // A write that runs past the end of the block.
    world.write(3500, &pattern(2000, 5))?;
    world.compare();
    world.damage(3400, 1);
    is_eio(world.read(0, 10));
    Ok(())
}

/// After a truncation the checksum still covers the bytes past the new end. The next write past the end would
/// change bytes under the old checksum, so it takes a new block.
#[test]
fn a_shorter_file_keeps_the_checksum_until_its_end_is_written() -> FsResult<()> {
    let mut world = World::new(4096)?;
    let (first, _) = world.place(0);
    world.set_size(1000)?;
    assert_eq!(world.place(0).1.checksum.unwrap().covered(), 4096);
    world.compare();
    world.write(1000, b"more")?;
    let (moved, entry) = world.place(0);
    assert_ne!(moved, first);
    assert_eq!(entry.checksum.unwrap().covered(), 1004);
    world.compare();
    world.set_size(700)?;
    world.set_size(3000)?;
    world.compare();
    Ok(())
}

/// A flipped bit at many positions of the file gives an error, counted and with the file named, never wrong
/// bytes.
#[test]
fn a_flipped_bit_is_eio_for_its_block_alone() -> FsResult<()> {
    let mut world = World::new(10_000)?;
    let mut random = StdRng::seed_from_u64(5);
    for round in 0..400 {
        let (at, bit) = (random.random_range(0..10_000usize), random.random_range(0..8));
        world.damage(at, 1 << bit);
        let block = at / 4096;
        is_eio(world.read(at, 1));
        is_eio(world.read(0, 10_000));
        let of_block = (block * 4096, 4096.min(10_000 - block * 4096));
        is_eio(world.read(of_block.0, of_block.1));
        // A partial write is refused: it would put new bytes beside damaged ones under a sound checksum.
        let within = of_block.0 + random.random_range(1..of_block.1 - 10);
        is_eio(world.fs.write(world.ino, within as u64, b"part", SYNC, W));
        for other in (0..3).filter(|other| *other != block) {
            let (from, to) = (other * 4096, (other * 4096 + 4096).min(10_000));
            assert!(world.read(from, to - from)? == world.expected[from..to], "round {round}");
        }
        let report = world.pool.check();
        let found: Vec<Code> = report.findings.iter().map(|finding| finding.code).collect();
        assert_eq!(found, [Code::DataChecksum]);
        world.damage(at, 1 << bit);
    }
    world.compare();
    let tiers = world.fs.status()?.tiers;
    assert!(tiers[0].devices[0].checksum_errors >= 400);
    assert!(tiers[0].devices[0].reason.as_ref().is_some_and(|reason| reason.contains("checksum")));
    // A write of a whole block makes it sound, however damaged it was.
    world.damage(5000, 0x40);
    world.write(4096, &pattern(4096, 8))?;
    world.compare();
    Ok(())
}

/// Demotion leaves a damaged block in PM: with a fresh checksum its damage would pass as the sound content of
/// a cold block.
#[test]
fn damaged_data_is_not_demoted() -> FsResult<()> {
    let mut world = World::new(40_960)?;
    world.damage(20_000, 2);
    assert!(world.fs.sync_to(1, &mut |_| {}).is_err());
    is_eio(world.read(16_384, 4096));
    assert!(world.read(0, 16_384)? == world.expected[..16_384]);
    assert!(world.read(20_480, 20_480)? == world.expected[20_480..]);
    // All other blocks are demoted, and get checksums when they are promoted.
    assert_eq!(world.pool.check().summary.pm_blocks.files, 1);
    world.write(16_384, &pattern(4096, 7))?;
    world.fs.sync_to(1, &mut |_| {})?;
    assert_eq!(world.pool.check().summary.pm_blocks.files, 0);
    world.compare();
    Ok(())
}

/// A write of a part of a damaged block into DRAM is refused: write-back would give the damaged bytes a sound
/// checksum on the lower tier.
#[test]
fn damaged_data_does_not_come_into_dram() -> FsResult<()> {
    let mut world = World::new(12_288)?.mounted_again(in_dram())?;
    world.damage(5000, 2);
    is_eio(world.fs.write(world.ino, 4200, &[1; 100], WriteFlags::default(), W));
    is_eio(world.read(4096, 4096));
    world.fs.write(world.ino, 8200, &[2; 100], WriteFlags::default(), W)?;
    world.expected[8200..8300].fill(2);
    world.fs.fsync(world.ino, false, W)?;
    is_eio(world.read(4096, 4096));
    // A write of the whole block makes it sound.
    world.fs.write(world.ino, 4096, &[3; 4096], WriteFlags::default(), W)?;
    world.expected[4096..8192].fill(3);
    world.fs.fsync(world.ino, false, W)?;
    world.compare();
    Ok(())
}

/// A write further on must make zeros of the tail of the last block. A damaged last block cannot be changed,
/// which must not make fsync of the write fail.
#[test]
fn a_damaged_last_block_hinders_no_fsync_of_later_blocks() -> FsResult<()> {
    let mut world = World::new(5000)?;
    world.set_size(4500)?;
    let world = world.mounted_again(in_dram())?;
    // The damage lies past the end of the file, where no read meets it.
    world.damage(4700, 8);
    world.fs.write(world.ino, 12_288, &[7; 8192], WriteFlags::default(), W)?;
    world.fs.fsync(world.ino, false, W)?;
    let mut world = world.mounted_again(options())?;
    is_eio(world.read(4096, 400));
    assert_eq!(world.read(12_288, 8192)?, [7; 8192]);
    assert_eq!(world.read(8192, 4096)?, [0; 4096]);
    world.write(4096, &pattern(4096, 2))?;
    world.expected.resize(12_288, 0);
    world.expected.resize(20_480, 7);
    world.compare();
    Ok(())
}

/// When a block has rotted in PM, its cold copy may be the last sound one.
#[test]
fn damaged_data_is_not_written_over_its_cold_copy() -> FsResult<()> {
    let in_place = InPlace { extent_blocks: 2, one_of: 1 };
    let options = MountOptions { in_place, ..options() };
    let mut world = World::new(40_960)?.mounted_again(options.clone())?;
    world.fs.sync_to(1, &mut |_| {})?;
    let below = world.pool.device.visible_image().to_bytes();
    world.write(8192, &pattern(4096, 6))?;
    world.damage(8200, 1);
    assert!(world.fs.sync_to(1, &mut |_| {}).is_err());
    let now = world.pool.device.visible_image().to_bytes();
    let old = pattern(40_960, 1)[8192..12_288].to_vec();
    let place = below.chunks(4096).position(|block| block == old).unwrap();
    assert!(now[place * 4096..][..4096] == old, "the copy below was written over");
    // A sound block is written there.
    world.damage(8200, 1);
    world.fs.sync_to(1, &mut |_| {})?;
    assert!(world.fs.status()?.migration.in_place_bytes > 0);
    world.compare();
    Ok(())
}

/// A partial shadow has a mask of lines instead of a checksum; a completed block has a checksum.
#[test]
fn a_partial_block_gets_a_checksum_when_completed() -> FsResult<()> {
    let mut world = World::new(12_288)?;
    world.fs.sync_to(1, &mut |_| {})?;
    world.fs.unmount()?;
    world.fs = world.pool.mount_with(options());
    world.fs.lookup(ROOT, b"file")?;
    world.write(512, &[1; 512])?;
    world.write(640, &[2; 64])?;
    assert_eq!(world.blocks_with_checksum(), 0);
    world.compare();
    // An unaligned write needs the cold copy, and makes a whole block.
    world.write(5001, b"unaligned")?;
    assert_eq!(world.blocks_with_checksum(), 1);
    world.compare();
    world.fs.sync_to(1, &mut |_| {})?;
    world.compare();
    Ok(())
}

/// A pool without the feature has no checksums; with the feature `data=ordered` is refused.
#[test]
fn the_feature_is_asked_for_and_excludes_data_ordered() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 2049);
    let fs = pool.mount_with(options());
    let ino = fs.mknod(ROOT, b"file", 0o100644, 0, CALLER, W)?.ino;
    fs.write(ino, 0, &[1; 4096], SYNC, W)?;
    assert_eq!(pool.check().summary.pm_blocks.checksums, 0);
    let ordered = FormatOptions { data_ordered: true, ..checksummed() };
    assert!(format(&pool.media(), &ordered).unwrap_err().to_string().contains("data=atomic"));
    let world = World::new(4096)?;
    world.fs.unmount()?;
    let (superblock, _) = read_superblock(&*world.pool.pm, true).unwrap();
    let ordered = MountOptions { data_ordered: Some(true), ..options() };
    let refused = Engine::mount(world.pool.media(), superblock, ordered, Arc::clone(&world.pool.clock));
    assert!(refused.err().unwrap().to_string().contains("data=atomic"));
    assert!(world.pool.check().summary.clean_unmount, "the refused mount changed nothing");
    Ok(())
}

/// A damaged checksum of data is caught by the checksum of its page of the block table; while that page is
/// open it has none, and the data does not match the damaged word.
#[test]
fn a_damaged_checksum_is_eio_too() -> FsResult<()> {
    let world = World::new(8192)?;
    let geometry = read_superblock(&*world.pool.pm, false).unwrap().0.geometry();
    let (pm, _) = world.place(1);
    let at = geometry.table_entry(pm).0 + 8;
    let mut byte = [0];
    world.pool.pm.read(PmOffset(at), &mut byte).unwrap();
    world.pool.pm.write(PmOffset(at), &[byte[0] ^ 4]).unwrap();
    is_eio(world.read(4096, 4096));
    assert!(world.read(0, 4096)? == world.expected[..4096]);
    Ok(())
}
