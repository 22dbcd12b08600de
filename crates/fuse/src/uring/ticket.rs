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
const STRUCTURE_BYTES: usize = size_of::<CreateOut>();

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

    /// Answers. `parts` that are longer than a structure need the payload; an answer that does not fit becomes EIO.
    pub(crate) fn send(self, mut header: OutHeader, parts: [&[u8]; 2]) {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut content = Content::Structure([0; STRUCTURE_BYTES], length);
        let place: Option<&mut [u8]> = match (&mut content, &self.payload) {
            (Content::Structure(bytes, _), _) if length <= bytes.len() => Some(&mut bytes[..]),
            // SAFETY: the payload belongs to this ticket, and to it alone, until the answer is pushed below.
            (_, Some(memory)) => Some(unsafe { memory.payload_mut() }),
            _ => None,
        };
        match place {
            Some(place) if length <= place.len() => {
                let (first, second) = place.split_at_mut(parts[0].len());
                first.copy_from_slice(parts[0]);
                second[..parts[1].len()].copy_from_slice(parts[1]);
                if length > STRUCTURE_BYTES {
                    content = Content::InPlace(length);
                }
            }
            _ => {
                tracing::error!(length, "an answer does not fit into its entry; answered EIO");
                header.error = -libc::EIO;
                content = Content::InPlace(0);
            }
        }
        self.shared.push(Answer { slot: self.slot, header, content });
    }
}
