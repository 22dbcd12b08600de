//! A mounted pool as a front end serves it: the engine, and the kernel's cache before it.

use crate::kernel_cache::KernelCache;
use crate::pages::OpenMode;
use std::sync::Arc;
use terrace_engine::{Engine, FsResult, Wait};
use terrace_format::Ino;

/// The engine with the kernel's cache before it.
pub struct Served {
    fs: Arc<Engine>,
    cache: KernelCache,
}

impl Served {
    /// A mounted pool whose files the kernel caches by the rules of `cache`.
    pub fn new(fs: Arc<Engine>, cache: KernelCache) -> Served {
        Served { fs, cache }
    }

    /// The engine.
    #[inline]
    pub fn fs(&self) -> &Arc<Engine> {
        &self.fs
    }

    /// The kernel's cache.
    #[inline]
    pub fn cache(&self) -> &KernelCache {
        &self.cache
    }

    /// Opens; `truncate` as O_TRUNC. The mode is that of the first open until the last close.
    ///
    /// # Errors
    /// ESTALE, EIO, and truncate's; `WouldBlock`.
    pub fn open(&self, ino: Ino, truncate: bool, write: bool, wait: Wait) -> FsResult<OpenMode> {
        self.cache.open(&self.fs, ino, truncate, write, wait)
    }

    /// Learns of a read whose bytes the kernel puts into its pages.
    pub fn fills_pages(&self, ino: Ino) {
        self.cache.fills_pages(&self.fs, ino);
    }

    /// Closes.
    pub fn release(&self, ino: Ino) {
        self.cache.release(&self.fs, ino);
    }
}
