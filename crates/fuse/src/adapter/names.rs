//! Requests on names: look-ups, new and removed names, listings.

use super::replies::{Listing, answer, done, entry, generation};
use super::state::{Adapter, asked, caller};
use crate::convert::{attributes, file_type, ino};
use crate::session;
use crate::set_id::valid;
use crate::validity::VALID;
use fuser::{
    Errno, INodeNo, RenameFlags, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    Request,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use terrace_engine::{FsError, FsResult, Wait};
use terrace_transport::Served;

pub(super) fn lookup(adapter: &Adapter, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
    let call = move |served: &Served, name: &[u8], wait| match served.fs().try_lookup(ino(parent), name, wait)
    {
        Err(FsError::NotFound) => Ok(None),
        found => found.map(Some),
    };
    adapter.requests.attempt(asked(request, "lookup"), name.as_bytes(), call, |result| {
        answer(reply, result, |reply, found| match found {
            Some(found) => {
                reply.entry_with_ttls(&valid(&found), &VALID, &attributes(&found), generation(&found));
            }
            None => session::absent(reply),
        });
    });
}

pub(super) fn forget(adapter: &Adapter, node: INodeNo, count: u64) {
    adapter.changes.forget(node.0);
    let _ = adapter.requests.direct("forget", |served| {
        served.fs().forget(ino(node), count);
        Ok(())
    });
}

pub(super) fn readlink(adapter: &Adapter, request: &Request, node: INodeNo, reply: ReplyData) {
    let call = move |served: &Served, _: &[u8], wait| served.fs().try_readlink(ino(node), wait);
    adapter.requests.attempt(asked(request, "readlink"), &[], call, |result| {
        answer(reply, result, |reply, target: Vec<u8>| reply.data(&target));
    });
}

pub(super) fn mknod(
    adapter: &Adapter,
    request: &Request,
    (parent, name): (INodeNo, &OsStr),
    (mode, rdev): (u32, u32),
    reply: ReplyEntry,
) {
    let caller = caller(request);
    let call = move |served: &Served, name: &[u8], wait| {
        served.fs().mknod(ino(parent), name, mode, rdev, caller, wait)
    };
    let end = |result| entry(reply, result);
    adapter.requests.attempt(asked(request, "mknod"), name.as_bytes(), call, end);
}

pub(super) fn mkdir(
    adapter: &Adapter,
    request: &Request,
    (parent, name): (INodeNo, &OsStr),
    mode: u32,
    reply: ReplyEntry,
) {
    let caller = caller(request);
    let call = move |served: &Served, name: &[u8], wait| {
        served.fs().mkdir(ino(parent), name, mode & 0o7777, caller, wait)
    };
    let end = |result| entry(reply, result);
    adapter.requests.attempt(asked(request, "mkdir"), name.as_bytes(), call, end);
}

pub(super) fn unlink(adapter: &Adapter, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
    let call = move |served: &Served, name: &[u8], wait| served.fs().unlink(ino(parent), name, wait);
    let end = |result| done(reply, result);
    adapter.requests.attempt(asked(request, "unlink"), name.as_bytes(), call, end);
}

pub(super) fn rmdir(adapter: &Adapter, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
    let call = move |served: &Served, name: &[u8], wait| served.fs().rmdir(ino(parent), name, wait);
    let end = |result| done(reply, result);
    adapter.requests.attempt(asked(request, "rmdir"), name.as_bytes(), call, end);
}

pub(super) fn symlink(
    adapter: &Adapter,
    request: &Request,
    (parent, name): (INodeNo, &OsStr),
    target: &Path,
    reply: ReplyEntry,
) {
    let (caller, target) = (caller(request), target.as_os_str().as_bytes().to_vec());
    let call = move |served: &Served, name: &[u8], wait| {
        served.fs().symlink(ino(parent), name, &target, caller, wait)
    };
    let end = |result| entry(reply, result);
    adapter.requests.attempt(asked(request, "symlink"), name.as_bytes(), call, end);
}

pub(super) fn rename(
    adapter: &Adapter,
    request: &Request,
    (parent, name): (INodeNo, &OsStr),
    (new_parent, new_name): (INodeNo, &OsStr),
    flags: RenameFlags,
    reply: ReplyEmpty,
) {
    if !RenameFlags::RENAME_NOREPLACE.contains(flags) {
        return reply.error(Errno::EINVAL);
    }
    let (new_name, no_replace) = (new_name.as_bytes().to_vec(), !flags.is_empty());
    let call = move |served: &Served, name: &[u8], wait| {
        served.fs().rename(ino(parent), name, ino(new_parent), &new_name, no_replace, wait)
    };
    let end = |result| done(reply, result);
    adapter.requests.attempt(asked(request, "rename"), name.as_bytes(), call, end);
}

pub(super) fn link(
    adapter: &Adapter,
    request: &Request,
    node: INodeNo,
    (parent, name): (INodeNo, &OsStr),
    reply: ReplyEntry,
) {
    let call = move |served: &Served, name: &[u8], wait| served.fs().link(ino(node), ino(parent), name, wait);
    let end = |result| entry(reply, result);
    adapter.requests.attempt(asked(request, "link"), name.as_bytes(), call, end);
}

/// Fills a reply entry by entry.
fn list<R: Listing + Send + 'static>(
    adapter: &Adapter,
    request: &Request,
    operation: &'static str,
    reply: R,
    read: impl Fn(&Served, Wait, &mut R) -> FsResult<()> + Send + 'static,
) {
    adapter.requests.list(asked(request, operation), reply, read, |reply, result| reply.end(result));
}

pub(super) fn readdir(
    adapter: &Adapter,
    request: &Request,
    node: INodeNo,
    cookie: u64,
    reply: ReplyDirectory,
) {
    list(adapter, request, "readdir", reply, move |served, wait, reply| {
        served.fs().try_readdir(ino(node), cookie, wait, &mut |found| {
            let kind = file_type(found.file_type);
            !reply.add(INodeNo(found.ino.0), found.cookie, kind, OsStr::from_bytes(&found.name))
        })
    });
}

pub(super) fn readdirplus(
    adapter: &Adapter,
    request: &Request,
    node: INodeNo,
    cookie: u64,
    reply: ReplyDirectoryPlus,
) {
    list(adapter, request, "readdirplus", reply, move |served, wait, reply| {
        served.fs().try_readdir_plus(ino(node), cookie, wait, &mut |found, attr| {
            let (name, number) = (OsStr::from_bytes(&found.name), INodeNo(found.ino.0));
            !reply.add(number, found.cookie, name, &valid(attr), &attributes(attr), generation(attr))
        })
    });
}
