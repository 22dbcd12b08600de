//! Servers: what answers the requests of a session, whatever way they come.

use crate::mount::Transport;
use crate::protocol::init::Capability;
use crate::protocol::layout::{InHeader, opcode};
use crate::protocol::request::Malformed;
use crate::protocol::{Input, Operation, Reply};
use rustix::io::Errno;

/// Answers the requests of a session. It is dropped when the session is over, after the last request.
pub trait Server: Send + Sync + 'static {
    /// The capabilities that the server needs; those that an older kernel lacks are left out.
    fn wanted(&self) -> &'static [Capability];

    /// The session begins: requests will come by `transport`.
    fn begins(&self, _transport: Transport) {}

    /// Answers a request, in this thread or later in another.
    fn serve(&self, asker: &InHeader, operation: Operation<'_>, reply: Reply);

    /// The kernel gives up references to a node.
    fn forget(&self, node: u64, lookups: u64);
}

/// The capabilities of a file system.
pub(crate) const OF_A_FILE_SYSTEM: &[Capability] = &[
    Capability::ParallelDirops,
    // File handles (open_by_handle_at, NFS) of inodes that the kernel has forgotten: it looks up "." and "..".
    Capability::ExportSupport,
    // Not ASYNC_DIO: the kernel drops pages before it sends an asynchronous direct write and not again after it. A reader
    // that fills a page in between keeps the old content (xfstests generic/451).
    // Not ATOMIC_O_TRUNC: the daemon would truncate before the kernel knows whether the open is allowed (ETXTBSY is judged
    // after it for O_RDONLY | O_TRUNC).
    Capability::DoReaddirplus,
    Capability::ReaddirplusAuto,
    // Shared mappings of files opened for direct I/O (Linux 6.6).
    Capability::DirectIoAllowMmap,
    // The daemon removes set-id bits; without this flag each buffered write asks for security.capability.
    Capability::HandleKillprivV2,
    // All changes pass this kernel: a changed mtime must not drop cached pages.
    Capability::ExplicitInvalData,
    Capability::CacheSymlinks,
];

/// Whether the kernel waits for no answer to a request of this number.
pub(crate) fn is_unanswered(number: u32) -> bool {
    matches!(number, opcode::FORGET | opcode::BATCH_FORGET | opcode::NOTIFY_REPLY)
}

/// Decodes a request and has it answered.
pub(crate) fn dispatch(
    server: &dyn Server,
    header: &InHeader,
    input: Input<'_>,
    reply: impl FnOnce() -> Reply,
) {
    match Operation::decode(header.opcode, input) {
        Ok(Operation::Forget { lookups }) => server.forget(header.node, lookups),
        Ok(Operation::BatchForget(forgets)) => {
            forgets.iter().for_each(|one| server.forget(one.node, one.lookups));
        }
        _ if is_unanswered(header.opcode) => {}
        // The kernel then waits for each request that it has handed out.
        Ok(Operation::Unknown | Operation::Interrupt { .. }) => reply().error(Errno::NOSYS),
        Ok(operation) => server.serve(header, operation, reply()),
        Err(malformed) => refuse(header, malformed, reply()),
    }
}

#[cold]
fn refuse(header: &InHeader, malformed: Malformed, reply: Reply) {
    tracing::error!(opcode = header.opcode, unique = header.unique, "a malformed request; answered EINVAL");
    reply.error(malformed.into());
}
