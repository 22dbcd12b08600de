//! Placement of writes: which home a write gets (design 5).

use crate::fs::Fs;
use crate::slot::Inode;
use crate::types::{BlockRange, WriteFlags};
use terrace_placement::Home;

impl Fs {
    /// The home of a write to `range`. The caller holds the inode lock.
    pub(crate) fn choose_home(&self, _inode: &Inode, _range: BlockRange, flags: WriteFlags) -> Home {
        if flags.sync || self.devices.list.is_empty() {
            return Home::Pm;
        }
        self.home.unwrap_or(Home::Pm)
    }
}
