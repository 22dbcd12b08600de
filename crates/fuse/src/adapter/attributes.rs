//! Requests on attributes, extended attributes and the space of the file system.

use super::replies::{answer, attr, done, value};
use super::state::{Adapter, CONTROL_XATTR, asked};
use crate::convert::{set_time, xattr_mode};
use crate::protocol::Reply;
use crate::protocol::layout::{InHeader, StatFsOut};
use crate::protocol::request::Changes;
use rustix::io::Errno;
use terrace_engine::{Progress, SetAttributes, Space};
use terrace_format::Ino;
use terrace_transport::Served;

/// Bytes of a block, and of the longest name.
const BLOCK_BYTES: u32 = 4096;
const NAME_BYTES: u32 = 255;

pub(super) fn getattr(adapter: &Adapter, asker: &InHeader, reply: Reply) {
    let ino = Ino(asker.node);
    let call = move |served: &Served, _: &[u8], wait| served.fs().try_getattr(ino, wait);
    adapter.requests.attempt(asked(asker, "getattr"), &[], call, |result| attr(reply, result));
}

pub(super) fn setattr(adapter: &Adapter, asker: &InHeader, changes: &Changes, reply: Reply) {
    let ino = Ino(asker.node);
    let (Some(atime), Some(mtime)) = (set_time(changes.atime), set_time(changes.mtime)) else {
        return reply.error(Errno::INVAL);
    };
    let cuts = changes.size.is_some();
    let has_set_id = cuts && adapter.may_have_set_id(ino);
    let loss = has_set_id.then(|| adapter.takes_set_id(asker, ino)).flatten();
    let change = SetAttributes {
        mode: changes.mode.map(|mode| mode & 0o7777),
        uid: changes.uid,
        gid: changes.gid,
        size: changes.size,
        atime,
        mtime,
        // Without set-id bits the flag removes file capabilities, which a truncation by any user removes.
        kill_set_id: cuts && (loss.is_some() || !has_set_id),
    };
    let call = move |served: &Served, progress: &mut Progress, wait| {
        served.fs().setattr_turn(ino, &change, progress, wait)
    };
    adapter.requests.in_turns(asked(asker, "setattr"), call, |result| {
        answer(reply, result, |reply, found| {
            drop(loss);
            attr(reply, Ok(found));
        });
    });
}

pub(super) fn statfs(adapter: &Adapter, asker: &InHeader, reply: Reply) {
    let call = |served: &Served, _: &[u8], wait| served.fs().statfs(wait);
    adapter.requests.attempt(asked(asker, "statfs"), &[], call, |result| {
        answer(reply, result, |reply, space: Space| {
            reply.space(&StatFsOut {
                blocks: space.blocks,
                free: space.free,
                available: space.available,
                files: space.files,
                files_free: space.files_free,
                block_size: BLOCK_BYTES,
                name_length: NAME_BYTES,
                fragment_size: BLOCK_BYTES,
                ..StatFsOut::default()
            });
        });
    });
}

pub(super) fn setxattr(
    adapter: &Adapter,
    asker: &InHeader,
    (name, value): (&[u8], &[u8]),
    flags: u32,
    reply: Reply,
) {
    let Some(mode) = xattr_mode(flags) else {
        return reply.error(Errno::INVAL);
    };
    let (ino, name) = (Ino(asker.node), name.to_vec());
    let call = move |served: &Served, value: &[u8], wait| served.fs().setxattr(ino, &name, value, mode, wait);
    adapter.requests.attempt(asked(asker, "setxattr"), value, call, |result| done(reply, result));
}

pub(super) fn getxattr(adapter: &Adapter, asker: &InHeader, name: &[u8], size: u32, reply: Reply) {
    if name == CONTROL_XATTR.as_bytes() {
        return value(reply, size, Ok(&adapter.control));
    }
    let ino = Ino(asker.node);
    let call = move |served: &Served, name: &[u8], wait| served.fs().try_getxattr(ino, name, wait);
    adapter.requests.attempt(asked(asker, "getxattr"), name, call, move |result| {
        value(reply, size, result.as_deref().map_err(|error| *error));
    });
}

pub(super) fn listxattr(adapter: &Adapter, asker: &InHeader, size: u32, reply: Reply) {
    let (ino, uid) = (Ino(asker.node), asker.uid);
    let call =
        move |served: &Served, progress: &mut Progress, wait| served.fs().listxattr_turn(ino, progress, wait);
    adapter.requests.in_turns(asked(asker, "listxattr"), call, move |result: Result<Vec<u8>, _>| {
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

pub(super) fn removexattr(adapter: &Adapter, asker: &InHeader, name: &[u8], reply: Reply) {
    let ino = Ino(asker.node);
    let call = move |served: &Served, name: &[u8], wait| served.fs().removexattr(ino, name, wait);
    adapter.requests.attempt(asked(asker, "removexattr"), name, call, |result| done(reply, result));
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
