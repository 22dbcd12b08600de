//! A full pool: reads need no space, and space that was promised is there (design P1, I9).

#![allow(clippy::unwrap_used)]

mod common;

use common::{CALLER, Pool, ROOT};
use std::sync::Arc;
use terrace_format::{BLOCK_SIZE, Ino, PmOffset};
use terrace_fs::{
    Fs, FsError, FsResult, MetadataMoves, MountOptions, Seek, Wait, WriteFlags, XattrMode, read_superblock,
};
use terrace_media::PmMedium;
use terrace_media::block::{Operation, Times};

const W: Wait = Wait::Allowed;
const FILES: u32 = 600;

fn name(index: u32) -> Vec<u8> {
    format!("a-rather-long-name-of-file-{index:06}").into_bytes()
}

fn create(fs: &Fs, directory: Ino, name: &[u8]) -> Ino {
    let found = fs.mknod(directory, name, 0o100644, 0, CALLER, W).unwrap();
    fs.forget(found.ino, 1);
    found.ino
}

/// Files with content, attributes and links, all of which, and of their metadata, lies below.
fn tree_below(fs: &Arc<Fs>) -> Ino {
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

/// Writes one block after the other until nothing more fits anywhere, and a little into another file.
fn fill_up(fs: &Fs, file: Ino) -> u64 {
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

/// Everything that can be read of the tree is read, and is right.
#[track_caller]
fn assert_readable(fs: &Fs, directory: Ino) {
    let mut listed = 0;
    let mut next = 0;
    loop {
        let (before, after) = (listed, next);
        let visit = &mut |entry: &terrace_fs::DirectoryEntry, found: &terrace_fs::Attributes| {
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

/// A pool whose PM and tier are full, with a tree whose metadata lies below. The filler stays open.
fn full_pool() -> (Pool, Arc<Fs>, Ino, Ino) {
    let pool = Pool::new(4 << 20, 1200);
    let fs = pool.mount_with(eager());
    let directory = tree_below(&fs);
    let filler = create(&fs, ROOT, b"filler");
    fs.open(filler, false, true, W).unwrap();
    fill_up(&fs, filler);
    let below = pool.check().summary.metadata_below;
    assert!(below > 60, "{below}");
    (pool, fs, directory, filler)
}

/// read and readdir answered ENOSPC on a full pool: a metadata page that lay below needed a block of PM, which had none. Of a kept
/// image 4 files of 2,840 could not be read until something was deleted.
#[test]
fn a_read_needs_no_space() {
    let (pool, fs, directory, filler) = full_pool();
    // What a reader may give back below on its way, somebody takes at once.
    for index in (0..FILES).step_by(7) {
        let found = fs.lookup(directory, &name(index)).unwrap();
        assert_eq!(fs.getxattr(found.ino, b"user.number").unwrap(), index.to_le_bytes());
        fs.forget(found.ino, 1);
        fill_up(&fs, filler);
    }
    assert_readable(&fs, directory);
    // A request thread finds what somebody has read a moment ago.
    let last = fs.lookup(directory, &name(FILES - 1)).unwrap();
    assert!(fs.try_lookup(directory, &name(FILES - 1), Wait::Never).is_ok());
    // What changes such a file gets the page into PM, where there is room again.
    let attribute = fs.setxattr(last.ino, b"user.more", b"x", XattrMode::Any, W);
    assert!(attribute.is_ok() || attribute.is_err_and(|error| error.errno() == libc::ENOSPC));
    fs.release(filler);
    fs.unlink(ROOT, b"filler", W).unwrap();
    fs.run_background(1000);
    fs.setxattr(last.ino, b"user.number", &(FILES - 1).to_le_bytes(), XattrMode::Replace, W).unwrap();
    let _ = fs.removexattr(last.ino, b"user.more", W);
    assert_readable(&fs, directory);
    // Each block that copies in DRAM had held back can be used.
    let filler = create(&fs, ROOT, b"filler");
    let again = fill_up(&fs, filler);
    assert!(again > 900 * BLOCK_SIZE, "{again}");
    assert_readable(&fs, directory);
    fs.unmount().unwrap();
    drop(fs);
    pool.assert_clean();
}

/// The same after a mount: for reading and writing, and read-only, which changes nothing in PM.
#[test]
fn a_full_pool_is_read_after_a_mount() {
    let (pool, fs, directory, filler) = full_pool();
    fs.release(filler);
    fs.unmount().unwrap();
    drop(fs);
    // The device takes no more, as a file on a full file system.
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

/// Reads of what lies below gave EROFS once PM had failed, because nothing could be recorded any more.
#[test]
fn what_lies_below_is_read_after_pm_has_failed() {
    let pool = Pool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    let directory = tree_below(&fs);
    let file = create(&fs, ROOT, b"file");
    // The record is written and its in-place stores fail: the log stops.
    let geometry = read_superblock(&*pool.pm, false).unwrap().0.geometry();
    pool.pm.poison(geometry.table_offset().0..geometry.first_pool_block().offset().0);
    let failed: FsResult<usize> = fs.write(file, 0, &[1; 4096], WriteFlags::default(), W);
    assert!(failed.is_err_and(|error| error.errno() == libc::EIO) && fs.is_stopped());
    pool.pm.clear_poison();
    assert!(matches!(fs.unlink(directory, &name(3), W), Err(FsError::Engine(_) | FsError::NotDurable)));
    assert_readable(&fs, directory);
}
