//! A look at the file or device of a path before it is opened.
//!
//! A path may come out of an image that somebody made: opening a FIFO waits for its other end, opening a tape rewinds it,
//! reading /proc/kmsg takes messages from others. So the path is looked at without opening it (O_PATH). Invariants: only
//! block devices and regular files of real file systems are opened, without waiting (O_NONBLOCK); what is opened is what
//! was looked at, whatever the path names by then (through /proc/self/fd); a new file replaces nothing and follows no link.
//! Used by the media, and by each command that reads a pool's files.

use crate::open::OpenError;
use rustix::fs::{
    CWD, FileType, Mode, OFlags, Stat, fcntl_getfl, fcntl_setfl, fstat, fstatfs, major, minor, openat, stat,
    statfs,
};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// File systems that make the content of their files when these are read: proc, sysfs, debugfs, tracefs, securityfs,
/// configfs, cgroup, cgroup2, efivarfs, pstore, binfmt_misc, bpf, selinuxfs, devpts. From linux/magic.h.
const MADE_WHEN_READ: [u64; 14] = [
    0x9fa0,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0x6265_6570,
    0x0027_e0eb,
    0x6367_7270,
    0xde5e_81e4,
    0x6165_676c,
    0x4249_4e4d,
    0xcafe_4a11,
    0xf97c_ff8c,
    0x1cd1,
];

/// Types of file systems that keep their files in memory: tmpfs, ramfs, hugetlbfs.
const IN_MEMORY: [u64; 3] = [libc::TMPFS_MAGIC as u64, 0x8584_58f6, libc::HUGETLBFS_MAGIC as u64];

/// Whether the content of a path is gone after a reboot: a file in memory, or a loop device over such a file. The node of a
/// device always lies in memory, and says nothing of the device. False if the path cannot be looked at.
pub fn is_in_memory(path: &Path) -> bool {
    let Ok(found) = stat(path) else { return false };
    if FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice {
        let (major, minor) = (major(found.st_rdev), minor(found.st_rdev));
        let backing = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/loop/backing_file"));
        return backing.is_ok_and(|backing| is_in_memory(Path::new(backing.trim_end_matches('\n'))));
    }
    statfs(path).is_ok_and(|found| IN_MEMORY.contains(&(found.f_type as u64 & 0xffff_ffff)))
}

/// A regular file or a block device, held without having been opened.
#[derive(Debug)]
pub struct Found {
    handle: OwnedFd,
    path: PathBuf,
    stat: Stat,
}

/// Owner and permissions of a medium's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Its owner.
    pub uid: u32,
    /// Its permission bits (07777).
    pub mode: u32,
    /// Whether it is a block device: these belong to a group of administrators.
    pub block_device: bool,
}

impl Access {
    /// The owner, when that is neither root nor this user.
    pub fn foreign_owner(&self, user: u32) -> Option<u32> {
        (self.uid != 0 && self.uid != user).then_some(self.uid)
    }

    /// Whether users beside the owner may write to it.
    pub fn others_may_write(&self) -> bool {
        self.mode & if self.block_device { 0o002 } else { 0o022 } != 0
    }

    /// Whether users beside the owner may read it.
    pub fn others_may_read(&self) -> bool {
        self.mode & if self.block_device { 0o004 } else { 0o044 } != 0
    }
}

impl Found {
    /// Looks at a path, links followed, and opens nothing.
    ///
    /// # Errors
    /// [`OpenError::Unsupported`] for everything that is neither a block device nor a regular file, and what the
    /// operating system says.
    pub fn at(path: impl AsRef<Path>) -> Result<Found, OpenError> {
        let path = path.as_ref();
        let failed = |error: Errno| OpenError::io(path, "examine", error);
        let handle = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
        let stat = fstat(&handle).map_err(failed)?;
        let unsupported = |what: &str| OpenError::Unsupported {
            path: path.to_path_buf(),
            reason: format!("is {what}, neither a file nor a block device"),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => {}
            FileType::RegularFile => {
                let kind = fstatfs(&handle).map_err(failed)?.f_type as u64 & 0xffff_ffff;
                if MADE_WHEN_READ.contains(&kind) {
                    return Err(unsupported("made by the kernel when it is read"));
                }
            }
            FileType::Directory => return Err(unsupported("a directory")),
            FileType::Fifo => return Err(unsupported("a FIFO")),
            FileType::Socket => return Err(unsupported("a socket")),
            FileType::CharacterDevice => return Err(unsupported("a character device")),
            _ => return Err(unsupported("of an unknown kind")),
        }
        Ok(Found { handle, path: path.to_path_buf(), stat })
    }

    /// Opens the file or device that was looked at, whatever the path names by now.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn open(&self, writable: bool, flags: OFlags) -> Result<File, OpenError> {
        let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let through = format!("/proc/self/fd/{}", self.handle.as_raw_fd());
        let opened = openat(CWD, through.as_str(), flags, Mode::empty()).map_err(|error| match error {
            Errno::NOENT => OpenError::Unsupported {
                path: self.path.clone(),
                reason: "cannot be opened through /proc/self/fd; mount /proc".into(),
            },
            _ => OpenError::io(&self.path, "open", error),
        })?;
        // Only the opening must not wait: io_uring answers EAGAIN where a file that does not wait would.
        fcntl_getfl(&opened)
            .and_then(|now| fcntl_setfl(&opened, now - OFlags::NONBLOCK))
            .map_err(|error| OpenError::io(&self.path, "open", error))?;
        Ok(File::from(opened))
    }

    /// Where it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a block device.
    pub fn is_block_device(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::BlockDevice
    }

    /// The same for two paths that lead to one medium, and for no others.
    pub fn identity(&self) -> (u64, u64) {
        match self.is_block_device() {
            true => (u64::MAX, self.stat.st_rdev),
            false => (self.stat.st_dev, self.stat.st_ino),
        }
    }

    /// Numbers (major, minor) of the block device that it is, or that its file system lies on.
    pub fn device_numbers(&self) -> (u32, u32) {
        let device = if self.is_block_device() { self.stat.st_rdev } else { self.stat.st_dev };
        (major(device), minor(device))
    }

    /// Bytes that the file system has allocated to this file.
    pub fn allocated_bytes(&self) -> u64 {
        u64::try_from(self.stat.st_blocks).unwrap_or(0) * 512
    }

    /// Owner and permissions.
    pub fn access(&self) -> Access {
        Access {
            uid: self.stat.st_uid,
            mode: self.stat.st_mode & 0o7777,
            block_device: self.is_block_device(),
        }
    }
}

/// Opens a regular file or block device for reading; see [`Found`].
///
/// # Errors
/// As [`Found::at`].
pub fn open_to_read(path: impl AsRef<Path>) -> Result<File, OpenError> {
    Found::at(path)?.open(false, OFlags::empty())
}

/// Makes a file of mode 0600 that was not there: nobody else has it open, and no link leads elsewhere.
///
/// # Errors
/// `AlreadyExists` also for a link that leads nowhere; what the operating system says.
pub(crate) fn create_new(path: &Path) -> Result<File, OpenError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let made = openat(CWD, path, flags, mode).map_err(|error| OpenError::io(path, "create", error))?;
    Ok(File::from(made))
}

/// A file of mode 0600 in a directory, without a name.
///
/// # Errors
/// Errors of the operating system.
pub(crate) fn create_unnamed(directory: &Path) -> Result<File, OpenError> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let made =
        openat(CWD, directory, flags, mode).map_err(|error| OpenError::io(directory, "create", error))?;
    Ok(File::from(made))
}
