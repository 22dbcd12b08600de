//! Attributes: chmod, chown with set-id rules, utimensat, truncate.

use crate::content::truncate::truncate;
use terrace_format::Ino;
use terrace_store::attempt::run::run_attempts;
use terrace_store::change::dirty::settle;
use terrace_store::change::staged::{Staged, kill_set_id};
use terrace_store::error::FsResult;
use terrace_store::inode::attributes::try_getattr;
use terrace_store::inode::capability::expect_no_capability;
use terrace_store::inode::slot::{load, log_slot, wall_now};
use terrace_store::operation::op::Op;
use terrace_store::operation::progress::{Progress, all_turns};
use terrace_store::store::Store;
use terrace_store::types::inode::Inode;
use terrace_store::types::{Attributes, SetAttributes, SetTime, Wait};

/// Whether set-id bits and capabilities go.
fn takes_privileges(change: &SetAttributes, inode: &Inode) -> bool {
    let chown = change.uid.is_some() || change.gid.is_some();
    (chown || change.kill_set_id) && !inode.slot.is_directory()
}

/// Changes attributes; a size first, in a transaction of its own, the rest in one.
///
/// # Errors
/// EFBIG, EISDIR, EINVAL, ENOSPC when extending, EIO.
pub fn setattr(store: &Store, ino: Ino, change: &SetAttributes, wait: Wait) -> FsResult<Attributes> {
    all_turns(|progress| setattr_turn(store, ino, change, progress, wait))
}

/// A turn of [`setattr`].
///
/// # Errors
/// As [`setattr`]; `Unfinished`.
pub fn setattr_turn(
    store: &Store,
    ino: Ino,
    change: &SetAttributes,
    progress: &mut Progress,
    wait: Wait,
) -> FsResult<Attributes> {
    if let Some(size) = change.size {
        truncate(store, ino, size, change.kill_set_id, progress, wait)?;
    }
    let rest = SetAttributes { size: None, ..*change };
    if rest == (SetAttributes { kill_set_id: rest.kill_set_id, ..Default::default() }) {
        return try_getattr(store, ino, wait);
    }
    let mut op = Op::reclaiming(wait);
    run_attempts(store, &mut op, 256, |reservation, _op| {
        let _guard = store.inodes.locks().write(ino);
        let inode = load(store, ino)?;
        if takes_privileges(&rest, &inode) {
            expect_no_capability(store, &inode)?;
        }
        let slot = changed(store, &inode, &rest);
        let mut staged = Staged::new(store, None, false);
        log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
        staged.commit(reservation)?;
        settle(store, &inode, &slot, inode.size(), 0);
        Ok(Inode { slot, pending: store.dram.volatile_sizes().get(ino), ..inode }.attributes())
    })
}

/// Removes set-id bits before a caller without CAP_FSETID changes content by a call other than write and
/// truncate. `in_group`: the caller is in the file's group; then a set-group-id bit stays where the group may
/// not execute the file, as on Linux.
///
/// # Errors
/// ESTALE, EIO.
pub fn lose_set_id(store: &Store, ino: Ino, in_group: bool, wait: Wait) -> FsResult<()> {
    let mut op = Op::reclaiming(wait);
    run_attempts(store, &mut op, 256, |reservation, _op| {
        let _guard = store.inodes.locks().write(ino);
        let inode = load(store, ino)?;
        expect_no_capability(store, &inode)?;
        let mut slot = inode.slot;
        inode.log_pending_times(&mut slot);
        kill_set_id(&mut slot);
        if !in_group {
            slot.mode = (slot.mode.get() & !0o2000).into();
        }
        if !inode.slot.is_regular() || slot.mode == inode.slot.mode {
            return Ok(());
        }
        slot.ctime = wall_now(store).into();
        let mut staged = Staged::new(store, None, false);
        log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
        staged.commit(reservation)?;
        settle(store, &inode, &slot, inode.size(), 0);
        Ok(())
    })
}

fn changed(store: &Store, inode: &Inode, change: &SetAttributes) -> terrace_format::inode::InodeSlot {
    let mut slot = inode.slot;
    inode.log_pending_times(&mut slot);
    let now = wall_now(store);
    if let Some(uid) = change.uid {
        slot.uid = uid.into();
    }
    if let Some(gid) = change.gid {
        slot.gid = gid.into();
    }
    if takes_privileges(change, inode) {
        kill_set_id(&mut slot);
    }
    if let Some(mode) = change.mode {
        slot.mode = (slot.mode.get() & !0o7777 | mode & 0o7777).into();
    }
    let time = |set: SetTime| match set {
        SetTime::Now => now,
        SetTime::At(ns) => ns,
    };
    if let Some(atime) = change.atime {
        slot.atime = time(atime).into();
    }
    if let Some(mtime) = change.mtime {
        slot.mtime = time(mtime).into();
    }
    slot.ctime = now.into();
    slot
}
