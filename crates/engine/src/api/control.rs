//! Calls of the daemon: status, locations of files, the end of a mount.
use crate::background::Background;
use crate::engine::Engine;
use crate::status::io::IoReport;
use crate::status::pool::FsStatus;
use std::io;
use std::sync::Arc;
use terrace_format::Ino;
use terrace_store::error::FsResult;
use terrace_store::types::BlockRange;
use terrace_store::types::Space;
use terrace_store::types::Wait;
use terrace_store::types::Whereabouts;

impl Engine {
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

    /// The tier that a file or directory is pinned to.
    ///
    /// # Errors
    /// ESTALE, EIO.
    pub fn pinned(&self, ino: Ino) -> FsResult<Option<u8>> {
        terrace_store::inode::tier_pin::pinned(&self.store, ino)
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

    /// Whether PM has failed: the pool takes no change until the next mount.
    pub fn is_stopped(&self) -> bool {
        terrace_fs::sync::is_stopped(&self.store)
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

    /// Most bytes of dirty pages.
    pub fn buffer_bytes(&self) -> u64 {
        terrace_store::pressure::buffer::buffer_bytes(&self.store)
    }
}
