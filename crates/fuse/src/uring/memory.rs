//! Memory of an entry: a block of headers and a payload, which kernel and daemon write in turns.
//!
//! Invariants: while an entry is with the kernel (registered, or its answer committed) the daemon neither reads nor writes
//! its memory; from its completion until the next commit the kernel does neither. The mapping lives until no entry can be
//! with the kernel any more: it is unmapped after the ring is closed.

use crate::protocol::layout::{InHeader, OutHeader, ReadIn, opcode};
use crate::protocol::request::FIXED_BYTES;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ptr::NonNull;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a page, in which the headers lie before the payload.
const PAGE_BYTES: usize = 4096;

/// `struct fuse_uring_req_header`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Headers {
    /// [`InHeader`] on the way in, [`OutHeader`] on the way out.
    pub in_out: [u8; FIXED_BYTES],
    /// The fixed part of the operation.
    pub fixed: [u8; FIXED_BYTES],
    flags: u64,
    /// Names the request when its answer is committed.
    pub commit_id: u64,
    /// Bytes of the payload: of the request, then of the reply.
    pub payload_bytes: u32,
    padding: u32,
    reserved: u64,
}

const _: () = assert!(size_of::<Headers>() == 288);

impl Headers {
    /// The header of the request.
    pub fn request(&self) -> InHeader {
        const _: () = assert!(size_of::<InHeader>() <= FIXED_BYTES);
        InHeader::read_from_prefix(&self.in_out).map(|(header, _)| header).unwrap_or_default()
    }

    /// Bytes that a read asks for, 0 for another request.
    pub fn bytes_asked_for(&self) -> usize {
        match (self.request().opcode, ReadIn::read_from_prefix(&self.fixed)) {
            (opcode::READ, Ok((read, _))) => read.size as usize,
            _ => 0,
        }
    }

    /// Takes the header and the length of a reply.
    pub fn answer(&mut self, header: &OutHeader, payload_bytes: u32) {
        self.in_out[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        self.payload_bytes = payload_bytes;
    }
}

/// The memory of one entry.
pub(super) struct Memory {
    base: NonNull<u8>,
    payload_bytes: usize,
}

// SAFETY: the mapping is plain memory without thread affinity; every access says why it is the only one.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps memory for an entry with a payload of this size. Untouched pages take no memory.
    pub fn new(payload_bytes: usize) -> io::Result<Memory> {
        let length = PAGE_BYTES + payload_bytes;
        // SAFETY: a new private mapping at an address that the kernel chooses.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Memory { base, payload_bytes };
        // A huge page would take 2 MiB for headers alone. A kernel without huge pages refuses the advice.
        // SAFETY: the range is the mapping.
        let _ = unsafe { madvise(base.as_ptr().cast(), length, Advice::LinuxNoHugepage) };
        Ok(memory)
    }

    /// Headers and payload, as the kernel is told of them.
    pub fn parts(&self) -> [libc::iovec; 2] {
        [
            libc::iovec { iov_base: self.base.as_ptr().cast(), iov_len: size_of::<Headers>() },
            libc::iovec { iov_base: self.payload().as_ptr().cast(), iov_len: self.payload_bytes },
        ]
    }

    fn payload(&self) -> NonNull<u8> {
        // SAFETY: the mapping is a page longer than the payload.
        unsafe { self.base.add(PAGE_BYTES) }
    }

    /// Copies the headers out.
    ///
    /// # Safety
    /// The entry is not with the kernel.
    pub unsafe fn headers(&self) -> Headers {
        // SAFETY: the page holds the structure; any bytes are one.
        unsafe { self.base.cast::<Headers>().read() }
    }

    /// Copies the headers in.
    ///
    /// # Safety
    /// The entry is not with the kernel.
    pub unsafe fn set_headers(&self, headers: &Headers) {
        // SAFETY: as above.
        unsafe { self.base.cast::<Headers>().write(*headers) }
    }

    /// The bytes of a request in the payload.
    ///
    /// # Safety
    /// The entry is not with the kernel, and nobody writes the payload while the reference lives.
    pub unsafe fn request(&self, length: usize) -> &[u8] {
        // SAFETY: the mapping has these bytes, and they are initialized (zeros at first).
        unsafe { std::slice::from_raw_parts(self.payload().as_ptr(), length.min(self.payload_bytes)) }
    }

    /// The payload, to write an answer into it.
    ///
    /// # Safety
    /// The entry is not with the kernel, and no other reference to the payload lives.
    #[allow(clippy::mut_from_ref)] // the caller has the only right to the payload
    pub unsafe fn payload_mut(&self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.payload().as_ptr(), self.payload_bytes) }
    }

    /// Gives the payload's pages back to the system; they read as zeros afterwards.
    ///
    /// # Safety
    /// No reference to the payload is left. The kernel may hold the entry: it writes whole requests.
    pub unsafe fn give_back(&self) {
        // SAFETY: the range belongs to the mapping.
        let _ = unsafe { madvise(self.payload().as_ptr().cast(), self.payload_bytes, Advice::LinuxDontNeed) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this object, and no reference to it is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), PAGE_BYTES + self.payload_bytes) };
    }
}
