//! System calls on the content of files, and syncing.
use crate::engine::Engine;
use terrace_format::Ino;
use terrace_store::error::FsResult;
use terrace_store::operation::progress::Progress;
use terrace_store::types::Allocate;
use terrace_store::types::Seek;
use terrace_store::types::Wait;
use terrace_store::types::WriteFlags;

impl Engine {
    /// Reads up to `into.len()` bytes; fewer at the end of the file. With `Wait::Never` it returns
    /// `WouldBlock` when a lower tier has to be read.
    ///
    /// # Errors
    /// EISDIR, EINVAL, EIO when a medium fails or a cold block's checksum is wrong.
    pub fn read(&self, ino: Ino, offset: u64, into: &mut [u8], wait: Wait) -> FsResult<usize> {
        terrace_fs::content::read::read(&self.store, ino, offset, into, wait)
    }

    /// As [`Self::read`]; without `touch` (O_NOATIME) the access time stays.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_into(
        &self,
        ino: Ino,
        offset: u64,
        into: &mut [u8],
        touch: bool,
        wait: Wait,
    ) -> FsResult<usize> {
        terrace_fs::content::read::read_into(&self.store, ino, offset, into, touch, wait)
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
        terrace_fs::content::write::write_durably(&self.store, ino, offset, data, flags, wait)
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

    /// Makes data and metadata of an inode durable (design 5): its dirty pages are written back and its size
    /// committed. A write into PM was committed when it returned, so for most files this only persists PM.
    ///
    /// # Errors
    /// `WouldBlock` when there are dirty pages and the caller may not wait; EIO when PM has failed; the error
    /// of a device, and the pages stay dirty.
    pub fn fsync(&self, ino: Ino, _data_only: bool, wait: Wait) -> FsResult<()> {
        terrace_fs::sync::fsync(&self.store, ino, wait)
    }

    /// As [`Self::fsync`], through a descriptor: it also reports, once, a failed write-back since the
    /// descriptor was opened (I5).
    ///
    /// # Errors
    /// As [`Self::fsync`].
    pub fn fsync_handle(&self, ino: Ino, handle: u64, _data_only: bool, wait: Wait) -> FsResult<()> {
        terrace_fs::sync::fsync_handle(&self.store, ino, handle, wait)
    }

    /// As [`Self::fsync`], for a directory.
    ///
    /// # Errors
    /// As [`Self::fsync`].
    pub fn fsyncdir(&self, ino: Ino) -> FsResult<()> {
        terrace_fs::sync::fsyncdir(&self.store, ino)
    }

    /// Whether a change of names is durable when its call returns, so that [`Self::fsyncdir`] has nothing to do and no
    /// failure to tell.
    pub fn needs_no_fsyncdir(&self) -> bool {
        terrace_fs::sync::needs_no_fsyncdir(&self.store)
    }

    /// Makes everything written so far durable, dirty pages of all files included.
    ///
    /// # Errors
    /// EIO when PM has failed; the first error of a file with a failed write-back. All other files are
    /// durable.
    pub fn sync(&self) -> FsResult<()> {
        terrace_fs::sync::sync(&self.store)
    }
}
