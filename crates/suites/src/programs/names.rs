//! Checks of names: bytes that are no text, listings of a directory that changes, renames, file handles.

use super::steps::{At, must, read_at, refused, same};
use crate::content::bytes;
use crate::outcome::{Outcome, eventually};
use crate::system::{self, FileHandle};
use std::collections::HashMap;
use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_runtime::thread::spawn;

pub(super) fn strange_names(dir: &Path) -> Outcome<()> {
    let names = [
        OsString::from_vec(vec![0xff, 0xfe, b'x', 0x80]),
        OsString::from_vec((1..=255).filter(|byte| *byte != b'/').collect()),
        OsString::from("a\nb c"),
        OsString::from("x".repeat(255)),
        OsString::from("-rf"),
    ];
    let dir = dir.join("names");
    fs::create_dir(&dir).at("mkdir")?;
    for (number, name) in names.iter().enumerate() {
        fs::write(dir.join(name), bytes(number as u64, 100)).at("create")?;
    }
    let mut found: Vec<OsString> = Vec::new();
    for entry in fs::read_dir(&dir).at("readdir")? {
        found.push(entry.at("readdir")?.file_name());
    }
    found.sort();
    let mut expected = names.to_vec();
    expected.sort();
    must(found == expected, format!("readdir gave {found:?}"))?;
    for (number, name) in names.iter().enumerate() {
        same("content", &fs::read(dir.join(name)).at("read")?, &bytes(number as u64, 100))?;
        let other = dir.join(OsString::from_vec(vec![0xc3, 0x28, number as u8 + 1]));
        fs::rename(dir.join(name), &other).at("rename")?;
        fs::remove_file(other).at("unlink")?;
    }
    refused("name of 256 bytes", fs::write(dir.join("x".repeat(256)), ""), libc::ENAMETOOLONG)?;
    fs::remove_dir(&dir).at("rmdir")
}

pub(super) fn changing_directory(dir: &Path) -> Outcome<()> {
    const STABLE: usize = 3000;
    let dir = dir.join("changing");
    fs::create_dir(&dir).at("mkdir")?;
    for number in 0..STABLE {
        File::create(dir.join(format!("stable-{number}"))).at("create")?;
    }
    let end = Arc::new(AtomicBool::new(false));
    let (stop, where_to) = (Arc::clone(&end), dir.clone());
    let changer = spawn("suites", move || {
        let mut number = 0u64;
        while !stop.load(Ordering::Relaxed) {
            let name = |number: u64| where_to.join(format!("passing-{number}"));
            let _ = File::create(name(number));
            let _ = fs::rename(name(number), where_to.join(format!("moved-{number}")));
            if number >= 50 {
                let _ = fs::remove_file(where_to.join(format!("moved-{}", number - 50)));
            }
            number += 1;
        }
    });
    let changer = changer.at("thread")?;
    let mut outcome = Ok(());
    for _ in 0..10 {
        outcome = list_once(&dir, STABLE);
        if outcome.is_err() {
            break;
        }
    }
    end.store(true, Ordering::Relaxed);
    let _ = changer.join();
    outcome?;
    fs::remove_dir_all(&dir).at("remove everything")
}

fn list_once(dir: &Path, stable: usize) -> Outcome<()> {
    let mut seen: HashMap<OsString, u32> = HashMap::new();
    for entry in fs::read_dir(dir).at("readdir")? {
        *seen.entry(entry.at("readdir")?.file_name()).or_default() += 1;
    }
    if let Some((name, count)) = seen.iter().find(|(_, count)| **count > 1) {
        return Err(format!("{} was listed {count} times", name.to_string_lossy()));
    }
    let found = seen.keys().filter(|name| name.as_bytes().starts_with(b"stable-")).count();
    must(found == stable, format!("{found} of {stable} entries that stay were listed"))
}

pub(super) fn renames(dir: &Path) -> Outcome<()> {
    let c = |path: &PathBuf| CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
    let (a, b) = (dir.join("rename-a"), dir.join("rename-b"));
    fs::write(&a, "a").at("write")?;
    fs::write(&b, "b").at("write")?;
    refused("RENAME_NOREPLACE", system::rename(&c(&a), &c(&b), libc::RENAME_NOREPLACE), libc::EEXIST)?;
    refused("RENAME_EXCHANGE", system::rename(&c(&a), &c(&b), libc::RENAME_EXCHANGE), libc::EINVAL)?;
    fs::remove_file(&b).at("unlink")?;
    system::rename(&c(&a), &c(&b), libc::RENAME_NOREPLACE).at("RENAME_NOREPLACE")?;
    same("content", &fs::read(&b).at("read")?, b"a")?;
    fs::hard_link(&b, &a).at("link")?;
    fs::rename(&a, &b).at("rename onto the same inode")?;
    must(a.exists() && b.exists(), "rename onto a link of the same file removes nothing")
}

/// Drops unused names and inodes from the kernel's cache.
fn drop_inodes() -> Outcome<()> {
    fs::write("/proc/sys/vm/drop_caches", "2").at("drop caches")
}

/// NFS servers hold handles of files for long. The daemon refused handles (ESTALE) of files that the kernel
/// had forgotten.
pub(super) fn file_handles(dir: &Path) -> Outcome<()> {
    let (sub, path) = (dir.join("a/b"), dir.join("a/b/file"));
    fs::create_dir_all(&sub).at("mkdir")?;
    fs::write(&path, "content").at("write")?;
    std::os::unix::fs::symlink("file", dir.join("link")).at("symlink")?;
    let handle = |path: &Path| FileHandle::of(path).at("name_to_handle_at");
    let (of_file, of_sub, of_link) = (handle(&path)?, handle(&sub)?, handle(&dir.join("link"))?);
    let mount = File::open(dir).at("open")?;
    let content = || {
        let file = of_file.open(&mount, libc::O_RDWR).at("open by handle")?;
        same("content", &read_at(&file, 0, 7)?, b"content")
    };
    for _ in 0..3 {
        drop_inodes()?;
        content()?;
    }
    drop_inodes()?;
    // A directory is found with all its ancestors.
    let found = of_sub.open(&mount, libc::O_RDONLY | libc::O_DIRECTORY).at("open a directory by handle")?;
    let name = fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).at("name of a descriptor")?;
    must(
        name == fs::canonicalize(&sub).at("name of a directory")?,
        format!("a directory's handle is {}", name.display()),
    )?;
    of_link.open(&mount, libc::O_PATH | libc::O_NOFOLLOW).at("open a symbolic link by handle")?;
    // The handle survives a rename into another directory.
    let moved = dir.join("moved");
    fs::rename(&path, &moved).at("rename")?;
    drop_inodes()?;
    content()?;
    // The handle of an unlinked file is valid while the file is open. Afterwards it is stale, even if a later
    // file has the same inode number.
    let open = File::open(&moved).at("open")?;
    fs::remove_file(&moved).at("unlink")?;
    drop_inodes()?;
    content()?;
    drop(open);
    let is_stale = || {
        let opened = of_file.open(&mount, libc::O_RDONLY);
        Ok(opened.is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE)))
    };
    // The kernel tells of a close in the background.
    eventually("the handle of a removed file is stale", is_stale)?;
    for number in 0..50 {
        refused("handle of a removed file", of_file.open(&mount, libc::O_RDONLY), libc::ESTALE)?;
        fs::write(dir.join(format!("later-{number}")), "another").at("write")?;
    }
    drop_inodes()?;
    refused("handle of a removed file", of_file.open(&mount, libc::O_RDONLY), libc::ESTALE)
}
