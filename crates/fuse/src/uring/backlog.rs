//! Requests that wait in the kernel because their queue had no free entry.
//!
//! The kernel hands a new entry to the next request alone; requests that wait are fetched by the commit of an answer. So
//! after a queue got new entries, the kernel is asked to send a request of no meaning ([`Notifier::ask_for_a_request`]): the commit
//! of its entry fetches the first that waits. As long as that helps, the kernel is asked again.

use crate::notifier::Notifier;
use crate::protocol::layout::opcode;

/// Fetches requests that wait in the kernel, for the queue of this thread's processor.
pub(super) struct Backlog {
    notifier: Notifier,
    /// The entry whose commit fetches a request, and the round of that commit.
    fetches: Option<(usize, u64)>,
    /// Whether the kernel could not be asked.
    is_to_fetch: bool,
    /// The regular files that were used last.
    files: [u64; 4],
}

impl Backlog {
    pub fn new(notifier: Notifier) -> Backlog {
        Backlog { notifier, fetches: None, is_to_fetch: false, files: [0; 4] }
    }

    /// A request has come in an entry: in a round of the ring, by its number, for a node.
    pub fn came(&mut self, slot: usize, round: u64, number: u32, node: u64) {
        match number {
            opcode::NOTIFY_REPLY => self.fetches = Some((slot, round)),
            opcode::READ
            | opcode::WRITE
            | opcode::OPEN
            | opcode::RELEASE
            | opcode::FSYNC
            | opcode::FALLOCATE
                if self.files[0] != node =>
            {
                self.files.rotate_right(1);
                self.files[0] = node;
            }
            _ => {}
        }
        if let Some((fetches, began)) = self.fetches
            && fetches == slot
            && number != opcode::NOTIFY_REPLY
        {
            self.fetches = None;
            // The commit was answered at once: more requests may wait.
            if round <= began + 1 {
                self.fetch();
            }
        }
    }

    /// Has the kernel send a request of no meaning. If it knows none of the files that were used last, it is to be asked
    /// again later.
    pub fn fetch(&mut self) {
        let notifier = &self.notifier;
        let is_asked = self.files.iter().any(|file| *file != 0 && notifier.ask_for_a_request(*file).is_ok());
        self.is_to_fetch = !is_asked;
    }

    /// The kernel is to be asked later.
    pub fn fetch_later(&mut self) {
        self.is_to_fetch = true;
    }

    /// Whether the kernel is to be asked again later.
    pub fn is_to_fetch(&self) -> bool {
        self.is_to_fetch
    }

    /// The ring is gone, and commits with it.
    pub fn ring_is_gone(&mut self) {
        self.fetches = None;
    }
}
