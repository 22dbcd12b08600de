//! /proc/self/mountinfo, and who uses a mount.

use crate::failure::{Failure, Outcome, plain};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Has the kernel write to the file system of a path what shared mappings have changed: its daemon cannot see it before.
pub fn write_kernel_pages(path: &Path) -> io::Result<()> {
    // Not waiting for the other end of a FIFO.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    Ok(rustix::fs::syncfs(&file)?)
}

/// File-system type of our mounts.
pub const FS_TYPE: &str = "fuse.terrace";

/// One line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Identity of the mount.
    pub id: u32,
    /// The mount it lies on.
    pub parent: u32,
    /// "major:minor" of the file system.
    pub device: String,
    /// Where.
    pub mountpoint: PathBuf,
    /// "fuse.terrace" for ours.
    pub fs_type: String,
    /// The pool.
    pub source: PathBuf,
}

/// The octal escapes of mountinfo.
fn unescape(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = word;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

fn parse(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|&byte| byte == b' ');
    let text = |word: Option<&[u8]>| word.and_then(|word| std::str::from_utf8(word).ok()).map(str::to_string);
    let id = text(words.next())?.parse().ok()?;
    let parent = text(words.next())?.parse().ok()?;
    let device = text(words.next())?;
    let mountpoint = unescape(words.nth(1)?);
    words.find(|word| *word == b"-")?;
    let fs_type = text(words.next())?;
    let source = unescape(words.next()?);
    Some(Mount { id, parent, device, mountpoint, fs_type, source })
}

/// All mounts of this mount namespace, in the order of mounting.
pub fn all() -> Outcome<Vec<Mount>> {
    let path = "/proc/self/mountinfo";
    let text = fs::read(path).map_err(|error| Failure::at(path, plain(&error)))?;
    Ok(text.split(|&byte| byte == b'\n').filter_map(parse).collect())
}

/// The mount on top at exactly this directory.
pub fn at(mountpoint: &Path) -> Outcome<Option<Mount>> {
    Ok(all()?.into_iter().rev().find(|mount| mount.mountpoint == mountpoint))
}

/// A mount of the pool with this path.
pub fn of_pool(pool: &Path) -> Outcome<Option<Mount>> {
    Ok(all()?.into_iter().rev().find(|mount| mount.fs_type == FS_TYPE && mount.source == pool))
}

/// Where the pool with this path is mounted.
pub fn all_of_pool(pool: &Path) -> Outcome<Vec<Mount>> {
    Ok(all()?.into_iter().filter(|mount| mount.fs_type == FS_TYPE && mount.source == pool).collect())
}

/// The mount that an absolute path lies in, ours or not; asks nobody, so that it may be dead.
pub fn around(path: &Path) -> Outcome<Option<Mount>> {
    let mounts = all()?.into_iter().filter(|mount| is_inside(path, &mount.mountpoint));
    // Of those at the same place the last lies on top.
    Ok(mounts.max_by_key(|mount| mount.mountpoint.as_os_str().len()))
}

/// A mount of ours with this device number.
pub fn of_device(device: u64) -> Outcome<Option<Mount>> {
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    Ok(all()?.into_iter().find(|mount| mount.fs_type == FS_TYPE && mount.device == device))
}

/// A path in a mount of ours for one that lies in it, or that is the pool mounted there. `None` for others, and where
/// another mount lies over it.
pub fn within(path: &Path) -> Outcome<Option<PathBuf>> {
    let is_ours =
        |path: &Path| rustix::fs::getxattr(path, terrace_fuse::CONTROL_XATTR, &mut [0u8; 0][..]).is_ok();
    if is_ours(path)
        || rustix::fs::stat(path)
            .is_ok_and(|found| of_device(found.st_dev).is_ok_and(|found| found.is_some()))
    {
        return Ok(Some(path.to_path_buf()));
    }
    let pool = fs::canonicalize(path).map_err(|error| Failure::at(path, plain(&error)))?;
    for mount in all_of_pool(&pool)? {
        if at(&mount.mountpoint)?.is_some_and(|top| top == mount) {
            return Ok(Some(mount.mountpoint));
        }
    }
    Ok(None)
}

/// Whether an errno says that the daemon behind a mount is gone.
pub fn means_dead(error: rustix::io::Errno) -> bool {
    error == rustix::io::Errno::NOTCONN || error == rustix::io::Errno::CONNABORTED
}

/// Whether a path lies in a mount whose daemon is gone. Asks for something that the kernel does not cache:
/// attributes it may still know.
pub fn is_dead(path: &Path) -> bool {
    let asked = rustix::fs::getxattr(path, terrace_fuse::CONTROL_XATTR, &mut [0u8; 0][..]);
    asked.is_err_and(means_dead)
}

/// The absolute path of a directory that may be a dead mount, on which stat(2) fails.
pub fn absolute(path: &Path) -> Outcome<PathBuf> {
    let error = match fs::canonicalize(path) {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    if !rustix::io::Errno::from_io_error(&error).is_some_and(means_dead) {
        return Err(Failure::at(path, plain(&error)));
    }
    let absolute = std::path::absolute(path).map_err(|error| Failure::at(path, plain(&error)))?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => match fs::canonicalize(parent) {
            Ok(parent) => Ok(parent.join(name)),
            Err(_) => Ok(absolute),
        },
        _ => Ok(absolute),
    }
}

/// The processes that can be seen.
fn processes() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut found: Vec<u32> =
        entries.flatten().filter_map(|one| one.file_name().to_str()?.parse().ok()).collect();
    found.sort_unstable();
    found
}

/// A process as "name (pid)".
pub fn process_name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match name.trim() {
        "" => format!("process {pid}"),
        name => format!("{name} ({pid})"),
    }
}

/// Other mount namespaces that have the mount of ours with this device, as one process of each,
/// "name (pid)": the oldest, and only if there is no other the `daemon` itself.
pub fn elsewhere(device: &str, daemon: Option<u32>) -> Vec<String> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let here = namespace("self");
    let mut pids = processes();
    pids.sort_by_key(|pid| Some(*pid) == daemon);
    let mut seen = Vec::new();
    let mut found = Vec::new();
    for pid in pids {
        let Some(its) = namespace(&pid.to_string()) else { continue };
        if Some(&its) == here.as_ref() || seen.contains(&its) {
            continue;
        }
        let text = fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        let mut mounts = text.split(|&byte| byte == b'\n').filter_map(parse);
        if mounts.any(|mount| mount.fs_type == FS_TYPE && mount.device == device) {
            found.push(process_name(pid));
        }
        seen.push(its);
    }
    found
}

/// Processes that keep a mount busy, and mounts below it, as "name (pid): what". This process is not
/// among them.
pub fn holders(mount: &Mount, device: u64) -> Vec<String> {
    let mut found = Vec::new();
    for below in all().unwrap_or_default() {
        if below.parent == mount.id {
            found.push(format!("mount at {}", below.mountpoint.display()));
        }
    }
    for pid in processes().into_iter().filter(|pid| *pid != std::process::id()) {
        if let Some(what) = use_by(Path::new(&format!("/proc/{pid}")), mount, device) {
            found.push(format!("{}: {what}", process_name(pid)));
        }
    }
    found
}

/// How this process itself keeps a mount busy: through a descriptor that it was started with.
pub fn own_use(mount: &Mount, device: u64) -> Option<String> {
    use_by(Path::new("/proc/self"), mount, device)
}

/// How one process uses the mount.
fn use_by(process: &Path, mount: &Mount, device: u64) -> Option<String> {
    let uses = |path: &Path| fs::metadata(path).is_ok_and(|found| found.dev() == device);
    for (link, what) in
        [("cwd", "works in it"), ("root", "has its root in it"), ("exe", "runs a program from it")]
    {
        if uses(&process.join(link)) {
            return Some(what.to_string());
        }
    }
    for descriptor in fs::read_dir(process.join("fd")).ok()?.flatten() {
        if uses(&descriptor.path()) {
            let target = fs::read_link(descriptor.path()).unwrap_or_default();
            return Some(format!("has {} open", target.display()));
        }
    }
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    let (major, minor) = mount.device.split_once(':')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    let device = format!(" {major:02x}:{minor:02x} ");
    let mapped = maps
        .split(|&byte| byte == b'\n')
        .any(|line| line.windows(device.len()).any(|window| window == device.as_bytes()));
    mapped.then(|| "has a file of it mapped".to_string())
}

/// Whether `path` is `directory` or lies below it.
pub fn is_inside(path: &Path, directory: &Path) -> bool {
    path.as_os_str().as_bytes().starts_with(directory.as_os_str().as_bytes()) && path.starts_with(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_with_escapes() {
        let line =
            br"36 35 0:52 / /mnt/a\040b rw,noatime shared:1 - fuse.terrace /dev/shm/p\134x rw,user_id=0";
        let mount = parse(line);
        let expected = Mount {
            id: 36,
            parent: 35,
            device: "0:52".into(),
            mountpoint: "/mnt/a b".into(),
            fs_type: FS_TYPE.into(),
            source: r"/dev/shm/p\x".into(),
        };
        assert_eq!(mount, Some(expected));
        assert_eq!(parse(b"36 35 0:52 / /mnt"), None);
        assert!(is_inside(Path::new("/a/b"), Path::new("/a")));
        assert!(!is_inside(Path::new("/ab"), Path::new("/a")));
    }
}
