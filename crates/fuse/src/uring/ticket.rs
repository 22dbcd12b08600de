//! The way back of an answer: from any thread to the thread whose ring holds the request's entry.
//!
//! Invariants: a ticket is used once; only the thread of the ring touches headers, and it touches the payload only while
//! no ticket owns it. Lock order: `answered` is the only lock, held for a push or a swap.

use super::memory::Memory;
use crate::protocol::layout::{CreateOut, OutHeader};
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_runtime::sync::Mutex;

/// Bytes of the longest answer that is a structure.
pub(super) const STRUCTURE_BYTES: usize = size_of::<CreateOut>();

thread_local! {
    /// The queue whose ring this thread serves.
    static OWN: Cell<*const Shared> = const { Cell::new(ptr::null()) };
}

/// The bytes behind the header of an answer.
pub(super) enum Content {
    /// So many bytes lie in the payload.
    InPlace(usize),
    /// A structure, which the thread of the ring copies into the payload.
    Structure([u8; STRUCTURE_BYTES], usize),
}

/// An answer under way.
pub(super) struct Answer {
    pub slot: usize,
    pub header: OutHeader,
    pub content: Content,
}

/// The part of a ring that other threads use.
pub(super) struct Shared {
    answered: Mutex<Vec<Answer>>,
    /// Wakes the thread of the ring.
    wake: OwnedFd,
    /// Whether the thread waits for the kernel, or is about to.
    is_asleep: AtomicBool,
}

impl Shared {
    pub fn new(wake: OwnedFd) -> Shared {
        Shared { answered: Mutex::default(), wake, is_asleep: AtomicBool::new(false) }
    }

    pub fn wake_descriptor(&self) -> &OwnedFd {
        &self.wake
    }

    /// This thread serves the ring.
    pub fn adopt(self: &Arc<Shared>) {
        OWN.set(Arc::as_ptr(self));
    }

    fn push(&self, answer: Answer) {
        self.answered.lock().push(answer);
        // The thread of the ring looks for answers after each request, and before it sleeps.
        if !ptr::eq(OWN.get(), self) && self.is_asleep.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Exchanges the answers for an empty list.
    pub fn take(&self, into: &mut Vec<Answer>) {
        debug_assert!(into.is_empty(), "answers are lost");
        std::mem::swap(&mut *self.answered.lock(), into);
    }

    /// From now on an answer of another thread wakes this one; false when there are answers already.
    pub fn fall_asleep(&self) -> bool {
        self.is_asleep.store(true, Ordering::SeqCst);
        let is_idle = self.answered.lock().is_empty();
        if !is_idle {
            self.wake_up();
        }
        is_idle
    }

    pub fn wake_up(&self) {
        self.is_asleep.store(false, Ordering::SeqCst);
    }
}

/// The right to answer the request in an entry.
pub(crate) struct Ticket {
    shared: Arc<Shared>,
    slot: usize,
    /// The memory, if the request does not lie in the payload: then the payload belongs to the ticket.
    payload: Option<Arc<Memory>>,
}

impl Ticket {
    pub(super) fn new(shared: &Arc<Shared>, slot: usize, payload: Option<Arc<Memory>>) -> Ticket {
        Ticket { shared: Arc::clone(shared), slot, payload }
    }

    /// The payload, for the bytes of an answer, if it belongs to the ticket.
    pub(crate) fn room(&mut self) -> Option<&mut [u8]> {
        // SAFETY: the payload belongs to this ticket alone until the answer is pushed, which takes the ticket by value;
        // the borrow of the ticket ends before.
        self.payload.as_ref().map(|memory| unsafe { memory.payload_mut() })
    }

    /// Answers with bytes that lie in [`Self::room`].
    pub(crate) fn send_room(mut self, header: OutHeader, count: usize) {
        let most = self.room().map_or(0, |room| room.len());
        assert!(count <= most, "{count} bytes of an answer lie in {most} bytes of room");
        self.shared.push(Answer { slot: self.slot, header, content: Content::InPlace(count) });
    }

    /// Answers. `parts` that are longer than a structure need the payload; an answer that does not fit becomes EIO.
    pub(crate) fn send(mut self, mut header: OutHeader, parts: [&[u8]; 2]) {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut bytes = [0; STRUCTURE_BYTES];
        let content = match self.room() {
            Some(room) if length <= room.len() => {
                join(room, parts);
                Content::InPlace(length)
            }
            None if length <= bytes.len() => {
                join(&mut bytes, parts);
                Content::Structure(bytes, length)
            }
            _ => {
                tracing::error!(length, "an answer does not fit into its entry; answered EIO");
                header = OutHeader { length: size_of::<OutHeader>() as u32, error: -libc::EIO, ..header };
                Content::InPlace(0)
            }
        };
        self.shared.push(Answer { slot: self.slot, header, content });
    }
}

/// Copies parts to the beginning of a place that has room for them.
fn join(place: &mut [u8], [first, second]: [&[u8]; 2]) {
    let (start, rest) = place.split_at_mut(first.len());
    start.copy_from_slice(first);
    rest[..second.len()].copy_from_slice(second);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    const PAYLOAD: usize = 8192;

    fn shared() -> Arc<Shared> {
        Arc::new(Shared::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap()))
    }

    fn header(length: u32) -> OutHeader {
        OutHeader { length, error: 0, unique: 7 }
    }

    fn answer(shared: &Shared) -> Answer {
        let mut answers = Vec::new();
        shared.take(&mut answers);
        assert_eq!(answers.len(), 1);
        answers.remove(0)
    }

    #[test]
    fn bytes_in_the_room_of_a_ticket_are_sent_without_a_copy() {
        let (shared, memory) = (shared(), Arc::new(Memory::new(PAYLOAD).unwrap()));
        let mut ticket = Ticket::new(&shared, 3, Some(Arc::clone(&memory)));
        // SAFETY: no kernel has the entry, and no reference lives.
        let payload = unsafe { memory.request(PAYLOAD) }.as_ptr();
        let room = ticket.room().unwrap();
        assert_eq!((room.as_ptr(), room.len()), (payload, PAYLOAD), "the room is the payload itself");
        room[..4].copy_from_slice(b"data");
        ticket.send_room(header(20), 4);
        let answer = answer(&shared);
        assert!(matches!(answer.content, Content::InPlace(4)) && answer.slot == 3);
        // SAFETY: as above; the ticket is gone.
        assert_eq!(unsafe { memory.request(4) }, b"data");
    }

    #[test]
    fn a_ticket_without_the_payload_keeps_a_structure_beside_it() {
        let shared = shared();
        let mut ticket = Ticket::new(&shared, 0, None);
        assert!(ticket.room().is_none(), "the request still lies in the payload");
        ticket.send(header(24), [b"size", b"more"]);
        let Content::Structure(bytes, 8) = answer(&shared).content else { panic!("not a structure") };
        assert_eq!(&bytes[..8], b"sizemore");
    }

    #[test]
    fn an_answer_too_long_for_its_entry_becomes_eio() {
        let (shared, memory) = (shared(), Arc::new(Memory::new(PAYLOAD).unwrap()));
        for payload in [None, Some(memory)] {
            Ticket::new(&shared, 0, payload).send(header(9000), [&[1; PAYLOAD], &[2]]);
            let answer = answer(&shared);
            let OutHeader { length, error, unique } = answer.header;
            assert_eq!((length, error, unique), (16, -libc::EIO, 7));
            assert!(matches!(answer.content, Content::InPlace(0)));
        }
    }

    #[test]
    fn an_answer_wakes_a_sleeping_ring_alone() {
        let shared = shared();
        let woken = || rustix::io::read(shared.wake_descriptor(), &mut [0; 8]).is_ok();
        let send = || Ticket::new(&shared, 0, None).send(header(16), [&[]; 2]);
        send();
        assert!(!woken() && !shared.fall_asleep(), "an answer is there already");
        answer(&shared);
        assert!(shared.fall_asleep());
        send();
        assert!(woken());
        send();
        assert!(!woken(), "it has been woken");
    }
}
