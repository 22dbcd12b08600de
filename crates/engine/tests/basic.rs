//! The basic operations of a file system, on simulated media.

use terrace_engine::{
    Allocate, FsResult, MountOptions, Movements, PolicyKind, Seek, SetAttributes, Simulation, Wait,
    WriteFlags, XattrMode,
};
use terrace_testkit::{CALLER, ROOT, SimulatedPool, pattern, read_all, try_create};

const W: Wait = Wait::Allowed;

#[test]
fn written_bytes_are_read_after_a_mount() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount();
    let ino = try_create(&fs, "a")?;
    let mut expected = pattern(100_000, 1);
    fs.write(ino, 0, &expected, WriteFlags::default(), W)?;
    fs.write(ino, 5000, &[9; 10_000], WriteFlags::default(), W)?;
    expected[5000..15_000].fill(9);
    fs.write(ino, 100_000, b"tail", WriteFlags::default(), W)?;
    expected.extend_from_slice(b"tail");
    assert_eq!(read_all(&fs, ino)?, expected);
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    let fs = pool.mount();
    assert!(fs.status()?.recovery.clean);
    let again = fs.lookup(ROOT, b"a")?;
    assert_eq!((again.ino, again.size, again.blocks), (ino, 100_004, 25 * 8));
    assert_eq!(read_all(&fs, ino)?, expected);
    Ok(())
}

#[test]
fn names_links_and_directories_work_together() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount();
    let dir = fs.mkdir(ROOT, b"d", 0o755, CALLER, W)?.ino;
    for index in 0..200 {
        fs.mknod(dir, format!("file{index}").as_bytes(), 0o100600, 0, CALLER, W)?;
    }
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(entry.name.clone());
        true
    })?;
    assert_eq!(names.len(), 202);
    let file = fs.lookup(dir, b"file7")?.ino;
    fs.link(file, ROOT, b"hard", W)?;
    assert_eq!(fs.getattr(file)?.nlink, 2);
    fs.rename(dir, b"file7", ROOT, b"moved", false, W)?;
    assert!(fs.lookup(dir, b"file7").is_err());
    assert_eq!(fs.rename(ROOT, b"d", dir, b"x", false, W).map_err(|e| e.errno()), Err(libc_einval()));
    fs.symlink(ROOT, b"s", b"target/of/link", CALLER, W)?;
    let link = fs.lookup(ROOT, b"s")?.ino;
    assert_eq!(fs.readlink(link)?, b"target/of/link");
    assert!(fs.rmdir(ROOT, b"d", W).is_err());
    for index in (0..200).filter(|index| *index != 7) {
        fs.unlink(dir, format!("file{index}").as_bytes(), W)?;
    }
    fs.rmdir(ROOT, b"d", W)?;
    fs.setxattr(file, b"user.x", &[5; 700], XattrMode::Any, W)?;
    assert_eq!(fs.getxattr(file, b"user.x")?, [5; 700]);
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

fn libc_einval() -> i32 {
    22
}

#[test]
fn a_file_larger_than_pm_reads_back() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 8192);
    // Under this policy all of the file has its home in PM; the policy `predictive` would send half of it to
    // DRAM.
    let fs = pool.mount_with(MountOptions { policy: Some(PolicyKind::ANTICACHE), ..MountOptions::default() });
    let ino = try_create(&fs, "big")?;
    let expected = pattern(8 << 20, 3);
    for (index, piece) in expected.chunks(64 << 10).enumerate() {
        fs.write(ino, index as u64 * (64 << 10), piece, WriteFlags::default(), W)?;
        fs.run_background(3);
    }
    let status = fs.status()?;
    assert!(status.migration.demoted_bytes > 4 << 20, "{status:?}");
    assert_eq!(read_all(&fs, ino)?, expected);
    assert_eq!(read_all(&fs, ino)?, expected);
    fs.run_background(100);
    assert!(fs.status()?.migration.promoted_bytes > 0);
    assert_eq!(fs.getattr(ino)?.blocks, (8 << 20) / 512);
    // Overwrites of cold blocks, whole and in part.
    let mut expected = expected;
    fs.write(ino, 1 << 20, &[1; 8192], WriteFlags::default(), W)?;
    expected[1 << 20..(1 << 20) + 8192].fill(1);
    fs.write(ino, 3_000_001, &[2; 5000], WriteFlags::default(), W)?;
    expected[3_000_001..3_005_001].fill(2);
    assert_eq!(read_all(&fs, ino)?, expected);
    fs.sync_to(1, &mut |_| {})?;
    assert_eq!(fs.whereabouts(ino)?.tiers[0].1, fs.whereabouts(ino)?.clean_bytes);
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    let fs = pool.mount();
    assert_eq!(read_all(&fs, ino)?, expected);
    fs.setattr(ino, &SetAttributes { size: Some(1_000_000), ..Default::default() }, W)?;
    expected.truncate(1_000_000);
    assert_eq!(read_all(&fs, ino)?, expected);
    fs.setattr(ino, &SetAttributes { size: Some(1_010_000), ..Default::default() }, W)?;
    expected.resize(1_010_000, 0);
    assert_eq!(read_all(&fs, ino)?, expected);
    fs.fallocate(ino, 10_000, 50_000, Allocate::PunchHole, W)?;
    expected[10_000..60_000].fill(0);
    assert_eq!(read_all(&fs, ino)?, expected);
    assert_eq!(fs.seek(ino, 0, Seek::Hole)?, 12_288);
    assert_eq!(fs.seek(ino, 12_288, Seek::Data)?, 57_344);
    fs.fallocate(ino, 2_000_000, 300_000, Allocate::Extend, W)?;
    expected.resize(2_300_000, 0);
    assert_eq!(read_all(&fs, ino)?, expected);
    fs.unlink(ROOT, b"big", W)?;
    fs.forget(ino, 2);
    fs.run_background(1000);
    let space = fs.statfs(Wait::Allowed)?;
    assert!(space.blocks - space.free < 40, "{space:?}");
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

#[test]
fn a_pool_full_of_metadata_gives_enospc_and_still_unlinks() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount_with(MountOptions::default());
    let mut made = 0;
    let error = loop {
        match try_create(&fs, &format!("a-rather-long-name-so-that-pages-fill-quickly-{made}")) {
            Ok(ino) => fs.forget(ino, 1),
            Err(error) => break error,
        }
        made += 1;
        assert!(made < 100_000);
    };
    assert_eq!(error.errno(), 28);
    assert!(made > 1000, "only {made} files");
    for index in 0..made {
        fs.unlink(ROOT, format!("a-rather-long-name-so-that-pages-fill-quickly-{index}").as_bytes(), W)?;
    }
    try_create(&fs, "again")?;
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// Found: a file extended by truncate within its last block showed bytes that an earlier truncate had cut
/// off, because only writes, and extensions past the block, cleared them (design S5).
#[test]
fn extending_within_the_last_block_reads_zeros() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount();
    for cold in [false, true] {
        let ino = try_create(&fs, if cold { "cold" } else { "pm" })?;
        fs.write(ino, 0, &[7; 3000], WriteFlags::default(), W)?;
        if cold {
            fs.sync_to(1, &mut |_| {})?;
        }
        fs.setattr(ino, &SetAttributes { size: Some(100), ..Default::default() }, W)?;
        fs.setattr(ino, &SetAttributes { size: Some(200), ..Default::default() }, W)?;
        let mut expected = vec![7; 100];
        expected.resize(200, 0);
        assert_eq!(read_all(&fs, ino)?, expected);
        fs.fallocate(ino, 0, 2000, Allocate::Extend, W)?;
        expected.resize(2000, 0);
        assert_eq!(read_all(&fs, ino)?, expected);
    }
    Ok(())
}

/// A lower tier full of cold copies under shadows still takes the new copies of these blocks.
#[test]
fn overwriting_on_a_full_tier_finds_space() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 561);
    let fs = pool.mount();
    let ino = try_create(&fs, "a")?;
    let size = 560 * 4096;
    fs.write(ino, 0, &pattern(size, 1), WriteFlags::default(), W)?;
    fs.sync_to(1, &mut |_| {})?;
    for round in 2..6 {
        let expected = pattern(size, round);
        for (index, piece) in expected.chunks(40_000).enumerate() {
            fs.write(ino, index as u64 * 40_000, piece, WriteFlags::default(), W)?;
        }
        assert_eq!(read_all(&fs, ino)?, expected);
    }
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// Found: values of several parts that land in one catalog leaf were refused with EIO, because a split made
/// room for one key at a time.
#[test]
fn large_xattrs_and_symlink_targets_read_back() -> FsResult<()> {
    let pool = SimulatedPool::new(64 << 20, 4096);
    let fs = pool.mount();
    for index in 0..40u8 {
        let name = format!("link{index}");
        let target = vec![b'a' + index % 26; 4095];
        let link = fs.symlink(ROOT, name.as_bytes(), &target, CALLER, W)?.ino;
        assert_eq!(fs.readlink(link)?, target);
        let file = try_create(&fs, &format!("file{index}"))?;
        for size in [100, 5000, 8000] {
            fs.setxattr(file, format!("user.{size}").as_bytes(), &vec![index; size], XattrMode::Any, W)?;
        }
        fs.setxattr(file, b"user.5000", &[index + 1; 7000], XattrMode::Replace, W)?;
        assert_eq!(fs.getxattr(file, b"user.5000")?, [index + 1; 7000]);
        assert_eq!(fs.getxattr(file, b"user.8000")?, vec![index; 8000]);
    }
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// Found: an aligned write of one block past a cold partial last block claimed one block too few for the
/// zeros behind the old end, and asked for space for ever.
#[test]
fn a_sparse_write_behind_a_cold_last_block_ends() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount();
    let ino = try_create(&fs, "a")?;
    fs.write(ino, 0, &[3; 5000], WriteFlags::default(), W)?;
    fs.sync_to(1, &mut |_| {})?;
    fs.write(ino, 16_384, &[4; 4096], WriteFlags::default(), W)?;
    let mut expected = vec![3; 5000];
    expected.resize(16_384, 0);
    expected.resize(20_480, 4);
    assert_eq!(read_all(&fs, ino)?, expected);
    Ok(())
}
