//! Requests on attributes, extended attributes and the space of the file system.

use super::replies::{answer, attr, done, value};
use super::state::{Adapter, CONTROL_XATTR, asked};
use crate::convert::{ino, set_time, xattr_mode};
use fuser::{Errno, INodeNo, ReplyAttr, ReplyEmpty, ReplyStatfs, ReplyXattr, Request, TimeOrNow};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use terrace_engine::{Progress, SetAttributes, Space};
use terrace_transport::Served;

pub(super) fn getattr(adapter: &Adapter, request: &Request, node: INodeNo, reply: ReplyAttr) {
    let call = move |served: &Served, _: &[u8], wait| served.fs().try_getattr(ino(node), wait);
    adapter.requests.attempt(asked(request, "getattr"), &[], call, |result| attr(reply, result));
}

/// `asked_for` holds mode, owner, group and size as the request has them.
pub(super) fn setattr(
    adapter: &Adapter,
    request: &Request,
    node: INodeNo,
    asked_for: SetAttributes,
    (atime, mtime): (Option<TimeOrNow>, Option<TimeOrNow>),
    reply: ReplyAttr,
) {
    let (Some(atime), Some(mtime)) = (set_time(atime), set_time(mtime)) else {
        return reply.error(Errno::EINVAL);
    };
    let cuts = asked_for.size.is_some();
    let has_set_id = cuts && adapter.may_have_set_id(node);
    let loss = has_set_id.then(|| adapter.takes_set_id(request, node)).flatten();
    let change = SetAttributes {
        mode: asked_for.mode.map(|mode| mode & 0o7777),
        atime,
        mtime,
        // Without set-id bits the flag removes file capabilities, which a truncation by any user removes.
        kill_set_id: cuts && (loss.is_some() || !has_set_id),
        ..asked_for
    };
    let call = move |served: &Served, progress: &mut Progress, wait| {
        served.fs().setattr_turn(ino(node), &change, progress, wait)
    };
    adapter.requests.in_turns(asked(request, "setattr"), call, |result| {
        answer(reply, result, |reply, found| {
            drop(loss);
            attr(reply, Ok(found));
        });
    });
}

pub(super) fn statfs(adapter: &Adapter, request: &Request, reply: ReplyStatfs) {
    let call = |served: &Served, _: &[u8], wait| served.fs().statfs(wait);
    adapter.requests.attempt(asked(request, "statfs"), &[], call, |result| {
        answer(reply, result, |reply, space: Space| {
            let (blocks, free, available) = (space.blocks, space.free, space.available);
            reply.statfs(blocks, free, available, space.files, space.files_free, 4096, 255, 4096);
        });
    });
}

pub(super) fn setxattr(
    adapter: &Adapter,
    request: &Request,
    node: INodeNo,
    (name, value): (&OsStr, &[u8]),
    flags: i32,
    reply: ReplyEmpty,
) {
    let Some(mode) = xattr_mode(flags) else {
        return reply.error(Errno::EINVAL);
    };
    let name = name.as_bytes().to_vec();
    let call =
        move |served: &Served, value: &[u8], wait| served.fs().setxattr(ino(node), &name, value, mode, wait);
    adapter.requests.attempt(asked(request, "setxattr"), value, call, |result| done(reply, result));
}

pub(super) fn getxattr(
    adapter: &Adapter,
    request: &Request,
    node: INodeNo,
    name: &OsStr,
    size: u32,
    reply: ReplyXattr,
) {
    if name.as_bytes() == CONTROL_XATTR.as_bytes() {
        return value(reply, size, Ok(&adapter.control));
    }
    let call = move |served: &Served, name: &[u8], wait| served.fs().try_getxattr(ino(node), name, wait);
    adapter.requests.attempt(asked(request, "getxattr"), name.as_bytes(), call, move |result| {
        value(reply, size, result.as_deref().map_err(|error| *error));
    });
}

pub(super) fn listxattr(adapter: &Adapter, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
    let call = move |served: &Served, progress: &mut Progress, wait| {
        served.fs().listxattr_turn(ino(node), progress, wait)
    };
    let uid = request.uid();
    adapter.requests.in_turns(asked(request, "listxattr"), call, move |result: Result<Vec<u8>, _>| {
        let listed = result.map(|names| names_for(uid, names));
        value(reply, size, listed.as_deref().map_err(|error| *error));
    });
}

/// The names of a list that a user sees: as on ext4, `trusted.` names are for root alone. The kernel refuses their
/// values to others, and passes the list on as it is.
fn names_for(uid: u32, names: Vec<u8>) -> Vec<u8> {
    const TRUSTED: &[u8] = b"trusted.";
    if uid == 0 || !names.windows(TRUSTED.len()).any(|part| part == TRUSTED) {
        return names;
    }
    let seen = names.split_inclusive(|byte| *byte == 0).filter(|name| !name.starts_with(TRUSTED));
    seen.flatten().copied().collect()
}

pub(super) fn removexattr(
    adapter: &Adapter,
    request: &Request,
    node: INodeNo,
    name: &OsStr,
    reply: ReplyEmpty,
) {
    let call = move |served: &Served, name: &[u8], wait| served.fs().removexattr(ino(node), name, wait);
    let end = |result| done(reply, result);
    adapter.requests.attempt(asked(request, "removexattr"), name.as_bytes(), call, end);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every user saw the names of root's attributes in the list.
    #[test]
    fn trusted_names_are_listed_to_root_alone() {
        let names = b"user.trusted.a\0trusted.b\0security.c\0trusted.\0".to_vec();
        assert_eq!(names_for(0, names.clone()), names);
        assert_eq!(names_for(1000, names), b"user.trusted.a\0security.c\0");
        assert_eq!(names_for(1000, Vec::new()), b"");
    }
}
