//! `ram`: persistent memory in a shared mapping of a file on tmpfs, hugetlbfs or, mapped MAP_SYNC,
//! a DAX file system (design 3).
//!
//! Invariants: every access is checked against the size first and against poisoned pages after; the
//! file is fully allocated and exclusively locked; all stores go through [`Kernels`], which never
//! tear an aligned word.

mod anonymous;
mod measured;
mod shards;

use super::checked::{self, StreamChecked};
use super::fault::FaultGuard;
use super::kernels::{self, Kernels};
use super::mapping::{Backing, Mapping, fill, refuse_hollow};
use super::{PmCounters, PmMedium, Promise};
use crate::MediaError;
use crate::found::{Access, Found, create_new};
use crate::open::{OpenError, check_size, lock_exclusive};
use rustix::fs::OFlags;
use shards::{Shard, Shards};
use std::fs::File;
use std::ops::Range;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_format::{BLOCK_SIZE, PmOffset};

/// Persistent memory in a mapped file.
pub struct RamPm {
    // dropped in this order: the guard before the mapping before the locked file
    faults: FaultGuard,
    mapping: Mapping,
    base: *mut u8,
    size: u64,
    kernels: Kernels,
    stream_checked: Option<StreamChecked>,
    writable: bool,
    battery_backed: bool,
    backing: Backing,
    /// No range is populated in advance.
    sparse: bool,
    shards: Shards,
    path: PathBuf,
    access: Access,
    file: File,
}

// SAFETY: `base` points into `mapping`, which is Send and Sync; all accesses through it are atomics
// or asm! (see Kernels), so concurrent use is defined.
unsafe impl Send for RamPm {}
// SAFETY: as above.
unsafe impl Sync for RamPm {}

impl RamPm {
    /// Makes a new PM file of `size` zero bytes, mode 0600, fully allocated, and opens it.
    ///
    /// # Errors
    /// `AlreadyExists` when anything is there, [`OpenError::NoSpace`], [`OpenError::InvalidSize`] when
    /// not a multiple of 4096 bytes, and what the operating system says.
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<RamPm, OpenError> {
        let path = path.as_ref();
        check_size(path, size)?;
        let file = create_new(path)?;
        let access = Access { uid: rustix::process::geteuid().as_raw(), mode: 0o600, block_device: false };
        fill(&file, path, size).inspect_err(|_| {
            // the first error is the one to report
            let _ = std::fs::remove_file(path);
        })?;
        Self::map(file, path, access, true)
    }

    /// Makes an existing PM file anew: `size` zero bytes, fully allocated, opened. Its old content is lost.
    ///
    /// # Errors
    /// [`OpenError::Busy`] when somebody has it open, else as [`Self::create`].
    pub fn remake(found: &Found, size: u64) -> Result<RamPm, OpenError> {
        check_size(found.path(), size)?;
        refuse_device(found)?;
        let file = found.open(true, OFlags::empty())?;
        fill(&file, found.path(), size)?;
        Self::map(file, found.path(), found.access(), true)
    }

    /// Opens a PM file. Quick: the file is mapped, but no page is touched; see [`PmMedium::prepare`]. Takes
    /// the exclusive lock, for a read-only medium too.
    ///
    /// # Errors
    /// [`OpenError::Busy`] when somebody else has it open, and what the operating system says.
    pub fn open(path: impl AsRef<Path>, read_only: bool) -> Result<RamPm, OpenError> {
        let found = Found::at(path)?;
        refuse_device(&found)?;
        let file = found.open(!read_only, OFlags::empty())?;
        lock_exclusive(&file, found.path())?;
        Self::map(file, found.path(), found.access(), !read_only)
    }

    fn map(file: File, path: &Path, access: Access, writable: bool) -> Result<RamPm, OpenError> {
        let metadata = file.metadata().map_err(|error| OpenError::io(path, "size", error))?;
        let size = metadata.len() / BLOCK_SIZE * BLOCK_SIZE;
        check_size(path, size)?;
        refuse_hollow(&file, path, size, writable)?;
        Self::map_whole(file, path, access, (size, writable))
    }

    fn map_whole(
        file: File,
        path: &Path,
        access: Access,
        (size, writable): (u64, bool),
    ) -> Result<RamPm, OpenError> {
        let bytes = usize::try_from(size)
            .map_err(|_| OpenError::InvalidSize { path: path.to_path_buf(), size_bytes: size })?;
        let mapping = Mapping::new(&file, path, bytes, writable)?;
        let backing = if mapping.is_dax() { Backing::Dax } else { Backing::of(&file) };
        Ok(RamPm {
            faults: FaultGuard::register(path, mapping.base(), mapping.size())?,
            base: mapping.base(),
            mapping,
            size,
            kernels: Kernels::detect(),
            stream_checked: checked::detect(),
            writable,
            battery_backed: false,
            backing,
            sparse: false,
            shards: Shards::default(),
            path: path.to_path_buf(),
            access,
            file,
        })
    }

    /// States that the machine's memory survives a loss of power (battery, NVDIMM): the promise becomes
    /// [`Promise::PowerFail`].
    #[must_use]
    pub fn battery_backed(mut self, battery_backed: bool) -> RamPm {
        self.battery_backed = battery_backed;
        self
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

    /// Ranges found missing or poisoned since open, as byte offsets.
    pub fn poisoned_ranges(&self) -> Vec<Range<u64>> {
        self.faults.ranges()
    }

    #[inline]
    fn count_lines(&self, offset: u64, length: u64) {
        let lines = (offset % 64 + length).div_ceil(64);
        Shard::add(&self.shards.mine().lines, lines);
    }

    /// Whether the whole range is inside the medium.
    #[inline]
    fn holds(&self, offset: u64, length: u64) -> bool {
        matches!(offset.checked_add(length), Some(end) if end <= self.size)
    }

    /// The error for a range, unless nothing in it is poisoned.
    #[inline]
    fn verdict(&self, offset: u64, length: u64) -> Result<(), MediaError> {
        if self.faults.intact(offset, length) { Ok(()) } else { Err(unreadable(offset, length)) }
    }
}

#[cold]
fn unreadable(offset: u64, length: u64) -> MediaError {
    MediaError::Pm { offset: PmOffset(offset), length }
}

fn refuse_device(found: &Found) -> Result<(), OpenError> {
    if !found.is_block_device() {
        return Ok(());
    }
    Err(OpenError::Unsupported {
        path: found.path().to_path_buf(),
        reason: "a block device; persistent memory must be a file on tmpfs, hugetlbfs or a DAX file system"
            .into(),
    })
}

impl PmMedium for RamPm {
    fn size(&self) -> u64 {
        self.size
    }

    fn promise(&self) -> Promise {
        if self.battery_backed || self.backing == Backing::Dax {
            Promise::PowerFail
        } else {
            Promise::ProcessCrash
        }
    }

    fn describe(&self) -> String {
        let residency = self.mapping.residency();
        let percent = |bytes: u64| bytes * 100 / self.size;
        format!(
            "ram ({}), {} % mapped, 2 MiB pages {} %, {}",
            self.backing.name(),
            percent(residency.mapped),
            percent(residency.huge),
            self.kernels.describe()
        )
    }

    #[inline]
    fn read(&self, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError> {
        let (offset, length) = (offset.0, into.len() as u64);
        if !self.holds(offset, length) {
            return Err(unreadable(offset, length));
        }
        // SAFETY: in bounds of the mapping, whose size and base are multiples of a word; `into` is ours.
        unsafe {
            let from = self.base.add(offset as usize);
            self.kernels.read(from, into.as_mut_ptr(), into.len());
        }
        self.verdict(offset, length)
    }

    #[inline]
    fn load_u64(&self, offset: PmOffset) -> Result<u64, MediaError> {
        let offset = offset.0;
        if !offset.is_multiple_of(8) || !self.holds(offset, 8) {
            return Err(unreadable(offset, 8));
        }
        // SAFETY: aligned and in bounds; atomic, so that racing stores are defined.
        let word = unsafe { (*self.base.add(offset as usize).cast::<AtomicU64>()).load(Ordering::Acquire) };
        self.verdict(offset, 8)?;
        Ok(word)
    }

    #[inline]
    fn write(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        let (offset, length) = (offset.0, bytes.len() as u64);
        if !self.writable || !self.holds(offset, length) {
            return Err(unreadable(offset, length));
        }
        self.count_lines(offset, length);
        // SAFETY: in bounds and mapped writable.
        unsafe {
            let to = self.base.add(offset as usize);
            self.kernels.store_back(bytes.as_ptr(), to, bytes.len());
        }
        self.verdict(offset, length)
    }

    #[inline]
    fn store(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        let (offset, length) = (offset.0, bytes.len() as u64);
        if !self.writable || !self.holds(offset, length) {
            return Err(unreadable(offset, length));
        }
        // SAFETY: in bounds and mapped writable.
        unsafe {
            let to = self.base.add(offset as usize);
            self.kernels.store(bytes.as_ptr(), to, bytes.len());
        }
        self.verdict(offset, length)
    }

    #[inline]
    fn write_streaming(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        let (offset, length) = (offset.0, bytes.len() as u64);
        if !self.writable || !self.holds(offset, length) {
            return Err(unreadable(offset, length));
        }
        self.count_lines(offset, length);
        // SAFETY: in bounds and mapped writable.
        unsafe {
            let to = self.base.add(offset as usize);
            self.kernels.stream(bytes.as_ptr(), to, bytes.len());
        }
        self.verdict(offset, length)
    }

    #[inline]
    fn write_streaming_checked(&self, offset: PmOffset, bytes: &[u8]) -> Result<u32, MediaError> {
        let (at, length) = (offset.0, bytes.len() as u64);
        let fits = length > 0 && bytes.len().is_multiple_of(checked::STEP_BYTES) && at.is_multiple_of(64);
        let Some(stream_checked) = self.stream_checked.filter(|_| fits) else {
            self.write_streaming(offset, bytes)?;
            return Ok(terrace_format::checksum::crc32c(bytes));
        };
        if !self.writable || !self.holds(at, length) {
            return Err(unreadable(at, length));
        }
        self.count_lines(at, length);
        // SAFETY: in bounds and mapped writable; a multiple of a step from the start of a line.
        let crc = unsafe { stream_checked(bytes.as_ptr(), self.base.add(at as usize), bytes.len()) };
        self.verdict(at, length)?;
        Ok(crc)
    }

    fn condemn(&self, offset: PmOffset, length: u64) {
        if self.holds(offset.0, length) {
            self.faults.condemn(offset.0, length);
        }
    }

    fn error_count(&self) -> u64 {
        self.faults.error_count()
    }

    #[inline]
    fn expect_store(&self, offset: PmOffset) {
        if offset.0 < self.size {
            // SAFETY: in bounds.
            kernels::prefetch_for_store(unsafe { self.base.add(offset.0 as usize) });
        }
    }

    #[inline]
    fn expect_load(&self, offset: PmOffset) {
        if offset.0 < self.size {
            // SAFETY: in bounds.
            kernels::prefetch_for_load(unsafe { self.base.add(offset.0 as usize) });
        }
    }

    fn write_back(&self, offset: PmOffset, length: u64) {
        if !self.writable || !self.holds(offset.0, length) {
            return;
        }
        self.count_lines(offset.0, length);
        // SAFETY: in bounds.
        unsafe {
            let at = self.base.add(offset.0 as usize);
            self.kernels.write_back(at, length as usize);
        }
    }

    /// Both fences are the processor's. In a file of a disk neither of them reaches the disk.
    fn order_persists(&self) -> bool {
        self.backing != Backing::Other
    }

    #[inline]
    fn order_at(&self, _at: &'static Location<'static>) {
        kernels::fence();
        Shard::add(&self.shards.mine().fences, 1);
    }

    #[inline]
    fn persist_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        self.order_at(at);
        Ok(())
    }

    fn counters(&self) -> PmCounters {
        self.shards.sums()
    }

    fn prepare(&self, offset: PmOffset, length: u64) {
        if self.sparse {
            return;
        }
        let clamp = |bytes: u64| bytes.min(self.size) as usize;
        self.mapping.prepare(clamp(offset.0), clamp(length), self.writable);
    }
}
