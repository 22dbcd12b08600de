//! Requests on open files: open, create, close.

use super::replies::{answer, done};
use super::state::{Adapter, asked, caller};
use crate::convert::{entry_of, open_flags};
use crate::protocol::Reply;
use crate::protocol::layout::InHeader;
use crate::set_id::is_to_run;
use rustix::io::Errno;
use std::cell::OnceCell;
use terrace_engine::{Attributes, Caller, FsError, FsResult, Wait};
use terrace_format::Ino;
use terrace_transport::{OpenMode, Served};

/// A create under way. When a create leaves the request thread, the file that it made is not made again: with
/// O_EXCL the create would find its own file and fail.
struct Creation {
    parent: Ino,
    mode: u32,
    flags: u32,
    caller: Caller,
    /// The file, with a lookup reference, and whether it is to be truncated.
    entry: OnceCell<(Attributes, bool)>,
}

impl Creation {
    fn new(parent: Ino, mode: u32, flags: u32, caller: Caller) -> Creation {
        Creation { parent, mode, flags, caller, entry: OnceCell::new() }
    }

    /// Makes the file or looks it up.
    fn entry(&self, served: &Served, name: &[u8], wait: Wait) -> FsResult<(Attributes, bool)> {
        if let Some(entry) = self.entry.get() {
            return Ok(*entry);
        }
        let entry = match served.fs().mknod(self.parent, name, self.mode, 0, self.caller, wait) {
            Err(FsError::Exists) if self.flags & libc::O_EXCL as u32 == 0 => {
                (served.fs().try_lookup(self.parent, name, wait)?, self.flags & libc::O_TRUNC as u32 != 0)
            }
            made => (made?, false),
        };
        Ok(*self.entry.get_or_init(|| entry))
    }

    /// Makes the file or looks it up, and opens it. After an error the lookup reference is given back, unless
    /// the error is only that the open would have to wait.
    fn open(&self, served: &Served, name: &[u8], wait: Wait) -> FsResult<(Attributes, OpenMode)> {
        let (found, truncate) = self.entry(served, name, wait)?;
        match served.open(found.ino, truncate, wants_write(self.flags), wait) {
            Ok(open_mode) => Ok((found, open_mode)),
            Err(FsError::WouldBlock) if wait != Wait::Allowed => Err(FsError::WouldBlock),
            Err(error) => {
                served.fs().forget(found.ino, 1);
                Err(error)
            }
        }
    }
}

fn wants_write(flags: u32) -> bool {
    flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32
}

/// O_TRUNC does not come here: the kernel sends a setattr after the open (see `OF_A_FILE_SYSTEM`).
pub(super) fn open(adapter: &Adapter, asker: &InHeader, flags: u32, reply: Reply) {
    let handle = adapter.requests.fs().new_handle();
    if is_to_run(flags) && adapter.changes.restarts(asker.node, asker.pid) {
        return reply.error(Errno::STALE);
    }
    let ino = Ino(asker.node);
    let call = move |served: &Served, _: &[u8], wait| served.open(ino, false, wants_write(flags), wait);
    adapter.requests.attempt(asked(asker, "open"), &[], call, move |result| {
        answer(reply, result, |reply, mode| reply.opened(handle, open_flags(mode)));
    });
}

pub(super) fn create(
    adapter: &Adapter,
    asker: &InHeader,
    name: &[u8],
    (mode, flags): (u32, u32),
    reply: Reply,
) {
    let mode = libc::S_IFREG | (mode & 0o7777);
    let creation = Creation::new(Ino(asker.node), mode, flags, caller(asker));
    let call = move |served: &Served, name: &[u8], wait| creation.open(served, name, wait);
    let handle = adapter.requests.fs().new_handle();
    adapter.requests.attempt(asked(asker, "create"), name, call, move |result| {
        answer(reply, result, |reply, (found, open_mode): (Attributes, OpenMode)| {
            reply.created(&entry_of(&found), handle, open_flags(open_mode));
        });
    });
}

pub(super) fn release(adapter: &Adapter, ino: Ino, reply: Reply) {
    let result = adapter.requests.direct("release", |served| {
        served.release(ino);
        Ok(())
    });
    done(reply, result);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use terrace_engine::{
        Engine, FormatOptions, MountOptions, PolicyKind, PoolMedia, Simulation, format, read_superblock,
    };
    use terrace_format::address::ROOT_INO;
    use terrace_media::pm::RecordedPm;
    use terrace_runtime::ManualClock;
    use terrace_transport::KernelCache;

    fn pool() -> Served {
        let pm = Arc::new(RecordedPm::new(2 << 20));
        let media = PoolMedia { pm: pm.clone(), block: Vec::new() };
        let options = FormatOptions {
            map: Default::default(),
            label: "test".into(),
            uuid: [7; 16],
            hash_key: [9; 16],
            seal_secret: Some([9; 16]),
            policy: PolicyKind::STATIC,
            data_ordered: false,
            data_checksums: false,
            chunk_blocks: 16,
            created_ns: 1,
            root: Default::default(),
            devices: Vec::new(),
        };
        format(&media, &options).unwrap();
        let (superblock, _) = read_superblock(&*pm, true).unwrap();
        let clock = Arc::new(ManualClock::new(1));
        let fs = Engine::mount(media, superblock, MountOptions::default(), clock).unwrap();
        Served::new(fs, KernelCache::new(0))
    }

    /// A create once made its file, had to wait, and made the file again on another thread: EEXIST, with
    /// O_EXCL.
    #[test]
    fn a_waiting_create_keeps_its_file() {
        let served = pool();
        let fs = served.fs();
        let caller = Caller { uid: 0, gid: 0 };
        let flags = (libc::O_CREAT | libc::O_EXCL | libc::O_RDWR) as u32;
        let creation = Creation::new(ROOT_INO, libc::S_IFREG | 0o600, flags, caller);
        // The first attempt ends here, as if the open had to wait.
        let (made, _) = creation.entry(&served, b"file", Wait::Never).unwrap();
        let (found, _) = creation.open(&served, b"file", Wait::Allowed).unwrap();
        assert_eq!((found.ino, found.generation), (made.ino, made.generation));
        // A file of another create still gives EEXIST.
        let other = Creation::new(ROOT_INO, libc::S_IFREG | 0o600, flags, caller);
        assert!(matches!(other.open(&served, b"file", Wait::Allowed), Err(FsError::Exists)));
        // The create held one lookup reference throughout: the inode number is free when it is given back.
        fs.unlink(ROOT_INO, b"file", Wait::Allowed).unwrap();
        served.release(found.ino);
        fs.run_background(100);
        assert!(fs.getattr(found.ino).is_ok());
        fs.forget(found.ino, 1);
        fs.run_background(100);
        assert!(matches!(fs.getattr(found.ino), Err(FsError::Stale)));
    }
}
