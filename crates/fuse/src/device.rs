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
use crate::protocol::init::Capability;
use crate::protocol::layout::{InHeader, StatFsOut};
use crate::protocol::request::Transfer;
use crate::protocol::{Operation, Reply};
use crate::server::Server;
use crate::single_file::{FILE, SingleFile};
use crate::validity::VALID;
use rustix::fs::{FallocateFlags, FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use terrace_media::pace::{Direction, Pace};
use terrace_media::speed::Speed;
use terrace_runtime::Clock;

/// Name of the one file.
pub const DEVICE_NAME: &str = "device";
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
    completions: Completions,
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
        let completions = Completions::start(Pace::new(speed), clock, awake)?;
        Ok(DeviceServer { backing: file, flush, size_bytes, completions })
    }

    /// Bytes of the device.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn file(&self) -> SingleFile {
        SingleFile { name: DEVICE_NAME, size_bytes: self.size_bytes, mode: 0o600 }
    }

    /// Bytes of a request that lie inside the device.
    fn inside(&self, offset: u64, length: usize) -> usize {
        (length as u64).min(self.size_bytes.saturating_sub(offset)) as usize
    }

    /// Executes a request now and answers it when its time has come.
    fn at_pace(&self, direction: Direction, bytes: usize, execute: impl FnOnce() -> Finish) {
        let completions = &self.completions;
        let transfer = completions.pace().begin(completions.now_ns(), direction, bytes as u64);
        completions.hand_over(transfer, execute());
    }

    fn sync_backing(&self) -> io::Result<()> {
        match self.flush {
            Flush::Backing => self.backing.sync_data(),
            Flush::Class => Ok(()),
        }
    }

    fn punch(&self, offset: u64, length: u64, mode: u32) -> Result<(), Errno> {
        if offset.checked_add(length).is_none_or(|end| end > self.size_bytes) {
            return Err(Errno::NOSPC);
        }
        let mode = FallocateFlags::from_bits_retain(mode);
        let known = FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        if !known.contains(mode) {
            return Err(Errno::OPNOTSUPP);
        }
        rustix::fs::fallocate(&self.backing, mode, offset, length)
    }

    fn read(&self, part: &Transfer, reply: Reply) {
        let count = self.inside(part.offset, part.size as usize);
        self.at_pace(Direction::Read, count, || {
            let mut data = vec![0; count];
            // A backing file that was cut off gives an error, not zeros.
            let read = self.backing.read_exact_at(&mut data, part.offset);
            Box::new(move || match read {
                Ok(()) => reply.data(&data),
                Err(error) => reply.error(errno(&error)),
            })
        });
    }

    fn write(&self, part: &Transfer, data: &[u8], reply: Reply) {
        let count = self.inside(part.offset, data.len());
        if count == 0 && !data.is_empty() {
            return reply.error(Errno::NOSPC);
        }
        self.at_pace(Direction::Write, count, || {
            let mut written = self.backing.write_all_at(&data[..count], part.offset);
            // With O_DSYNC or O_SYNC no FSYNC follows.
            if written.is_ok() && part.flags & libc::O_DSYNC as u32 != 0 {
                written = self.sync_backing();
            }
            Box::new(move || match written {
                Ok(()) => reply.written(count as u32),
                Err(error) => reply.error(errno(&error)),
            })
        });
    }

    fn fsync(&self, reply: Reply) {
        let answer = |synced: io::Result<()>| match synced {
            Ok(()) => reply.done(),
            Err(error) => reply.error(errno(&error)),
        };
        match self.flush {
            Flush::Backing => answer(self.sync_backing()),
            Flush::Class => self.at_pace(Direction::Write, 0, || Box::new(move || answer(Ok(())))),
        }
    }
}

/// errno of an error of the backing file.
fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl Server for DeviceServer {
    /// Fewer than a file system asks for: no mappings of direct I/O, and no cache.
    fn wanted(&self) -> &'static [Capability] {
        &[Capability::AsyncDio]
    }

    fn serve(&self, asker: &InHeader, operation: Operation<'_>, reply: Reply) {
        match operation {
            Operation::Read(part) => self.read(&part, reply),
            Operation::Write(part, data) => self.write(&part, data, reply),
            Operation::Fsync { .. } => self.fsync(reply),
            Operation::Fallocate { offset, length, mode } => match self.punch(offset, length, mode) {
                Ok(()) => reply.done(),
                Err(error) => reply.error(error),
            },
            // A device keeps its size; changes of other attributes are ignored.
            Operation::SetAttributes(changes) => {
                if changes.size.is_some_and(|size| asker.node != FILE || size != self.size_bytes) {
                    return reply.error(Errno::PERM);
                }
                reply.attributes(&self.file().attributes(asker.node), VALID);
            }
            Operation::StatFs => reply.space(&StatFsOut {
                blocks: self.size_bytes / u64::from(BLOCK),
                files: 2,
                block_size: BLOCK,
                name_length: 255,
                fragment_size: BLOCK,
                ..StatFsOut::default()
            }),
            other => self.file().serve(asker, other, reply),
        }
    }

    fn forget(&self, _node: u64, _lookups: u64) {}
}
