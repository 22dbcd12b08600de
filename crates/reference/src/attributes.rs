//! chmod, chown, utimens and truncate in one call.

use crate::node::Id;
use crate::stamp::Stamp;
use crate::{Outcome, Reference};

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The current one.
    Now,
    /// This one.
    At(i64),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Change {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Remove set-id bits with it.
    pub kill_set_id: bool,
}

impl Change {
    /// Owner or group.
    pub fn changes_owner(&self) -> bool {
        self.uid.is_some() || self.gid.is_some()
    }
}

impl Reference {
    /// Changes attributes: the size first, then the rest. A new owner or group of an
    /// inode that is no directory removes set-id bits, which `mode` may set again.
    ///
    /// # Errors
    /// EFBIG, EISDIR and EINVAL for a size; ESTALE.
    pub fn set_attributes(&mut self, id: Id, change: &Change, when: Stamp) -> Outcome<()> {
        if let Some(size) = change.size {
            self.truncate(id, size, change.kill_set_id, when)?;
        }
        let rest = Change { size: None, kill_set_id: false, ..*change };
        let node = self.node_mut(id)?;
        if rest == Change::default() {
            return Ok(());
        }
        node.uid = change.uid.unwrap_or(node.uid);
        node.gid = change.gid.unwrap_or(node.gid);
        if (change.changes_owner() || change.kill_set_id) && !node.is_directory() {
            node.drop_capability(when);
            node.kill_set_id();
        }
        if let Some(mode) = change.mode {
            node.mode = node.mode & !0o7777 | mode & 0o7777;
        }
        let time = |set: SetTime| match set {
            SetTime::Now => when,
            SetTime::At(ns) => Stamp::at(ns),
        };
        node.atime = change.atime.map_or(node.atime, time);
        if let Some(mtime) = change.mtime {
            node.set_mtime(time(mtime));
        }
        node.changed(when);
        Ok(())
    }
}
