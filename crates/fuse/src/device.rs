//! A server that exports one file, `device`, with the latency and bandwidth of a device class, so that
//! Terrace and its peers can be measured on the same device (evaluation "Devices").
//!
//! Invariants: a request is executed on the backing file when it arrives and answered when its time has come,
//! so a read that starts after the answer to a write finds the written bytes. No byte of the file is cached
//! by the kernel above (every open is for direct I/O, no shared mappings) and all access to the backing file
//! below goes through one descriptor and the page cache, whatever the alignment; it is locked against others.
//! Its size never changes. Every request is answered once, at the latest when the session ends
//! ([`crate::completions`]).

use crate::completions::{Completions, Finish};
use crate::session;
use crate::validity::VALID;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, FlockOperation, flock};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use terrace_media::pace::{Direction, Pace};
use terrace_media::speed::Speed;
use terrace_runtime::Clock;

/// Name of the one file.
pub const DEVICE_NAME: &str = "device";
const DEVICE: INodeNo = INodeNo(2);
const BLOCK: u32 = 4096;

/// The meaning of a flush on the emulated device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// The backing file is flushed to its disk: the flush takes as long as that disk takes.
    Backing,
    /// The flush takes the class's time for a write of no bytes. The kernel blocks writes to a file of a FUSE
    /// server during its flush, so with a backing disk that flushes in 6 ms the device would stand still for
    /// 6 ms, which no class does. A power failure of the machine loses the content.
    Class,
}

/// The server.
pub struct DeviceServer {
    backing: File,
    flush: Flush,
    size_bytes: u64,
    /// `None` after the session has ended.
    completions: Option<Completions>,
}

impl DeviceServer {
    /// A server of `backing` at `speed`. `awake`: the time after a request during which a thread keeps its
    /// processor from sleeping.
    ///
    /// # Errors
    /// `ResourceBusy` when another process has locked the file; the operating system's.
    pub fn open(
        backing: &Path,
        speed: Speed,
        flush: Flush,
        awake: Duration,
        clock: Arc<dyn Clock>,
    ) -> io::Result<DeviceServer> {
        let file = OpenOptions::new().read(true).write(true).open(backing)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let size_bytes = file.metadata()?.len();
        if !file.metadata()?.is_file() || size_bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file with a size"));
        }
        let completions = Some(Completions::start(Pace::new(speed), clock, awake)?);
        Ok(DeviceServer { backing: file, flush, size_bytes, completions })
    }

    /// Bytes of the device.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn attributes(&self, node: INodeNo) -> FileAttr {
        let directory = node == INodeNo::ROOT;
        let size = if directory { 0 } else { self.size_bytes };
        FileAttr {
            ino: node,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if directory { FileType::Directory } else { FileType::RegularFile },
            perm: if directory { 0o755 } else { 0o600 },
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        }
    }

    /// Bytes of a request that lie inside the device.
    fn inside(&self, offset: u64, length: usize) -> usize {
        (length as u64).min(self.size_bytes.saturating_sub(offset)) as usize
    }

    /// Executes a request now and answers it when its time has come.
    fn at_pace(&self, direction: Direction, bytes: usize, execute: impl FnOnce() -> Finish) {
        let Some(completions) = &self.completions else { return execute()() };
        let transfer = completions.pace().begin(completions.now_ns(), direction, bytes as u64);
        completions.hand_over(transfer, execute());
    }

    fn sync_backing(&self) -> io::Result<()> {
        match self.flush {
            Flush::Backing => self.backing.sync_data(),
            Flush::Class => Ok(()),
        }
    }

    fn punch(&self, offset: u64, length: u64, mode: i32) -> Result<(), Errno> {
        if offset.checked_add(length).is_none_or(|end| end > self.size_bytes) {
            return Err(Errno::ENOSPC);
        }
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        let known = FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        if !known.contains(mode) {
            return Err(Errno::EOPNOTSUPP);
        }
        rustix::fs::fallocate(&self.backing, mode, offset, length)
            .map_err(|error| Errno::from_i32(error.raw_os_error()))
    }
}

/// errno of an error of the backing file.
fn errno(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

impl Filesystem for DeviceServer {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Fewer capabilities than a file system asks for: no mappings of direct I/O, and no cache.
        session::negotiate_only(config, &[InitFlags::FUSE_ASYNC_DIO])
    }

    fn destroy(&mut self) {
        self.completions = None;
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == DEVICE_NAME {
            reply.entry(&VALID, &self.attributes(DEVICE), Generation(1));
        } else {
            session::absent(reply);
        }
    }

    fn getattr(&self, _request: &Request, node: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&VALID, &self.attributes(node));
    }

    fn setattr(
        &self,
        _request: &Request,
        node: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // A device keeps its size; changes of other attributes are ignored.
        if size.is_some_and(|size| node != DEVICE || size != self.size_bytes) {
            return reply.error(Errno::EPERM);
        }
        reply.attr(&VALID, &self.attributes(node));
    }

    fn open(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let count = self.inside(offset, size as usize);
        self.at_pace(Direction::Read, count, || {
            let mut data = vec![0; count];
            // A backing file that was cut off gives an error, not zeros.
            let read = self.backing.read_exact_at(&mut data, offset);
            Box::new(move || match read {
                Ok(()) => reply.data(&data),
                Err(error) => reply.error(errno(&error)),
            })
        });
    }

    fn write(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let count = self.inside(offset, data.len());
        if count == 0 && !data.is_empty() {
            return reply.error(Errno::ENOSPC);
        }
        self.at_pace(Direction::Write, count, || {
            let mut written = self.backing.write_all_at(&data[..count], offset);
            // With O_DSYNC or O_SYNC no FSYNC follows.
            if written.is_ok() && flags.0 & libc::O_DSYNC != 0 {
                written = self.sync_backing();
            }
            Box::new(move || match written {
                Ok(()) => reply.written(count as u32),
                Err(error) => reply.error(errno(&error)),
            })
        });
    }

    fn fsync(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let answer = |synced: io::Result<()>| match synced {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        };
        match self.flush {
            Flush::Backing => answer(self.sync_backing()),
            Flush::Class => self.at_pace(Direction::Write, 0, || Box::new(move || answer(Ok(())))),
        }
    }

    fn fallocate(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        match self.punch(offset, length, mode) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn statfs(&self, _request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        reply.statfs(self.size_bytes / u64::from(BLOCK), 0, 0, 2, 0, BLOCK, 255, BLOCK);
    }

    fn readdir(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectory,
    ) {
        if cookie > 0 || !reply.add(DEVICE, 1, FileType::RegularFile, DEVICE_NAME) {
            reply.ok();
        } else {
            reply.error(Errno::EINVAL);
        }
    }
}
