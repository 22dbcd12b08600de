//! Durability for a front end whose threads may not wait for the journal of PM.

use crate::engine::Engine;
use terrace_format::Ino;
use terrace_fs::sync::{self, Durable};
use terrace_store::error::FsResult;
use terrace_store::types::{Wait, WriteFlags};

/// Synchronous calls in two steps: changes are ordered first, and durable later.
pub trait Durability {
    /// As [`Engine::write`], but a synchronous write is durable only when [`Self::persist_then`] says so.
    ///
    /// # Errors
    /// As [`Engine::write`].
    fn write_ordered(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        wait: Wait,
    ) -> FsResult<usize>;

    /// As [`Engine::fsync_handle`] by a caller that may not wait: [`Self::persist_then`] waits for the journal.
    ///
    /// # Errors
    /// As [`Engine::fsync`]; `WouldBlock` for dirty pages alone.
    fn begin_fsync_handle(&self, ino: Ino, handle: u64) -> FsResult<Durable>;

    /// As [`Self::begin_fsync_handle`], for a directory.
    ///
    /// # Errors
    /// As there.
    fn begin_fsyncdir(&self, ino: Ino) -> FsResult<Durable>;

    /// Calls `done` once, now or later, when everything committed so far is durable or PM has failed. `done` neither calls the
    /// engine nor waits: its thread may hold locks. True if the caller has to bring a thread that may wait to [`Self::persist_waiting`].
    fn persist_then(&self, done: impl FnOnce(FsResult<()>) + Send + 'static) -> bool;

    /// Does the waiting that [`Self::persist_then`] left to another thread.
    fn persist_waiting(&self);

    /// Everything committed so far is durable.
    ///
    /// # Errors
    /// EIO when PM has failed.
    fn barrier(&self) -> FsResult<()>;
}

impl Durability for Engine {
    fn write_ordered(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        wait: Wait,
    ) -> FsResult<usize> {
        terrace_fs::content::write::write(&self.store, ino, offset, data, flags, wait)
    }

    fn begin_fsync_handle(&self, ino: Ino, handle: u64) -> FsResult<Durable> {
        sync::begin_fsync_handle(&self.store, ino, handle)
    }

    fn begin_fsyncdir(&self, ino: Ino) -> FsResult<Durable> {
        sync::begin_fsync(&self.store, ino)
    }

    fn persist_then(&self, done: impl FnOnce(FsResult<()>) + Send + 'static) -> bool {
        sync::persist_then(&self.store, done)
    }

    fn persist_waiting(&self) {
        sync::persist_waiting(&self.store);
    }

    fn barrier(&self) -> FsResult<()> {
        sync::barrier(&self.store)
    }
}
