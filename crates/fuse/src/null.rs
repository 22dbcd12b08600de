//! A server without work of its own, with the same session as the adapter: it shows the cost of the kernel
//! path itself.
//!
//! Holds one file, `file`, that reads as zeros and takes every write; fsync is answered. Used by the bench.

use crate::session;
use crate::validity::VALID;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::time::UNIX_EPOCH;

/// Name of the one file.
pub const FILE_NAME: &str = "file";
const FILE: INodeNo = INodeNo(2);

thread_local! {
    static ZEROS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The null server.
#[derive(Debug)]
pub struct NullServer {
    /// Size of the file in bytes.
    pub size_bytes: u64,
}

impl NullServer {
    fn attributes(&self, node: INodeNo) -> FileAttr {
        let directory = node == INodeNo::ROOT;
        FileAttr {
            ino: node,
            size: if directory { 0 } else { self.size_bytes },
            blocks: self.size_bytes / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if directory { FileType::Directory } else { FileType::RegularFile },
            perm: if directory { 0o755 } else { 0o644 },
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for NullServer {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        session::negotiate(config)
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == FILE_NAME {
            reply.entry(&VALID, &self.attributes(FILE), Generation(1));
        } else {
            session::absent(reply);
        }
    }

    fn getattr(&self, _request: &Request, node: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&VALID, &self.attributes(node));
    }

    fn open(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let count = u64::from(size).min(self.size_bytes.saturating_sub(offset)) as usize;
        ZEROS.with_borrow_mut(|zeros| {
            if zeros.len() < count {
                zeros.resize(count, 0);
            }
            reply.data(&zeros[..count]);
        });
    }

    fn write(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.written(data.len() as u32);
    }

    fn fsync(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn readdir(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectory,
    ) {
        if cookie > 0 || !reply.add(FILE, 1, FileType::RegularFile, FILE_NAME) {
            reply.ok();
        } else {
            reply.error(Errno::EINVAL);
        }
    }
}
