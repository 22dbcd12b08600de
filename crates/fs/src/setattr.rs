//! Attributes: chmod, chown with set-id rules, utimensat, truncate.

use crate::errno::FsResult;
use crate::fs::Fs;
use crate::op::Op;
use crate::slot::{Inode, log_slot};
use crate::turns::{Progress, all_turns};
use crate::types::{Attributes, SetAttributes, SetTime, Wait};
use crate::write::{Staged, kill_set_id};
use terrace_format::Ino;

impl SetAttributes {
    /// Whether set-id bits and capabilities go.
    fn takes_privileges(&self, inode: &Inode) -> bool {
        let chown = self.uid.is_some() || self.gid.is_some();
        (chown || self.kill_set_id) && !inode.slot.is_directory()
    }
}

impl Fs {
    /// Changes attributes; a size first, in a transaction of its own, the rest in one.
    ///
    /// # Errors
    /// EFBIG, EISDIR, EINVAL, ENOSPC when extending, EIO.
    pub fn setattr(&self, ino: Ino, change: &SetAttributes, wait: Wait) -> FsResult<Attributes> {
        all_turns(|progress| self.setattr_turn(ino, change, progress, wait))
    }

    /// A turn of [`Self::setattr`].
    ///
    /// # Errors
    /// As [`Self::setattr`]; `Unfinished`.
    pub fn setattr_turn(
        &self,
        ino: Ino,
        change: &SetAttributes,
        progress: &mut Progress,
        wait: Wait,
    ) -> FsResult<Attributes> {
        if let Some(size) = change.size {
            self.truncate(ino, size, change.kill_set_id, progress, wait)?;
        }
        let rest = SetAttributes { size: None, ..*change };
        if rest == (SetAttributes { kill_set_id: rest.kill_set_id, ..Default::default() }) {
            return self.try_getattr(ino, wait);
        }
        let mut op = Op::reclaiming(wait);
        self.run(&mut op, 256, |reservation, _op| {
            let _guard = self.locks.write(ino);
            let inode = self.load(ino)?;
            if rest.takes_privileges(&inode) {
                self.expect_no_capability(&inode)?;
            }
            let slot = self.changed(&inode, &rest);
            let mut staged = Staged::new(self, None, false);
            log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
            staged.commit(reservation)?;
            self.settle(&inode, &slot, inode.size(), 0);
            Ok(Inode { slot, pending: self.unwritten.get(ino), ..inode }.attributes())
        })
    }

    /// Removes set-id bits before somebody without CAP_FSETID changes content otherwise than by a write or a truncation.
    /// `in_group`: the caller is in the file's group; then a set-group-id bit stays where the group may not execute the file,
    /// as on Linux.
    ///
    /// # Errors
    /// ESTALE, EIO.
    pub fn lose_set_id(&self, ino: Ino, in_group: bool, wait: Wait) -> FsResult<()> {
        let mut op = Op::reclaiming(wait);
        self.run(&mut op, 256, |reservation, _op| {
            let _guard = self.locks.write(ino);
            let inode = self.load(ino)?;
            self.expect_no_capability(&inode)?;
            let mut slot = inode.slot;
            inode.log_pending_times(&mut slot);
            kill_set_id(&mut slot);
            if !in_group {
                slot.mode = (slot.mode.get() & !0o2000).into();
            }
            if !inode.slot.is_regular() || slot.mode == inode.slot.mode {
                return Ok(());
            }
            slot.ctime = self.now().into();
            let mut staged = Staged::new(self, None, false);
            log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
            staged.commit(reservation)?;
            self.settle(&inode, &slot, inode.size(), 0);
            Ok(())
        })
    }

    fn changed(&self, inode: &Inode, change: &SetAttributes) -> terrace_format::inode::InodeSlot {
        let mut slot = inode.slot;
        inode.log_pending_times(&mut slot);
        let now = self.now();
        if let Some(uid) = change.uid {
            slot.uid = uid.into();
        }
        if let Some(gid) = change.gid {
            slot.gid = gid.into();
        }
        if change.takes_privileges(inode) {
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
}
