//! The paths of a new pool: looks at existing files and devices, and refuses unusable ones. This module
//! changes no file.

use crate::{signature, taken};
use rustix::fs::{FlockOperation, OFlags, flock};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use terrace_daemon::failure::{Failure, Outcome, plain};
use terrace_daemon::output::{self, human, parse_size};
use terrace_daemon::{ownership, pool};
use terrace_format::geometry::MIN_PM_SIZE;
use terrace_format::superblock::MAX_PATH;
use terrace_format::{BLOCK_SIZE, Geometry};
use terrace_media::speed::ClassedSpeed;
use terrace_media::{Found, OpenError};

/// Blocks of a chunk: 16 MiB.
pub const CHUNK_BLOCKS: u32 = 4096;

/// Smallest tier: the header and two chunks.
pub const MIN_TIER: u64 = (1 + 2 * CHUNK_BLOCKS as u64) * BLOCK_SIZE;

/// From this size on the format has no block numbers.
const TOO_LARGE_PM: u64 = 16 << 40;

/// A path that becomes a medium.
#[derive(Debug)]
pub struct Target {
    pub path: PathBuf,
    /// `None`: mkfs makes the file.
    pub existing: Option<Existing>,
    /// Bytes of the medium, whole blocks.
    pub size: u64,
    /// Bytes given, or found.
    pub given: u64,
    /// The speed that the user gave.
    pub speed: Option<ClassedSpeed>,
}

#[derive(Debug)]
pub struct Existing {
    pub found: Found,
    pub size: u64,
}

impl Target {
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }
}

impl Existing {
    /// Whether the file or device is used as it is. A file of another size is emptied and made anew.
    pub fn keeps_size(&self, target: &Target) -> bool {
        self.found.is_block_device() || self.size / BLOCK_SIZE * BLOCK_SIZE == target.size
    }
}

/// `PATH[,size=SIZE][,class=CLASS]`
pub fn tier(text: &OsStr) -> Outcome<Target> {
    let mut words = text.as_bytes().split(|&byte| byte == b',');
    let path = Path::new(OsStr::from_bytes(words.next().unwrap_or(&[])));
    let (mut size, mut speed) = (None, None);
    for word in words {
        let word = String::from_utf8_lossy(word).into_owned();
        match word.split_once('=') {
            Some(("size", value)) => size = Some(value.to_string()),
            Some(("class", value)) => {
                speed = Some(ClassedSpeed::parse(value).map_err(|error| Failure::at(path, error))?);
            }
            _ => return Err(Failure::at(path, format!("'{word}': use size=SIZE or class=CLASS"))),
        }
    }
    target(path, size.as_deref(), "size=SIZE", speed)
}

pub fn target(path: &Path, size: Option<&str>, option: &str, speed: Option<ClassedSpeed>) -> Outcome<Target> {
    let asked = match size {
        Some(text) => Some(parse_size(text).map_err(|error| Failure::at(path, error))?),
        None => None,
    };
    ownership::admit_link(path)?;
    let path = match fs::canonicalize(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => new_path(path)?,
        Err(error) => return Err(Failure::at(path, plain(&error))),
    };
    if path.as_os_str().len() > MAX_PATH {
        return Err(Failure::at(&path, format!("longer than {MAX_PATH} bytes; use a shorter path")));
    }
    let existing = examine(&path)?;
    let given = match (&existing, asked) {
        (Some(existing), Some(asked)) if existing.found.is_block_device() && asked > existing.size => {
            let [has, wanted] = output::distinct([existing.size, asked]);
            return Err(Failure::at(&path, format!("has only {has}, not {wanted}")));
        }
        (Some(existing), Some(asked)) if existing.found.is_block_device() && asked < existing.size => {
            let [has, wanted] = output::distinct([existing.size, asked]);
            let text = format!("has {has} and is taken whole, not {wanted}; {option} is for files");
            return Err(Failure::at(&path, text));
        }
        (Some(existing), _) if existing.found.is_block_device() => existing.size,
        (_, Some(asked)) => asked,
        (Some(found), None) if found.size > 0 => found.size,
        (found, None) => {
            let what = if found.is_some() { "is empty" } else { "does not exist" };
            return Err(Failure::at(&path, format!("{what}; say how large to make it with {option}")));
        }
    };
    Ok(Target { path, existing, size: given / BLOCK_SIZE * BLOCK_SIZE, given, speed })
}

/// The absolute path of a file to make.
fn new_path(path: &Path) -> Outcome<PathBuf> {
    let absolute = std::path::absolute(path).map_err(|error| Failure::at(path, plain(&error)))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(Failure::at(path, "not a file name"));
    };
    let parent = fs::canonicalize(parent).map_err(|error| Failure::at(parent, plain(&error)))?;
    Ok(parent.join(name))
}

fn examine(path: &Path) -> Outcome<Option<Existing>> {
    let found = match Found::at(path) {
        Ok(found) => found,
        Err(OpenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(pool::open_failure(&error)),
    };
    ownership::admit_existing(path, found.access())?;
    if let Some(user) = taken::by(&found) {
        return Err(Failure::at(path, format!("mounted or in use: {user}; end that first")));
    }
    let mut file = found.open(false, OFlags::empty()).map_err(|error| cannot_open(&found, &error))?;
    let size =
        io::Seek::seek(&mut file, io::SeekFrom::End(0)).map_err(|error| Failure::at(path, plain(&error)))?;
    Ok(Some(Existing { found, size }))
}

/// EPERM of a device means that the system refuses the device to all users.
fn cannot_open(found: &Found, error: &OpenError) -> Failure {
    match error {
        OpenError::Io { path, source, .. }
            if found.is_block_device() && source.raw_os_error() == Some(libc::EPERM) =>
        {
            let what = "this system does not let the device be opened: it is in use, write-protected, or not given to this container";
            Failure::at(path, format!("{}: {what}", plain(source)))
        }
        _ => pool::open_failure(error),
    }
}

/// Checks the size of persistent memory.
pub fn check_pm(pm: &Target) -> Outcome<()> {
    if pm.existing.as_ref().is_some_and(|existing| existing.found.is_block_device()) {
        let what = "a block device cannot be persistent memory; use a file on tmpfs, hugetlbfs or a DAX file system, or --journal for a fast tier on a device, and give devices with --tier";
        return Err(Failure::at(&pm.path, what));
    }
    check_minimum(&pm.path, (pm.size, pm.given), "persistent memory", MIN_PM_SIZE)?;
    if pm.size >= TOO_LARGE_PM {
        let (given, limit) = (human(pm.given), human(TOO_LARGE_PM));
        let text = format!("{given} is too large for persistent memory, which must be below {limit}");
        return Err(Failure::at(&pm.path, text));
    }
    Geometry::choose(pm.size, CHUNK_BLOCKS).map(drop).map_err(|error| Failure::at(&pm.path, error))
}

/// Checks a size: the bytes that are used, and the bytes that the user gave.
pub fn check_minimum(path: &Path, (used, given): (u64, u64), what: &str, minimum: u64) -> Outcome<()> {
    if used >= minimum {
        return Ok(());
    }
    let [given, least] = output::distinct([given, minimum]);
    let bytes = format!("{minimum} bytes");
    let exactly = if least == bytes { String::new() } else { format!(" ({bytes})") };
    let text = format!("{given} is below the minimum of {what}, {least}{exactly}");
    Err(Failure::at(path, text))
}

/// Checks that the target is not in use and has no content.
pub fn check_content(target: &Target, force: bool) -> Outcome<()> {
    let Some(existing) = &target.existing else { return Ok(()) };
    let path = &target.path;
    let exclusive = if existing.found.is_block_device() { OFlags::EXCL } else { OFlags::empty() };
    let file = existing.found.open(true, exclusive).map_err(|error| match &error {
        OpenError::Io { source, .. } if source.raw_os_error() == Some(libc::EBUSY) => {
            Failure::at(path, "mounted or in use; unmount it first")
        }
        _ => cannot_open(&existing.found, &error),
    })?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(Failure::at(path, "in use by another process; is the pool mounted?"));
    }
    if let Some(device) = taken::loop_device(path) {
        let device = device.display();
        return Err(Failure::at(path, format!("in use by {device}; detach it with 'losetup -d' first")));
    }
    if force {
        return Ok(());
    }
    match signature::find(&file, existing.size).map_err(|error| Failure::at(path, plain(&error)))? {
        Some(what) => Err(Failure::at(path, format!("holds {what}; use --force to overwrite it"))),
        None => Ok(()),
    }
}

/// Tier 0 is allocated in full, so it must fit now.
pub fn check_space(pm: &Target) -> Outcome<()> {
    if pm.existing.as_ref().is_some_and(|existing| existing.found.is_block_device()) {
        return Ok(());
    }
    let directory = pm.path.parent().unwrap_or(Path::new("/"));
    let space =
        rustix::fs::statvfs(directory).map_err(|error| Failure::at(directory, plain(&error.into())))?;
    let freed = pm.existing.as_ref().map_or(0, |existing| existing.found.allocated_bytes());
    let mut room = space.f_bavail * space.f_frsize + freed;
    if rustix::fs::statfs(directory).is_ok_and(|found| found.f_type as u64 == libc::TMPFS_MAGIC as u64) {
        room = room.min(available_memory().unwrap_or(u64::MAX).saturating_add(freed));
    }
    if pm.size > room {
        let [size, room] = output::distinct([pm.size, room]);
        let what = format!("no space for {size}: only {room} is free; use a smaller size");
        return Err(Failure::at(&pm.path, what));
    }
    Ok(())
}

fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kib| kib << 10)
}
