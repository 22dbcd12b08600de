//! System calls on names, attributes and handles.
use crate::engine::Engine;
use terrace_format::Ino;
use terrace_fs::names::open::HowToOpen;
use terrace_store::error::FsResult;
use terrace_store::operation::progress::Progress;
use terrace_store::parts::inodes::front_end::{FrontEnd, NoCache, Note};
use terrace_store::types::Attributes;
use terrace_store::types::Caller;
use terrace_store::types::DirectoryEntry;
use terrace_store::types::SetAttributes;
use terrace_store::types::Wait;
use terrace_store::types::XattrMode;

impl Engine {
    /// Finds a name and takes a lookup reference; "." is an inode of any type itself, ".." a directory's
    /// parent.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENAMETOOLONG, EIO; ESTALE for "." and ".." of an inode that was removed, or never
    /// existed.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> FsResult<Attributes> {
        terrace_fs::names::lookup::lookup(&self.store, parent, name)
    }

    /// As [`Self::lookup`]; it waits for metadata on a lower tier only if it may.
    ///
    /// # Errors
    /// As [`Self::lookup`]; `WouldBlock`.
    pub fn try_lookup(&self, parent: Ino, name: &[u8], wait: Wait) -> FsResult<Attributes> {
        terrace_fs::names::lookup::try_lookup(&self.store, parent, name, wait)
    }

    /// Gives lookup references back.
    pub fn forget(&self, ino: Ino, count: u64) {
        terrace_fs::names::lookup::forget(&self.store, ino, count)
    }

    /// Attributes of an inode.
    ///
    /// # Errors
    /// ESTALE, EIO.
    pub fn getattr(&self, ino: Ino) -> FsResult<Attributes> {
        terrace_store::inode::attributes::getattr(&self.store, ino)
    }

    /// As [`Self::getattr`]; it waits for metadata on a lower tier only if it may.
    ///
    /// # Errors
    /// As [`Self::getattr`]; `WouldBlock`.
    pub fn try_getattr(&self, ino: Ino, wait: Wait) -> FsResult<Attributes> {
        terrace_store::inode::attributes::try_getattr(&self.store, ino, wait)
    }

    /// Opens, without a front end that caches; `truncate` as O_TRUNC.
    ///
    /// # Errors
    /// ESTALE, EIO, and truncate's; `WouldBlock`.
    pub fn open(&self, ino: Ino, truncate: bool, write: bool, wait: Wait) -> FsResult<()> {
        let how = HowToOpen { truncate, write, direct: false };
        self.open_through(ino, how, wait, &mut NoCache).map(drop)
    }

    /// Closes, without a front end that caches.
    pub fn release(&self, ino: Ino) {
        self.release_through(ino, &mut NoCache)
    }

    /// Opens, if the front end admits it. A mount has one front end: an inode is opened and released through the same.
    /// False: the open has to wait for the front end, and is not counted.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_through(
        &self,
        ino: Ino,
        how: HowToOpen,
        wait: Wait,
        front_end: &mut dyn FrontEnd,
    ) -> FsResult<bool> {
        terrace_fs::names::open::open(&self.store, ino, how, wait, front_end)
    }

    /// Closes; the front end learns of the last close.
    pub fn release_through(&self, ino: Ino, front_end: &mut dyn FrontEnd) {
        terrace_fs::names::open::release(&self.store, ino, front_end)
    }

    /// Hands out a front end's note on an inode; `None` for an inode without references. `look` runs under the lock of the
    /// references.
    pub fn with_note<T>(&self, ino: Ino, look: impl FnOnce(&mut Note) -> T) -> Option<T> {
        self.store.inodes.open_files().with_note(ino, look)
    }

    /// Makes a file of any type but directory and symlink. Takes a lookup reference.
    ///
    /// # Errors
    /// EEXIST, ENOENT and ENOTDIR of the directory, ENAMETOOLONG, ENOSPC, EIO.
    pub fn mknod(
        &self,
        parent: Ino,
        name: &[u8],
        mode: u32,
        rdev: u32,
        caller: Caller,
        wait: Wait,
    ) -> FsResult<Attributes> {
        terrace_fs::names::create::mknod(&self.store, parent, name, mode, rdev, caller, wait)
    }

    /// Makes a directory. Takes a lookup reference.
    ///
    /// # Errors
    /// As [`Self::mknod`]; EMLINK.
    pub fn mkdir(
        &self,
        parent: Ino,
        name: &[u8],
        mode: u32,
        caller: Caller,
        wait: Wait,
    ) -> FsResult<Attributes> {
        terrace_fs::names::create::mkdir(&self.store, parent, name, mode, caller, wait)
    }

    /// Makes a symbolic link. Takes a lookup reference.
    ///
    /// # Errors
    /// As [`Self::mknod`]; ENAMETOOLONG for a target over 4095 bytes.
    pub fn symlink(
        &self,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        caller: Caller,
        wait: Wait,
    ) -> FsResult<Attributes> {
        terrace_fs::names::create::symlink(&self.store, parent, name, target, caller, wait)
    }

    /// Gives a file another name. Takes a lookup reference.
    ///
    /// # Errors
    /// EPERM for a directory, EMLINK, EEXIST, ENOENT, ENOSPC, EIO.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8], wait: Wait) -> FsResult<Attributes> {
        terrace_fs::names::link::link(&self.store, ino, parent, name, wait)
    }

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// ENOENT, EISDIR, EIO. Never ENOSPC.
    pub fn unlink(&self, parent: Ino, name: &[u8], wait: Wait) -> FsResult<()> {
        terrace_fs::names::unlink::unlink(&self.store, parent, name, wait)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, EIO.
    pub fn rmdir(&self, parent: Ino, name: &[u8], wait: Wait) -> FsResult<()> {
        terrace_fs::names::unlink::rmdir(&self.store, parent, name, wait)
    }

    /// Renames. An existing file `new_name` is replaced, or the answer is EEXIST with `no_replace`. Dirty
    /// pages of the moved file are written back before it replaces another file: programs that replace a file
    /// without an fsync expect the old or the new content after a crash, as ext4 (auto_da_alloc) and btrfs
    /// have taught them.
    ///
    /// # Errors
    /// `WouldBlock` when content has to be written back and the caller may not wait;
    /// ENOENT, EEXIST, ENOTEMPTY, EISDIR, ENOTDIR, EINVAL (a directory into itself), EMLINK, ENOSPC, EIO.
    pub fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        no_replace: bool,
        wait: Wait,
    ) -> FsResult<()> {
        terrace_fs::names::rename::rename(&self.store, parent, name, new_parent, new_name, no_replace, wait)
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// EINVAL for other inodes, EIO.
    pub fn readlink(&self, ino: Ino) -> FsResult<Vec<u8>> {
        terrace_fs::names::symlink::readlink(&self.store, ino)
    }

    /// As [`Self::readlink`]; it waits for metadata on a lower tier only if it may.
    ///
    /// # Errors
    /// As [`Self::readlink`]; `WouldBlock`.
    pub fn try_readlink(&self, ino: Ino, wait: Wait) -> FsResult<Vec<u8>> {
        terrace_fs::names::symlink::try_readlink(&self.store, ino, wait)
    }

    /// Visits entries after `after` until `visit` says that it has no room for one.
    ///
    /// # Errors
    /// ENOTDIR, ESTALE, EIO.
    pub fn readdir(
        &self,
        ino: Ino,
        after: u64,
        visit: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> FsResult<()> {
        terrace_fs::names::readdir::readdir(&self.store, ino, after, visit)
    }

    /// As [`Self::readdir`]; it waits for metadata on a lower tier only if it may. After the first visited
    /// entry it ends instead of waiting.
    ///
    /// # Errors
    /// As [`Self::readdir`]; `WouldBlock`.
    pub fn try_readdir(
        &self,
        ino: Ino,
        after: u64,
        wait: Wait,
        visit: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> FsResult<()> {
        terrace_fs::names::readdir::try_readdir(&self.store, ino, after, wait, visit)
    }

    /// As [`Self::readdir`], with attributes; takes a lookup reference for each entry that is consumed,
    /// except "." and "..". An error ends it after the entries before it; the next call, from there, returns
    /// it.
    ///
    /// # Errors
    /// As [`Self::readdir`].
    pub fn readdir_plus(
        &self,
        ino: Ino,
        after: u64,
        visit: &mut dyn FnMut(&DirectoryEntry, &Attributes) -> bool,
    ) -> FsResult<()> {
        terrace_fs::names::readdir::readdir_plus(&self.store, ino, after, visit)
    }

    /// As [`Self::readdir_plus`]; it waits for metadata on a lower tier only if it may.
    ///
    /// # Errors
    /// As [`Self::readdir`]; `WouldBlock`, when nothing was consumed.
    pub fn try_readdir_plus(
        &self,
        ino: Ino,
        after: u64,
        wait: Wait,
        visit: &mut dyn FnMut(&DirectoryEntry, &Attributes) -> bool,
    ) -> FsResult<()> {
        terrace_fs::names::readdir::try_readdir_plus(&self.store, ino, after, wait, visit)
    }

    /// Changes attributes: first the size, in transactions of its own, then all others in one transaction.
    ///
    /// # Errors
    /// EFBIG, EISDIR, EINVAL, ENOSPC when extending, EIO.
    pub fn setattr(&self, ino: Ino, change: &SetAttributes, wait: Wait) -> FsResult<Attributes> {
        terrace_fs::names::setattr::setattr(&self.store, ino, change, wait)
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
        terrace_fs::names::setattr::setattr_turn(&self.store, ino, change, progress, wait)
    }

    /// Removes set-id bits before a caller without CAP_FSETID changes content by other means than a write or
    /// a truncation. `in_group`: the caller is in the group of the file; then a set-group-id bit stays if the
    /// group may not execute the file, as on Linux.
    ///
    /// # Errors
    /// ESTALE, EIO.
    pub fn lose_set_id(&self, ino: Ino, in_group: bool, wait: Wait) -> FsResult<()> {
        terrace_fs::names::setattr::lose_set_id(&self.store, ino, in_group, wait)
    }

    /// Value of an attribute.
    ///
    /// # Errors
    /// ENODATA, EOPNOTSUPP for other namespaces, EIO.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
        terrace_fs::names::xattr::getxattr(&self.store, ino, name)
    }

    /// As [`Self::getxattr`]; it waits for metadata on a lower tier only if it may.
    ///
    /// # Errors
    /// As [`Self::getxattr`]; `WouldBlock`.
    pub fn try_getxattr(&self, ino: Ino, name: &[u8], wait: Wait) -> FsResult<Vec<u8>> {
        terrace_fs::names::xattr::try_getxattr(&self.store, ino, name, wait)
    }

    /// The names of all extended attributes, with a NUL after each name.
    ///
    /// # Errors
    /// EIO.
    pub fn listxattr(&self, ino: Ino) -> FsResult<Vec<u8>> {
        terrace_fs::names::xattr::listxattr(&self.store, ino)
    }

    /// A turn of [`Self::listxattr`]; it waits for metadata on a lower tier only if it may. Of a list longer
    /// than 64 KiB, which only older versions allowed, it gives the first names: no caller has room for more.
    ///
    /// # Errors
    /// As [`Self::listxattr`]; `WouldBlock`, `Unfinished`.
    pub fn listxattr_turn(&self, ino: Ino, progress: &mut Progress, wait: Wait) -> FsResult<Vec<u8>> {
        terrace_fs::names::xattr::listxattr_turn(&self.store, ino, progress, wait)
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// EEXIST, ENODATA by mode; ERANGE, E2BIG as ENOSPC beyond the size of one transaction; ENOSPC, also when
    /// the list of all names would be longer than 64 KiB; EIO.
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode, wait: Wait) -> FsResult<()> {
        terrace_fs::names::xattr::setxattr(&self.store, ino, name, value, mode, wait)
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// ENODATA; EIO.
    pub fn removexattr(&self, ino: Ino, name: &[u8], wait: Wait) -> FsResult<()> {
        terrace_fs::names::xattr::removexattr(&self.store, ino, name, wait)
    }

    /// A number for a descriptor that is opened now, for [`Self::fsync_handle`].
    pub fn new_handle(&self) -> u64 {
        terrace_fs::sync::new_handle(&self.store)
    }
}
