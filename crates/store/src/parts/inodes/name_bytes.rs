//! Bytes of attribute names, of inodes that were used lately: volatile, for the limit of listxattr.

use crate::types::inode::Inode;
use std::collections::HashMap;
use terrace_format::Ino;
use terrace_runtime::sync::Mutex;

/// Inodes whose bytes of names are remembered.
const REMEMBERED: usize = 1024;

/// The bytes of attribute names of some inodes, so that an operation that adds a name does not count all
/// names under locks. Changed under the inode's exclusive lock.
#[derive(Default)]
pub struct NameBytes(Mutex<HashMap<Ino, (u32, usize)>>);

impl NameBytes {
    /// Bytes of an inode's attribute names, if they are remembered.
    pub fn get(&self, inode: &Inode) -> Option<usize> {
        let found = self.0.lock().get(&inode.ino).copied();
        found.filter(|(generation, _)| *generation == inode.slot.generation.get()).map(|(_, bytes)| bytes)
    }

    /// Remembers them; `None` forgets them.
    pub fn set(&self, inode: &Inode, bytes: Option<usize>) {
        let mut known = self.0.lock();
        known.remove(&inode.ino);
        let Some(bytes) = bytes else { return };
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(inode.ino, (inode.slot.generation.get(), bytes));
    }
}
