//! A file by number and generation.

use crate::error::{FsError, FsResult};
use crate::inode::slot::load;
use crate::store::Store;
use crate::types::inode::Inode;
use terrace_format::Ino;

/// A file at the time when its movement was planned: the inode number may be used again, with another
/// generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    /// The inode number.
    pub ino: Ino,
    /// The generation of the number.
    pub generation: u32,
}

/// The inode of a file that may have gone since. The caller holds its lock.
pub fn load_file(store: &Store, file: FileId) -> FsResult<Option<Inode>> {
    match load(store, file.ino) {
        Ok(inode) if inode.slot.generation.get() == file.generation && inode.slot.is_regular() => {
            Ok(Some(inode))
        }
        Ok(_) | Err(FsError::Stale) => Ok(None),
        Err(error) => Err(error),
    }
}
