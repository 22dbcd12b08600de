//! A missing or poisoned page of mapped PM (SIGBUS) becomes an error for its range, never the end
//! of the daemon (design 3, I8).
//!
//! The process has one handler, installed with the first mapping. For a fault inside a registered mapping it
//! records the page, puts an anonymous page in its place and lets the instruction run again; whoever accessed
//! the range asks afterwards ([`FaultGuard::intact`]) and gets the error. Faults outside of registered
//! mappings go to the handler that was installed before.
//!
//! Pages that the medium itself gives up ([`FaultGuard::condemn`]) are in a bitmap, without a limit.
//!
//! Invariants: the handler takes no lock and allocates nothing. A page is recorded before it is
//! replaced, so nobody can read the replacement and miss the record. When the list of faults is full the
//! whole mapping counts as poisoned. A slot is cleared before its mapping is removed. A read of a mapping
//! without any damage costs a single relaxed load.

use super::condemned::CondemnedPages;
use crate::open::OpenError;
use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use terrace_runtime::sync::OutsideMutex;

const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;
const MAPPING_SLOTS: usize = 256;
/// Faults remembered per mapping.
const MAPPING_RANGES: usize = 256;
/// The bit of `count` that says that the guard has condemned pages.
const CONDEMNED: u32 = 1 << 31;

/// A registered mapping. `base` 0 means free.
struct Slot {
    base: AtomicUsize,
    length: AtomicUsize,
    /// Entries handed out; above [`MAPPING_RANGES`] the whole mapping is poisoned. The highest bit is [`CONDEMNED`].
    count: AtomicU32,
    /// Offset from `base`, with the order of 4 KiB pages in the low bits; all ones while unset.
    ranges: [AtomicU64; MAPPING_RANGES],
}

static TABLE: [Slot; MAPPING_SLOTS] = [const {
    Slot {
        base: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
        count: AtomicU32::new(0),
        ranges: [const { AtomicU64::new(u64::MAX) }; MAPPING_RANGES],
    }
}; MAPPING_SLOTS];
static REGISTER: OutsideMutex<()> = OutsideMutex::new(());
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping known to the handler for as long as this lives; drop it before unmapping.
pub(crate) struct FaultGuard {
    slot: &'static Slot,
    condemned: CondemnedPages,
}

impl FaultGuard {
    /// Registers `[base, base + length)` and installs the handler when it is the first.
    pub(crate) fn register(path: &Path, base: *mut u8, length: usize) -> Result<Self, OpenError> {
        let _held = REGISTER.lock();
        install().map_err(|error| OpenError::io(path, "install the SIGBUS handler", error))?;
        let free = TABLE.iter().find(|s| s.base.load(Ordering::Acquire) == 0);
        let slot = free.ok_or_else(|| OpenError::Unsupported {
            path: path.to_path_buf(),
            reason: format!("more than {MAPPING_SLOTS} persistent-memory mappings in one process"),
        })?;
        slot.count.store(0, Ordering::Relaxed);
        for range in &slot.ranges {
            range.store(u64::MAX, Ordering::Relaxed);
        }
        slot.length.store(length, Ordering::Relaxed);
        slot.base.store(base as usize, Ordering::Release);
        Ok(FaultGuard { slot, condemned: CondemnedPages::new(length.div_ceil(PAGE_BYTES) as u64) })
    }

    /// Whether no poisoned page overlaps the range. Ask after the access.
    #[inline]
    pub(crate) fn intact(&self, offset: u64, length: u64) -> bool {
        self.slot.count.load(Ordering::Relaxed) == 0 || self.intact_slow(offset, length)
    }

    #[cold]
    fn intact_slow(&self, offset: u64, length: u64) -> bool {
        let touches = |r: Range<u64>| r.start < offset + length && offset < r.end;
        !self.condemned.touch(pages_of(offset, length)) && !self.faults().any(touches)
    }

    /// Counts the pages of a range as poisoned.
    pub(crate) fn condemn(&self, offset: u64, length: u64) {
        self.condemned.add(pages_of(offset, length));
        self.slot.count.fetch_or(CONDEMNED, Ordering::Release);
    }

    /// Pages that faulted, and pages condemned.
    pub(crate) fn error_count(&self) -> u64 {
        self.fault_count().min(MAPPING_RANGES) as u64 + self.condemned.count()
    }

    fn fault_count(&self) -> usize {
        (self.slot.count.load(Ordering::Acquire) & !CONDEMNED) as usize
    }

    /// Ranges that faulted; the whole mapping when there were too many to remember.
    fn faults(&self) -> impl Iterator<Item = Range<u64>> {
        let count = self.fault_count();
        let whole = 0..self.slot.length.load(Ordering::Relaxed) as u64;
        let lost = (count > MAPPING_RANGES).then(|| whole.clone());
        let decode = move |entry: &AtomicU64| match entry.load(Ordering::Acquire) {
            // counted but not stored yet by a handler in another thread: assume the worst
            u64::MAX => whole.clone(),
            coded => {
                let start = coded & !(PAGE_BYTES as u64 - 1);
                start..start + ((PAGE_BYTES as u64) << (coded & 0xff))
            }
        };
        self.slot.ranges.iter().take(count).map(decode).chain(lost)
    }

    /// The poisoned ranges, as offsets; the whole mapping when there were too many faults to remember. Neighbours among
    /// condemned pages are one range.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        let bytes = |pages: Range<u64>| pages.start * PAGE_BYTES as u64..pages.end * PAGE_BYTES as u64;
        self.faults().chain(self.condemned.runs().into_iter().map(bytes)).collect()
    }
}

/// The pages that a range of bytes touches.
fn pages_of(offset: u64, length: u64) -> Range<u64> {
    offset / PAGE_BYTES as u64..(offset + length).div_ceil(PAGE_BYTES as u64)
}

impl Drop for FaultGuard {
    fn drop(&mut self) {
        let _held = REGISTER.lock();
        self.slot.base.store(0, Ordering::Release);
    }
}

fn install() -> io::Result<()> {
    if PREVIOUS.get().is_some() {
        return Ok(());
    }
    // SAFETY: an all-zero sigaction is a valid value; the calls get valid pointers. The old action
    // is published before ours can run.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut old) != 0 {
            return Err(io::Error::last_os_error());
        }
        let _ = PREVIOUS.set(old);
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = on_sigbus as *const () as usize;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut new.sa_mask);
        if libc::sigaction(libc::SIGBUS, &new, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo; errno belongs to this thread and is restored.
    unsafe {
        let errno = *libc::__errno_location();
        // codes above 0 come from the kernel and carry an address
        let handled = (*info).si_code > 0 && replace((*info).si_addr() as usize);
        *libc::__errno_location() = errno;
        if !handled {
            chain(signal, info, context);
        }
    }
}

/// Records and replaces the page of `address`. False when it is in no registered mapping or cannot
/// be replaced.
fn replace(address: usize) -> bool {
    for slot in &TABLE {
        let base = slot.base.load(Ordering::Acquire);
        let length = slot.length.load(Ordering::Relaxed);
        if base == 0 || address < base || address - base >= length {
            continue;
        }
        // hugetlbfs mappings can be replaced only by whole huge pages
        return replace_page(slot, base, length, address, PAGE_BYTES)
            || replace_page(slot, base, length, address, HUGE_PAGE_BYTES);
    }
    false
}

fn replace_page(slot: &Slot, base: usize, length: usize, address: usize, size: usize) -> bool {
    let start = address & !(size - 1);
    if start < base || start + size > base + length {
        return false;
    }
    record(slot, start - base, size);
    // SAFETY: the range lies inside a registered mapping, which stays mapped while the access that
    // faulted borrows it. Writable even in a read-only mapping: nobody stores there.
    let page = unsafe {
        libc::mmap(
            start as *mut c_void,
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    page != libc::MAP_FAILED
}

/// Records a page at an offset of its mapping.
fn record(slot: &Slot, offset: usize, size: usize) {
    let index = (slot.count.fetch_add(1, Ordering::AcqRel) & !CONDEMNED) as usize;
    if let Some(entry) = slot.ranges.get(index) {
        let order = (size / PAGE_BYTES).trailing_zeros() as u64;
        entry.store(offset as u64 | order, Ordering::Release);
    } else if index > MAPPING_RANGES {
        // keep the counter from wrapping; the mapping stays poisoned as a whole
        slot.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Hands the signal to the action that was there before us.
///
/// # Safety
/// The arguments are those of the signal being handled.
unsafe fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: a handler takes three arguments if it was installed with SA_SIGINFO, otherwise only the signal.
    unsafe {
        let previous = PREVIOUS.get();
        let action = previous.map_or(libc::SIG_DFL, |old| old.sa_sigaction);
        if action == libc::SIG_DFL || action == libc::SIG_IGN {
            // the instruction faults again and ends the process as it would have without us; a
            // signal sent by a process is sent again
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &default, std::ptr::null_mut());
            if (*info).si_code <= 0 {
                libc::raise(signal);
            }
        } else if previous.is_some_and(|old| old.sa_flags & libc::SA_SIGINFO != 0) {
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                std::mem::transmute(action);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(c_int) = std::mem::transmute(action);
            handler(signal);
        }
    }
}
