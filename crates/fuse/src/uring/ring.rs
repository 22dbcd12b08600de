//! One ring: the entries of some queues of the kernel, served by one thread.
//!
//! A request comes with the completion of its entry's command. Its answer and the wait for the next request are one
//! command; the commands of all answers that are ready go to the kernel in one system call, which also waits.
//!
//! Invariants: an entry is with the kernel, here, or over. Each queue has an entry that is not away as long as entries can
//! be had: else the next request of that processor would wait for a device of another one's file.

use super::memory::{Headers, Memory};
use super::ticket::{Answer, Content, Shared, Ticket};
use crate::classic::dispatch;
use crate::protocol::layout::opcode;
use crate::protocol::{Input, Reply};
use crate::session::Server;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode as operation, squeue::Entry128};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// Commands of the kernel (`enum fuse_uring_cmd`).
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// Entries of a queue at first, and at least without a request.
const ENTRIES_AT_FIRST: usize = 4;
const LEAST_FREE: usize = 2;
/// Commands that go to the kernel in one call, at most.
const COMMANDS: u32 = 64;
/// Completions that can wait to be looked at.
const COMPLETIONS: u32 = 4096;
/// Completions that are no entry's.
const WAKE: u64 = u64::MAX;
/// Bytes of a payload that an idle entry keeps.
const KEPT_BYTES: usize = 64 << 10;
/// Time without a request after which larger payloads are given back.
const IDLE: Timespec = Timespec::new().sec(1);

/// `struct fuse_uring_cmd_req` in its 80 bytes.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Command {
    flags: u64,
    commit_id: u64,
    queue: u16,
    padding: [u8; 62],
}

const _: () = assert!(size_of::<Command>() == 80);

enum State {
    /// Waits for a request.
    Kernel,
    /// Has a request that is not answered, with the number for its answer.
    Here(u64),
    Over,
}

struct Slot {
    queue: u16,
    memory: Arc<Memory>,
    /// Headers and payload as the kernel is told of them; it reads them when the command is submitted.
    _parts: Box<[libc::iovec; 2]>,
    state: State,
    /// The payload has had more than [`KEPT_BYTES`].
    is_large: bool,
}

/// A ring with its entries.
pub(super) struct Ring {
    ring: IoUring<Entry128, cqueue::Entry>,
    shared: Arc<Shared>,
    slots: Vec<Slot>,
    /// Names and values of requests, copied out of their payload.
    names: Vec<u8>,
    answers: Vec<Answer>,
}

impl Ring {
    /// A ring for the calling thread, without entries.
    ///
    /// # Errors
    /// The kernel's, where io_uring is forbidden or too old.
    pub fn new() -> io::Result<Ring> {
        let mut builder = IoUring::<Entry128, cqueue::Entry>::builder();
        // The kernel copies requests into payloads only during a call that waits: see `give_back`.
        builder.setup_single_issuer().setup_defer_taskrun().setup_cqsize(COMPLETIONS);
        let ring = builder.build(COMMANDS)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Ring {
            ring,
            shared: Arc::new(Shared::new(wake)),
            slots: Vec::new(),
            names: Vec::new(),
            answers: Vec::new(),
        })
    }

    /// Registers the first entries of queues.
    ///
    /// # Errors
    /// The kernel's, or no memory.
    pub fn register(&mut self, device: &OwnedFd, queues: &[u16], payload_bytes: usize) -> io::Result<()> {
        self.shared.adopt();
        for &queue in queues {
            for _ in 0..ENTRIES_AT_FIRST {
                self.add(device, queue, payload_bytes)?;
            }
        }
        self.watch()?;
        self.ring.submit()?;
        Ok(())
    }

    /// A further entry of a queue.
    fn add(&mut self, device: &OwnedFd, queue: u16, payload_bytes: usize) -> io::Result<()> {
        let memory = Arc::new(Memory::new(payload_bytes)?);
        let parts = Box::new(memory.parts());
        let command = command(device, REGISTER, queue, 0, Some(&parts)).user_data(self.slots.len() as u64);
        self.slots.push(Slot { queue, memory, _parts: parts, state: State::Kernel, is_large: false });
        self.push(&command)
    }

    /// Has the ring tell of answers of other threads.
    fn watch(&mut self) -> io::Result<()> {
        let wake = Fd(self.shared.wake_descriptor().as_raw_fd());
        let poll = operation::PollAdd::new(wake, libc::POLLIN as u32).build().user_data(WAKE);
        self.push(&poll.into())
    }

    fn push(&mut self, command: &Entry128) -> io::Result<()> {
        loop {
            // SAFETY: what a command points at (the parts of a slot, memory, descriptors) lives until the ring is closed.
            if unsafe { self.ring.submission().push(command) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    /// Serves until every entry is over.
    ///
    /// # Errors
    /// The kernel's for the ring itself.
    pub fn serve(&mut self, device: &OwnedFd, server: &dyn Server, payload_bytes: usize) -> io::Result<()> {
        loop {
            self.commit(device)?;
            self.keep_some_free(device, payload_bytes)?;
            if self.slots.iter().all(|slot| matches!(slot.state, State::Over)) {
                return Ok(());
            }
            let want = usize::from(self.shared.fall_asleep());
            let waited = self.wait(want);
            self.shared.wake_up();
            match waited.map_err(|error| (error.raw_os_error().unwrap_or(0), error)) {
                Ok(_) | Err((libc::EINTR | libc::EBUSY | libc::EAGAIN, _)) => {}
                Err((libc::ETIME, _)) => self.give_back(),
                Err((_, error)) => return Err(error),
            }
            let completions: Vec<(u64, i32)> =
                self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
            for (number, result) in completions {
                if number == WAKE {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(self.shared.wake_descriptor(), &mut count);
                    self.watch()?;
                } else {
                    self.completed(number as usize, result, server);
                    self.commit(device)?;
                }
            }
        }
    }

    /// Submits, and waits for `want` completions; not for ever while memory can be given back.
    fn wait(&self, want: usize) -> io::Result<usize> {
        if want == 0 || !self.slots.iter().any(|slot| slot.is_large) {
            return self.ring.submit_and_wait(want);
        }
        self.ring.submitter().submit_with_args(want, &SubmitArgs::new().timespec(&IDLE))
    }

    /// Gives back the memory of large requests that are over.
    fn give_back(&mut self) {
        if !self.ring.completion().is_empty() {
            return;
        }
        for slot in self.slots.iter_mut().filter(|slot| matches!(slot.state, State::Kernel)) {
            if std::mem::take(&mut slot.is_large) {
                // SAFETY: no request lies in the payload: none has completed, and the kernel copies the next one during
                // this thread's next call that waits.
                unsafe { slot.memory.give_back() };
            }
        }
    }

    /// An entry has come back from the kernel.
    fn completed(&mut self, number: usize, result: i32, server: &dyn Server) {
        let Some(slot) = self.slots.get_mut(number) else { return };
        if result < 0 {
            // The session is over, or the kernel refused the command.
            if !matches!(-result, libc::ENOTCONN | libc::ECANCELED | libc::ECONNABORTED | libc::ENODEV) {
                tracing::error!(queue = slot.queue, result, "an entry of the ring is lost");
            }
            slot.state = State::Over;
            return;
        }
        // SAFETY: the entry has just come back, and nobody else knows of it yet.
        let headers = unsafe { slot.memory.headers() };
        slot.state = State::Here(headers.commit_id);
        slot.is_large |= headers.payload_bytes as usize > KEPT_BYTES;
        let Some(header) = headers.request() else { return };
        let memory = Arc::clone(&slot.memory);
        // SAFETY: until the answer is committed the payload is written by the request's ticket alone. A ticket has the
        // payload only if the request was copied out of it.
        let request = unsafe { memory.request(headers.payload_bytes as usize) };
        let lies_in_payload = matches!(header.opcode, opcode::WRITE | opcode::SETXATTR);
        let payload = (!lies_in_payload).then(|| Arc::clone(&memory));
        let rest = if lies_in_payload {
            request
        } else {
            self.names.clear();
            self.names.extend_from_slice(request);
            &self.names
        };
        let input = Input::Apart { fixed: &headers.fixed, rest };
        let ticket = || Ticket::new(&self.shared, number, payload);
        dispatch(server, &header, input, || Reply::in_entry(header.unique, ticket()));
    }

    /// Hands the answers that are ready to the kernel, with the next call.
    fn commit(&mut self, device: &OwnedFd) -> io::Result<()> {
        let mut answers = std::mem::take(&mut self.answers);
        self.shared.take(&mut answers);
        for answer in answers.drain(..) {
            let Some(slot) = self.slots.get_mut(answer.slot) else { continue };
            let State::Here(commit_id) = slot.state else {
                unreachable!("an entry without a request was answered");
            };
            let length = match answer.content {
                Content::InPlace(length) => length,
                Content::Structure(bytes, length) => {
                    // SAFETY: the request has been served and answered: its borrow of the payload is over, and so is its
                    // ticket.
                    let payload = unsafe { slot.memory.payload_mut() };
                    payload[..length].copy_from_slice(&bytes[..length]);
                    length
                }
            };
            slot.is_large |= length > KEPT_BYTES;
            // SAFETY: the entry is here until the command below is submitted.
            unsafe {
                let mut headers: Headers = slot.memory.headers();
                headers.answer(&answer.header, length as u32);
                slot.memory.set_headers(&headers);
            }
            slot.state = State::Kernel;
            let command =
                command(device, COMMIT_AND_FETCH, slot.queue, commit_id, None).user_data(answer.slot as u64);
            self.push(&command)?;
        }
        self.answers = answers;
        Ok(())
    }

    /// Registers more entries of a queue whose entries are nearly all away.
    fn keep_some_free(&mut self, device: &OwnedFd, payload_bytes: usize) -> io::Result<()> {
        let mut free: Vec<(u16, usize)> = Vec::new();
        for slot in &self.slots {
            let with_kernel = usize::from(matches!(slot.state, State::Kernel));
            match free.iter_mut().find(|(queue, _)| *queue == slot.queue) {
                Some((_, count)) => *count += with_kernel,
                None => free.push((slot.queue, with_kernel)),
            }
        }
        if self.slots.iter().any(|slot| matches!(slot.state, State::Over)) {
            return Ok(());
        }
        for (queue, count) in free {
            for _ in count..LEAST_FREE {
                self.add(device, queue, payload_bytes)?;
            }
        }
        Ok(())
    }
}

/// A command for an entry.
fn command(
    device: &impl AsFd,
    number: u32,
    queue: u16,
    commit_id: u64,
    parts: Option<&[libc::iovec; 2]>,
) -> Entry128 {
    let request = Command { flags: 0, commit_id, queue, padding: [0; 62] };
    let mut bytes = [0; 80];
    bytes.copy_from_slice(request.as_bytes());
    let address = parts.map(|parts| parts.as_ptr() as u64);
    let mut entry =
        operation::UringCmd80::new(Fd(device.as_fd().as_raw_fd()), number).cmd(bytes).addr(address).build();
    if parts.is_some() {
        const OF_LENGTH: usize = 24;
        const _: () = assert!(size_of::<Entry128>() == 128);
        // SAFETY: an entry is `struct io_uring_sqe` with 64 bytes behind it, whose `len` lies at byte 24. The crate has no
        // method for it.
        unsafe { (&raw mut entry).cast::<u8>().add(OF_LENGTH).cast::<u32>().write(2) };
    }
    entry
}
