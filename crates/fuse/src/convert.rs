//! Converts between types of the file system and types of `fuser`.

use fuser::{Errno, FileAttr, FileType, FopenFlags, INodeNo, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use terrace_engine::{Allocate, Attributes, SetTime, XattrMode};
use terrace_format::Ino;
use terrace_transport::OpenMode;

pub(crate) fn ino(node: INodeNo) -> Ino {
    Ino(node.0)
}

pub(crate) fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_i32(error.raw_os_error())
}

/// The type of a file from the upper four bits of its mode.
pub(crate) fn file_type(bits: u8) -> FileType {
    match u32::from(bits) << 12 {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

fn time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns >= 0 { UNIX_EPOCH + distance } else { UNIX_EPOCH - distance }
}

/// Nanoseconds since the epoch; `None` before 1677 and after 2262, which an inode cannot hold. `fuser` 0.18
/// turns the kernel's (seconds, nanoseconds) of a time before 1970 into `epoch - (-seconds + nanoseconds)`
/// instead of `epoch - (-seconds) + nanoseconds`: undone here.
fn nanoseconds(time: SystemTime) -> Option<i64> {
    const PER_SECOND: i128 = 1_000_000_000;
    let ns = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i128::from(after.as_secs()) * PER_SECOND + i128::from(after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            i128::from(before.subsec_nanos()) - i128::from(before.as_secs()) * PER_SECOND
        }
    };
    i64::try_from(ns).ok()
}

/// A time to set, if the request has one; `None` for a time that no inode can hold, which POSIX has refused
/// (EINVAL).
pub(crate) fn set_time(time: Option<TimeOrNow>) -> Option<Option<SetTime>> {
    Some(match time {
        None => None,
        Some(TimeOrNow::Now) => Some(SetTime::Now),
        Some(TimeOrNow::SpecificTime(time)) => Some(SetTime::At(nanoseconds(time)?)),
    })
}

pub(crate) fn attributes(from: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(from.ino.0),
        size: from.size,
        blocks: from.blocks,
        atime: time(from.atime_ns),
        mtime: time(from.mtime_ns),
        ctime: time(from.ctime_ns),
        crtime: time(from.btime_ns),
        kind: file_type((from.mode >> 12) as u8),
        perm: (from.mode & 0o7777) as u16,
        nlink: from.nlink,
        uid: from.uid,
        gid: from.gid,
        rdev: from.rdev,
        blksize: 4096,
        flags: 0,
    }
}

/// Flags for an open file (design 6): no flush on close; direct I/O with parallel writes, or the kernel's
/// page cache, kept from one open to the next. After direct I/O the kernel's pages are dropped before a
/// cached open (decision 0020). The file system never changes content behind the kernel, so cached pages stay
/// right.
pub(crate) fn open_flags(mode: OpenMode) -> FopenFlags {
    FopenFlags::FOPEN_NOFLUSH
        | match mode {
            OpenMode::Direct => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
            OpenMode::Cached => FopenFlags::FOPEN_KEEP_CACHE,
        }
}

/// The operation that a mode of fallocate(2) asks for; `None` for a mode that is not built.
pub(crate) fn allocate(mode: i32) -> Option<Allocate> {
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    match mode {
        0 => Some(Allocate::Extend),
        libc::FALLOC_FL_KEEP_SIZE => Some(Allocate::KeepSize),
        PUNCH => Some(Allocate::PunchHole),
        _ => None,
    }
}

/// The flags of setxattr(2).
pub(crate) fn xattr_mode(flags: i32) -> Option<XattrMode> {
    match flags {
        0 => Some(XattrMode::Any),
        libc::XATTR_CREATE => Some(XattrMode::Create),
        libc::XATTR_REPLACE => Some(XattrMode::Replace),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip_through_the_kernel_form() {
        for ns in [0, 1, -1, 1_700_000_000_123_456_789, i64::MAX] {
            // The kernel's form is floored seconds and non-negative nanoseconds; fuser's reading of it:
            let (seconds, part) = (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
            let read = if seconds >= 0 {
                UNIX_EPOCH + Duration::new(seconds as u64, part as u32)
            } else {
                UNIX_EPOCH - Duration::new(seconds.unsigned_abs(), part as u32)
            };
            assert_eq!(nanoseconds(read), Some(ns));
            assert_eq!(time(ns).duration_since(UNIX_EPOCH).is_ok(), ns >= 0);
        }
    }

    /// Such a time was once replaced by the nearest possible time, and the caller got no error.
    #[test]
    fn times_outside_the_range_of_an_inode_are_refused() {
        let set = |time| set_time(Some(TimeOrNow::SpecificTime(time)));
        let years = |count: u64| Duration::from_secs(count * 365 * 86_400);
        assert_eq!([set(UNIX_EPOCH + years(300)), set(UNIX_EPOCH - years(300))], [None; 2]);
        assert!(set(UNIX_EPOCH + years(290)).is_some_and(|time| time.is_some()));
        assert_eq!([set_time(None), set_time(Some(TimeOrNow::Now))], [Some(None), Some(Some(SetTime::Now))]);
    }

    #[test]
    fn modes_of_fallocate() {
        assert_eq!(allocate(3), Some(Allocate::PunchHole));
        assert_eq!(allocate(libc::FALLOC_FL_ZERO_RANGE), None);
        assert_eq!(allocate(libc::FALLOC_FL_PUNCH_HOLE), None);
    }
}
