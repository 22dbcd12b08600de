//! `file`: a block device or a regular file, opened O_DIRECT (design 3).
//!
//! Invariants: every transfer is whole blocks at block offsets from memory aligned to a block; a flush is
//! fdatasync, which returns only when the device's own cache was flushed. Where the file system
//! refuses O_DIRECT the page cache lies between, and flush covers it too; `describe` says so.

use super::ring::{Direction, Rings, Span, write_dsync};
use super::{AlignedBlock, BlockMedium, BlockRead, HostRoom, Run};
use crate::found::{Access, Found, create_new, create_unnamed, is_in_memory};
use crate::open::{OpenError, check_size, lock_exclusive, patiently};
use crate::{DeviceError, MediaError, Promise};
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl, fdatasync, fstat, fstatvfs};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_format::{BLOCK_SIZE, DeviceBlock};
use terrace_runtime::sync::Mutex;

/// Size of a block device in bytes.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;
/// Discards {offset, length} of a block device.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// A block device or regular file.
pub struct FileDevice {
    file: File,
    path: PathBuf,
    name: String,
    blocks: u64,
    access: Access,
    direct: bool,
    read_only: bool,
    rings: Rings,
    errors: AtomicU64,
    last_error: Mutex<Option<MediaError>>,
}

impl FileDevice {
    /// Opens a block device or file; a last part that does not fill a block is not used. `lock` takes the
    /// exclusive lock (for block devices also O_EXCL, which refuses mounted ones).
    ///
    /// # Errors
    /// [`OpenError::Busy`] when somebody else has it, and what the operating system says.
    pub fn open(path: impl AsRef<Path>, lock: bool, read_only: bool) -> Result<FileDevice, OpenError> {
        Self::open_found(&Found::at(path)?, lock, read_only)
    }

    /// As [`Self::open`], of what was found at a path.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_found(found: &Found, lock: bool, read_only: bool) -> Result<FileDevice, OpenError> {
        let exclusive = if found.is_block_device() && lock { OFlags::EXCL } else { OFlags::empty() };
        let (file, direct) =
            patiently(|| open_direct(found.path(), exclusive, |flags| found.open(!read_only, flags)))?;
        if lock {
            lock_exclusive(&file, found.path())?;
        }
        Self::of_file(file, found.path(), found.access(), direct, read_only)
    }

    fn of_file(
        file: File,
        path: &Path,
        access: Access,
        direct: bool,
        read_only: bool,
    ) -> Result<FileDevice, OpenError> {
        let size = if access.block_device {
            device_size(&file, path)?
        } else {
            file.metadata().map_err(|error| OpenError::io(path, "size", error))?.len()
        };
        let size = size / BLOCK_SIZE * BLOCK_SIZE;
        check_size(path, size)?;
        Ok(FileDevice {
            file,
            path: path.to_path_buf(),
            name: path.display().to_string(),
            blocks: size / BLOCK_SIZE,
            access,
            direct,
            read_only,
            rings: Rings::new(false),
            errors: AtomicU64::new(0),
            last_error: Mutex::default(),
        })
    }

    /// Makes a new sparse file of `size` zero bytes, mode 0600, and opens it locked.
    ///
    /// # Errors
    /// `AlreadyExists` when anything is there, [`OpenError::InvalidSize`], and what the operating system says.
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<FileDevice, OpenError> {
        let path = path.as_ref();
        check_size(path, size)?;
        let file = create_new(path)?;
        // O_DIRECT is not part of the creation: a file system that refuses it would still leave the new file
        // behind.
        let direct = fcntl_getfl(&file).and_then(|now| fcntl_setfl(&file, now | OFlags::DIRECT)).is_ok();
        let access = Access { uid: rustix::process::geteuid().as_raw(), mode: 0o600, block_device: false };
        Self::made(file, path, access, direct, size).inspect_err(|_| {
            // the first error is the one to report
            let _ = std::fs::remove_file(path);
        })
    }

    /// A sparse file of `size` zero bytes in a directory, without a name: it goes away with the device. For trials.
    ///
    /// # Errors
    /// Errors of the operating system; some file systems have no such files.
    pub fn unnamed(directory: impl AsRef<Path>, size: u64) -> Result<FileDevice, OpenError> {
        let path = directory.as_ref();
        check_size(path, size)?;
        let file = create_unnamed(path)?;
        let direct = fcntl_getfl(&file).and_then(|now| fcntl_setfl(&file, now | OFlags::DIRECT)).is_ok();
        let access = Access { uid: rustix::process::geteuid().as_raw(), mode: 0o600, block_device: false };
        Self::made(file, path, access, direct, size)
    }

    /// Makes an existing file anew: sparse, `size` zero bytes, opened locked. Its old content is lost.
    ///
    /// # Errors
    /// [`OpenError::Busy`] when somebody else has it, [`OpenError::InvalidSize`], and what the
    /// operating system says.
    pub fn remake(found: &Found, size: u64) -> Result<FileDevice, OpenError> {
        let path = found.path();
        check_size(path, size)?;
        if found.is_block_device() {
            let reason = "is a block device, whose size cannot be set".into();
            return Err(OpenError::Unsupported { path: path.to_path_buf(), reason });
        }
        let (file, direct) = open_direct(path, OFlags::empty(), |flags| found.open(true, flags))?;
        Self::made(file, path, found.access(), direct, size)
    }

    fn made(
        file: File,
        path: &Path,
        access: Access,
        direct: bool,
        size: u64,
    ) -> Result<FileDevice, OpenError> {
        // emptied only once the lock is held
        lock_exclusive(&file, path)?;
        file.set_len(0)
            .and_then(|()| file.set_len(size))
            .map_err(|error| OpenError::io(path, "set the size", error))?;
        Self::of_file(file, path, access, direct, false)
    }

    /// The open file. Its name may have changed, or be removed, since it was opened.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Owner and permissions as they were when it was opened.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Kind and way of access, for status.
    pub fn describe(&self) -> String {
        let kind = if self.access.block_device { "block device" } else { "file" };
        let cache = if self.direct { "direct" } else { "through the page cache (O_DIRECT refused)" };
        let way = if self.rings.in_use() { "io_uring" } else { "preadv and pwritev" };
        format!("{kind}, {cache}, {way}")
    }

    /// Uses preadv and pwritev from now on, as where io_uring is refused.
    #[must_use]
    pub fn without_io_uring(mut self) -> FileDevice {
        self.rings = Rings::new(true);
        self
    }

    fn error(&self, operation: &'static str, first: DeviceBlock, blocks: u64, errno: i32) -> MediaError {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let error = MediaError::from(DeviceError {
            device: self.name.clone(),
            operation,
            offset: first.0.saturating_mul(BLOCK_SIZE),
            length: blocks.saturating_mul(BLOCK_SIZE),
            errno,
        });
        tracing::warn!(%error, "device error");
        *self.last_error.lock() = Some(error.clone());
        error
    }

    /// A size that could not be set.
    pub(super) fn error_of_size(&self, error: &io::Error) -> MediaError {
        self.error("set the size", DeviceBlock(0), self.blocks, error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Whether the device has all these blocks.
    fn holds(&self, first: DeviceBlock, blocks: u64) -> bool {
        matches!(first.0.checked_add(blocks), Some(end) if end <= self.blocks)
    }
}

/// Opens with O_DIRECT, or without where the file system refuses it; and which.
fn open_direct(
    path: &Path,
    flags: OFlags,
    open: impl Fn(OFlags) -> Result<File, OpenError>,
) -> Result<(File, bool), OpenError> {
    let errno = |error: &OpenError| match error {
        OpenError::Io { source, .. } => source.raw_os_error(),
        _ => None,
    };
    match open(flags | OFlags::DIRECT) {
        Ok(file) => Ok((file, true)),
        Err(error) if errno(&error) == Some(libc::EINVAL) => Ok((open(flags)?, false)),
        Err(error) if errno(&error) == Some(libc::EBUSY) => Err(OpenError::Busy { path: path.to_path_buf() }),
        Err(error) => Err(error),
    }
}

fn device_size(file: &File, path: &Path) -> Result<u64, OpenError> {
    let mut bytes: u64 = 0;
    // SAFETY: BLKGETSIZE64 writes one u64 through the pointer.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) };
    if answer != 0 {
        return Err(OpenError::io(path, "size", io::Error::last_os_error()));
    }
    Ok(bytes)
}

/// The span of bytes that a read of `into` fills.
fn span(first: DeviceBlock, into: &mut [AlignedBlock]) -> Span {
    let buffer = into.as_mut_ptr().cast::<u8>();
    Span { buffer, length: size_of_val(into), offset: first.byte_offset() }
}

impl BlockMedium for FileDevice {
    fn promise(&self) -> Promise {
        // The path may name another file by now.
        let held = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        if is_in_memory(Path::new(&held)) { Promise::ProcessCrash } else { Promise::PowerFail }
    }

    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        let blocks = into.len() as u64;
        if !self.holds(first, blocks) {
            return Err(self.error("read", first, blocks, libc::EINVAL));
        }
        // SAFETY: `into` is ours for the whole call and any bytes are a valid block.
        let result = unsafe { self.rings.transfer(self.file.as_fd(), Direction::Read, span(first, into)) };
        result.map_err(|errno| self.error("read", first, blocks, errno))
    }

    fn read_all(&self, reads: &mut [BlockRead<'_>]) {
        let inside = |read: &BlockRead<'_>| self.holds(read.first, read.into.len() as u64);
        let spans: Vec<Span> = reads
            .iter_mut()
            .map(|read| {
                let length = if inside(read) { size_of_val(read.into) } else { 0 };
                Span { length, ..span(read.first, read.into) }
            })
            .collect();
        let mut failures: Vec<Option<i32>> =
            reads.iter().map(|read| (!inside(read)).then_some(libc::EINVAL)).collect();
        // SAFETY: the buffers are ours for the whole call, none is there twice, and any bytes are a valid block.
        unsafe { self.rings.transfer_all(self.file.as_fd(), Direction::Read, &spans, &mut failures) };
        for (read, failure) in reads.iter_mut().zip(failures) {
            let blocks = read.into.len() as u64;
            read.result = failure.map_or(Ok(()), |errno| Err(self.error("read", read.first, blocks, errno)));
        }
    }

    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        self.write_runs(&[(first, from)])
    }

    fn write_runs(&self, runs: &[Run<'_>]) -> Result<(), MediaError> {
        let blocks = |from: &[AlignedBlock]| from.len() as u64;
        if let Some((first, from)) =
            runs.iter().find(|(first, from)| self.read_only || !self.holds(*first, blocks(from)))
        {
            let errno = if self.read_only { libc::EROFS } else { libc::EINVAL };
            return Err(self.error("write", *first, blocks(from), errno));
        }
        let span = |(first, from): &Run<'_>| Span {
            buffer: from.as_ptr().cast::<u8>().cast_mut(),
            length: size_of_val(*from),
            offset: first.byte_offset(),
        };
        let spans: Vec<Span> = runs.iter().map(span).collect();
        let mut failures = vec![None; spans.len()];
        // SAFETY: a write only reads the buffers, which are borrowed for the whole call.
        unsafe { self.rings.transfer_all(self.file.as_fd(), Direction::Write, &spans, &mut failures) };
        let failed = runs.iter().zip(failures).find_map(|(run, failure)| Some((run, failure?)));
        failed.map_or(Ok(()), |((first, from), errno)| Err(self.error("write", *first, blocks(from), errno)))
    }

    fn write_durable_at(&self, runs: &[Run<'_>], at: &'static Location<'static>) -> Result<(), MediaError> {
        let &[(first, from)] = runs else {
            self.write_runs(runs)?;
            return self.flush_at(at);
        };
        let blocks = from.len() as u64;
        if self.read_only || !self.holds(first, blocks) {
            return self.write_runs(runs);
        }
        let buffer = from.as_ptr().cast::<u8>().cast_mut();
        let span = Span { buffer, length: size_of_val(from), offset: first.byte_offset() };
        // SAFETY: a write only reads the buffer, which is borrowed for the whole call.
        let written = unsafe { write_dsync(self.file.as_fd(), span) };
        match written {
            Ok(()) => Ok(()),
            // A file system without such writes.
            Err(libc::EOPNOTSUPP | libc::EINVAL) => {
                self.write_runs(runs)?;
                self.flush_at(at)
            }
            Err(errno) => Err(self.error("write durably", first, blocks, errno)),
        }
    }

    fn flush_at(&self, _at: &'static Location<'static>) -> Result<(), MediaError> {
        loop {
            match fdatasync(&self.file) {
                Ok(()) => return Ok(()),
                // nothing was reported lost yet, so asking again is sound; no other error is retried,
                // since the kernel forgets the failed pages (design M1)
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    let errno = error.raw_os_error();
                    return Err(self.error("flush", DeviceBlock(0), self.blocks, errno));
                }
            }
        }
    }

    fn host_room(&self) -> Option<HostRoom> {
        if self.access.block_device {
            return None;
        }
        let (file, host) = (fstat(&self.file).ok()?, fstatvfs(&self.file).ok()?);
        Some(HostRoom {
            host: file.st_dev,
            free_bytes: host.f_bavail.saturating_mul(host.f_frsize),
            allocated_bytes: u64::try_from(file.st_blocks).unwrap_or(0) * 512,
        })
    }

    fn discard(&self, first: DeviceBlock, blocks: u64) {
        if self.read_only || blocks == 0 || !self.holds(first, blocks) {
            return;
        }
        let (offset, length) = (first.byte_offset(), blocks * BLOCK_SIZE);
        let result = if self.access.block_device {
            let range = [offset, length];
            // SAFETY: BLKDISCARD reads two u64 through the pointer.
            match unsafe { libc::ioctl(self.file.as_raw_fd(), BLKDISCARD, range.as_ptr()) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        } else {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&self.file, flags, offset, length).map_err(io::Error::from)
        };
        if let Err(error) = result {
            // best effort: the space stays allocated, nothing else is wrong
            tracing::debug!(device = self.name, %error, "discard refused");
        }
    }

    fn error_count(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    fn last_error(&self) -> Option<MediaError> {
        self.last_error.lock().clone()
    }
}
