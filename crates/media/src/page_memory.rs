//! Memory for pages of 4 KiB that goes back to the system page by page.
//!
//! The general allocator keeps a header before each block, so that an aligned page takes twice its size, and
//! it keeps most of the freed memory: a cache that shrinks would leave the process as large as before. Here a
//! page is a slot of a mapping. A freed slot is taken again first, while it still has memory;
//! [`PageMemory::release`] gives the memory of free slots back to the system. The address space stays.
//!
//! Invariants: a slot is held by one [`OwnPage`], or is in `ready` (it has memory), or in `bare` (it has none, and reads as
//! zeros), or was never taken. Only while `release` runs it holds slots outside of these places.
//! Lock order: innermost.

use crate::block::AlignedBlock;
use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;
use terrace_runtime::sync::OutsideMutex;

/// Slots that are mapped at once: 4 MiB. Neighbouring mappings are one to the kernel.
const MAPPED_SLOTS: usize = 1024;
/// Slots whose memory [`PageMemory::release`] gives back at most: 64 MiB take some milliseconds.
const MAX_RELEASED_SLOTS: usize = 16 << 10;

/// Slots of mappings.
pub struct PageMemory {
    slots: OutsideMutex<Slots>,
}

struct Slots {
    /// Free, with memory and the content that they had.
    ready: Vec<Slot>,
    /// Free, without memory.
    bare: Vec<Slot>,
    /// Slots of the last mapping that were never taken: the first of them, and their count.
    fresh: Option<(Slot, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Slot(NonNull<AlignedBlock>);

// SAFETY: a slot is memory of this process and belongs to the holder of its number, on every thread.
unsafe impl Send for Slot {}
// SAFETY: as above; what it points to is reached through `OwnPage` alone.
unsafe impl Sync for Slot {}

/// The memory of all pages of this process.
static OF_PROCESS: PageMemory = PageMemory::new();

impl PageMemory {
    /// Without any slot yet.
    pub const fn new() -> PageMemory {
        PageMemory { slots: OutsideMutex::new(Slots { ready: Vec::new(), bare: Vec::new(), fresh: None }) }
    }

    /// The memory of all pages of this process.
    pub fn of_process() -> &'static PageMemory {
        &OF_PROCESS
    }

    /// A slot, and whether it is known to read as zeros.
    fn take(&self) -> (Slot, bool) {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.ready.pop() {
            return (slot, false);
        }
        if let Some(slot) = slots.bare.pop() {
            return (slot, true);
        }
        let (slot, left) = slots.fresh.take().unwrap_or_else(|| (map(), MAPPED_SLOTS));
        // SAFETY: `left` slots from `slot` on lie in one mapping, so the next is inside or just behind it.
        let next = Slot(unsafe { slot.0.add(1) });
        slots.fresh = (left > 1).then_some((next, left - 1));
        (slot, true)
    }

    /// A page of zeros.
    pub fn zeroed(&'static self) -> OwnPage {
        let (slot, zeros) = self.take();
        let mut page = OwnPage { slot, memory: self };
        if !zeros {
            page.bytes_mut().fill(0);
        }
        page
    }

    /// A page with this content.
    pub fn copy(&'static self, content: &[u8; size_of::<AlignedBlock>()]) -> OwnPage {
        let mut page = OwnPage { slot: self.take().0, memory: self };
        page.bytes_mut().copy_from_slice(content);
        page
    }

    /// Bytes of free slots that still have memory.
    pub fn ready_bytes(&self) -> u64 {
        (self.slots.lock().ready.len() * size_of::<AlignedBlock>()) as u64
    }

    /// Gives the memory of free slots back to the system, except `keep_bytes` of it; at most 64 MiB in one
    /// call. True if more is left to give back.
    pub fn release(&self, keep_bytes: u64) -> bool {
        let keep = usize::try_from(keep_bytes).unwrap_or(usize::MAX) / size_of::<AlignedBlock>();
        let mut free = {
            let mut slots = self.slots.lock();
            // The slots freed longest ago; the slots freed last are taken next.
            let surplus = slots.ready.len().saturating_sub(keep).min(MAX_RELEASED_SLOTS);
            slots.ready.drain(..surplus).collect::<Vec<Slot>>()
        };
        if free.is_empty() {
            return false;
        }
        free.sort_unstable();
        // SAFETY: the next slot is inside the mapping or just behind it.
        let follows = |one: &Slot, next: &Slot| unsafe { one.0.add(1) } == next.0;
        let mut bare = Vec::with_capacity(free.len());
        let mut kept = Vec::new();
        for run in free.chunk_by(follows) {
            let length = size_of::<AlignedBlock>() * run.len();
            // SAFETY: these slots are ours, nobody holds them, and they lie side by side in private anonymous mappings: what
            // is read there next are zeros.
            let result = unsafe { libc::madvise(run[0].0.as_ptr().cast(), length, libc::MADV_DONTNEED) };
            // The kernel refuses this for locked memory alone: such slots keep their memory.
            if result == 0 { &mut bare } else { &mut kept }.extend_from_slice(run);
        }
        let all_kept = bare.is_empty();
        let mut slots = self.slots.lock();
        slots.bare.append(&mut bare);
        slots.ready.append(&mut kept);
        !all_kept && slots.ready.len() > keep
    }
}

/// Gives freed memory that the general allocator still holds back to the system. Other threads wait for
/// memory meanwhile, a few milliseconds for 100 MiB.
pub fn trim_allocator() {
    // SAFETY: it moves nothing that is in use.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

impl Default for PageMemory {
    fn default() -> PageMemory {
        PageMemory::new()
    }
}

/// Maps slots that have no memory yet; the first of them.
fn map() -> Slot {
    let layout = Layout::new::<[AlignedBlock; MAPPED_SLOTS]>();
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: the kernel chooses an unused address, so the new mapping covers no memory of this process.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), layout.size(), protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        // As the general allocator, without address space.
        handle_alloc_error(layout);
    }
    NonNull::new(address.cast()).map_or_else(|| handle_alloc_error(layout), Slot)
}

/// A page of its own; its slot is free again when it is dropped.
pub struct OwnPage {
    slot: Slot,
    memory: &'static PageMemory,
}

impl OwnPage {
    /// The content.
    pub fn bytes(&self) -> &[u8; size_of::<AlignedBlock>()] {
        // SAFETY: the slot is this page's, mapped for as long as the process lives, and any bytes are a block; others write
        // to it through `&mut self` alone.
        unsafe { &self.slot.0.as_ref().0 }
    }

    /// The content to change.
    pub fn bytes_mut(&mut self) -> &mut [u8; size_of::<AlignedBlock>()] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { &mut self.slot.0.as_mut().0 }
    }
}

impl Clone for OwnPage {
    fn clone(&self) -> OwnPage {
        self.memory.copy(self.bytes())
    }
}

impl Drop for OwnPage {
    fn drop(&mut self) {
        self.memory.slots.lock().ready.push(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> &'static PageMemory {
        Box::leak(Box::default())
    }

    /// Bytes of these pages that have memory, as the kernel says.
    fn resident(pages: &[usize]) -> usize {
        let is_resident = |address: &&usize| {
            let mut state = 0u8;
            // SAFETY: mincore looks at one page, fails where there is none, and writes one byte.
            let result = unsafe { libc::mincore(**address as *mut libc::c_void, 4096, &raw mut state) };
            result == 0 && state & 1 == 1
        };
        pages.iter().filter(is_resident).count() * 4096
    }

    /// Pages came from the general allocator: 1 GiB of them took 2 GiB, and none of it went back to the system when the pages
    /// were dropped, but for the last.
    #[test]
    fn a_page_takes_4_kib_and_released_pages_return_to_the_system() {
        const COUNT: usize = 3 * MAPPED_SLOTS;
        let memory = memory();
        let mut pages: Vec<OwnPage> = (0..COUNT).map(|at| memory.copy(&[at as u8; 4096])).collect();
        let mut places: Vec<usize> = pages.iter().map(|page| page.bytes().as_ptr() as usize).collect();
        places.sort_unstable();
        assert_eq!(resident(&places), COUNT * 4096);
        let neighbours = places.windows(2).filter(|pair| pair[1] - pair[0] == 4096).count();
        assert!(neighbours >= COUNT - 3, "nothing lies between pages: {neighbours}");
        // Each second goes.
        let mut at = 0;
        pages.retain(|_| {
            at += 1;
            at % 2 == 0
        });
        assert_eq!(memory.ready_bytes(), (COUNT / 2 * 4096) as u64);
        assert!(!memory.release(100 * 4096));
        assert_eq!(resident(&places), (COUNT / 2 + 100) * 4096);
        assert!(pages.iter().enumerate().all(|(at, page)| page.bytes() == &[(2 * at + 1) as u8; 4096]));
        // Slots taken again are the freed slots, and `zeroed` clears their old content.
        let more: Vec<OwnPage> = (0..COUNT / 2).map(|_| memory.zeroed()).collect();
        assert!(more.iter().all(|page| places.binary_search(&(page.bytes().as_ptr() as usize)).is_ok()));
        assert!(more.iter().all(|page| page.bytes() == &[0; 4096]));
    }

    /// The tables of a cache that had been large, 60 MiB of one of 1 GiB, stayed with the allocator.
    #[test]
    #[cfg(target_env = "gnu")]
    fn trimming_returns_freed_memory_to_the_system() {
        if std::env::var_os("ASAN_OPTIONS").is_some() {
            return; // the sanitizer's allocator is another
        }
        // Blocks too small for mappings of their own, in front of a block that stays allocated.
        let blocks: Vec<Vec<u8>> = (0..8192).map(|_| vec![1; 8 << 10]).collect();
        let last = vec![1u8; 8 << 10];
        let mut places: Vec<usize> = blocks.iter().map(|block| block.as_ptr() as usize & !4095).collect();
        places.dedup();
        let before = resident(&places);
        drop(blocks);
        let freed = resident(&places);
        trim_allocator();
        assert!(freed > before / 2, "the allocator keeps it: {freed} of {before}");
        assert!(resident(&places) < before / 8, "{} of {before}", resident(&places));
        drop(last);
    }

    #[test]
    fn a_piece_is_released_at_once_and_the_rest_by_the_next_calls() {
        let memory = memory();
        drop((0..MAX_RELEASED_SLOTS + 10).map(|_| memory.copy(&[1; 4096])).collect::<Vec<OwnPage>>());
        assert!(memory.release(0) && memory.ready_bytes() == 10 * 4096);
        assert!(!memory.release(0) && memory.ready_bytes() == 0);
        assert!(!memory.release(0));
    }
}
