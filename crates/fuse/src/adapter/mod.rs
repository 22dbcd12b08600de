//! `fuser::Filesystem` over a mounted pool: the switchboard. Each handler turns arguments into a call and the result into a
//! reply; the files beside this one hold the handlers by subject.
//!
//! [`terrace_transport::Requests`] runs the calls: first in the request thread, then in a thread that may wait (design
//! L2).
//!
//! Kernel caching. The daemon is the only writer, so names (absent ones too) and attributes are valid for a
//! day; the kernel itself invalidates what its own requests change: size, blocks, mtime and ctime after
//! writes, atime after reads that reach the daemon, a directory after a change in it. Migration changes
//! neither names nor attributes. Two cases need more: the mode of a file with set-id bits is not remembered
//! ([`crate::set_id`]); and if a file was open for direct I/O, the kernel's pages of it are dropped before
//! the first cached open is answered (decision 0020).

mod attributes;
mod content;
mod handles;
mod names;
mod replies;
mod state;

pub use state::{Adapter, CONTROL_XATTR, EARLIER_CONTROL_XATTR, drop_pages};

use crate::session;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::SystemTime;
use terrace_engine::SetAttributes;

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        session::negotiate(config)
    }

    /// After the last request: waits until the waiting threads have answered their requests.
    fn destroy(&mut self) {
        self.requests.end();
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        names::lookup(self, request, parent, name, reply);
    }

    fn forget(&self, _request: &Request, node: INodeNo, count: u64) {
        names::forget(self, node, count);
    }

    fn getattr(&self, request: &Request, node: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        attributes::getattr(self, request, node, reply);
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = SetAttributes { mode, uid, gid, size, ..Default::default() };
        attributes::setattr(self, request, node, change, (atime, mtime), reply);
    }

    fn readlink(&self, request: &Request, node: INodeNo, reply: ReplyData) {
        names::readlink(self, request, node, reply);
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        names::mknod(self, request, (parent, name), (mode, rdev), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        names::mkdir(self, request, (parent, name), mode, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        names::unlink(self, request, parent, name, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        names::rmdir(self, request, parent, name, reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        names::symlink(self, request, (parent, name), target, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        names::rename(self, request, (parent, name), (new_parent, new_name), flags, reply);
    }

    fn link(&self, request: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        names::link(self, request, node, (parent, name), reply);
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        handles::open(self, request, node, flags, reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        handles::create(self, request, (parent, name), (mode, flags), reply);
    }

    fn read(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        content::read(self, request, (node, handle), (offset, size), flags, reply);
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        content::write(self, request, (node, offset), data, (write_flags, flags), reply);
    }

    /// The kernel does not ask for it (FOPEN_NOFLUSH): a close needs no work.
    fn flush(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn release(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        handles::release(self, node, reply);
    }

    fn fsync(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        content::fsync(self, request, (node, handle), data_only, reply);
    }

    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn readdir(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        cookie: u64,
        reply: ReplyDirectory,
    ) {
        names::readdir(self, request, node, cookie, reply);
    }

    fn readdirplus(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        cookie: u64,
        reply: ReplyDirectoryPlus,
    ) {
        names::readdirplus(self, request, node, cookie, reply);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        content::fsyncdir(self, node, reply);
    }

    fn statfs(&self, request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        attributes::statfs(self, request, reply);
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        attributes::setxattr(self, request, node, (name, value), flags, reply);
    }

    fn getxattr(&self, request: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        attributes::getxattr(self, request, node, name, size, reply);
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        attributes::listxattr(self, request, node, size, reply);
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        attributes::removexattr(self, request, node, name, reply);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _input: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        content::fallocate(self, request, node, (offset, length), mode, reply);
    }

    fn lseek(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        content::lseek(self, request, node, (offset, whence), reply);
    }

    /// ENOSYS: the kernel copies by reads and writes from then on.
    fn copy_file_range(
        &self,
        _request: &Request,
        _from: INodeNo,
        _from_handle: FileHandle,
        _from_offset: u64,
        _to: INodeNo,
        _to_handle: FileHandle,
        _to_offset: u64,
        _length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }
}
