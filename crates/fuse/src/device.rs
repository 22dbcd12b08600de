//! A server that exports one file, `device`, with the latency and bandwidth of a device class, so that
//! Terrace and its peers can be measured on the same device (evaluation "Devices").
//!
//! Invariants: a request is executed on the backing file when it arrives and answered when its time has come,
//! so a read that starts after the answer to a write finds the written bytes. No byte of the file is cached
//! by the kernel above (every open is for direct I/O, no shared mappings) and all access to the backing file
//! below goes through one descriptor and the page cache, whatever the alignment; it is locked against others. A volatile
//! device keeps writes in memory until they are flushed ([`crate::write_cache`]).
//! Its size never changes. Every request is answered once, at the latest when the session ends
//! ([`crate::completions`]).

use crate::completions::{Completions, Finish};
use crate::protocol::init::Capability;
use crate::protocol::layout::{InHeader, StatFsOut};
use crate::protocol::request::Transfer as Part;
use crate::protocol::{Operation, Reply};
use crate::server::Server;
use crate::single_file::{FILE, OPEN_FLAGS, SingleFile};
use crate::validity::VALID;
use crate::write_cache::{LIMIT_BYTES, Loss, WriteCache, sectors_of};
use rustix::fs::{FallocateFlags, FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use terrace_media::pace::{Direction, Pace, Transfer};
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

/// The device that a server emulates.
#[derive(Debug, Clone, Copy)]
pub struct DeviceOptions {
    /// Latency and bandwidth.
    pub speed: Speed,
    /// The meaning of a flush.
    pub flush: Flush,
    /// The time of a flush, also when nothing was written before it, and of a durable write behind its bytes; flushes
    /// follow one another. 0: `flush` says it.
    pub flush_ns: u64,
    /// The time after a request during which a thread keeps its processor from sleeping.
    pub awake: Duration,
    /// Keep writes in memory until they are flushed; the seed decides what a loss of power leaves.
    pub volatile_seed: Option<u64>,
}

/// The content of the device.
enum Content {
    /// The backing file.
    File(File),
    /// The backing file, and in front of it writes that were not flushed.
    Volatile(Arc<WriteCache>),
}

/// The server.
pub struct DeviceServer {
    content: Content,
    flush: Flush,
    has_flush_time: bool,
    size_bytes: u64,
    completions: Completions,
}

/// The power supply of a volatile device.
#[derive(Clone)]
pub struct Power(Arc<WriteCache>);

impl Power {
    /// The device loses power and gets it back: a random subset of the unflushed sectors keeps its old content, and files
    /// that were opened before give EIO.
    ///
    /// # Errors
    /// Errors of the backing file.
    pub fn lose(&self) -> io::Result<Loss> {
        self.0.lose_power()
    }
}

impl DeviceServer {
    /// A server of `backing`. A volatile device never flushes the backing file itself.
    ///
    /// # Errors
    /// `ResourceBusy` when another process has locked the file; the operating system's.
    pub fn open(backing: &Path, options: &DeviceOptions, clock: Arc<dyn Clock>) -> io::Result<DeviceServer> {
        let file = OpenOptions::new().read(true).write(true).open(backing)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let size_bytes = file.metadata()?.len();
        if !file.metadata()?.is_file() || size_bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file with a size"));
        }
        let pace = Pace::new(options.speed).with_flush_ns(options.flush_ns);
        let completions = Completions::start(pace, clock, options.awake)?;
        let content = match options.volatile_seed {
            Some(seed) => Content::Volatile(Arc::new(WriteCache::new(file, size_bytes, LIMIT_BYTES, seed))),
            None => Content::File(file),
        };
        let has_flush_time = options.flush_ns > 0;
        Ok(DeviceServer { content, flush: options.flush, has_flush_time, size_bytes, completions })
    }

    /// Bytes of the device.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The power supply, if the device is volatile.
    pub fn power(&self) -> Option<Power> {
        match &self.content {
            Content::File(_) => None,
            Content::Volatile(cache) => Some(Power(Arc::clone(cache))),
        }
    }

    fn losses(&self) -> u64 {
        match &self.content {
            Content::File(_) => 0,
            Content::Volatile(cache) => cache.losses(),
        }
    }

    fn file(&self) -> SingleFile {
        SingleFile { name: DEVICE_NAME, size_bytes: self.size_bytes, mode: 0o600 }
    }

    /// Bytes of a request that lie inside the device.
    fn inside(&self, offset: u64, length: usize) -> usize {
        (length as u64).min(self.size_bytes.saturating_sub(offset)) as usize
    }

    /// Executes a request now and answers it when its time has come.
    fn at_pace(&self, begin: impl FnOnce(&Pace, u64) -> Transfer, execute: impl FnOnce() -> Finish) {
        let completions = &self.completions;
        let transfer = begin(completions.pace(), completions.now_ns());
        completions.hand_over(transfer, execute());
    }

    fn sync(&self, backing: &File) -> io::Result<()> {
        match self.flush {
            Flush::Backing => backing.sync_data(),
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
        let punch = |file: &File| rustix::fs::fallocate(file, mode, offset, length);
        match &self.content {
            Content::File(file) => punch(file),
            // Without a mode nothing changes that a reader sees.
            Content::Volatile(_) if mode.difference(FallocateFlags::KEEP_SIZE).is_empty() => Ok(()),
            Content::Volatile(cache) => cache.discard((offset, length), punch),
        }
    }

    fn read(&self, part: &Part, reply: Reply) {
        let count = self.inside(part.offset, part.size as usize);
        let begin = |pace: &Pace, now_ns| pace.begin(now_ns, Direction::Read, count as u64);
        self.at_pace(begin, || {
            let mut data = vec![0; count];
            let read = match &self.content {
                // A backing file that was cut off gives an error, not zeros.
                Content::File(file) => file.read_exact_at(&mut data, part.offset),
                Content::Volatile(cache) => cache.read(part.handle, part.offset, &mut data),
            };
            Box::new(move || match read {
                Ok(()) => reply.data(&data),
                Err(error) => reply.error(errno(&error)),
            })
        });
    }

    fn write(&self, part: &Part, data: &[u8], reply: Reply) {
        let count = self.inside(part.offset, data.len());
        if count == 0 && !data.is_empty() {
            return reply.error(Errno::NOSPC);
        }
        // With O_DSYNC, O_SYNC or RWF_DSYNC no FSYNC follows.
        let is_durable = part.flags & libc::O_DSYNC as u32 != 0;
        let begin = |pace: &Pace, now_ns| match is_durable {
            true => pace.begin_durable(now_ns, count as u64),
            false => pace.begin(now_ns, Direction::Write, count as u64),
        };
        self.at_pace(begin, || {
            let data = &data[..count];
            let written: Outcome = match &self.content {
                Content::File(file) => {
                    let written = file.write_all_at(data, part.offset);
                    let sync = |()| if is_durable { self.sync(file) } else { Ok(()) };
                    finished(written.and_then(sync))
                }
                Content::Volatile(cache) => {
                    let (cache, sectors) = (Arc::clone(cache), sectors_of(part.offset, count));
                    let written = cache.write(part.handle, part.offset, data);
                    let flush =
                        move |mark| if is_durable { cache.flush_sectors(mark, sectors) } else { Ok(()) };
                    Box::new(move || written.and_then(flush))
                }
            };
            Box::new(move || match written() {
                Ok(()) => reply.written(count as u32),
                Err(error) => reply.error(errno(&error)),
            })
        });
    }

    fn fsync(&self, handle: u64, reply: Reply) {
        let answer = |synced: io::Result<()>| match synced {
            Ok(()) => reply.done(),
            Err(error) => reply.error(errno(&error)),
        };
        let synced: Outcome = match &self.content {
            Content::File(file) if self.flush == Flush::Backing && !self.has_flush_time => {
                return answer(self.sync(file));
            }
            Content::File(file) => finished(self.sync(file)),
            Content::Volatile(cache) => {
                let (cache, mark) = (Arc::clone(cache), cache.begin_flush(handle));
                Box::new(move || mark.and_then(|mark| cache.flush(mark)))
            }
        };
        self.at_pace(Pace::begin_flush, || Box::new(move || answer(synced())));
    }
}

/// The outcome of a request, known when its time has come.
type Outcome = Box<dyn FnOnce() -> io::Result<()> + Send>;

fn finished(result: io::Result<()>) -> Outcome {
    Box::new(move || result)
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
            Operation::Fsync { handle, .. } => self.fsync(handle, reply),
            // The handle says before which loss of power the file was opened.
            Operation::Open { .. } => reply.opened(self.losses(), OPEN_FLAGS),
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
