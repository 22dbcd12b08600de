//! The ring: the end of the log as it lies in DRAM, in the layout that goes to the device (J2, J4).
//!
//! Positions are those of the log and only grow; the place in memory is the position modulo the ring's size. A store
//! reserves its place by one atomic addition to the tail, so places are the order of all stores.
//!
//! Invariants: the thread that reserved a place writes there, and no other thread until the batch is acknowledged.
//! No store reserves a place over a batch without acknowledgement, or over a block of the log that an anchor needs: a store
//! looks at the room under a page lock, and [`MARGIN_BYTES`] covers every thread behind the look.

use super::image::PAGE_LOCKS;
use crate::block::AlignedBlock;
use std::cell::UnsafeCell;
use terrace_format::BLOCK_SIZE;
use terrace_format::journal::{BATCH_HEADER_BYTES, ENTRY_HEADER_BYTES, Entry, entry_bytes};
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// The smallest ring.
pub(super) const MIN_RING_BYTES: u64 = 8 << 20;
/// Bytes that threads may reserve beyond the room: a thread for each page lock, and an entry may end a batch.
pub(super) const MARGIN_BYTES: u64 = 2 << 20;

/// Bytes without a commit at which the step writes a batch: a later `persist` finds less to write (J6).
pub(super) const STEP_BYTES: u64 = 1 << 20;

const _: () = assert!(MARGIN_BYTES > PAGE_LOCKS as u64 * 4 * BLOCK_SIZE);

/// The limit that a store met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// Batches wait to be written.
    Ring,
    /// Pages wait to go home.
    Log,
}

pub(super) struct Ring {
    /// The blocks, and before them the bytes up to a multiple of their size: fresh zeros take no memory before their first use,
    /// but for a larger alignment.
    memory: Box<[UnsafeCell<u8>]>,
    /// Blocks.
    blocks: usize,
    /// The next place.
    tail: AtomicU64,
    /// End of the places whose memory is free.
    ring_limit: AtomicU64,
    /// End of the places whose blocks of the log are free, less the share of a home round.
    log_limit: AtomicU64,
}

// SAFETY: the memory is reached through `copy_in`, whose places belong to one thread each, and through `blocks`, whose
// caller promises that nobody writes these places.
unsafe impl Sync for Ring {}

impl Ring {
    /// A ring whose first batch begins at a position, the end of a block.
    pub fn new(bytes: u64, start: u64) -> Ring {
        assert!(bytes >= MIN_RING_BYTES && bytes.is_multiple_of(BLOCK_SIZE), "a ring of {bytes} bytes");
        assert!(start.is_multiple_of(BLOCK_SIZE), "a batch begins inside a block");
        let memory = Box::<[UnsafeCell<u8>]>::new_zeroed_slice((bytes + BLOCK_SIZE) as usize);
        // SAFETY: zeros are bytes.
        let memory = unsafe { memory.assume_init() };
        Ring {
            memory,
            blocks: (bytes / BLOCK_SIZE) as usize,
            tail: AtomicU64::new(start + BATCH_HEADER_BYTES),
            ring_limit: AtomicU64::new(start + bytes),
            log_limit: AtomicU64::new(start),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.blocks as u64 * BLOCK_SIZE
    }

    /// The first block.
    fn base(&self) -> *mut u8 {
        let start = UnsafeCell::raw_get(self.memory.as_ptr());
        start.wrapping_add(start.align_offset(BLOCK_SIZE as usize))
    }

    /// The end of the reserved places.
    pub fn tail(&self) -> u64 {
        self.tail.load(Ordering::SeqCst)
    }

    /// The limit that a store meets; look under a page lock.
    pub fn full(&self) -> Option<Full> {
        let end = self.tail() + MARGIN_BYTES;
        if end > self.ring_limit.load(Ordering::Acquire) {
            return Some(Full::Ring);
        }
        (end > self.log_limit.load(Ordering::Acquire)).then_some(Full::Log)
    }

    /// All batches below `end` are acknowledged.
    pub fn acknowledged(&self, end: u64) {
        self.ring_limit.store(end + self.bytes(), Ordering::Release);
    }

    /// Places below `limit` may go to the log.
    pub fn set_log_limit(&self, limit: u64) {
        self.log_limit.store(limit, Ordering::Release);
    }

    /// Reserves the place of an entry and copies the entry there.
    pub fn append(&self, entry: &Entry<'_>) -> u64 {
        let size = entry_bytes(entry.bytes.len());
        let at = self.tail.fetch_add(size, Ordering::SeqCst);
        self.copy_in(at, &entry.header());
        self.copy_in(at + ENTRY_HEADER_BYTES, entry.bytes);
        let end = at + ENTRY_HEADER_BYTES + entry.bytes.len() as u64;
        let filling = (at + size - end) as usize;
        self.copy_in(end, &[0; 8][..filling]);
        at
    }

    /// Ends the batch that begins at `start`: reserves the rest of its block and the next header. Gives the end of the batch;
    /// `None` for a batch without an entry.
    pub fn close(&self, start: u64) -> Option<u64> {
        let mut tail = self.tail();
        loop {
            assert!(tail >= start + BATCH_HEADER_BYTES, "the batch at {start} begins behind the tail {tail}");
            if tail == start + BATCH_HEADER_BYTES {
                return None;
            }
            let end = tail.next_multiple_of(BLOCK_SIZE);
            let next = end + BATCH_HEADER_BYTES;
            match self.tail.compare_exchange(tail, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    let zeros = [0; BLOCK_SIZE as usize];
                    self.copy_in(tail, &zeros[..(end - tail) as usize]);
                    return Some(end);
                }
                Err(other) => tail = other,
            }
        }
    }

    /// Writes bytes to a place that the caller has: the header of a closed batch.
    pub fn put(&self, start: u64, bytes: &[u8]) {
        self.copy_in(start, bytes);
    }

    /// Copies bytes to a place that the caller has reserved.
    fn copy_in(&self, position: u64, bytes: &[u8]) {
        let ring = self.bytes() as usize;
        let at = (position % ring as u64) as usize;
        let (front, back) = bytes.split_at(bytes.len().min(ring - at));
        let base = self.base();
        // SAFETY: inside the ring, and reserved by this thread alone.
        unsafe {
            std::ptr::copy_nonoverlapping(front.as_ptr(), base.add(at), front.len());
            std::ptr::copy_nonoverlapping(back.as_ptr(), base, back.len());
        }
    }

    /// The blocks of a closed batch, in two pieces where the ring ends inside it.
    ///
    /// # Safety
    /// All places of the batch are written, and none is reserved again while the pieces are in use.
    pub unsafe fn blocks(&self, start: u64, end: u64) -> [&[AlignedBlock]; 2] {
        let blocks = self.blocks;
        let first = (start / BLOCK_SIZE) as usize % blocks;
        let count = ((end - start) / BLOCK_SIZE) as usize;
        assert!(count <= blocks, "a batch of {count} blocks in a ring of {blocks}");
        let front = count.min(blocks - first);
        let base = self.base().cast::<AlignedBlock>();
        // SAFETY: inside the ring; the caller's promise.
        unsafe {
            [
                std::slice::from_raw_parts(base.add(first), front),
                std::slice::from_raw_parts(base, count - front),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_format::PmOffset;
    use terrace_format::journal::{EntryKind, entries};

    fn entry(bytes: &[u8]) -> Entry<'_> {
        Entry { kind: EntryKind::Store, offset: PmOffset(0), bytes }
    }

    /// The bytes of a closed batch.
    fn bytes_of(ring: &Ring, start: u64, end: u64) -> Vec<u8> {
        // SAFETY: this thread alone writes, and has written all.
        let pieces = unsafe { ring.blocks(start, end) };
        pieces.into_iter().flatten().flat_map(|block| block.0).collect()
    }

    #[test]
    fn a_closed_batch_has_entries_and_zeros_to_the_end_of_its_block() {
        let start = 5 * BLOCK_SIZE;
        let ring = Ring::new(MIN_RING_BYTES, start);
        assert_eq!(ring.close(start), None);
        ring.append(&entry(b"one"));
        ring.append(&entry(&[2; 5000]));
        let end = ring.close(start).unwrap();
        assert_eq!((end, ring.tail()), (7 * BLOCK_SIZE, 7 * BLOCK_SIZE + 64));
        let batch = bytes_of(&ring, start, end);
        let found = entries(&batch, 5000).unwrap();
        assert_eq!(found.iter().map(|entry| entry.bytes.len()).collect::<Vec<_>>(), [3, 5000]);
    }

    #[test]
    fn a_batch_across_the_end_of_the_ring_has_two_pieces() {
        let start = 3 * MIN_RING_BYTES - BLOCK_SIZE;
        let ring = Ring::new(MIN_RING_BYTES, start);
        ring.append(&entry(&[7; 4096]));
        let end = ring.close(start).unwrap();
        assert_eq!(end - start, 2 * BLOCK_SIZE);
        let batch = bytes_of(&ring, start, end);
        assert_eq!(entries(&batch, 4096).unwrap()[0].bytes, [7; 4096]);
    }

    #[test]
    fn a_full_ring_and_a_full_log_are_told_apart() {
        let ring = Ring::new(MIN_RING_BYTES, 0);
        assert_eq!(ring.full(), Some(Full::Log), "no anchor has freed any block");
        ring.set_log_limit(1 << 30);
        assert_eq!(ring.full(), None);
        while ring.full().is_none() {
            ring.append(&entry(&[0; 4096]));
        }
        assert_eq!(ring.full(), Some(Full::Ring));
        assert!(ring.tail() + MARGIN_BYTES / 2 < MIN_RING_BYTES);
        ring.acknowledged(MIN_RING_BYTES);
        assert_eq!(ring.full(), None);
    }
}
