//! Converts between types of the file system and layouts of the protocol.

use crate::protocol::layout;
use crate::protocol::reply::Entry;
use crate::protocol::request::NewTime;
use crate::set_id::valid;
use crate::validity::VALID;
use terrace_engine::{Allocate, Attributes, SetTime, XattrMode};
use terrace_transport::OpenMode;

const NS_PER_SECOND: i64 = 1_000_000_000;
const BLOCK_BYTES: u32 = 4096;

/// Flags for an open file: no request at its close, direct I/O, pages stay from one open to the next, writes side by side.
const NO_FLUSH: u32 = 1 << 5;
const DIRECT_IO: u32 = 1 << 0;
const KEEP_CACHE: u32 = 1 << 1;
const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// The form of a time in the protocol: seconds, rounded down, and nanoseconds.
fn time(ns: i64) -> (i64, u32) {
    (ns.div_euclid(NS_PER_SECOND), ns.rem_euclid(NS_PER_SECOND) as u32)
}

/// A time to set, if the request has one; `None` for a time that no inode can hold (before 1677, after 2262), which POSIX
/// has refused (EINVAL).
pub(crate) fn set_time(time: Option<NewTime>) -> Option<Option<SetTime>> {
    Some(match time {
        None => None,
        Some(NewTime::Now) => Some(SetTime::Now),
        Some(NewTime::At(seconds, ns)) => {
            // In 128 bits the earliest second of a time is no overflow although its nanoseconds bring it back.
            let ns = i128::from(seconds) * i128::from(NS_PER_SECOND) + i128::from(ns);
            Some(SetTime::At(i64::try_from(ns).ok()?))
        }
    })
}

/// The attributes of an inode in the protocol.
fn attributes(from: &Attributes) -> layout::Attributes {
    let ((atime, atime_ns), (mtime, mtime_ns)) = (time(from.atime_ns), time(from.mtime_ns));
    let (ctime, ctime_ns) = time(from.ctime_ns);
    layout::Attributes {
        ino: from.ino.0,
        size: from.size,
        blocks: from.blocks,
        atime,
        mtime,
        ctime,
        atime_ns,
        mtime_ns,
        ctime_ns,
        mode: from.mode,
        nlink: from.nlink,
        uid: from.uid,
        gid: from.gid,
        rdev: from.rdev,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// An inode as a reply tells of it.
pub(crate) fn entry_of(from: &Attributes) -> Entry {
    Entry {
        generation: from.generation.into(),
        attributes: attributes(from),
        attributes_valid: valid(from),
        name_valid: VALID,
    }
}

/// Flags for an open file (design 6): no flush on close; direct I/O with parallel writes, or the kernel's
/// page cache, kept from one open to the next. After direct I/O the kernel's pages are dropped before a
/// cached open (decision 0020). The file system never changes content behind the kernel, so cached pages stay
/// right.
pub(crate) fn open_flags(mode: OpenMode) -> u32 {
    NO_FLUSH
        | match mode {
            OpenMode::Direct => DIRECT_IO | PARALLEL_DIRECT_WRITES,
            OpenMode::Cached => KEEP_CACHE,
        }
}

/// The operation that a mode of fallocate(2) asks for; `None` for a mode that is not built.
pub(crate) fn allocate(mode: u32) -> Option<Allocate> {
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    match mode as i32 {
        0 => Some(Allocate::Extend),
        libc::FALLOC_FL_KEEP_SIZE => Some(Allocate::KeepSize),
        PUNCH => Some(Allocate::PunchHole),
        _ => None,
    }
}

/// The flags of setxattr(2).
pub(crate) fn xattr_mode(flags: u32) -> Option<XattrMode> {
    match flags as i32 {
        0 => Some(XattrMode::Any),
        libc::XATTR_CREATE => Some(XattrMode::Create),
        libc::XATTR_REPLACE => Some(XattrMode::Replace),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time before 1970 was once read as if its nanoseconds counted backwards.
    #[test]
    fn times_round_trip_through_the_form_of_the_protocol() {
        for ns in [0, 1, -1, 1_700_000_000_123_456_789, -1_700_000_000_123_456_789, i64::MAX, i64::MIN] {
            let (seconds, part) = time(ns);
            assert_eq!(set_time(Some(NewTime::At(seconds, part))), Some(Some(SetTime::At(ns))));
        }
        assert_eq!(time(-1), (-1, 999_999_999));
    }

    /// Such a time was once replaced by the nearest possible time, and the caller got no error.
    #[test]
    fn times_outside_the_range_of_an_inode_are_refused() {
        let set = |years: i64| set_time(Some(NewTime::At(years * 365 * 86_400, 0)));
        assert_eq!([set(300), set(-300)], [None; 2]);
        assert!(set(290).is_some_and(|time| time.is_some()));
        assert_eq!([set_time(None), set_time(Some(NewTime::Now))], [Some(None), Some(Some(SetTime::Now))]);
        assert_eq!(set_time(Some(NewTime::At(i64::MIN, u32::MAX))), None);
    }

    #[test]
    fn modes_of_fallocate() {
        assert_eq!(allocate(3), Some(Allocate::PunchHole));
        assert_eq!(allocate(libc::FALLOC_FL_ZERO_RANGE as u32), None);
        assert_eq!(allocate(libc::FALLOC_FL_PUNCH_HOLE as u32), None);
    }
}
