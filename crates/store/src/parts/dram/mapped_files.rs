//! Files that programs have mapped: pages of a mapping wait in the kernel, or in a client, and not in DRAM a second time. All
//! writes to such a file are eager.
//!
//! A file is added under its exclusive inode lock; writers ask under the inode's lock. The lock here is innermost.

use std::collections::HashMap;
use terrace_format::Ino;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicUsize, Ordering};

#[derive(Debug, Clone, Copy, Default)]
struct Mapped {
    /// Mappings that a client has begun and not ended.
    begun: u32,
    /// The kernel has written pages of a mapping since the first open.
    by_kernel: bool,
}

/// The mapped files.
#[derive(Debug, Default)]
pub struct MappedFiles {
    files: Mutex<HashMap<Ino, Mapped>>,
    /// Files, to be read without the lock: most mounts have none.
    count: AtomicUsize,
}

impl MappedFiles {
    /// Whether a file is mapped. The caller holds the inode's lock.
    #[inline]
    pub fn has(&self, ino: Ino) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.files.lock().contains_key(&ino)
    }

    /// A client begins a mapping. The caller holds the inode's exclusive lock.
    pub fn begin(&self, ino: Ino) {
        self.change(ino, |mapped| mapped.begun = mapped.begun.saturating_add(1));
    }

    /// A client ends a mapping.
    pub fn end(&self, ino: Ino) {
        self.change(ino, |mapped| mapped.begun = mapped.begun.saturating_sub(1));
    }

    /// The kernel writes pages of a mapping. The caller holds the inode's exclusive lock.
    pub fn note_pages(&self, ino: Ino) {
        self.change(ino, |mapped| mapped.by_kernel = true);
    }

    /// Whether the kernel has written pages of a mapping since the first open.
    #[inline]
    pub fn has_pages(&self, ino: Ino) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.files.lock().get(&ino).is_some_and(|mapped| mapped.by_kernel)
    }

    /// The last close of a file: the kernel has written all pages of its mappings.
    pub fn closed(&self, ino: Ino) {
        if self.has(ino) {
            self.change(ino, |mapped| mapped.by_kernel = false);
        }
    }

    /// The file is gone.
    pub fn forget(&self, ino: Ino) {
        if self.has(ino) {
            self.change(ino, |mapped| *mapped = Mapped::default());
        }
    }

    fn change(&self, ino: Ino, change: impl FnOnce(&mut Mapped)) {
        let mut files = self.files.lock();
        let mapped = files.entry(ino).or_default();
        change(mapped);
        if mapped.begun == 0 && !mapped.by_kernel {
            files.remove(&ino);
        }
        self.count.store(files.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_mapped_until_each_mapping_has_ended() {
        let (files, ino) = (MappedFiles::default(), Ino(7));
        files.end(ino);
        assert!(!files.has(ino));
        files.begin(ino);
        files.begin(ino);
        files.note_pages(ino);
        files.end(ino);
        files.closed(ino);
        assert!(files.has(ino) && !files.has_pages(ino) && !files.has(Ino(8)));
        files.end(ino);
        assert!(!files.has(ino));
        files.begin(ino);
        files.note_pages(ino);
        files.forget(ino);
        assert!(!files.has(ino));
    }
}
