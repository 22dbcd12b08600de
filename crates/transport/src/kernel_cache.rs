//! The kernel's cache of file content: which open files the kernel caches, and when it drops their pages (decision
//! 0020).
//!
//! Invariants:
//! 1. A file has one mode from its first open to its last close.
//! 2. The kernel drops the pages that it filled while the file was open in [`OpenMode::Direct`] before the file is cached,
//!    and while no descriptor but that of the opening reader exists.
//! 3. The files that are cached while there is room take no more blocks than the budget, and give them back at their last
//!    close.
//!
//! The store keeps the state of each inode, in the front end's note beside the count of opens: the state changes
//! together with that count, and ends with the last reference.
//!
//! Lock order: the lock of the drops, then the lock of an inode's references. Consent to an open takes no lock.

use crate::pages::{OpenMode, Pages, end_drop, fill_pages};
use std::panic::{AssertUnwindSafe, catch_unwind};
use terrace_engine::{Asks, Engine, FrontEnd, FsError, FsResult, HowToOpen, Note, Prefer, Wait};
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_runtime::sync::{Condvar, Mutex};

/// An open that was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opening {
    /// The file is open.
    Open(OpenMode),
    /// The file is open, and is cached once the kernel has dropped its old pages: the caller asks the kernel for
    /// that, then ends the drop.
    Drops,
}

/// Has the kernel drop all pages of an inode; true when it did.
pub type DropPages = Box<dyn Fn(Ino) -> bool + Send + Sync>;

/// The rules of the kernel's cache, and the budget for files in PM.
pub struct KernelCache {
    /// Blocks of open files that are cached while there is room, and the most that may be.
    kept_blocks: AtomicU64,
    most_kept_blocks: u64,
    drop_pages: Option<DropPages>,
    /// Held by opens that look whether a drop still goes on, and by drops that end.
    drops: Mutex<()>,
    dropped: Condvar,
}

impl KernelCache {
    /// With a budget of `bytes` for files in PM that are open for reading. Without a way to have pages dropped, a file
    /// of which the kernel may hold old pages stays direct.
    pub fn new(bytes: u64) -> KernelCache {
        KernelCache {
            kept_blocks: AtomicU64::new(0),
            most_kept_blocks: bytes / BLOCK_SIZE,
            drop_pages: None,
            drops: Mutex::default(),
            dropped: Condvar::default(),
        }
    }

    /// Sets the function that has the kernel drop all pages of an inode; it gives true if the kernel did. After
    /// that, a file of which the kernel may hold old pages can be cached, too. Opens that may wait call it without
    /// a lock.
    pub fn with_drop_pages(self, drop_pages: impl Fn(Ino) -> bool + Send + Sync + 'static) -> KernelCache {
        KernelCache { drop_pages: Some(Box::new(drop_pages)), ..self }
    }

    /// Blocks of files that are cached while there is room, and the most, in bytes.
    pub fn kept_bytes(&self) -> (u64, u64) {
        (self.kept_blocks.load(Ordering::Relaxed) * BLOCK_SIZE, self.most_kept_blocks * BLOCK_SIZE)
    }

    /// Opens; `truncate` as O_TRUNC. The mode is that of the first open until the last close.
    ///
    /// # Errors
    /// ESTALE, EIO, and truncate's; `WouldBlock`.
    pub fn open(&self, fs: &Engine, ino: Ino, truncate: bool, write: bool, wait: Wait) -> FsResult<OpenMode> {
        let mut opens = Opens { cache: self, opening: None };
        let mut how = HowToOpen { truncate, write, direct: truncate };
        loop {
            let is_admitted = fs.open_through(ino, how, wait, &mut opens)?;
            assert_eq!(is_admitted, opens.opening.is_some(), "inode {ino} is open without consent");
            match opens.opening {
                Some(Opening::Open(mode)) => return Ok(mode),
                Some(Opening::Drops) => return Ok(self.drop_pages(fs, ino)),
                None if wait != Wait::Allowed => return Err(FsError::WouldBlock),
                None => self.wait_for_dropped(fs, ino),
            }
            how.truncate = false;
        }
    }

    /// Closes.
    pub fn release(&self, fs: &Engine, ino: Ino) {
        fs.release_through(ino, &mut Opens { cache: self, opening: None });
    }

    /// Learns of a read whose bytes the kernel puts into its pages: in [`OpenMode::Direct`], too, a mapping or a copy within
    /// the kernel (sendfile) reads like that. Called before the read is answered.
    pub fn fills_pages(&self, fs: &Engine, ino: Ino) {
        fs.with_note(ino, fill_pages);
    }

    /// Consents to an open, and sets the mode at a first open. `None`: another caller is dropping pages, or this
    /// caller would have to drop pages and may not wait.
    fn admit(&self, pages: &mut Pages, asks: Asks) -> Option<Opening> {
        let is_old = pages.is_old;
        let mut prefers_cached = (self.drop_pages.is_some() || !is_old)
            && match asks.prefer {
                Prefer::Direct => false,
                Prefer::Cached => true,
                Prefer::CachedWithinBudget { at_any_cost, .. } => at_any_cost || !is_old,
            };
        // Every open waits for the drop, or the kernel, which drops the pages, would wait for requests that
        // hold some of them.
        if pages.drops {
            return None;
        }
        if asks.is_first {
            assert_eq!(pages.kept_blocks, 0, "a file without descriptors takes blocks of the budget");
            let drops = prefers_cached && is_old;
            if drops && asks.wait != Wait::Allowed {
                return None;
            }
            if prefers_cached && let Prefer::CachedWithinBudget { blocks, .. } = asks.prefer {
                pages.kept_blocks = self.keep(blocks).unwrap_or(0);
                prefers_cached = pages.kept_blocks > 0;
            }
            pages.drops = drops && prefers_cached;
            pages.cached = prefers_cached && !is_old;
        }
        Some(if pages.drops { Opening::Drops } else { Opening::Open(pages.mode()) })
    }

    /// Takes blocks of the budget; `None` if there is no room.
    fn keep(&self, blocks: u64) -> Option<u32> {
        let taken = u32::try_from(blocks).ok()?;
        let more = |kept: u64| kept.checked_add(blocks).filter(|kept| *kept <= self.most_kept_blocks);
        self.kept_blocks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok().then_some(taken)
    }

    /// Gives the blocks of a file back to the budget, after its last close.
    fn give_back(&self, pages: &mut Pages) {
        let taken = u64::from(std::mem::take(&mut pages.kept_blocks));
        let before = self.kept_blocks.fetch_sub(taken, Ordering::Relaxed);
        assert!(before >= taken, "{taken} of {before} kept blocks are given back");
    }

    /// Has the kernel drop the pages of a file that the caller alone has open.
    fn drop_pages(&self, fs: &Engine, ino: Ino) -> OpenMode {
        // Further opens wait for the drop, so it must end even after a panic.
        let drop_pages = || self.drop_pages.as_ref().is_some_and(|drop_pages| drop_pages(ino));
        let done = catch_unwind(AssertUnwindSafe(drop_pages)).unwrap_or(false);
        let mode = fs.with_note(ino, |note| end_drop(note, done));
        let _drops = self.drops.lock();
        self.dropped.notify_all();
        mode.unwrap_or(OpenMode::Direct)
    }

    /// Waits while another caller has pages dropped.
    fn wait_for_dropped(&self, fs: &Engine, ino: Ino) {
        let mut drops = self.drops.lock();
        while fs.with_note(ino, |note| Pages::of(note).drops) == Some(true) {
            self.dropped.wait(&mut drops);
        }
    }
}

/// An open or a close of a file.
struct Opens<'a> {
    cache: &'a KernelCache,
    /// The outcome of the open, once it is admitted.
    opening: Option<Opening>,
}

impl FrontEnd for Opens<'_> {
    fn admit(&mut self, note: &mut Note, asks: Asks) -> bool {
        let mut pages = Pages::of(note);
        self.opening = self.cache.admit(&mut pages, asks);
        *note = pages.note();
        self.opening.is_some()
    }

    fn closed(&mut self, note: &mut Note) {
        let mut pages = Pages::of(note);
        self.cache.give_back(&mut pages);
        pages.close(self.opening.is_some());
        *note = pages.note();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use terrace_store::parts::inodes::open_files::OpenFiles;

    const W: Wait = Wait::Allowed;
    const CACHED: Option<Opening> = Some(Opening::Open(OpenMode::Cached));
    const DIRECT: Option<Opening> = Some(Opening::Open(OpenMode::Direct));

    /// Open files with the kernel's cache before them.
    struct Files {
        references: OpenFiles,
        cache: KernelCache,
    }

    impl Files {
        /// With a budget of 10 blocks.
        fn new(can_drop: bool) -> Files {
            let cache = KernelCache::new(10 * BLOCK_SIZE);
            let cache = if can_drop { cache.with_drop_pages(|_| true) } else { cache };
            Files { references: OpenFiles::default(), cache }
        }

        fn open(&self, ino: u64, prefer: Prefer, wait: Wait) -> Option<Opening> {
            let mut opens = Opens { cache: &self.cache, opening: None };
            let admit = |note: &mut Note, is_first| {
                FrontEnd::admit(&mut opens, note, Asks { prefer, is_first, wait })
            };
            let is_admitted = self.references.open(Ino(ino), admit);
            assert_eq!(is_admitted, opens.opening.is_some());
            opens.opening
        }

        /// An open that the file system admits, and that fails afterwards.
        fn fail_to_open(&self, ino: u64) {
            let mut opens = Opens { cache: &self.cache, opening: None };
            let asks = Asks { prefer: Prefer::Direct, is_first: true, wait: W };
            assert!(self.references.open(Ino(ino), |note, _| opens.admit(note, asks)));
            self.references.release(Ino(ino), |note| opens.closed(note));
        }

        /// Whether a reference is left after the close.
        fn close(&self, ino: u64) -> bool {
            let mut opens = Opens { cache: &self.cache, opening: None };
            self.references.release(Ino(ino), |note| opens.closed(note)).is_referenced
        }

        /// A mapping reads.
        fn fill(&self, ino: u64) {
            self.references.with_note(Ino(ino), fill_pages).unwrap();
        }

        fn dropped(&self, ino: u64, done: bool) -> Option<OpenMode> {
            self.references.with_note(Ino(ino), |note| end_drop(note, done))
        }

        fn kept_blocks(&self) -> u64 {
            self.cache.kept_bytes().0 / BLOCK_SIZE
        }
    }

    /// A small file of which the kernel would not have to drop old pages first.
    const SMALL: Prefer = Prefer::CachedWithinBudget { blocks: 1, at_any_cost: false };

    /// A mapping beside direct writes left old pages in the kernel's cache, and a later open that only read kept them.
    #[test]
    fn the_kernel_does_not_cache_a_file_with_old_pages() {
        let files = Files::new(false);
        let open = |prefer| files.open(7, prefer, W);
        files.references.looked_up(Ino(7));
        assert_eq!(open(Prefer::Cached), CACHED);
        // The mode stays until the last close.
        assert_eq!(open(Prefer::Direct), CACHED);
        (0..2).for_each(|_| assert!(files.close(7)));
        assert_eq!(open(Prefer::Direct), DIRECT);
        files.fill(7);
        assert!(files.close(7));
        assert_eq!([0, 1].map(|_| open(Prefer::Cached)), [DIRECT; 2]);
        files.fill(7);
        // The kernel forgets the inode, and its pages with it.
        (0..2).for_each(|_| assert!(files.close(7)));
        assert!(files.references.forget(Ino(7), 1));
        assert_eq!(open(Prefer::Cached), CACHED);
    }

    /// A reader of a file that had just been written waited in another thread for a drop of pages, and there were none.
    #[test]
    fn an_unmapped_file_is_cached_without_a_drop() {
        let files = Files::new(true);
        files.references.looked_up(Ino(7));
        for prefer in [SMALL, Prefer::Cached] {
            // The direct open has the kernel drop the pages of the cached open before it.
            assert_eq!(files.open(7, Prefer::Direct, Wait::Never), DIRECT);
            _ = files.close(7);
            assert_eq!(files.open(7, prefer, Wait::Never), CACHED);
            // Pages that are filled now are written through.
            files.fill(7);
            _ = files.close(7);
            assert_eq!(files.open(7, prefer, Wait::Never), CACHED);
            _ = files.close(7);
        }
    }

    #[test]
    fn a_small_file_with_old_pages_is_direct_once() {
        let files = Files::new(true);
        files.references.looked_up(Ino(7));
        assert_eq!(files.open(7, Prefer::Direct, W), DIRECT);
        files.fill(7);
        _ = files.close(7);
        // The kernel is not told of an open that fails, and keeps its pages.
        files.fail_to_open(7);
        assert_eq!(files.open(7, SMALL, Wait::Never), DIRECT);
        // The mode stays until the last close.
        assert_eq!(files.open(7, Prefer::Cached, W), DIRECT);
        (0..2).for_each(|_| _ = files.close(7));
        assert_eq!(files.open(7, SMALL, Wait::Never), CACHED);
    }

    /// Pages are dropped once, while no other descriptor is open; a further open waits meanwhile, also for
    /// writing.
    #[test]
    fn pages_are_dropped_beside_nobody() {
        let files = Files::new(true);
        let open = |prefer, wait| files.open(7, prefer, wait);
        let close = || _ = files.close(7);
        files.references.looked_up(Ino(7));
        assert_eq!(open(Prefer::Direct, W), DIRECT);
        files.fill(7);
        // A writer has the file open already, so the mode stays direct.
        assert_eq!(open(Prefer::Cached, W), DIRECT);
        (0..2).for_each(|_| close());
        assert_eq!(open(Prefer::Cached, Wait::Never), None);
        assert_eq!(open(Prefer::Cached, W), Some(Opening::Drops));
        // Further opens wait for the drop, and are counted afterwards.
        assert_eq!([Prefer::Cached, Prefer::Direct].map(|prefer| open(prefer, W)), [None; 2]);
        assert_eq!(files.dropped(7, true), Some(OpenMode::Cached));
        assert_eq!(open(Prefer::Direct, Wait::Never), CACHED);
        (0..2).for_each(|_| close());
        // The kernel has no old page until the file was open directly again.
        assert_eq!(open(Prefer::Cached, Wait::Never), CACHED);
        close();
        assert_eq!(open(Prefer::Direct, W), DIRECT);
        files.fill(7);
        close();
        // The kernel failed to drop the pages.
        assert_eq!(open(Prefer::Cached, W), Some(Opening::Drops));
        assert_eq!(files.dropped(7, false), Some(OpenMode::Direct));
        close();
        assert_eq!(open(Prefer::Cached, W), Some(Opening::Drops));
        assert!(files.references.is_open(Ino(7)));
    }

    /// Evenly read beyond what the kernel has room for, files in its cache were read at half the speed of direct ones.
    #[test]
    fn files_are_kept_in_the_kernel_while_there_is_room() {
        let files = Files::new(true);
        let open = |ino, blocks| files.open(ino, Prefer::CachedWithinBudget { blocks, at_any_cost: true }, W);
        assert_eq!([open(1, 6), open(2, 6), open(3, 4)], [CACHED, DIRECT, CACHED]);
        // A second open shares the mode; `Prefer::Cached` takes no counted room.
        assert_eq!([open(1, 6), files.open(4, Prefer::Cached, W)], [CACHED; 2]);
        assert_eq!(files.kept_blocks(), 10);
        _ = files.close(1);
        assert_eq!(files.kept_blocks(), 10, "another has it open");
        [1, 2, 3].iter().for_each(|ino| _ = files.close(*ino));
        assert_eq!(files.kept_blocks(), 0);
        files.references.looked_up(Ino(5));
        assert_eq!(files.open(5, Prefer::Direct, W), DIRECT);
        files.fill(5);
        _ = files.close(5);
        // The file takes its room before its pages are dropped, and holds it until the close, even if the
        // drop fails.
        assert_eq!([open(5, 10), open(1, 1)], [Some(Opening::Drops), DIRECT]);
        assert_eq!(files.dropped(5, false), Some(OpenMode::Direct));
        _ = files.close(5);
        assert_eq!([open(5, u64::MAX), open(6, 11)], [DIRECT; 2]);
        assert_eq!(files.kept_blocks(), 0);
    }
}
