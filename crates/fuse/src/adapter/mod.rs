//! The requests of the kernel over a mounted pool: the switchboard. Each handler turns arguments into a call and the result
//! into a reply; the files beside this one hold the handlers by subject.
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

use crate::mount::Transport;
use crate::protocol::init::Capability;
use crate::protocol::layout::InHeader;
use crate::protocol::{Operation, Reply};
use crate::server::{OF_A_FILE_SYSTEM, Server};
use rustix::io::Errno;
use terrace_format::Ino;

impl Server for Adapter {
    fn wanted(&self) -> &'static [Capability] {
        OF_A_FILE_SYSTEM
    }

    fn begins(&self, transport: Transport) {
        // A processor has a single request thread, which may not wait.
        if transport == Transport::Uring {
            self.requests.never_wait_here();
        }
    }

    fn serve(&self, asker: &InHeader, operation: Operation<'_>, reply: Reply) {
        let ino = Ino(asker.node);
        match operation {
            Operation::Lookup { name } => names::lookup(self, asker, name, reply),
            Operation::GetAttributes => attributes::getattr(self, asker, reply),
            Operation::SetAttributes(changes) => attributes::setattr(self, asker, &changes, reply),
            Operation::ReadLink => names::readlink(self, asker, reply),
            Operation::SymbolicLink { name, target } => names::symlink(self, asker, name, target, reply),
            Operation::MakeNode { name, mode, rdev } => names::mknod(self, asker, name, (mode, rdev), reply),
            Operation::MakeDirectory { name, mode } => names::mkdir(self, asker, name, mode, reply),
            Operation::Unlink { name } => names::unlink(self, asker, name, reply),
            Operation::RemoveDirectory { name } => names::rmdir(self, asker, name, reply),
            Operation::Rename { name, new_parent, new_name, flags } => {
                names::rename(self, asker, name, (Ino(new_parent), new_name), flags, reply);
            }
            Operation::Link { node, name } => names::link(self, asker, Ino(node), name, reply),
            Operation::Open { flags } => handles::open(self, asker, flags, reply),
            Operation::Create { name, mode, flags } => {
                handles::create(self, asker, name, (mode, flags), reply)
            }
            Operation::Release { .. } => handles::release(self, ino, reply),
            Operation::Read(part) => content::read(self, asker, &part, reply),
            Operation::Write(part, data) => content::write(self, asker, &part, data, reply),
            Operation::Fsync { handle, data_only } => content::fsync(self, asker, handle, data_only, reply),
            Operation::FsyncDirectory => content::fsyncdir(self, asker, reply),
            Operation::Fallocate { offset, length, mode } => {
                content::fallocate(self, asker, (offset, length), mode, reply);
            }
            Operation::Seek { offset, whence } => content::seek(self, asker, (offset, whence), reply),
            Operation::ReadDirectory { cookie, size } => names::readdir(self, asker, cookie, size, reply),
            Operation::ReadDirectoryPlus { cookie, size } => {
                names::readdirplus(self, asker, cookie, size, reply)
            }
            Operation::StatFs => attributes::statfs(self, asker, reply),
            Operation::SetXattr { name, value, flags } => {
                attributes::setxattr(self, asker, (name, value), flags, reply);
            }
            Operation::GetXattr { name, size } => attributes::getxattr(self, asker, name, size, reply),
            Operation::ListXattr { size } => attributes::listxattr(self, asker, size, reply),
            Operation::RemoveXattr { name } => attributes::removexattr(self, asker, name, reply),
            // The kernel then opens directories itself, without a request, and remembers listings (decision 0033).
            Operation::OpenDirectory => reply.error(Errno::NOSYS),
            // The kernel does not ask for a flush (FOPEN_NOFLUSH): a close needs no work.
            Operation::ReleaseDirectory | Operation::Flush => reply.done(),
            Operation::IoControl => reply.error(Errno::NOTTY),
            // Not asked for here, or not built: the kernel does without, as with copy_file_range.
            Operation::Forget { .. }
            | Operation::BatchForget(_)
            | Operation::Interrupt { .. }
            | Operation::Destroy
            | Operation::Unknown => reply.error(Errno::NOSYS),
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        names::forget(self, Ino(node), lookups);
    }
}
