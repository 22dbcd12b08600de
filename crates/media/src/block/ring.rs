//! Transfers between memory and a file. A transfer of a single request runs by preadv or pwritev in the
//! calling thread. The requests of a larger transfer go through io_uring, all in flight together.
//!
//! Invariants: a transfer returns only when the kernel has finished with every piece of its buffer,
//! errors included. A ring is used by one transfer at a time and goes back to the pool only when nothing is
//! in flight on it. Where the kernel refuses io_uring (old kernel, seccomp) preadv and pwritev serve.

use io_uring::{IoUring, opcode, types::Fd};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_runtime::sync::Mutex;

/// Pieces in flight per transfer.
const PIECES_IN_FLIGHT: usize = 32;
/// Bytes per piece: large enough for full bandwidth, small enough that 16 MiB fills the queue.
const PIECE_BYTES: usize = 512 * 1024;
/// Rings kept for later transfers.
const KEPT_RINGS: usize = 64;
const BLOCK_BYTES: usize = 4096;

/// The direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Read,
    Write,
}

/// Memory and where in the file its bytes belong.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub buffer: *mut u8,
    /// Bytes, a multiple of 4096.
    pub length: usize,
    pub offset: u64,
}

/// A part of a span.
#[derive(Clone, Copy)]
struct Piece {
    span: usize,
    start: usize,
    length: usize,
}

/// The rings of one device, made when first needed.
#[derive(Default)]
pub(super) struct Rings {
    idle: Mutex<Vec<IoUring>>,
    refused: AtomicBool,
}

impl Rings {
    /// Rings, or a promise never to make one (tests of the other path).
    pub(super) fn new(refused: bool) -> Rings {
        Rings { idle: Mutex::new(Vec::new()), refused: AtomicBool::new(refused) }
    }

    /// Whether transfers go through io_uring as far as known.
    pub(super) fn in_use(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    /// Moves a span's bytes.
    ///
    /// # Errors
    /// The first piece's errno; EIO when the file ends early. Any part may have been moved.
    ///
    /// # Safety
    /// The span's buffer is valid for its length and for a read nobody else uses it.
    pub(super) unsafe fn transfer(
        &self,
        file: BorrowedFd<'_>,
        direction: Direction,
        span: Span,
    ) -> Result<(), i32> {
        let mut failures = [None];
        // SAFETY: the caller's promise.
        unsafe { self.transfer_all(file, direction, &[span], &mut failures) };
        failures[0].map_or(Ok(()), Err)
    }

    /// Moves the bytes of several spans, in flight together. `failures` has one entry for each span and gets
    /// the errno of a span that fails (as of [`Self::transfer`]). A failed span does not end the rest, and a
    /// span whose entry is set from before is left out.
    ///
    /// # Safety
    /// As [`Self::transfer`], of each; no two buffers of a read overlap.
    pub(super) unsafe fn transfer_all(
        &self,
        file: BorrowedFd<'_>,
        direction: Direction,
        spans: &[Span],
        failures: &mut [Option<i32>],
    ) {
        assert_eq!(spans.len(), failures.len(), "each span has an outcome");
        // A lone request may as well wait in the call itself. Where the file cannot be read without waiting,
        // such as a file that a FUSE server exports, a ring would hand the request to a thread of the kernel.
        let single = matches!(spans, [span] if span.length <= PIECE_BYTES);
        let Some(mut ring) = (if single { None } else { self.take() }) else {
            for (span, failure) in spans.iter().zip(failures).filter(|(_, failure)| failure.is_none()) {
                // SAFETY: the caller's promise.
                *failure = unsafe { transfer_by_calls(file, direction, *span) }.err();
            }
            return;
        };
        let job = Job { file: Fd(file.as_raw_fd()), direction, spans };
        // SAFETY: the caller's promise.
        let clean = unsafe { job.run(&mut ring, failures) };
        if clean {
            let mut idle = self.idle.lock();
            if idle.len() < KEPT_RINGS {
                idle.push(ring);
            }
        }
    }

    fn take(&self) -> Option<IoUring> {
        if let Some(ring) = self.idle.lock().pop() {
            return Some(ring);
        }
        if !self.in_use() {
            return None;
        }
        match IoUring::new(PIECES_IN_FLIGHT as u32) {
            Ok(ring) => Some(ring),
            Err(error) => {
                // for want of memory or descriptors: by calls this time; refused: for good
                if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS | libc::EACCES)) {
                    tracing::info!(%error, "io_uring is refused here; using preadv and pwritev");
                    self.refused.store(true, Ordering::Relaxed);
                }
                None
            }
        }
    }
}

/// A transfer of spans on a ring.
struct Job<'a> {
    file: Fd,
    direction: Direction,
    spans: &'a [Span],
}

/// The pieces of spans, in order, of those that have not failed.
struct Pieces {
    span: usize,
    next: usize,
}

impl Pieces {
    fn next(&mut self, spans: &[Span], failures: &[Option<i32>]) -> Option<Piece> {
        loop {
            let span = spans.get(self.span)?;
            if self.next < span.length && failures.get(self.span).is_some_and(Option::is_none) {
                let length = PIECE_BYTES.min(span.length - self.next);
                let piece = Piece { span: self.span, start: self.next, length };
                self.next += length;
                return Some(piece);
            }
            (self.span, self.next) = (self.span + 1, 0);
        }
    }
}

impl Job<'_> {
    /// Runs to the end. The value says whether the ring can be used again.
    ///
    /// # Safety
    /// As [`Rings::transfer_all`].
    unsafe fn run(&self, ring: &mut IoUring, failures: &mut [Option<i32>]) -> bool {
        let mut slots: [Option<Piece>; PIECES_IN_FLIGHT] = [None; PIECES_IN_FLIGHT];
        let mut again: Vec<Piece> = Vec::new();
        let mut pieces = Pieces { span: 0, next: 0 };
        let mut in_flight = 0;
        loop {
            while in_flight < PIECES_IN_FLIGHT {
                let Some(piece) = again.pop().or_else(|| pieces.next(self.spans, failures)) else { break };
                // SAFETY: the piece is inside the caller's buffer, which outlives this loop.
                if !unsafe { self.push(ring, &mut slots, piece) } {
                    again.push(piece);
                    break;
                }
                in_flight += 1;
            }
            if in_flight == 0 {
                assert!(slots.iter().all(Option::is_none), "a ring goes back with a piece in flight");
                return true;
            }
            if let Err(error) = ring.submit_and_wait(1) {
                match error.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => std::thread::yield_now(),
                    code => {
                        drain(ring, in_flight);
                        let code = code.unwrap_or(libc::EIO);
                        failures.iter_mut().for_each(|failure| *failure = failure.or(Some(code)));
                        return false;
                    }
                }
            }
            for entry in ring.completion() {
                let slot = slots.get_mut(entry.user_data() as usize);
                let Some(piece) = slot.and_then(Option::take) else {
                    continue;
                };
                in_flight -= 1;
                let Some(failure) = failures.get_mut(piece.span) else { continue };
                match advance(piece, entry.result()) {
                    Ok(Some(rest)) if failure.is_none() => again.push(rest),
                    Ok(_) => {}
                    Err(code) => *failure = failure.or(Some(code)),
                }
            }
        }
    }

    /// Queues one piece; false when the queue is full.
    ///
    /// # Safety
    /// The piece's memory stays valid until its completion was seen.
    unsafe fn push(
        &self,
        ring: &mut IoUring,
        slots: &mut [Option<Piece>; PIECES_IN_FLIGHT],
        piece: Piece,
    ) -> bool {
        let Some(slot) = slots.iter().position(Option::is_none) else {
            return false;
        };
        let Some(span) = self.spans.get(piece.span) else {
            return false;
        };
        // SAFETY: inside the caller's buffer.
        let at = unsafe { span.buffer.add(piece.start) };
        let position = span.offset + piece.start as u64;
        let bytes = piece.length as u32;
        let entry = match self.direction {
            Direction::Read => opcode::Read::new(self.file, at, bytes).offset(position).build(),
            Direction::Write => opcode::Write::new(self.file, at, bytes).offset(position).build(),
        };
        // SAFETY: the caller keeps the buffer until the completion was seen.
        let queued = unsafe { ring.submission().push(&entry.user_data(slot as u64)) };
        if queued.is_ok() {
            slots[slot] = Some(piece);
        }
        queued.is_ok()
    }
}

/// Waits, without help from the kernel's wait, until nothing submitted is in flight.
fn drain(ring: &mut IoUring, in_flight: usize) {
    let mut submitted = in_flight.saturating_sub(ring.submission().len());
    while submitted > 0 {
        let done = ring.completion().count();
        submitted = submitted.saturating_sub(done);
        std::thread::yield_now();
    }
}

/// The rest of a piece after the kernel answered `result`.
fn advance(piece: Piece, result: i32) -> Result<Option<Piece>, i32> {
    if result == -libc::EINTR || result == -libc::EAGAIN {
        return Ok(Some(piece));
    }
    if result < 0 {
        return Err(-result);
    }
    // direct I/O continues at a block; less than one block is no progress
    let done = (result as usize).min(piece.length) / BLOCK_BYTES * BLOCK_BYTES;
    if done == 0 {
        return Err(libc::EIO);
    }
    let rest = Piece { start: piece.start + done, length: piece.length - done, ..piece };
    Ok((rest.length != 0).then_some(rest))
}

/// Writes a span durably: each call returns when its bytes are durable (RWF_DSYNC), by a write that passes the device's
/// cache where the device can do so, else by a flush behind it.
///
/// # Errors
/// The errno; any part may be durable.
///
/// # Safety
/// As [`Rings::transfer`].
pub(super) unsafe fn write_dsync(file: BorrowedFd<'_>, span: Span) -> Result<(), i32> {
    let mut left = Some(Piece { span: 0, start: 0, length: span.length }).filter(|p| p.length != 0);
    while let Some(piece) = left {
        let position = (span.offset + piece.start as u64) as libc::off_t;
        // SAFETY: the rest of the caller's buffer.
        let moved = unsafe {
            let vector = libc::iovec { iov_base: span.buffer.add(piece.start).cast(), iov_len: piece.length };
            libc::pwritev2(file.as_raw_fd(), &vector, 1, position, libc::RWF_DSYNC)
        };
        let failed = || -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        left = advance(piece, if moved < 0 { failed() } else { moved as i32 })?;
    }
    Ok(())
}

/// The same by preadv and pwritev, one piece after the other.
///
/// # Safety
/// As [`Rings::transfer`].
unsafe fn transfer_by_calls(file: BorrowedFd<'_>, direction: Direction, span: Span) -> Result<(), i32> {
    let mut left = Some(Piece { span: 0, start: 0, length: span.length }).filter(|p| p.length != 0);
    while let Some(piece) = left {
        let position = (span.offset + piece.start as u64) as libc::off_t;
        let fd = file.as_raw_fd();
        // SAFETY: the rest of the caller's buffer.
        let moved = unsafe {
            let vector = libc::iovec {
                iov_base: span.buffer.add(piece.start).cast(),
                iov_len: piece.length.min(PIECE_BYTES),
            };
            match direction {
                Direction::Read => libc::preadv(fd, &vector, 1, position),
                Direction::Write => libc::pwritev(fd, &vector, 1, position),
            }
        };
        let result = if moved < 0 {
            -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
        } else {
            moved as i32
        };
        left = advance(piece, result)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_interrupted_pieces_continue_and_an_early_end_is_an_error() {
        let piece = Piece { span: 0, start: 4096, length: 8192 };
        let rest = advance(piece, 4096).unwrap().unwrap();
        assert_eq!((rest.start, rest.length), (8192, 4096));
        let rest = advance(piece, 5000).unwrap().unwrap();
        assert_eq!((rest.start, rest.length), (8192, 4096));
        assert!(advance(piece, 8192).unwrap().is_none());
        assert_eq!(advance(piece, -libc::EINTR).unwrap().unwrap().length, 8192);
        assert_eq!(advance(piece, 0).err(), Some(libc::EIO));
        assert_eq!(advance(piece, -libc::ENOSPC).err(), Some(libc::ENOSPC));
    }

    #[test]
    fn pieces_of_a_failed_span_are_left_out() {
        let span = |length| Span { buffer: std::ptr::null_mut(), length, offset: 0 };
        let spans = [span(PIECE_BYTES + 4096), span(0), span(2 * PIECE_BYTES), span(8192)];
        let mut failures = [None; 4];
        let mut pieces = Pieces { span: 0, next: 0 };
        let mut next = |failures: &[Option<i32>]| {
            pieces.next(&spans, failures).map(|piece| (piece.span, piece.start, piece.length))
        };
        assert_eq!(next(&failures), Some((0, 0, PIECE_BYTES)));
        assert_eq!(next(&failures), Some((0, PIECE_BYTES, 4096)));
        assert_eq!(next(&failures), Some((2, 0, PIECE_BYTES)));
        failures[2] = Some(libc::EIO);
        assert_eq!(next(&failures), Some((3, 0, 8192)));
        assert_eq!(next(&failures), None);
    }
}
