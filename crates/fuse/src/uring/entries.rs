//! The entries of a ring: their states, and the number that a queue needs.
//!
//! Invariants: an entry is with the kernel, here with a request, refused, or over; a queue counts its entries that are with
//! the kernel. Memory of an entry is kept until the ring is closed, also when the entry is over.

use super::commands::register;
use super::memory::{Headers, Memory};
use crate::protocol::layout::OutHeader;
use io_uring::squeue::Entry128;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a payload that an idle entry keeps.
const KEPT_BYTES: usize = 16 << 10;
/// The most entries of a queue: requests beyond them wait in the kernel.
const MOST_ENTRIES: usize = 8192;

/// A queue of the kernel, as a ring serves it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queue {
    pub number: u16,
    /// Requests come from the processor of this thread. The daemon may not run on the processor of another queue.
    pub is_own: bool,
    /// Entries that wait for a request.
    free: usize,
    entries: usize,
}

/// Figures of a ring, which other threads read.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    pub entries: AtomicUsize,
    pub away: AtomicUsize,
    pub replaced: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Waits for a request.
    Kernel,
    /// Has a request that is not answered, with the number for its answer.
    Here(u64),
    /// The kernel did not take it yet.
    Refused,
    Over,
}

struct Slot {
    /// Place of its queue.
    queue: usize,
    memory: Arc<Memory>,
    /// Headers and payload as the kernel is told of them; it reads them when the command is submitted.
    parts: Box<[libc::iovec; 2]>,
    state: State,
    /// The kernel has taken it: it had a request.
    is_taken: bool,
    /// The number of the last request.
    commit_id: u64,
    /// Bytes of the payload that a waiting entry keeps: none after the first entries of a queue.
    kept_bytes: usize,
    /// The payload has had more than these.
    is_large: bool,
}

/// An entry that did not come back with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// The session is over.
    Ended,
    /// The kernel did not take the entry.
    Refused,
    /// The request of an answer is gone.
    Nobody,
    /// The kernel did not take the answer of this number.
    Answer(u64),
    /// The kernel takes nothing by rings any more.
    Transport,
}

/// The entries of a ring.
pub(super) struct Entries {
    slots: Vec<Slot>,
    queues: Vec<Queue>,
    /// Entries of a queue at first.
    first: usize,
    payload_bytes: usize,
    /// Places of refused entries.
    refused: Vec<usize>,
    /// Large entries, and entries of any size with the kernel, here, or refused.
    large: usize,
    living: usize,
    gauge: Arc<Gauge>,
}

impl Entries {
    /// Without entries; `queues` has numbers, and whether a queue is that of this thread's processor.
    pub fn new(queues: &[(u16, bool)], first: usize, payload_bytes: usize, gauge: Arc<Gauge>) -> Entries {
        let queue = |&(number, is_own)| Queue { number, is_own, free: 0, entries: 0 };
        let queues = queues.iter().map(queue).collect();
        let (slots, refused) = (Vec::new(), Vec::new());
        Entries { slots, queues, first: first.max(1), payload_bytes, refused, large: 0, living: 0, gauge }
    }

    /// The number of queues.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// A queue, by its place.
    pub fn queue(&self, place: usize) -> Queue {
        self.queues[place]
    }

    /// The place of an entry's queue.
    pub fn queue_of(&self, slot: usize) -> usize {
        self.slots[slot].queue
    }

    /// Whether a queue has no entry that waits for a request.
    pub fn has_none(&self, queue: usize) -> bool {
        self.queues[queue].free == 0
    }

    /// Entries that a queue needs more, so that half of the first count wait for requests; all of them where requests that
    /// wait in the kernel cannot be fetched.
    pub fn missing(&self, queue: usize) -> usize {
        let queue = &self.queues[queue];
        let least = match (queue.entries, queue.is_own) {
            (0, _) | (_, false) => self.first,
            _ => self.first.div_ceil(2),
        };
        least.saturating_sub(queue.free).min(MOST_ENTRIES.saturating_sub(queue.entries))
    }

    /// Whether no entry is with the kernel or has a request.
    pub fn are_over(&self) -> bool {
        self.living == 0
    }

    /// A further entry of a queue: the command that registers it.
    ///
    /// # Errors
    /// No memory.
    pub fn add(&mut self, queue: usize) -> io::Result<Entry128> {
        let memory = Arc::new(Memory::new(self.payload_bytes)?);
        let parts = Box::new(memory.parts());
        let (state, slot) = (State::Refused, self.slots.len());
        let kept_bytes = if self.queues[queue].entries < self.first { KEPT_BYTES } else { 0 };
        let (is_taken, commit_id, is_large) = (false, 0, false);
        self.slots.push(Slot { queue, memory, parts, state, is_taken, commit_id, kept_bytes, is_large });
        self.living += 1;
        self.queues[queue].entries += 1;
        self.gauge.entries.fetch_add(1, Ordering::Relaxed);
        Ok(self.register(slot))
    }

    /// A refused entry is to be tried again; `None` when there is none.
    pub fn retry(&mut self) -> Option<Entry128> {
        self.refused.pop().map(|slot| self.register(slot))
    }

    /// Whether entries were refused.
    pub fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    fn register(&mut self, slot: usize) -> Entry128 {
        let entry = &mut self.slots[slot];
        assert_eq!(entry.state, State::Refused, "an entry is registered once");
        entry.state = State::Kernel;
        let queue = &mut self.queues[entry.queue];
        queue.free += 1;
        register(queue.number, &entry.parts).user_data(slot as u64)
    }

    fn leaves_the_kernel(&mut self, slot: usize, state: State) {
        let entry = &mut self.slots[slot];
        assert_eq!(entry.state, State::Kernel, "an entry comes back that is not with the kernel");
        entry.state = state;
        self.queues[entry.queue].free -= 1;
    }

    /// An entry has come back without a request: by the errno of its command.
    pub fn lost(&mut self, slot: usize, errno: i32) -> Lost {
        let is_ended = matches!(errno, libc::ENOTCONN | libc::ECANCELED | libc::ECONNABORTED | libc::ENODEV);
        if !is_ended && !self.slots[slot].is_taken {
            self.leaves_the_kernel(slot, State::Refused);
            self.refused.push(slot);
            return Lost::Refused;
        }
        // The kernel finds no request of the number, or it has ended it with an error.
        let is_over = is_ended || matches!(errno, libc::ENOENT | libc::EIO);
        if !is_over && errno != libc::EOPNOTSUPP {
            return Lost::Answer(self.slots[slot].commit_id);
        }
        self.leaves_the_kernel(slot, State::Over);
        self.over(slot);
        match errno {
            _ if is_ended => Lost::Ended,
            libc::EOPNOTSUPP => Lost::Transport,
            _ => Lost::Nobody,
        }
    }

    fn over(&mut self, slot: usize) {
        self.living -= 1;
        self.queues[self.slots[slot].queue].entries -= 1;
        self.gauge.entries.fetch_sub(1, Ordering::Relaxed);
    }

    /// Refused entries are not tried again: the session ends.
    pub fn give_up_refused(&mut self) {
        for slot in std::mem::take(&mut self.refused) {
            self.slots[slot].state = State::Over;
            self.over(slot);
        }
    }

    /// The ring is gone, and entries that were with the kernel with it, but for those with a completion or an answer that
    /// the kernel has not read. Gives the number of rings that are gone.
    pub fn ring_is_gone(&mut self, lives: impl Fn(usize) -> bool) -> usize {
        for slot in 0..self.slots.len() {
            if self.slots[slot].state == State::Kernel && !lives(slot) {
                self.leaves_the_kernel(slot, State::Over);
                self.over(slot);
            }
        }
        self.gauge.replaced.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// An entry has come back with a request: its headers, and its memory.
    pub fn came(&mut self, slot: usize) -> (Headers, Arc<Memory>) {
        // SAFETY: the entry has just come back, and nobody else knows of it yet.
        let headers = unsafe { self.slots[slot].memory.headers() };
        self.leaves_the_kernel(slot, State::Here(headers.commit_id));
        self.gauge.away.fetch_add(1, Ordering::Relaxed);
        (self.slots[slot].is_taken, self.slots[slot].commit_id) = (true, headers.commit_id);
        self.note_size(slot, (headers.payload_bytes as usize).max(headers.bytes_asked_for()));
        (headers, Arc::clone(&self.slots[slot].memory))
    }

    fn note_size(&mut self, slot: usize, bytes: usize) {
        let entry = &mut self.slots[slot];
        if bytes > entry.kept_bytes && !entry.is_large {
            entry.is_large = true;
            self.large += 1;
        }
    }

    /// Puts an answer into an entry: `structure` into its payload, where the bytes do not lie there. Gives the numbers of
    /// queue and request for the commit.
    pub fn answer(
        &mut self,
        slot: usize,
        header: &OutHeader,
        structure: Option<&[u8]>,
        length: usize,
    ) -> (u16, u64) {
        self.note_size(slot, length);
        let entry = &mut self.slots[slot];
        let State::Here(commit_id) = entry.state else {
            unreachable!("an entry without a request is answered");
        };
        // SAFETY: the request has been served and answered: its borrow of the payload is over, and so is its ticket. The
        // entry is here until the commit is submitted.
        unsafe {
            if let Some(structure) = structure {
                entry.memory.payload_mut()[..structure.len()].copy_from_slice(structure);
            }
            let mut headers = entry.memory.headers();
            headers.answer(header, length as u32);
            entry.memory.set_headers(&headers);
        }
        entry.state = State::Kernel;
        let queue = &mut self.queues[entry.queue];
        queue.free += 1;
        self.gauge.away.fetch_sub(1, Ordering::Relaxed);
        (queue.number, commit_id)
    }

    /// Gives back the memory of a large request that waits.
    ///
    /// # Safety
    /// The request lay in the payload and was served; its ticket has no room.
    pub unsafe fn give_back_waiting(&mut self, slot: usize) {
        let entry = &mut self.slots[slot];
        if entry.is_large && matches!(entry.state, State::Here(_)) {
            entry.is_large = false;
            self.large -= 1;
            // SAFETY: by the contract of this function nobody reads or writes the payload.
            unsafe { entry.memory.give_back() };
        }
    }

    /// Whether payloads can be given back.
    pub fn has_large(&self) -> bool {
        self.large > 0
    }

    /// Gives back the memory of large requests that are over.
    ///
    /// # Safety
    /// Busy are entries with a completion that was not handled, and those with an answer that the kernel has not read. The
    /// kernel copies requests only during a later call of this thread.
    pub unsafe fn give_back(&mut self, is_busy: impl Fn(usize) -> bool) {
        for (slot, entry) in self.slots.iter_mut().enumerate() {
            if !entry.is_large || entry.state != State::Kernel || is_busy(slot) {
                continue;
            }
            entry.is_large = false;
            self.large -= 1;
            // SAFETY: no request lies in the payload, by the contract of this function.
            unsafe { entry.memory.give_back() };
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entries(queues: &[(u16, bool)], first: usize) -> Entries {
        let mut entries = Entries::new(queues, first, 4096, Arc::default());
        for queue in 0..queues.len() {
            for _ in 0..entries.missing(queue) {
                entries.add(queue).unwrap();
            }
        }
        entries
    }

    #[test]
    fn half_of_the_first_entries_of_a_queue_wait_for_requests() {
        let mut entries = entries(&[(0, true), (1, false)], 8);
        assert_eq!([0, 1].map(|queue| entries.missing(queue)), [0, 0]);
        (0..4).for_each(|slot| drop(entries.came(slot)));
        assert_eq!(entries.missing(0), 0, "four of eight wait");
        drop(entries.came(4));
        assert_eq!(entries.missing(0), 1);
        (5..8).for_each(|slot| drop(entries.came(slot)));
        assert!(entries.has_none(0) && entries.missing(0) == 4);
        for _ in 0..4 {
            entries.add(0).unwrap();
        }
        assert_eq!(entries.missing(0), 0);
        // A queue whose backlog cannot be fetched keeps all of them.
        drop(entries.came(8));
        assert_eq!(entries.missing(1), 1);
        assert_eq!(entries.gauge.away.load(Ordering::Relaxed), 9);
    }

    #[test]
    fn an_answered_entry_waits_for_the_next_request() {
        let mut entries = entries(&[(3, true)], 1);
        let (_, memory) = entries.came(0);
        assert!(entries.has_none(0));
        let header = OutHeader { length: 20, error: 0, unique: 9 };
        assert_eq!(entries.answer(0, &header, Some(b"done"), 4), (3, 0));
        assert!(!entries.has_none(0));
        // SAFETY: no kernel has this entry.
        let (payload, headers) = unsafe { (memory.request(4), memory.headers()) };
        assert_eq!((payload, headers.payload_bytes), (&b"done"[..], 4));
    }

    #[test]
    fn a_refused_entry_is_tried_again_and_an_ended_one_is_not() {
        let mut entries = entries(&[(0, true)], 2);
        assert_eq!(entries.lost(0, libc::ENOMEM), Lost::Refused);
        assert!(entries.has_refused() && entries.retry().is_some() && !entries.has_refused());
        assert_eq!(entries.lost(0, libc::ENOTCONN), Lost::Ended);
        drop(entries.came(1));
        let header = OutHeader { length: 16, error: 0, unique: 1 };
        entries.answer(1, &header, None, 0);
        assert!(!entries.are_over());
        assert_eq!(entries.lost(1, libc::ENOMEM), Lost::Answer(0), "the kernel knows the entry");
        assert!(!entries.are_over(), "its answer is committed again");
        assert_eq!(entries.lost(1, libc::ENOENT), Lost::Nobody);
        assert!(entries.are_over());
    }

    #[test]
    fn entries_with_requests_outlive_the_ring() {
        let mut entries = entries(&[(0, true)], 4);
        drop(entries.came(2));
        entries.ring_is_gone(|slot| slot == 1);
        assert!(!entries.are_over() && !entries.has_none(0), "one has a completion");
        drop(entries.came(1));
        assert_eq!((entries.has_none(0), entries.missing(0)), (true, 2));
        entries.answer(2, &OutHeader { length: 16, error: 0, unique: 1 }, None, 0);
        assert_eq!(entries.gauge.replaced.load(Ordering::Relaxed), 1);
    }
}
