//! The adapter: the requests of one mount, and the parts that only FUSE has.

use crate::notifier::Notifier;
use crate::protocol::layout::InHeader;
use crate::set_id::{Changes, Changing, Rights, has_set_id};
use std::sync::{Arc, OnceLock};
use terrace_engine::{Attributes, Caller, Wait};
use terrace_format::Ino;
use terrace_transport::requests::Asked;
use terrace_transport::{Requests, Served};

/// Extended attribute of every inode, in no listing, with the path of the daemon's control socket. For names
/// that begin with `system.` the kernel does not read the inode first, so the answer comes even if the inode
/// cannot be read.
pub const CONTROL_XATTR: &str = "system.terrace_control";

/// The attribute's name until 2026.
pub const EARLIER_CONTROL_XATTR: &str = "terrace.control";

/// The kernel's requests, answered by a file system.
pub struct Adapter {
    pub(super) requests: Requests,
    pub(super) changes: Arc<Changes>,
    /// The value of [`CONTROL_XATTR`].
    pub(super) control: Vec<u8>,
    /// Lives as long as the session; all other holders are weak references.
    _kernel: Arc<OnceLock<Notifier>>,
}

/// Has the kernel drop all pages of an inode; true when it did. Runs in a waiting thread before the file's only open is
/// answered, so no request holds a page of the file. `kernel` is set when the session has begun.
pub fn drop_pages(kernel: &Arc<OnceLock<Notifier>>) -> impl Fn(Ino) -> bool + Send + Sync + 'static {
    // A weak reference: a strong one would keep the session's FUSE device open.
    let notifier = Arc::downgrade(kernel);
    move |number| {
        let notifier = notifier.upgrade();
        let kernel = notifier.as_ref().and_then(|notifier| notifier.get());
        kernel.is_some_and(|kernel| kernel.invalidate_inode(number.0, 0, 0).is_ok())
    }
}

/// A request of a user, for the pools of waiting requests.
pub(super) fn asked(asker: &InHeader, operation: &'static str) -> Asked {
    Asked { user: asker.uid, operation }
}

/// The owner of an inode that the request makes.
pub(super) fn caller(asker: &InHeader) -> Caller {
    Caller { uid: asker.uid, gid: asker.gid }
}

impl Adapter {
    /// An adapter over a mounted pool. `control` is the value of [`CONTROL_XATTR`]; `kernel` is set when the session
    /// has begun.
    pub fn new(served: Arc<Served>, control: Vec<u8>, kernel: Arc<OnceLock<Notifier>>) -> Adapter {
        Adapter { requests: Requests::new(served), changes: Arc::default(), control, _kernel: kernel }
    }

    /// Attributes of a file that may have set-id bits to lose; `None` when it has no such bits. The kernel
    /// allows no change of the mode during a change of the content.
    fn set_id_file(&self, ino: Ino) -> Option<Result<Attributes, rustix::io::Errno>> {
        let found = self.requests.direct("getattr", |served| served.fs().try_getattr(ino, Wait::Never));
        // If the attributes cannot be read without waiting, the file may have set-id bits.
        if found.as_ref().is_ok_and(|found| !has_set_id(found)) { None } else { Some(found) }
    }

    /// Whether a file may have set-id bits to lose.
    pub(super) fn may_have_set_id(&self, ino: Ino) -> bool {
        self.set_id_file(ino).is_some()
    }

    /// Begins a change of the content of a file that may have set-id bits.
    pub(super) fn begin_change(&self, ino: Ino) -> Changing {
        self.changes.begin(self.requests.fs(), ino.0)
    }

    /// For a caller that changes content: `None` when no set-id bits are lost, else whether the caller is in
    /// the file's group.
    pub(super) fn takes_set_id(&self, asker: &InHeader, ino: Ino) -> Option<(bool, Changing)> {
        let found = self.set_id_file(ino)?;
        let rights = Rights::of(asker);
        if rights.keeps_set_id {
            return None;
        }
        Some((found.is_ok_and(|found| rights.is_in(found.gid)), self.begin_change(ino)))
    }
}
