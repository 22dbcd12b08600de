//! The few system calls that the standard library lacks.
#![allow(unsafe_code)] // a test program: mappings and locks as C programs use them

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

fn result(status: libc::c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// fallocate(2).
pub(crate) fn fallocate(file: &File, mode: i32, offset: u64, length: u64) -> io::Result<()> {
    // SAFETY: takes a descriptor and numbers.
    result(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, length as i64) })
}

/// Makes a hole.
pub(crate) fn punch(file: &File, offset: u64, length: u64) -> io::Result<()> {
    fallocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, length)
}

/// lseek(2) with SEEK_HOLE or SEEK_DATA.
pub(crate) fn seek(file: &File, offset: u64, whence: i32) -> io::Result<u64> {
    // SAFETY: takes a descriptor and numbers.
    let at = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) };
    if at < 0 { Err(io::Error::last_os_error()) } else { Ok(at as u64) }
}

/// fsetxattr(2).
pub(crate) fn set_attribute(file: &File, name: &str, value: &[u8]) -> io::Result<()> {
    let name = std::ffi::CString::new(name)?;
    let (pointer, length) = (value.as_ptr().cast(), value.len());
    // SAFETY: both buffers live through the call, and the name ends with a zero.
    result(unsafe { libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), pointer, length, 0) })
}

/// flistxattr(2) into a buffer of the size that the kernel allows at most; gives the bytes of all names.
pub(crate) fn list_attributes(file: &File) -> io::Result<usize> {
    let mut names = vec![0u8; 64 << 10];
    // SAFETY: the buffer lives through the call, and its length is passed.
    let length = unsafe { libc::flistxattr(file.as_raw_fd(), names.as_mut_ptr().cast(), names.len()) };
    usize::try_from(length).map_err(|_| io::Error::last_os_error())
}

/// Drops a file's pages from the kernel's cache.
pub(crate) fn drop_cache(file: &File) -> io::Result<()> {
    // SAFETY: takes a descriptor and numbers.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// flock(2).
pub(crate) fn flock(file: &File, operation: i32) -> io::Result<()> {
    // SAFETY: takes a descriptor and a number.
    result(unsafe { libc::flock(file.as_raw_fd(), operation) })
}

/// fcntl(2) locks of a range: `command` F_SETLK or F_OFD_SETLK, `kind` F_WRLCK, F_RDLCK or F_UNLCK.
pub(crate) fn range_lock(file: &File, command: i32, kind: i32, start: i64, length: i64) -> io::Result<()> {
    // SAFETY: all zeros is a valid flock.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (start, length);
    // SAFETY: the pointer is to a flock that lives through the call.
    result(unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) })
}

/// A mapping of a file from its start.
pub(crate) struct Mapping {
    address: *mut u8,
    length: usize,
}

impl Mapping {
    pub fn new(file: &File, length: usize, flags: i32) -> io::Result<Mapping> {
        Mapping::with(file, length, libc::PROT_READ | libc::PROT_WRITE, flags)
    }
    /// Of a file that is open for reading alone.
    pub fn of_reader(file: &File, length: usize) -> io::Result<Mapping> {
        Mapping::with(file, length, libc::PROT_READ, libc::MAP_SHARED)
    }
    fn with(file: &File, length: usize, protection: i32, flags: i32) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { address: address.cast(), length })
    }
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.length);
        // SAFETY: within the mapping; other processes may change the bytes, so each byte is copied once.
        (0..length).map(|at| unsafe { self.address.add(offset + at).read_volatile() }).collect()
    }
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        // SAFETY: within the mapping, which is writable.
        bytes.iter().enumerate().for_each(|(at, byte)| unsafe {
            self.address.add(offset + at).write_volatile(*byte);
        });
    }
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the range is the mapping.
        result(unsafe { libc::msync(self.address.cast(), self.length, libc::MS_SYNC) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, and no pointer into the mapping is left.
        unsafe { libc::munmap(self.address.cast(), self.length) };
    }
}

/// A zeroed buffer aligned for O_DIRECT.
pub(crate) fn aligned(length: usize) -> &'static mut [u8] {
    let layout = std::alloc::Layout::from_size_align(length, 4096).unwrap_or(std::alloc::Layout::new::<u8>());
    // SAFETY: the layout's size is not zero for our callers; the memory is initialised and never freed.
    unsafe {
        let address = std::alloc::alloc_zeroed(layout);
        assert!(!address.is_null() && length > 0);
        std::slice::from_raw_parts_mut(address, length)
    }
}

/// statvfs-like figures of a file system: (block size, blocks, free blocks, files, free files).
pub(crate) fn space(file: &File) -> io::Result<(u64, u64, u64)> {
    // SAFETY: all zeros is a valid statfs, and the pointer is to one that lives through the call.
    let mut space: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    result(unsafe { libc::fstatfs(file.as_raw_fd(), &mut space) })?;
    Ok((space.f_bsize as u64, space.f_blocks, space.f_bfree))
}

/// Bytes of a file system that statfs(2) calls available.
pub(crate) fn available(file: &File) -> io::Result<u64> {
    // SAFETY: all zeros is a valid statfs, and the pointer is to one that lives through the call.
    let mut space: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    result(unsafe { libc::fstatfs(file.as_raw_fd(), &mut space) })?;
    Ok(space.f_bsize as u64 * space.f_bavail)
}

/// open(2) with O_RDONLY and O_TRUNC, which the standard library refuses to do.
pub(crate) fn open_truncating(path: &std::path::Path) -> io::Result<std::fs::File> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the string lives through the call and ends with a zero.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_TRUNC | libc::O_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: this function made the descriptor and alone owns the number.
    Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(file) })
}

/// Words of a file handle: its length in bytes, its type, and room for the longest.
const HANDLE_WORDS: usize = 2 + libc::MAX_HANDLE_SZ as usize / 4;

/// The handle of a file, from name_to_handle_at(2).
pub(crate) struct FileHandle([u32; HANDLE_WORDS]);

impl FileHandle {
    /// Of the file with this name.
    pub fn of(path: &std::path::Path) -> io::Result<FileHandle> {
        use std::os::unix::ffi::OsStrExt;
        let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
        let mut handle = [0; HANDLE_WORDS];
        handle[0] = libc::MAX_HANDLE_SZ as u32;
        let mut mount = 0;
        // SAFETY: the string ends with a zero, the handle has the room that it states; both outlive the call.
        let status = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                libc::AT_FDCWD,
                path.as_ptr(),
                handle.as_mut_ptr(),
                &mut mount,
                0,
            )
        };
        result(status as libc::c_int)?;
        Ok(FileHandle(handle))
    }

    /// open_by_handle_at(2) on the mount that `mount` lies on.
    pub fn open(&self, mount: &File, flags: i32) -> io::Result<File> {
        let flags = flags | libc::O_CLOEXEC;
        // SAFETY: the handle lives through the call.
        let file =
            unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), self.0.as_ptr(), flags) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: this function made the descriptor and alone owns the number.
        Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(file as i32) })
    }
}

/// geteuid(2).
pub(crate) fn effective_user() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// renameat2(2) with flags.
pub(crate) fn rename(from: &std::ffi::CStr, to: &std::ffi::CStr, flags: u32) -> io::Result<()> {
    // SAFETY: both strings live through the call and end with a zero.
    result(unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) })
}
