//! The methods of a mounted pool, one for each call.
use crate::accounts::Accounts;
use crate::background::Background;
use crate::engine::Engine;
use crate::status::io::IoReport;
use crate::status::pool::FsStatus;
use std::io;
use std::sync::Arc;
use terrace_format::Ino;
use terrace_migration::requested::progress::HandMove;
use terrace_migration::requested::progress::HandPlan;
use terrace_migration::requested::progress::HandReport;
use terrace_migration::requested::sync_to::SyncPlan;
use terrace_runtime::Next;
use terrace_runtime::Step;
use terrace_runtime::thread::Waker;
use terrace_store::error::FsResult;
use terrace_store::operation::progress::Progress;
use terrace_store::parts::inodes::open_files::OpenMode;
use terrace_store::types::Allocate;
use terrace_store::types::Attributes;
use terrace_store::types::BlockRange;
use terrace_store::types::Caller;
use terrace_store::types::DirectoryEntry;
use terrace_store::types::Seek;
use terrace_store::types::SetAttributes;
use terrace_store::types::Space;
use terrace_store::types::Wait;
use terrace_store::types::Whereabouts;
use terrace_store::types::WriteFlags;
use terrace_store::types::XattrMode;

impl Engine {
    /// The accounts of memory and space at this moment. It reads the block table, the bitmaps and the inode
    /// pages in PM.
    ///
    /// # Errors
    /// The medium's.
    pub fn accounts(&self) -> FsResult<Accounts> {
        crate::accounts::accounts(self)
    }

    /// Most bytes of dirty pages.
    pub fn buffer_bytes(&self) -> u64 {
        terrace_store::pressure::buffer::buffer_bytes(&self.store)
    }

    /// Allocates or deallocates a range.
    ///
    /// # Errors
    /// EINVAL for an empty range, EFBIG, ENOSPC, EISDIR, ENODEV never; EIO.
    pub fn fallocate(&self, ino: Ino, offset: u64, length: u64, mode: Allocate, wait: Wait) -> FsResult<()> {
        terrace_fs::content::fallocate::fallocate(&self.store, ino, offset, length, mode, wait)
    }

    /// A turn of [`Self::fallocate`] of a range: offset and length.
    ///
    /// # Errors
    /// As [`Self::fallocate`]; `Unfinished`.
    pub fn fallocate_turn(
        &self,
        ino: Ino,
        (offset, length): (u64, u64),
        mode: Allocate,
        progress: &mut Progress,
        wait: Wait,
    ) -> FsResult<()> {
        terrace_fs::content::fallocate::fallocate_turn(
            &self.store,
            ino,
            (offset, length),
            mode,
            progress,
            wait,
        )
    }

    /// The next data or hole at or after an offset.
    ///
    /// # Errors
    /// ENXIO at or past the end (and for data, when none follows), EISDIR, EIO.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> FsResult<u64> {
        terrace_fs::content::seek::seek(&self.store, ino, offset, what)
    }

    /// A turn of [`Self::seek`]; it waits for metadata on a lower tier only if it may.
    ///
    /// # Errors
    /// As [`Self::seek`]; `WouldBlock`, `Unfinished`.
    pub fn seek_turn(
        &self,
        ino: Ino,
        offset: u64,
        what: Seek,
        progress: &mut Progress,
        wait: Wait,
    ) -> FsResult<u64> {
        terrace_fs::content::seek::seek_turn(&self.store, ino, offset, what, progress, wait)
    }

    /// Counts of I/O since the mount. Waits for the scan after mount: not for a request thread.
    ///
    /// # Errors
    /// EIO when the tiers' use cannot be read.
    pub fn io_report(&self) -> FsResult<IoReport> {
        crate::status::io::io_report(self)
    }

    /// When a device of a lower tier last answered, or was first asked after a rest, in monotonic
    /// nanoseconds. A device that hangs leaves the time unchanged.
    pub fn devices_answered_ns(&self) -> u64 {
        crate::status::io::devices_answered_ns(self)
    }

    /// Requests a movement of a file, or of a directory with everything in it, in the background. Gives the
    /// number of the request.
    ///
    /// # Errors
    /// EINVAL when there is no such tier; EROFS; ESTALE; EAGAIN when too many wait already.
    pub fn move_by_hand(&self, ino: Ino, action: HandMove) -> FsResult<u64> {
        crate::requests::move_by_hand(self, ino, action)
    }

    /// The files and bytes that a requested movement would move, without moving them. Looks at all files
    /// below the path first.
    ///
    /// # Errors
    /// As [`Self::move_by_hand`]; EIO.
    pub fn plan_by_hand(&self, ino: Ino, action: HandMove) -> FsResult<HandPlan> {
        crate::requests::plan_by_hand(self, ino, action)
    }

    /// The report of a requested movement; `None` for an unknown number, or one that ended too long ago.
    pub fn hand_report(&self, id: u64) -> Option<HandReport> {
        crate::requests::hand_report(self, id)
    }

    /// The requested movements that wait, are under way, or ended lately.
    pub fn hand_reports(&self) -> Vec<HandReport> {
        crate::requests::hand_reports(self)
    }

    /// Does one bounded part of the requested movements. Of several threads that call it only one works at a
    /// time.
    pub fn hand_step(&self) -> Next {
        crate::requests::hand_step(self)
    }

    /// Demotes at once every metadata page that may be demoted, however much room PM has. For tests and
    /// simulators. Returns the number of demoted pages.
    ///
    /// # Errors
    /// The media's.
    pub fn lower_metadata_now(&self) -> FsResult<u64> {
        terrace_migration::metadata::lower_metadata_now(&self.migration)
    }

    /// Writes the epoch of this mount into the header of each device, before any other write of the mount. So
    /// a later mount can tell that its PM is an older copy than the one its devices were last used with.
    ///
    /// # Errors
    /// The first error of a device; all other headers are written.
    pub fn stamp_devices(&self) -> FsResult<()> {
        crate::mount::stamp_devices(self)
    }

    /// Starts the threads of migration, reclaiming and scanning.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start_background(self: &Arc<Engine>) -> io::Result<Background> {
        crate::background::start_background(self)
    }

    /// Ends a mount: dirty pages are written back, or settled if no lower tier takes them; the last
    /// checkpoint is written; the pool is marked clean, and everything is durable. Devices need no flush:
    /// blocks that a record names were flushed before it (M1). Drop [`Background`] first; no operation may
    /// follow.
    ///
    /// # Errors
    /// The error of a medium: the pool is not marked clean then, and the next mount recovers it. Also when
    /// dirty pages of a file had room neither on a device nor in PM; all other files are saved.
    pub fn unmount(&self) -> FsResult<()> {
        crate::unmount::unmount(self)
    }

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

    /// Sets the function that makes the kernel drop all pages of an inode; it gives true if the kernel did.
    /// After that, a file that was open for direct I/O can be cached by the kernel. Opens that may wait call
    /// it without a lock. Set once.
    pub fn set_drop_pages(&self, drop_pages: impl Fn(Ino) -> bool + Send + Sync + 'static) {
        terrace_fs::names::open::set_drop_pages(&self.store, drop_pages)
    }

    /// Opens; `truncate` as O_TRUNC. The mode is that of the first open until the last close.
    ///
    /// # Errors
    /// ESTALE, EIO, and truncate's; `WouldBlock`.
    pub fn open(&self, ino: Ino, truncate: bool, write: bool, wait: Wait) -> FsResult<OpenMode> {
        terrace_fs::names::open::open(&self.store, ino, truncate, write, wait)
    }

    /// Closes.
    pub fn release(&self, ino: Ino) {
        terrace_fs::names::open::release(&self.store, ino)
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

    /// The tier that a file or directory is pinned to.
    ///
    /// # Errors
    /// ESTALE, EIO.
    pub fn pinned(&self, ino: Ino) -> FsResult<Option<u8>> {
        terrace_store::inode::tier_pin::pinned(&self.store, ino)
    }

    /// Lets predictors and temperature rest, or work again: for benchmarks that measure their cost for a
    /// request in the same pool, while migration does nothing. At rest, a block keeps its times and its mark.
    /// Under a policy without predictors there is no difference.
    pub fn let_predictors_rest(&self, rest: bool) {
        self.store.steering.let_rest(rest)
    }

    /// Reads up to `into.len()` bytes; fewer at the end of the file. With `Wait::Never` it returns
    /// `WouldBlock` when a lower tier has to be read.
    ///
    /// # Errors
    /// EISDIR, EINVAL, EIO when a medium fails or a cold block's checksum is wrong.
    pub fn read(&self, ino: Ino, offset: u64, into: &mut [u8], wait: Wait) -> FsResult<usize> {
        terrace_fs::content::read::read(&self.store, ino, offset, into, wait)
    }

    /// As [`Self::read`], up to `length` bytes into the beginning of a buffer, which grows only if the read
    /// bytes need it: bytes past the end of the file take no room. Without `touch` (O_NOATIME) the access
    /// time stays.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_to(
        &self,
        ino: Ino,
        offset: u64,
        length: usize,
        buffer: &mut Vec<u8>,
        touch: bool,
        wait: Wait,
    ) -> FsResult<usize> {
        terrace_fs::content::read::read_to(&self.store, ino, offset, length, buffer, touch, wait)
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

    /// The steps that background threads drive, with their wakers.
    pub fn background_steps(self: &Arc<Engine>) -> Vec<(Box<dyn Step>, Waker)> {
        crate::background::background_steps(self)
    }

    /// Drives all background work by hand until no step has work left, for at most `limit` steps. For tests
    /// and simulators.
    pub fn run_background(self: &Arc<Engine>, limit: usize) {
        crate::background::run_background(self, limit)
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

    /// Present state. Waits for the scan after mount: not for a request thread.
    ///
    /// # Errors
    /// EIO when the tiers' use cannot be read.
    pub fn status(&self) -> FsResult<FsStatus> {
        crate::status::pool::status(self)
    }

    /// Space of all tiers together, when the scan after mount has counted it.
    ///
    /// # Errors
    /// `WouldBlock` when it has not and the caller may not wait; EIO.
    pub fn statfs(&self, wait: Wait) -> FsResult<Space> {
        crate::status::space::statfs(self, wait)
    }

    /// The tiers that hold the blocks of a file.
    ///
    /// # Errors
    /// ESTALE, EIO.
    pub fn whereabouts(&self, ino: Ino) -> FsResult<Whereabouts> {
        crate::status::whereabouts::whereabouts(self, ino)
    }

    /// The tiers that hold the blocks of a part of a file.
    ///
    /// # Errors
    /// ESTALE, EIO.
    pub fn whereabouts_in(&self, ino: Ino, range: BlockRange) -> FsResult<Whereabouts> {
        crate::status::whereabouts::whereabouts_in(self, ino, range)
    }

    /// Makes data and metadata of an inode durable (design 5): its dirty pages are written back and its size
    /// committed. A write into PM was committed when it returned, so for most files this only persists PM.
    ///
    /// # Errors
    /// `WouldBlock` when there are dirty pages and the caller may not wait; EIO when PM has failed; the error
    /// of a device, and the pages stay dirty.
    pub fn fsync(&self, ino: Ino, _data_only: bool, wait: Wait) -> FsResult<()> {
        terrace_fs::sync::fsync(&self.store, ino, _data_only, wait)
    }

    /// A number for a descriptor that is opened now, for [`Self::fsync_handle`].
    pub fn new_handle(&self) -> u64 {
        terrace_fs::sync::new_handle(&self.store)
    }

    /// As [`Self::fsync`], through a descriptor: it also reports, once, a failed write-back since the
    /// descriptor was opened (I5).
    ///
    /// # Errors
    /// As [`Self::fsync`].
    pub fn fsync_handle(&self, ino: Ino, handle: u64, data_only: bool, wait: Wait) -> FsResult<()> {
        terrace_fs::sync::fsync_handle(&self.store, ino, handle, data_only, wait)
    }

    /// Whether PM has failed: the pool takes no change until the next mount.
    pub fn is_stopped(&self) -> bool {
        terrace_fs::sync::is_stopped(&self.store)
    }

    /// As [`Self::fsync`], for a directory.
    ///
    /// # Errors
    /// As [`Self::fsync`].
    pub fn fsyncdir(&self, ino: Ino) -> FsResult<()> {
        terrace_fs::sync::fsyncdir(&self.store, ino)
    }

    /// Makes everything written so far durable, dirty pages of all files included.
    ///
    /// # Errors
    /// EIO when PM has failed; the first error of a file with a failed write-back. All other files are
    /// durable.
    pub fn sync(&self) -> FsResult<()> {
        terrace_fs::sync::sync(&self.store)
    }

    /// Tells long operations to end soon: a `sync_to` under way gives up.
    pub fn begin_end(&self) {
        crate::unmount::begin_end(self)
    }

    /// Settles all dirty pages without waiting for a device: for the end of a mount beside a device that does
    /// not answer. Files with the fewest dirty pages come first.
    ///
    /// # Errors
    /// The first error of a file that PM has no room for, or that needs a metadata page of a lower tier: its
    /// pages stay dirty.
    pub fn keep_without_devices(&self) -> FsResult<()> {
        crate::unmount::keep_without_devices(self)
    }

    /// Moves all blocks that are above `tier` now to `tier` or below, and waits. `progress` gets the number
    /// of blocks left. Gives the bytes of blocks in PM that were written meanwhile: such a block stays in PM
    /// whole, with its older bytes.
    ///
    /// # Errors
    /// EINVAL when there is no such tier, EROFS, ENOSPC when it cannot take all, EIO; EAGAIN when files
    /// changed faster than blocks moved, again and again.
    pub fn sync_to(&self, tier: u8, progress: &mut dyn FnMut(u64)) -> FsResult<u64> {
        terrace_migration::requested::sync_to::sync_to(&self.migration, tier, progress)
    }

    /// The bytes that [`Self::sync_to`] would move now, or [`Self::sync`] for tier 0. Looks at all files
    /// first if a lower tier lies above `tier`.
    ///
    /// # Errors
    /// As [`Self::sync_to`]; EIO.
    pub fn plan_sync_to(&self, tier: u8) -> FsResult<SyncPlan> {
        terrace_migration::requested::sync_to::plan_sync_to(&self.migration, tier)
    }

    /// Writes `data` at `offset` and gives the bytes written: all of them, or the pieces before one that
    /// failed, or that would have to wait when the caller may not (a waiting thread writes the rest, L2). A
    /// request of up to the atomic write size (min(1 MiB, the data that a quarter lane records)) is one
    /// piece, all or nothing after a crash under data=atomic.
    ///
    /// # Errors
    /// EFBIG beyond 16 TiB, ENOSPC when no tier can take it, EISDIR and EINVAL for other inodes, EIO.
    pub fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        wait: Wait,
    ) -> FsResult<usize> {
        terrace_fs::content::write::write(&self.store, ino, offset, data, flags, wait)
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
}
