//! Transfers between memory and a file through io_uring, split into pieces in flight together.
//!
//! Invariants: a transfer returns only when the kernel has finished with every piece of its buffer,
//! errors included. A ring is used by one transfer at a time and goes back to the pool only when nothing is
//! in flight on it. Where the kernel refuses io_uring (old kernel, seccomp) preadv and pwritev serve.

use io_uring::{IoUring, opcode, types::Fd};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_runtime::sync::Mutex;

/// Pieces in flight per transfer.
const DEPTH: usize = 32;
/// Bytes per piece: large enough for full bandwidth, small enough that 16 MiB fills the queue.
const PIECE: usize = 512 * 1024;
/// Rings kept for later transfers.
const KEPT: usize = 64;
const BLOCK: usize = 4096;

/// Which way bytes move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Read,
    Write,
}

/// Memory and where in the file it belongs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// First byte in memory.
    pub buffer: *mut u8,
    /// Bytes, a multiple of 4096.
    pub length: usize,
    /// First byte in the file.
    pub offset: u64,
}

impl Span {
    /// What follows after its first `done` bytes, at most its length.
    fn after(self, done: usize) -> Span {
        // Stays inside the span: no memory is touched here.
        let buffer = self.buffer.wrapping_add(done);
        Span { buffer, length: self.length - done, offset: self.offset + done as u64 }
    }
}

/// The spans cut to pieces for one request each.
fn pieces(spans: &[Span]) -> impl Iterator<Item = Span> {
    spans.iter().flat_map(|span| {
        let starts = (0..span.length).step_by(PIECE);
        starts.map(|start| {
            let rest = span.after(start);
            Span { length: rest.length.min(PIECE), ..rest }
        })
    })
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

    /// Moves all spans between memory and the file, in flight together.
    ///
    /// # Errors
    /// The first piece's errno; EIO when the file ends early. Any part may have been moved.
    ///
    /// # Safety
    /// Each span's memory is valid for its length and for a read nobody else uses it.
    pub(super) unsafe fn transfer(
        &self,
        file: BorrowedFd<'_>,
        direction: Direction,
        spans: &[Span],
    ) -> Result<(), i32> {
        let ring = self.take();
        let Some(mut ring) = ring else {
            // SAFETY: the caller's promise.
            return unsafe { transfer_by_calls(file, direction, spans) };
        };
        let job = Job { file: Fd(file.as_raw_fd()), direction };
        // SAFETY: the caller's promise.
        let (result, clean) = unsafe { job.run(&mut ring, spans) };
        if clean {
            let mut idle = self.idle.lock();
            if idle.len() < KEPT {
                idle.push(ring);
            }
        }
        result
    }

    fn take(&self) -> Option<IoUring> {
        if let Some(ring) = self.idle.lock().pop() {
            return Some(ring);
        }
        if !self.in_use() {
            return None;
        }
        match IoUring::new(DEPTH as u32) {
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

/// One transfer on one ring.
struct Job {
    file: Fd,
    direction: Direction,
}

impl Job {
    /// Runs to the end. The second value says whether the ring can be used again.
    ///
    /// # Safety
    /// As [`Rings::transfer`].
    unsafe fn run(&self, ring: &mut IoUring, spans: &[Span]) -> (Result<(), i32>, bool) {
        let mut slots: [Option<Span>; DEPTH] = [None; DEPTH];
        let mut again: Vec<Span> = Vec::new();
        let mut pieces = pieces(spans);
        let mut in_flight = 0;
        let mut failure = None;
        loop {
            while failure.is_none() && in_flight < DEPTH {
                let Some(piece) = again.pop().or_else(|| pieces.next()) else { break };
                // SAFETY: the piece is inside one of the caller's spans, which outlive this loop.
                if !unsafe { self.push(ring, &mut slots, piece) } {
                    again.push(piece);
                    break;
                }
                in_flight += 1;
            }
            if in_flight == 0 {
                return (failure.map_or(Ok(()), Err), true);
            }
            if let Err(error) = ring.submit_and_wait(1) {
                match error.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => std::thread::yield_now(),
                    code => {
                        drain(ring, in_flight);
                        return (Err(code.unwrap_or(libc::EIO)), false);
                    }
                }
            }
            for entry in ring.completion() {
                let slot = slots.get_mut(entry.user_data() as usize);
                let Some(piece) = slot.and_then(Option::take) else {
                    continue;
                };
                in_flight -= 1;
                match advance(piece, entry.result()) {
                    Ok(Some(rest)) => again.push(rest),
                    Ok(None) => {}
                    Err(code) => failure = failure.or(Some(code)),
                }
            }
        }
    }

    /// Queues one piece; false when the queue is full.
    ///
    /// # Safety
    /// The piece's memory stays valid until its completion was seen.
    unsafe fn push(&self, ring: &mut IoUring, slots: &mut [Option<Span>; DEPTH], piece: Span) -> bool {
        let Some(slot) = slots.iter().position(Option::is_none) else {
            return false;
        };
        let (at, position, bytes) = (piece.buffer, piece.offset, piece.length as u32);
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

/// What is left of a piece after the kernel answered `result`.
fn advance(piece: Span, result: i32) -> Result<Option<Span>, i32> {
    if result == -libc::EINTR || result == -libc::EAGAIN {
        return Ok(Some(piece));
    }
    if result < 0 {
        return Err(-result);
    }
    // direct I/O continues at a block; less than one block is no progress
    let done = (result as usize).min(piece.length) / BLOCK * BLOCK;
    if done == 0 {
        return Err(libc::EIO);
    }
    let rest = piece.after(done);
    Ok((rest.length != 0).then_some(rest))
}

/// The same by preadv and pwritev, one piece after the other.
///
/// # Safety
/// As [`Rings::transfer`].
unsafe fn transfer_by_calls(file: BorrowedFd<'_>, direction: Direction, spans: &[Span]) -> Result<(), i32> {
    for piece in pieces(spans) {
        let mut left = Some(piece);
        while let Some(piece) = left {
            let position = piece.offset as libc::off_t;
            let fd = file.as_raw_fd();
            let vector = libc::iovec { iov_base: piece.buffer.cast(), iov_len: piece.length };
            // SAFETY: the rest of one of the caller's spans.
            let moved = unsafe {
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
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_interrupted_pieces_continue_and_an_early_end_is_an_error() {
        let piece = Span { buffer: std::ptr::null_mut(), length: 8192, offset: 4096 };
        let rest = advance(piece, 4096).unwrap().unwrap();
        assert_eq!((rest.offset, rest.length), (8192, 4096));
        let rest = advance(piece, 5000).unwrap().unwrap();
        assert_eq!((rest.offset, rest.length), (8192, 4096));
        assert!(advance(piece, 8192).unwrap().is_none());
        assert_eq!(advance(piece, -libc::EINTR).unwrap().unwrap().length, 8192);
        assert_eq!(advance(piece, 0).err(), Some(libc::EIO));
        assert_eq!(advance(piece, -libc::ENOSPC).err(), Some(libc::ENOSPC));
    }

    #[test]
    fn spans_are_cut_to_pieces() {
        let span = |offset: u64, length| Span { buffer: offset as usize as *mut u8, length, offset };
        let spans = [span(4096, 8192), span(1 << 20, PIECE + 4096), span(0, 0)];
        let found: Vec<_> = pieces(&spans).map(|p| (p.buffer as u64, p.offset, p.length)).collect();
        let last = (1 << 20) + PIECE as u64;
        assert_eq!(found, [(4096, 4096, 8192), (1 << 20, 1 << 20, PIECE), (last, last, 4096)]);
    }
}
