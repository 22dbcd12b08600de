//! Commands of a ring: their layout, and the ring that carries them.
//!
//! Invariant: memory that a command points at lives until the ring is closed.

use io_uring::types::Fixed;
use io_uring::{IoUring, cqueue, opcode, squeue::Entry128};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use terrace_runtime::thread::offer_processor;
use zerocopy::{Immutable, IntoBytes};

/// The FUSE device among the registered files of a ring: the kernel looks no descriptor up.
const DEVICE: Fixed = Fixed(0);
/// Commands that go to the kernel in one call, at most.
const COMMANDS: u32 = 64;
/// Completions that can wait to be looked at.
const COMPLETIONS: u32 = 4096;

/// A ring of commands for entries.
pub(super) type Commands = IoUring<Entry128, cqueue::Entry>;

/// Commands of the kernel (`enum fuse_uring_cmd`).
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
enum Number {
    Register = 1,
    CommitAndFetch = 2,
}

/// `struct fuse_uring_cmd_req` in its 80 bytes.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Request {
    flags: u64,
    commit_id: u64,
    queue: u16,
    padding: [u8; 62],
}

const _: () = assert!(size_of::<Request>() == 80);

/// A ring for the calling thread alone.
///
/// # Errors
/// The kernel's, where io_uring is forbidden or too old.
pub(super) fn new_ring() -> io::Result<Commands> {
    let mut builder = IoUring::builder();
    // The kernel copies requests into payloads only during a call of this thread that waits: see `Entries::give_back`.
    builder.setup_single_issuer().setup_defer_taskrun().setup_cqsize(COMPLETIONS);
    builder.build(COMMANDS)
}

/// Tells a ring of the FUSE device that its commands go to.
///
/// # Errors
/// The kernel's.
pub(super) fn register_device(ring: &Commands, device: &impl AsFd) -> io::Result<()> {
    ring.submitter().register_files(&[device.as_fd().as_raw_fd()])
}

/// Hands a queue an entry with its headers and payload; the completion brings its first request.
pub(super) fn register(queue: u16, parts: &[libc::iovec; 2]) -> Entry128 {
    let mut command = command(Number::Register, queue, 0, parts.as_ptr() as u64);
    const OF_LENGTH: usize = 24;
    const _: () = assert!(size_of::<Entry128>() == 128);
    // SAFETY: an entry is `struct io_uring_sqe` with 64 bytes behind it, whose `len` lies at byte 24. The crate has no
    // method for it.
    unsafe { (&raw mut command).cast::<u8>().add(OF_LENGTH).cast::<u32>().write(2) };
    command
}

/// Commits the answer to a request; the completion brings the next request.
pub(super) fn commit(queue: u16, commit_id: u64) -> Entry128 {
    command(Number::CommitAndFetch, queue, commit_id, 0)
}

fn command(number: Number, queue: u16, commit_id: u64, address: u64) -> Entry128 {
    let request = Request { flags: 0, commit_id, queue, padding: [0; 62] };
    let mut bytes = [0; 80];
    bytes.copy_from_slice(request.as_bytes());
    let address = (address != 0).then_some(address);
    opcode::UringCmd80::new(DEVICE, number as u32).cmd(bytes).addr(address).build()
}

/// Puts a command in line for the next call; calls the kernel when the line is full.
///
/// # Safety
/// The memory that the command points at lives until the ring is closed.
pub(super) unsafe fn push(ring: &mut Commands, command: &Entry128) -> io::Result<()> {
    loop {
        // SAFETY: by the contract of this function.
        if unsafe { ring.submission().push(command) }.is_ok() {
            return Ok(());
        }
        submit(ring)?;
    }
}

/// Has the kernel read the commands in line; again when it is short of memory for the moment.
///
/// # Errors
/// The kernel's.
pub(super) fn submit(ring: &Commands) -> io::Result<()> {
    loop {
        match ring.submit() {
            Err(error) if is_passing(&error) => offer_processor(),
            result => return result.map(drop),
        }
    }
}

/// Whether a call to the kernel may succeed when it is repeated.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}
