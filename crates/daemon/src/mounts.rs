//! Mounts from /proc/self/mountinfo, and the processes that use a mount.

use crate::failure::{Failure, Outcome, plain};
use crate::processes;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;
use terrace_fuse::Connection;
use terrace_runtime::thread::spawn;

/// Has the kernel write the changed pages of shared mappings to the file system of a path: its daemon cannot
/// see the changes before.
pub fn write_kernel_pages(path: &Path) -> io::Result<()> {
    // O_NONBLOCK: the open of a FIFO must not wait for its other end.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    Ok(rustix::fs::syncfs(&file)?)
}

/// File-system type of Terrace mounts.
pub const FS_TYPE: &str = "fuse.terrace";

/// A line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Identity of the mount.
    pub id: u32,
    /// Identity of the mount that it lies on.
    pub parent: u32,
    /// "major:minor" of the file system.
    pub device: String,
    /// Where.
    pub mountpoint: PathBuf,
    /// "fuse.terrace" for Terrace.
    pub fs_type: String,
    /// The pool, by the word of the process that mounted it.
    pub source: PathBuf,
    /// The user of a FUSE mount, by the kernel's word.
    pub owner: Option<u32>,
    /// Flags of the mount, then flags of its file system.
    pub options: Vec<String>,
}

impl Mount {
    /// The kernel's connection behind a FUSE mount.
    pub fn connection(&self) -> Option<Connection> {
        self.device.split_once(':')?.1.parse().ok().map(Connection::new)
    }

    /// Whether the kernel refuses changes.
    pub fn is_read_only(&self) -> bool {
        self.options.iter().any(|option| option == "ro")
    }

    /// Whether the mount has Terrace's type, by the word of the process that mounted it.
    pub fn is_ours(&self) -> bool {
        self.fs_type == FS_TYPE
    }

    /// The process of its daemon if that is stopped, or killed and held by a device: a request to the mount would wait for
    /// it, and by io_uring such a wait cannot be ended by a signal. Asked only of mounts of root and of this user: the pool
    /// that another user names may lie in a file system that does not answer either.
    pub fn held_process(&self) -> Option<u32> {
        let trusted = [0, rustix::process::geteuid().as_raw()];
        let is_asked = self.is_ours() && self.owner.is_some_and(|owner| trusted.contains(&owner));
        let process = is_asked.then(|| processes::lock_owner(&self.source)).flatten();
        process.filter(|pid| processes::is_stopped(*pid) || processes::is_ending(*pid))
    }

    /// Whether the mount's user is trusted to name this pool as its source: every user can mount a file
    /// system of Terrace's type under the name of every pool.
    fn may_speak_for(&self, pool: &Path) -> bool {
        let trusted = [0, rustix::process::geteuid().as_raw()];
        let Some(owner) = self.owner else { return false };
        trusted.contains(&owner) || fs::metadata(pool).is_ok_and(|found| found.uid() == owner)
    }

    /// Whether it is a mount of the pool with this path.
    fn is_of(&self, pool: &Path) -> bool {
        self.is_ours() && self.source == pool && self.may_speak_for(pool)
    }
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
    let flags = text(words.next())?;
    words.find(|word| *word == b"-")?;
    let fs_type = text(words.next())?;
    let source = unescape(words.next()?);
    let of_fs = String::from_utf8_lossy(words.next().unwrap_or_default()).into_owned();
    let options: Vec<String> = flags.split(',').chain(of_fs.split(',')).map(str::to_string).collect();
    let owner = options.iter().find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    Some(Mount { id, parent, device, mountpoint, fs_type, source, owner, options })
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
    Ok(all()?.into_iter().rev().find(|mount| mount.is_of(pool)))
}

/// The mounts of the pool with this path.
pub fn all_of_pool(pool: &Path) -> Outcome<Vec<Mount>> {
    Ok(all()?.into_iter().filter(|mount| mount.is_of(pool)).collect())
}

/// The mount that an absolute path lies in, of whatever type. The path is not opened, so the mount may be
/// dead.
pub fn around(path: &Path) -> Outcome<Option<Mount>> {
    let mounts = all()?.into_iter().filter(|mount| is_inside(path, &mount.mountpoint));
    // The last mount at a directory lies on top of earlier mounts.
    Ok(mounts.max_by_key(|mount| mount.mountpoint.as_os_str().len()))
}

/// A device number as mountinfo has it.
pub fn device_text(device: u64) -> String {
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

/// A Terrace mount with this device number.
pub fn of_device(device: u64) -> Outcome<Option<Mount>> {
    let device = device_text(device);
    Ok(all()?.into_iter().find(|mount| mount.fs_type == FS_TYPE && mount.device == device))
}

/// A path inside a Terrace mount: the given path if it lies in the mount, or the mount point if it is the
/// mounted pool. `None` for other paths, and if another mount covers the mount point.
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

/// Time that a mount has to answer a command that looks for its daemon.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs a call that may ask the daemon of a mount. `None` when the call takes too long: the daemon may be
/// dead although its mount still exists.
pub fn patiently<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = channel();
    // A thread that waits for a dead daemon ends with the connection, or with this process.
    spawn("terrace-look", move || drop(tell.send(look()))).ok()?;
    told.recv_timeout(PATIENCE).ok()
}

/// The absolute path of a file or directory, and the mount that it lies in, without a request to the daemon
/// of a mount that the path names: the daemon may be dead, or not answer.
pub fn look(path: &Path) -> Outcome<(PathBuf, Option<Mount>)> {
    let absolute = || -> Outcome<(PathBuf, Option<Mount>)> {
        let absolute = std::path::absolute(path).map_err(|error| Failure::at(path, plain(&error)))?;
        let absolute: PathBuf = absolute.components().collect();
        let mount = around(&absolute)?;
        Ok((absolute, mount))
    };
    // Without a request: it would wait for the daemon.
    let (found, mount) = absolute()?;
    if mount.as_ref().is_some_and(|mount| mount.held_process().is_some()) {
        return Ok((found, mount));
    }
    let named = path.to_path_buf();
    let open = move || -> io::Result<(PathBuf, Option<u32>)> {
        let file = rustix::fs::open(named, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
        let mut ids = about.lines().filter_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
        Ok((link, ids.next()))
    };
    match patiently(open) {
        Some(Ok((found, id))) => {
            let mount = all()?.into_iter().find(|mount| Some(mount.id) == id);
            return Ok((found, mount));
        }
        Some(Err(error)) if !rustix::io::Errno::from_io_error(&error).is_some_and(means_dead) => {
            return Err(Failure::at(path, plain(&error)));
        }
        // The path lies below such a mount.
        _ => {}
    }
    absolute()
}

/// The absolute path of a file or directory, which may be a dead mount.
pub fn absolute(path: &Path) -> Outcome<PathBuf> {
    look(path).map(|(absolute, _)| absolute)
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

/// A mount in another mount namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elsewhere {
    /// A process of that namespace.
    pub pid: u32,
    /// The mount point in that namespace.
    pub mountpoint: PathBuf,
}

impl Elsewhere {
    /// "DIR in the mount namespace of name (pid)".
    pub fn text(&self) -> String {
        format!("{} in the mount namespace of {}", self.mountpoint.display(), process_name(self.pid))
    }

    /// A path to the mount from this namespace.
    pub fn path(&self) -> PathBuf {
        let mut path = OsString::from(format!("/proc/{}/root", self.pid));
        path.push(&self.mountpoint);
        path.into()
    }
}

/// Other mount namespaces with a Terrace mount that `is_meant` accepts, each by its oldest process. The
/// `daemon` itself stands for its namespace only if no other process does.
pub fn elsewhere(is_meant: impl Fn(&Mount) -> bool, daemon: Option<u32>) -> Vec<Elsewhere> {
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
        if let Some(mount) = mounts.find(|mount| mount.is_ours() && is_meant(mount)) {
            found.push(Elsewhere { pid, mountpoint: mount.mountpoint });
        }
        seen.push(its);
    }
    found
}

/// The users that keep a mount busy: mounts below it, and processes as "name (pid): what", without this
/// process.
pub fn holders(mount: &Mount) -> Vec<String> {
    let below = all().unwrap_or_default().into_iter().filter(|below| below.parent == mount.id);
    let below = below.map(|below| format!("mount at {}", below.mountpoint.display()));
    below.chain(users(&mount.device)).collect()
}

/// The processes that use the mounts of a device, in all namespaces, as "name (pid): what", without this
/// process.
pub fn users(device: &str) -> Vec<String> {
    let others = processes().into_iter().filter(|pid| *pid != std::process::id());
    let user = |pid: u32| {
        let what = use_by(Path::new(&format!("/proc/{pid}")), device)?;
        Some(format!("{}: {what}", process_name(pid)))
    };
    others.filter_map(user).collect()
}

/// The way in which this process itself keeps the mounts of a device busy: through an inherited descriptor.
pub fn own_use(device: &str) -> Option<String> {
    use_by(Path::new("/proc/self"), device)
}

/// The way in which a process uses the mounts of a device.
fn use_by(process: &Path, device: &str) -> Option<String> {
    let uses = |path: &Path| fs::metadata(path).is_ok_and(|found| device_text(found.dev()) == device);
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
    let (major, minor) = device.split_once(':')?;
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
            owner: Some(0),
            options: ["rw", "noatime", "rw", "user_id=0"].map(str::to_string).to_vec(),
        };
        assert_eq!(mount, Some(expected));
        let read_only = |line: &[u8]| parse(line).map(|mount| mount.is_read_only());
        assert_eq!(read_only(b"1 2 0:5 / /m ro - fuse.terrace /p rw,user_id=0"), Some(true));
        assert_eq!(read_only(b"1 2 0:5 / /m rw - fuse.terrace /p ro,user_id=0"), Some(true));
        assert_eq!(read_only(b"1 2 0:5 / /m rw - fuse.terrace /p rw,user_id=0"), Some(false));
        assert_eq!(parse(b"36 35 0:52 / /mnt"), None);
        assert!(is_inside(Path::new("/a/b"), Path::new("/a")));
        assert!(!is_inside(Path::new("/ab"), Path::new("/a")));
    }
}
