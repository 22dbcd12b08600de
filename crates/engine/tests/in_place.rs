//! Demotion in place (design 7, M5): which blocks are written over their cold copies and which are not,
//! beside readers, changes and failures, on simulated media. crates/sim tests what a crash may leave.
#![allow(clippy::unwrap_used)]

mod common;

use common::{CALLER, Pool, ROOT};
use std::sync::Arc;
use terrace_engine::{
    Engine, FsResult, InPlace, MigrationReport, MountOptions, Movements, PolicyKind, Wait, WriteFlags,
};
use terrace_format::{DeviceBlock, Ino};
use terrace_media::block::{AlignedBlock, Operation, Times};

const W: Wait = Wait::Allowed;
const BLOCK: u64 = 4096;
/// Blocks of a file, in extents of at most 15 (a chunk of 16 with its summary).
const BLOCKS: u64 = 60;

fn options() -> MountOptions {
    // Under the static policy blocks move only when a test moves them.
    let in_place = InPlace { extent_blocks: 8, one_of: 8 };
    MountOptions { policy: Some(PolicyKind::STATIC), in_place, ..Default::default() }
}

/// A pool with a demoted file, and the content expected of the file.
struct World {
    pool: Pool,
    fs: Arc<Engine>,
    ino: Ino,
    expected: Vec<u8>,
}

impl World {
    fn new() -> FsResult<World> {
        let pool = Pool::new(2 << 20, 1025);
        let fs = pool.mount_with(options());
        let ino = fs.mknod(ROOT, b"file", 0o100644, 0, CALLER, W)?.ino;
        let expected: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| (at / 7) as u8 ^ (at >> 12) as u8).collect();
        fs.write(ino, 0, &expected, WriteFlags::default(), W)?;
        fs.sync_to(1, &mut |_| {})?;
        fs.unmount()?;
        drop(fs);
        let fs = pool.mount_with(options());
        Ok(World { pool, fs, ino, expected })
    }

    fn overwrite(&mut self, block: u64, blocks: u64, byte: u8) -> FsResult<()> {
        let (from, bytes) = ((block * BLOCK) as usize, vec![byte; (blocks * BLOCK) as usize]);
        self.fs.write(self.ino, block * BLOCK, &bytes, WriteFlags::default(), W)?;
        self.expected[from..from + bytes.len()].copy_from_slice(&bytes);
        Ok(())
    }

    fn down(&self) -> FsResult<MigrationReport> {
        self.fs.sync_to(1, &mut |_| {})?;
        Ok(self.fs.status()?.migration)
    }

    #[track_caller]
    fn assert_content(&self) {
        let mut found = vec![0xee; self.expected.len() + 1];
        let count = self.fs.read(self.ino, 0, &mut found, W).unwrap();
        assert!(found[..count] == self.expected);
    }

    /// Compares the content now, and after another mount.
    fn assert_sound(mut self) -> FsResult<()> {
        self.assert_content();
        self.fs.unmount()?;
        self.fs = self.pool.mount_with(options());
        self.assert_content();
        self.fs.unmount()?;
        self.pool.assert_clean();
        Ok(())
    }
}

#[test]
fn scattered_blocks_of_a_group_are_written_over_the_cold_copies() -> FsResult<()> {
    let mut world = World::new()?;
    let free = world.fs.status()?.tiers[1].used_bytes;
    for (block, byte) in [(3, 1), (20, 2), (41, 3)] {
        world.overwrite(block, 1, byte)?;
    }
    // Clean pages of the old content are in DRAM: demotion must not keep them for the new content.
    world.assert_content();
    let done = world.down()?;
    assert_eq!((done.in_place_bytes, done.demoted_bytes, done.skipped_bytes), (3 * BLOCK, 3 * BLOCK, 0));
    assert_eq!(world.fs.status()?.tiers[1].used_bytes, free);
    // A second overwrite proves that the extent has the checksum of the first.
    world.overwrite(20, 1, 7)?;
    assert_eq!(world.down()?.in_place_bytes, 4 * BLOCK);
    world.assert_sound()
}

#[test]
fn dense_overwrites_are_demoted_into_new_runs() -> FsResult<()> {
    let mut world = World::new()?;
    world.overwrite(16, 12, 5)?;
    world.overwrite(0, 2, 6)?;
    let done = world.down()?;
    assert_eq!((done.in_place_bytes, done.demoted_bytes), (0, 14 * BLOCK));
    world.assert_sound()
}

/// The cold copy under a partial shadow has lines that PM lacks, so it is needed until the new copy is
/// durable.
#[test]
fn a_partial_block_is_never_written_in_place() -> FsResult<()> {
    let mut world = World::new()?;
    world.fs.write(world.ino, 5 * BLOCK + 128, &[9; 64], WriteFlags::default(), W)?;
    world.expected[5 * BLOCK as usize + 128..][..64].fill(9);
    let done = world.down()?;
    assert_eq!((done.in_place_bytes, done.demoted_bytes), (0, BLOCK));
    world.assert_sound()
}

#[test]
fn a_block_refused_in_place_is_demoted_elsewhere() -> FsResult<()> {
    let mut world = World::new()?;
    world.overwrite(3, 1, 1)?;
    world.pool.device.fail_next(Operation::Write, 0..1025, 5, Times::Count(1));
    let done = world.down()?;
    assert_eq!((done.in_place_bytes, done.demoted_bytes), (0, BLOCK));
    world.assert_sound()
}

/// A write in place that was cut short leaves a cold copy that matches no checksum. PM has the block, so
/// neither a read of its neighbours nor a check may report damage.
#[test]
fn a_torn_cold_copy_under_a_shadow_is_no_damage() -> FsResult<()> {
    let mut world = World::new()?;
    let mut block = [AlignedBlock::zeroed()];
    let mut place = None;
    for at in 1..1025 {
        terrace_media::BlockMedium::read(&*world.pool.device, DeviceBlock(at), &mut block).unwrap();
        if block[0].0[..] == world.expected[3 * BLOCK as usize..][..BLOCK as usize] {
            place = Some(DeviceBlock(at));
        }
    }
    world.overwrite(3, 1, 1)?;
    block[0].0[100..200].fill(0xdd);
    terrace_media::BlockMedium::write(&*world.pool.device, place.unwrap(), &block).unwrap();
    world.assert_content();
    assert_eq!(world.fs.status()?.tiers[1].devices[0].checksum_errors, 0);
    world.fs.unmount()?;
    world.pool.assert_clean();
    world.fs = world.pool.mount_with(options());
    // The torn cold copy is overwritten in place.
    assert_eq!(world.down()?.in_place_bytes, BLOCK);
    world.assert_sound()
}
