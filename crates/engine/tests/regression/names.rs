//! Names, links, attributes and inode numbers.

use super::helpers::{ASYNC, BLOCK, W, quiet};
use terrace_engine::{
    Engine, FormatOptions, FsError, FsResult, MountOptions, PolicyKind, RootDirectory, SetAttributes,
    Simulation, Wait, WriteFlags, XattrMode, format,
};
use terrace_format::Ino;
use terrace_testkit::{CALLER, ROOT, SimulatedPool, buffered, create, fill, format_options};

/// A symlink whose name and target fall into one catalog leaf looped for ever: a split made room for the
/// target alone, and the name took that room again.
#[test]
fn a_symlink_and_its_name_fit_into_the_same_leaf() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount();
    // The shard of the root directory gets every fourth inode number, so the symlink gets 5.
    let other = create(&fs, ROOT, "other");
    create(&fs, ROOT, "3");
    create(&fs, ROOT, "4");
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

/// A rename into a removed directory looked for its parents by inode number. Another file had got the number
/// of the parent meanwhile, and the answer was EINVAL, ENOTDIR or ESTALE instead of ENOENT.
#[test]
fn a_rename_into_a_removed_directory_is_enoent() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount();
    let parent = fs.mkdir(ROOT, b"parent", 0o755, CALLER, W)?.ino;
    let removed = fs.mkdir(parent, b"removed", 0o755, CALLER, W)?.ino;
    fs.rmdir(parent, b"removed", W)?;
    fs.forget(parent, 1);
    fs.rmdir(ROOT, b"parent", W)?;
    fs.run_background(100);
    assert_eq!(create(&fs, ROOT, "a"), parent, "the number is not used again");
    let renamed = fs.rename(ROOT, b"a", removed, b"b", false, W);
    assert_eq!(renamed.map_err(|error| error.errno()), Err(2));
    Ok(())
}

/// mkfs could only make a root directory owned by root: another owner required mounting and changing the new
/// pool.
#[test]
fn mkfs_sets_the_owner_of_the_root_directory() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let root = RootDirectory { uid: 1000, gid: 1001, mode: 0o1777 };
    format(&pool.media(), &FormatOptions { root, ..format_options(1) })?;
    pool.assert_clean();
    let found = pool.mount().getattr(ROOT)?;
    assert_eq!((found.uid, found.gid, found.mode), (1000, 1001, 0o041777));
    Ok(())
}

/// ".." of a removed directory that is still open named its parent by inode number. When the parent was
/// removed too and its number used again, readdirplus and lookup gave the attributes of an unrelated file
/// (`terrace-sim --config faults --seed 5001556`).
#[test]
fn dot_dot_of_a_removed_directory_names_no_other_file() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount();
    let parent = fs.mkdir(ROOT, b"parent", 0o755, CALLER, W)?.ino;
    let removed = fs.mkdir(parent, b"removed", 0o755, CALLER, W)?.ino;
    fs.rmdir(parent, b"removed", W)?;
    fs.forget(parent, 1);
    fs.rmdir(ROOT, b"parent", W)?;
    fs.run_background(100);
    assert_eq!(create(&fs, ROOT, "a"), parent, "the number is not used again");
    let mut found = Vec::new();
    fs.readdir_plus(removed, 0, &mut |entry, attributes| {
        found.push((entry.ino, attributes.mode & 0o170000));
        true
    })?;
    assert_eq!(found, [(removed, 0o040000); 2]);
    assert_eq!(fs.lookup(removed, b"..").map_err(|error| error.errno()), Err(libc::ESTALE));
    Ok(())
}

/// An extended attribute with a NUL in its name panicked.
#[test]
fn an_xattr_name_with_a_nul_is_refused() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount();
    let set = fs.setxattr(ROOT, b"user.a\0b", b"value", terrace_engine::XattrMode::Any, W);
    assert_eq!(set.map_err(|error| error.errno()), Err(22));
    Ok(())
}

/// mkdir kept to the link limit (65,000) and rename did not: directories renamed into a full parent raised
/// its count beyond the limit.
#[test]
fn a_rename_keeps_to_the_link_limit() {
    let pool = SimulatedPool::new(64 << 20, 1025);
    let fs = pool.mount_with(MountOptions { policy: Some(PolicyKind::STATIC), ..Default::default() });
    let mkdir = |parent, name: &str| fs.mkdir(parent, name.as_bytes(), 0o755, CALLER, W).map(|made| made.ino);
    let (full, other) = (mkdir(ROOT, "full").unwrap(), mkdir(ROOT, "other").unwrap());
    (2..65_000).for_each(|number| _ = mkdir(full, &number.to_string()).unwrap());
    assert!(matches!(mkdir(full, "more"), Err(FsError::TooManyLinks)));
    mkdir(other, "more").unwrap();
    fs.mknod(other, b"file", 0o100644, 0, CALLER, W).unwrap();
    let rename =
        |from, name: &str, to: Ino, new: &str| fs.rename(from, name.as_bytes(), to, new.as_bytes(), false, W);
    assert!(matches!(rename(other, "more", full, "more"), Err(FsError::TooManyLinks)));
    assert_eq!(fs.getattr(full).unwrap().nlink, 65_000);
    // These renames add no link to the parent: a file, a new name in the same directory, and a replaced empty
    // directory.
    rename(other, "file", full, "file").unwrap();
    rename(full, "2", full, "two").unwrap();
    rename(other, "more", full, "3").unwrap();
    rename(full, "4", other, "4").unwrap();
    rename(other, "4", full, "4").unwrap();
    assert_eq!((fs.getattr(full).unwrap().nlink, fs.getattr(other).unwrap().nlink), (65_000, 2));
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// A file handle may carry any inode number, and a lookup by number found directories only.
#[test]
fn lookup_of_dot_finds_any_inode_by_number() {
    let pool = SimulatedPool::new(2 << 20, 1025);
    let fs = pool.mount();
    let file = fs.mknod(ROOT, b"a", 0o100644, 0, CALLER, W).unwrap();
    let dir = fs.mkdir(ROOT, b"d", 0o755, CALLER, W).unwrap();
    assert_eq!(fs.lookup(file.ino, b".").unwrap().ino, file.ino);
    assert_eq!(fs.lookup(dir.ino, b".").unwrap().ino, dir.ino);
    assert_eq!(fs.lookup(dir.ino, b"..").unwrap().ino, ROOT);
    assert_eq!(fs.lookup(ROOT, b"..").unwrap().ino, ROOT);
    for number in [0, file.ino.0 + 1000, u64::from(u32::MAX), (1 << 32) + file.ino.0, u64::MAX] {
        assert!(matches!(fs.lookup(Ino(number), b"."), Err(FsError::Stale)), "{number}");
    }
    // Each lookup counts as a reference of the kernel: the number is free when all are given back, and a
    // removed inode is not found by number even before.
    fs.unlink(ROOT, b"a", W).unwrap();
    assert!(matches!(fs.lookup(file.ino, b"."), Err(FsError::Stale)));
    fs.forget(file.ino, 1);
    fs.run_background(100);
    assert!(fs.getattr(file.ino).is_ok());
    fs.forget(file.ino, 1);
    fs.run_background(100);
    assert!(matches!(fs.getattr(file.ino), Err(FsError::Stale)));
    assert!(matches!(fs.lookup(file.ino, b"."), Err(FsError::Stale)));
}

/// A file kept its capabilities when an unprivileged user wrote to it: the written program ran with them.
#[test]
fn file_capabilities_end_with_an_unprivileged_change() -> FsResult<()> {
    const CAPABILITY: &[u8] = b"security.capability";
    let killing = WriteFlags { sync: false, kill_set_id: true, pages: false };
    let write =
        |offset, length| move |fs: &Engine, ino, wait| fs.write(ino, offset, &vec![7; length], killing, wait);
    let change =
        |change: SetAttributes| move |fs: &Engine, ino, wait| fs.setattr(ino, &change, wait).map(|_| 0);
    let cut = SetAttributes { size: Some(10), kill_set_id: true, ..Default::default() };
    let chown = SetAttributes { uid: Some(1000), ..Default::default() };
    type Change = Box<dyn Fn(&Engine, Ino, Wait) -> FsResult<usize>>;
    let changes: [(&str, Change); 6] = [
        ("a whole block", Box::new(write(BLOCK, BLOCK as usize))),
        ("a part of a block", Box::new(write(100, 50))),
        ("several blocks", Box::new(write(3 * BLOCK + 1, 5 * BLOCK as usize))),
        ("a new size", Box::new(change(cut))),
        ("a new owner", Box::new(change(chown))),
        ("O_TRUNC", Box::new(|fs: &Engine, ino, wait| fs.open(ino, true, true, wait).map(|_| 0))),
    ];
    for options in [quiet(), buffered(8 << 20)] {
        let pool = SimulatedPool::new(8 << 20, 1024);
        let fs = pool.mount_with(options);
        for (name, change) in &changes {
            for wait in [Wait::Never, W] {
                let ino = create(&fs, ROOT, &format!("{name}, {wait:?}"));
                fs.write(ino, 0, &fill(4 * BLOCK as usize, 1), ASYNC, W)?;
                fs.setxattr(ino, CAPABILITY, b"all", XattrMode::Any, W)?;
                fs.setxattr(ino, b"user.x", b"stays", XattrMode::Any, W)?;
                // A write by a privileged user leaves the capabilities.
                fs.write(ino, 0, &fill(BLOCK as usize, 2), ASYNC, W)?;
                assert_eq!(fs.getxattr(ino, CAPABILITY)?, b"all", "{name}");
                change(&fs, ino, wait)?;
                let found = fs.getxattr(ino, CAPABILITY);
                assert!(matches!(found, Err(FsError::NoAttribute)), "{name}: {found:?}");
                assert_eq!(fs.getxattr(ino, b"user.x")?, b"stays", "{name}");
            }
        }
        pool.assert_clean_after(&fs)?;
    }
    Ok(())
}
