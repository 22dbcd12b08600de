//! Faults that were found and mended, most of them by the model test: each test's first lines say what
//! broke.

mod common;

use common::{CALLER, Pool, ROOT};
use terrace_format::Ino;
use terrace_fs::{Fs, FsResult, MountOptions, SetAttributes, Wait, WriteFlags};
use terrace_media::block::{Operation, Times};

const W: Wait = Wait::Allowed;

fn create(fs: &Fs, name: &str) -> FsResult<Ino> {
    Ok(fs.mknod(ROOT, name.as_bytes(), 0o100644, 0, CALLER, W)?.ino)
}

fn write(fs: &Fs, ino: Ino, offset: u64, bytes: &[u8]) -> FsResult<()> {
    fs.write(ino, offset, bytes, WriteFlags::default(), W).map(|_| ())
}

/// Clean PM blocks that are a part of a longer cold extent were never evicted: the whole extent was
/// counted and compared with the part, so a PM full of them was full for ever and writers looped.
#[test]
fn clean_part_of_an_extent_is_evicted() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let options = MountOptions {
        threshold_percent: Some(1),
        promote_first_touch: true,
        prefetch_bytes: 0,
        ..MountOptions::default()
    };
    let fs = pool.mount_with(options);
    let ino = create(&fs, "a")?;
    write(&fs, ino, 0, &[7; 16 * 4096])?;
    fs.sync_to(1, &mut |_| {})?;
    fs.read(ino, 0, &mut [0; 5 * 4096], W)?;
    fs.run_background(20);
    let found = fs.status()?.migration;
    assert!(found.promoted_bytes > 0 && found.clean_evicted_bytes > 0, "{found:?}");
    assert_eq!(fs.whereabouts(ino)?.tiers[0].1, 0);
    Ok(())
}

/// A symlink whose name and target fall into one catalog leaf looped for ever: room was made for the
/// target alone, and the name took it again.
#[test]
fn symlink_beside_its_name() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let fs = pool.mount();
    // Numbers of the root's shard come every fourth time: 5 is the link's.
    let other = create(&fs, "other")?;
    create(&fs, "3")?;
    create(&fs, "4")?;
    let (name, target) = ([b'n'; 200], [b'a'; 1900]);
    for index in 0..100 {
        fs.link(other, ROOT, format!("a filler, so that the leaf has every gap: {index}").as_bytes(), W)?;
        let link = fs.symlink(ROOT, &name, &target, CALLER, W)?.ino;
        assert_eq!((link, fs.readlink(link)?), (Ino(5), target.to_vec()));
        fs.unlink(ROOT, &name, W)?;
        fs.forget(link, 1);
        fs.run_background(100);
    }
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// After a failed demotion the back-off outlived the next success: `sync_to` then waited for a moment
/// that no step brought nearer.
#[test]
fn success_ends_the_back_off() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let fs = pool.mount();
    let ino = create(&fs, "a")?;
    write(&fs, ino, 0, &vec![1; 440 * 4096])?;
    pool.device.fail_next(Operation::Write, 0..u64::MAX, 5, Times::Count(1));
    fs.run_background(2);
    assert!(fs.status()?.migration.reason.is_some());
    // The writer needs space and demotes by itself.
    write(&fs, ino, 440 * 4096, &vec![2; 60 * 4096])?;
    assert!(fs.status()?.migration.reason.is_none());
    fs.sync_to(1, &mut |_| {})?;
    let found = fs.whereabouts(ino)?;
    assert!(found.tiers[0].1 <= found.clean_bytes, "{found:?}");
    Ok(())
}

/// Under data=ordered a write that may not wait stored its first blocks in place, then found the last
/// one below and answered `WouldBlock`, which promises that nothing has changed.
#[test]
fn refused_write_changes_nothing() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let options = || MountOptions { data_ordered: Some(true), ..MountOptions::default() };
    let fs = pool.mount_with(options());
    let ino = create(&fs, "a")?;
    write(&fs, ino, 0, &[1; 3 * 4096])?;
    fs.sync_to(1, &mut |_| {})?;
    write(&fs, ino, 0, &[2; 2 * 4096])?;
    fs.unmount()?;
    drop(fs);
    let fs = pool.mount_with(options());
    let refused = fs.write(ino, 0, &[3; 10_000], WriteFlags::default(), Wait::Never);
    assert_eq!(refused.map_err(|error| error.errno()), Err(11));
    let mut first = [0; 4096];
    fs.read(ino, 0, &mut first, W)?;
    assert_eq!(first, [2; 4096]);
    fs.setattr(ino, &SetAttributes { size: Some(0), ..Default::default() }, W)?;
    Ok(())
}

/// A rename into a removed directory walked up from it over an inode number that another file had got
/// meanwhile, and answered EINVAL, ENOTDIR or ESTALE for ENOENT.
#[test]
fn rename_into_a_removed_directory() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 4096);
    let fs = pool.mount();
    let parent = fs.mkdir(ROOT, b"parent", 0o755, CALLER, W)?.ino;
    let removed = fs.mkdir(parent, b"removed", 0o755, CALLER, W)?.ino;
    fs.rmdir(parent, b"removed", W)?;
    fs.forget(parent, 1);
    fs.rmdir(ROOT, b"parent", W)?;
    fs.run_background(100);
    assert_eq!(create(&fs, "a")?, parent, "the number is not used again");
    let renamed = fs.rename(ROOT, b"a", removed, b"b", false, W);
    assert_eq!(renamed.map_err(|error| error.errno()), Err(2));
    Ok(())
}
