//! A PM file mapped shared, aligned to 2 MiB so that huge pages are possible.
//!
//! Invariants: the mapping lives exactly as long as the value; its base is aligned to 2 MiB; the
//! file stays open (and locked) at least as long.

use crate::open::{OpenError, lock_exclusive};
use rustix::fs::{FallocateFlags, fallocate, fstatfs};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The size of a huge page.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

const TMPFS_MAGIC: u64 = 0x0102_1994;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
/// Memory that a new PM file on tmpfs must leave to everybody else.
const MEMORY_RESERVE_BYTES: u64 = 256 << 20;

/// File systems that matter for status and for space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backing {
    Tmpfs,
    Hugetlbfs,
    /// Mapped MAP_SYNC: stores reach the medium without page cache.
    Dax,
    Other,
}

impl Backing {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Backing::Tmpfs => "tmpfs",
            Backing::Hugetlbfs => "hugetlbfs",
            Backing::Dax => "dax",
            Backing::Other => "page cache",
        }
    }

    pub(crate) fn of(file: &File) -> Backing {
        match fstatfs(file).map(|s| s.f_type as u64) {
            Ok(TMPFS_MAGIC) => Backing::Tmpfs,
            Ok(HUGETLBFS_MAGIC) => Backing::Hugetlbfs,
            _ => Backing::Other,
        }
    }
}

/// Of so many bytes of a pool one is needed to keep account of them, at most: 24 of each block, 16 of the table of blocks,
/// some bits.
const KEPT_OF_EACH: u64 = 64;

/// Locks a file, then makes it `size` zero bytes, allocated in full.
pub(crate) fn fill(file: &File, path: &Path, size: u64) -> Result<(), OpenError> {
    lock_exclusive(file, path)?;
    let resize = |bytes| file.set_len(bytes).map_err(|error| OpenError::io(path, "set the size", error));
    resize(0)?;
    // The old content is durably gone before the caller changes any medium that belonged to the old pool.
    let emptied = file.sync_all().map_err(|error| OpenError::io(path, "sync", error));
    emptied.and_then(|()| resize(size)).and_then(|()| allocate(file, path, size)).inspect_err(|_| {
        // give back what was allocated; the first error is the one to report
        let _ = file.set_len(0);
    })
}

/// Gives every byte of the file its space, so that no store can fail for want of it.
pub(crate) fn allocate(file: &File, path: &Path, size: u64) -> Result<(), OpenError> {
    refuse_scarce(file, path, size)?;
    reserve(file, path, size)
}

/// Refuses a file in memory that the machine has no room for: fallocate on tmpfs would succeed, and the kernel would kill
/// somebody for it later.
pub(super) fn refuse_scarce(file: &File, path: &Path, size: u64) -> Result<(), OpenError> {
    match memory_available() {
        Some(available)
            if Backing::of(file) == Backing::Tmpfs
                && size.saturating_add(MEMORY_RESERVE_BYTES) > available =>
        {
            let reason = format!("{available} bytes of memory are available");
            Err(OpenError::NoSpace { path: path.to_path_buf(), size_bytes: size, reason })
        }
        _ => Ok(()),
    }
}

/// Allocates what is missing of a file.
pub(super) fn reserve(file: &File, path: &Path, size: u64) -> Result<(), OpenError> {
    let no_space = |reason: String| OpenError::NoSpace { path: path.to_path_buf(), size_bytes: size, reason };
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, size) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::NOSPC) => return Err(no_space("the file system is full".into())),
            Err(Errno::OPNOTSUPP) => {
                return Err(OpenError::Unsupported {
                    path: path.to_path_buf(),
                    reason: "the file system cannot allocate files in advance".into(),
                });
            }
            Err(error) => return Err(OpenError::io(path, "allocate", error)),
        }
    }
}

/// Refuses a file that says it is large and is not there: mounting it takes all that is missing where the file lies in
/// memory, and a share of its size for what is kept of each block anywhere.
pub(crate) fn refuse_hollow(file: &File, path: &Path, size: u64, writable: bool) -> Result<(), OpenError> {
    let allocated = file.metadata().map_or(0, |metadata| metadata.blocks().saturating_mul(512));
    let missing = size.saturating_sub(allocated);
    let in_memory = writable && Backing::of(file) == Backing::Tmpfs;
    let needed = if in_memory { missing } else { size / KEPT_OF_EACH };
    match memory_available() {
        Some(available) if missing > 0 && needed.saturating_add(MEMORY_RESERVE_BYTES) > available => {
            let reason = format!(
                "the file is sparse, {allocated} bytes of it are there; it needs {needed} bytes of memory, \
                 {available} are available"
            );
            Err(OpenError::NoSpace { path: path.to_path_buf(), size_bytes: size, reason })
        }
        _ => Ok(()),
    }
}

/// Bytes of memory that are available to programs now, as the kernel estimates.
pub fn memory_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(kib(line)? * 1024)
}

fn kib(field: &str) -> Option<u64> {
    field.split_whitespace().next()?.parse().ok()
}

/// The mapped file.
pub(crate) struct Mapping {
    base: *mut u8,
    size: usize,
    dax: bool,
}

// SAFETY: the mapping is plain memory without thread affinity; who may touch it how is decided by
// RamPm, which uses atomics and asm! only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes of a file. Touches no page.
    pub(crate) fn new(file: &File, path: &Path, size: usize, writable: bool) -> Result<Mapping, OpenError> {
        assert!(size > 0, "a mapping of no byte");
        let failed = || OpenError::io(path, "map", std::io::Error::last_os_error());
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a fresh reservation chosen by the kernel; the file is mapped inside it, at an
        // aligned address, and what is left of the reservation on both sides is returned.
        unsafe {
            let reserved = size + HUGE_PAGE_BYTES;
            let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let room = libc::mmap(std::ptr::null_mut(), reserved, libc::PROT_NONE, none, -1, 0);
            if room == libc::MAP_FAILED {
                return Err(failed());
            }
            let room = room.cast::<u8>();
            let skip = room.align_offset(HUGE_PAGE_BYTES);
            let map = |flags| {
                let at = room.add(skip).cast();
                let fd = file.as_raw_fd();
                libc::mmap(at, size, protection, flags | libc::MAP_FIXED, fd, 0)
            };
            let synchronous = map(libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC);
            let dax = synchronous != libc::MAP_FAILED;
            let base = if dax { synchronous } else { map(libc::MAP_SHARED) };
            if base == libc::MAP_FAILED {
                let error = failed();
                libc::munmap(room.cast(), reserved);
                return Err(error);
            }
            let base = base.cast::<u8>();
            assert!((base as usize).is_multiple_of(HUGE_PAGE_BYTES), "the base of a mapping is not aligned");
            if skip != 0 {
                libc::munmap(room.cast(), skip);
            }
            let end = size.next_multiple_of(4096);
            if skip + end < reserved {
                libc::munmap(base.add(end).cast(), reserved - skip - end);
            }
            // advice: fails where the kernel has no huge pages, and then small ones serve
            libc::madvise(base.cast(), size, libc::MADV_HUGEPAGE);
            Ok(Mapping { base, size, dax })
        }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Whether stores reach the medium without a page cache between (MAP_SYNC).
    pub(crate) fn is_dax(&self) -> bool {
        self.dax
    }

    /// Collapses the range (rounded outwards) to huge pages where the kernel can, and fills the page
    /// tables. Best effort: a missing page shows at its access.
    pub(crate) fn prepare(&self, offset: usize, length: usize, writable: bool) {
        let start = (offset.min(self.size)) & !(HUGE_PAGE_BYTES - 1);
        let end = (offset.saturating_add(length)).next_multiple_of(HUGE_PAGE_BYTES).min(self.size);
        if start >= end {
            return;
        }
        let populate = if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        // SAFETY: the range is inside the mapping; both kinds of advice keep its contents.
        unsafe {
            let at = self.base.add(start).cast();
            libc::madvise(at, end - start, libc::MADV_COLLAPSE);
            libc::madvise(at, end - start, populate);
        }
    }

    /// Makes huge pages of the whole mapping, also of parts without a page. Best effort, as [`Self::prepare`].
    pub(crate) fn collapse(&self) {
        // SAFETY: the range is inside the mapping; the advice keeps its contents.
        unsafe { libc::madvise(self.base.cast(), self.size, libc::MADV_COLLAPSE) };
    }

    /// Locks the pages in memory, each when it is touched first.
    pub(crate) fn lock(&self) -> std::io::Result<()> {
        // SAFETY: the range is inside the mapping; its content stays.
        let locked =
            unsafe { libc::mlock2(self.base.cast(), self.size, libc::MLOCK_ONFAULT as libc::c_uint) };
        if locked == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Bytes mapped by huge pages and bytes mapped at all, from /proc/self/smaps.
    pub(crate) fn residency(&self) -> Residency {
        let Ok(text) = std::fs::read_to_string("/proc/self/smaps") else {
            return Residency::default();
        };
        let ours = self.base as usize..self.base as usize + self.size;
        let mut inside = false;
        let mut found = Residency::default();
        let mut huge_kernel_pages = false;
        for line in text.lines() {
            if let Some(start) = area_start(line) {
                inside = ours.contains(&start);
                continue;
            }
            let Some((name, value)) = line.split_once(':').filter(|_| inside) else {
                continue;
            };
            let bytes = kib(value).unwrap_or(0) * 1024;
            match name {
                "Rss" => found.mapped += bytes,
                "KernelPageSize" => huge_kernel_pages = bytes >= HUGE_PAGE_BYTES as u64,
                "ShmemPmdMapped" | "FilePmdMapped" => found.huge += bytes,
                "Shared_Hugetlb" | "Private_Hugetlb" if huge_kernel_pages => {
                    found.huge += bytes;
                    found.mapped += bytes;
                }
                _ => {}
            }
        }
        found
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and nobody borrows it any more.
        unsafe {
            libc::munmap(self.base.cast(), self.size);
        }
    }
}

/// The bytes of a mapping that page tables have: in huge pages, and in all.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Residency {
    pub(crate) huge: u64,
    pub(crate) mapped: u64,
}

/// The start address, when the line is the header of a mapping in smaps.
fn area_start(line: &str) -> Option<usize> {
    let (range, _) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    usize::from_str_radix(end, 16).ok()?;
    usize::from_str_radix(start, 16).ok()
}
