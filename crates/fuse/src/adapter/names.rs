//! Requests on names: look-ups, new and removed names, listings.

use super::replies::{answer, done, entry};
use super::state::{Adapter, asked, caller};
use crate::convert::entry_of;
use crate::protocol::layout::InHeader;
use crate::protocol::{Listing, Reply};
use crate::validity::VALID;
use rustix::io::Errno;
use terrace_engine::{FsError, FsResult, Wait};
use terrace_format::Ino;
use terrace_transport::Served;

pub(super) fn lookup(adapter: &Adapter, asker: &InHeader, name: &[u8], reply: Reply) {
    let parent = Ino(asker.node);
    let call = move |served: &Served, name: &[u8], wait| match served.fs().try_lookup(parent, name, wait) {
        Err(FsError::NotFound) => Ok(None),
        found => found.map(Some),
    };
    adapter.requests.attempt(asked(asker, "lookup"), name, call, |result| {
        answer(reply, result, |reply, found| match found {
            Some(found) => reply.entry(&entry_of(&found)),
            // The kernel may remember it: names appear only through this kernel.
            None => reply.absent(VALID),
        });
    });
}

pub(super) fn forget(adapter: &Adapter, ino: Ino, lookups: u64) {
    adapter.changes.forget(ino.0);
    let _ = adapter.requests.direct("forget", |served| {
        served.fs().forget(ino, lookups);
        Ok(())
    });
}

pub(super) fn readlink(adapter: &Adapter, asker: &InHeader, reply: Reply) {
    let ino = Ino(asker.node);
    let call = move |served: &Served, _: &[u8], wait| served.fs().try_readlink(ino, wait);
    adapter.requests.attempt(asked(asker, "readlink"), &[], call, |result| {
        answer(reply, result, |reply, target: Vec<u8>| reply.data(&target));
    });
}

pub(super) fn mknod(
    adapter: &Adapter,
    asker: &InHeader,
    name: &[u8],
    (mode, rdev): (u32, u32),
    reply: Reply,
) {
    let (parent, caller) = (Ino(asker.node), caller(asker));
    let call =
        move |served: &Served, name: &[u8], wait| served.fs().mknod(parent, name, mode, rdev, caller, wait);
    adapter.requests.attempt(asked(asker, "mknod"), name, call, |result| entry(reply, result));
}

pub(super) fn mkdir(adapter: &Adapter, asker: &InHeader, name: &[u8], mode: u32, reply: Reply) {
    let (parent, caller) = (Ino(asker.node), caller(asker));
    let call = move |served: &Served, name: &[u8], wait| {
        served.fs().mkdir(parent, name, mode & 0o7777, caller, wait)
    };
    adapter.requests.attempt(asked(asker, "mkdir"), name, call, |result| entry(reply, result));
}

pub(super) fn unlink(adapter: &Adapter, asker: &InHeader, name: &[u8], reply: Reply) {
    let parent = Ino(asker.node);
    let call = move |served: &Served, name: &[u8], wait| served.fs().unlink(parent, name, wait);
    adapter.requests.attempt(asked(asker, "unlink"), name, call, |result| done(reply, result));
}

pub(super) fn rmdir(adapter: &Adapter, asker: &InHeader, name: &[u8], reply: Reply) {
    let parent = Ino(asker.node);
    let call = move |served: &Served, name: &[u8], wait| served.fs().rmdir(parent, name, wait);
    adapter.requests.attempt(asked(asker, "rmdir"), name, call, |result| done(reply, result));
}

pub(super) fn symlink(adapter: &Adapter, asker: &InHeader, name: &[u8], target: &[u8], reply: Reply) {
    let (parent, caller, target) = (Ino(asker.node), caller(asker), target.to_vec());
    let call =
        move |served: &Served, name: &[u8], wait| served.fs().symlink(parent, name, &target, caller, wait);
    adapter.requests.attempt(asked(asker, "symlink"), name, call, |result| entry(reply, result));
}

pub(super) fn rename(
    adapter: &Adapter,
    asker: &InHeader,
    name: &[u8],
    (new_parent, new_name): (Ino, &[u8]),
    flags: u32,
    reply: Reply,
) {
    if flags & !libc::RENAME_NOREPLACE != 0 {
        return reply.error(Errno::INVAL);
    }
    let (parent, new_name, no_replace) = (Ino(asker.node), new_name.to_vec(), flags != 0);
    let call = move |served: &Served, name: &[u8], wait| {
        served.fs().rename(parent, name, new_parent, &new_name, no_replace, wait)
    };
    adapter.requests.attempt(asked(asker, "rename"), name, call, |result| done(reply, result));
}

pub(super) fn link(adapter: &Adapter, asker: &InHeader, ino: Ino, name: &[u8], reply: Reply) {
    let parent = Ino(asker.node);
    let call = move |served: &Served, name: &[u8], wait| served.fs().link(ino, parent, name, wait);
    adapter.requests.attempt(asked(asker, "link"), name, call, |result| entry(reply, result));
}

/// Fills a listing entry by entry.
fn list(
    adapter: &Adapter,
    asker: &InHeader,
    operation: &'static str,
    listing: Listing,
    read: impl Fn(&Served, Wait, &mut Listing) -> FsResult<()> + Send + 'static,
) {
    adapter.requests.list(asked(asker, operation), listing, read, |listing, result| match result {
        Ok(()) => listing.done(),
        Err(error) => listing.error(error),
    });
}

pub(super) fn readdir(adapter: &Adapter, asker: &InHeader, cookie: u64, size: u32, reply: Reply) {
    let ino = Ino(asker.node);
    list(adapter, asker, "readdir", Listing::new(reply, size), move |served, wait, listing| {
        served.fs().try_readdir(ino, cookie, wait, &mut |found| {
            let entry = (found.ino.0, u32::from(found.file_type), found.cookie);
            listing.add(&found.name, entry, None)
        })
    });
}

pub(super) fn readdirplus(adapter: &Adapter, asker: &InHeader, cookie: u64, size: u32, reply: Reply) {
    let ino = Ino(asker.node);
    list(adapter, asker, "readdirplus", Listing::new(reply, size), move |served, wait, listing| {
        served.fs().try_readdir_plus(ino, cookie, wait, &mut |found, attributes| {
            let entry = (found.ino.0, u32::from(found.file_type), found.cookie);
            listing.add(&found.name, entry, Some(&entry_of(attributes)))
        })
    });
}
