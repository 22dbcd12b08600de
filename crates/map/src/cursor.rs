//! A cursor: the leaf of a file's map that the last look-up under an inode lock ended at.
//!
//! A lock owns its cursor, so a look-up without the lock cannot reach one, let alone fill it from a torn read. The inodes
//! that share a lock share its cursor. It is volatile: a crash leaves nothing of it.
//!
//! Tables of all files keep no leaf: there the cursor knows the last block, so that look-ups in the order of a file announce the
//! loads of the blocks to come ([HashFS] section 3.2.1).
//!
//! Invariants: a leaf is believed at an unchanged version of its page (S6). Each version is given once: by the claim of the
//! page, by its release, and at the end of each transaction that makes the range of the leaf smaller ([`LeafChange`]). So an
//! inode number that is given anew, with another generation, finds no leaf of the inode before it. A leaf that a transaction
//! is freeing is not noted. The range of a leaf may have grown since it was noted.
//! Lock order: after the inode's lock, which the caller holds at least shared; nobody waits for a cursor.

use terrace_blocks::{BlockPool, State};
use terrace_format::address::{MAX_FILE_BLOCK, MAX_INO};
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// The leaf that the last look-up ended at, of an inode of a lock.
#[derive(Debug, Default)]
pub struct Cursor {
    seen: Mutex<Seen>,
    /// The last block of a look-up in a table of all files, plus one. A hint: inodes of the lock and threads share it.
    last: AtomicU64,
}

/// Blocks of a file that a table of all files announces together.
pub(crate) const ANNOUNCED: u64 = 16;

/// A leaf as it was seen.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// 0: nothing was seen.
    ino: u32,
    begin: u32,
    end: u32,
    page: PmBlock,
    /// Of the page (S6).
    version: u64,
}

const _: () = assert!(MAX_INO.0 <= u32::MAX as u64);
const _: () = assert!(MAX_FILE_BLOCK.0 < u32::MAX as u64);

impl Default for Seen {
    fn default() -> Seen {
        Seen { ino: 0, begin: 0, end: 0, page: PmBlock(0), version: 0 }
    }
}

/// A leaf and file blocks whose entries it holds: from `begin` on, before `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownLeaf {
    pub page: PmBlock,
    pub begin: u64,
    pub end: u64,
}

impl Cursor {
    /// Notes a look-up of a block. Gives the first of 16 aligned blocks whose loads are to be announced: the look-ups come in
    /// the order of the file, and are halfway before these blocks.
    #[inline]
    pub(crate) fn announces(&self, block: FileBlock) -> Option<FileBlock> {
        let last = self.last.load(Ordering::Relaxed);
        self.last.store(block.0 + 1, Ordering::Relaxed);
        let next = block.plus(ANNOUNCED / 2);
        (block.0 == last && next.0.is_multiple_of(ANNOUNCED) && next.0 + ANNOUNCED <= MAX_FILE_BLOCK.0)
            .then_some(next)
    }

    /// The leaf with the entry of a file block, if it is known.
    #[inline]
    pub(crate) fn find(&self, blocks: &BlockPool, ino: Ino, block: u64) -> Option<KnownLeaf> {
        let Seen { ino: seen, begin, end, page, version } = *self.seen.try_lock()?;
        let leaf = KnownLeaf { page, begin: u64::from(begin), end: u64::from(end) };
        let is_of_block = u64::from(seen) == ino.0 && (leaf.begin..leaf.end).contains(&block);
        let is_unchanged = || blocks.descriptor(page).version() == version;
        (is_of_block && (is_unchanged() || planted(Mistake::CursorIgnoresVersion))).then_some(leaf)
    }

    /// Notes a leaf that a walk has led to, unless a transaction is freeing it.
    pub(crate) fn note(&self, blocks: &BlockPool, ino: Ino, leaf: KnownLeaf) {
        let descriptor = blocks.descriptor(leaf.page);
        let version = descriptor.version();
        let KnownLeaf { page, begin, end } = leaf;
        let (ino, begin, end) = (ino.0 as u32, begin as u32, end as u32);
        if let Some(mut seen) = self.seen.try_lock()
            && matches!(descriptor.state(), State::Used | State::Unknown)
        {
            *seen = Seen { ino, begin, end, page, version };
        }
    }
}

/// A leaf whose range becomes smaller in a transaction. At its end, when the stores are issued or it is given up, the page
/// gets a new version: no cursor believes what was seen of it before, under the exclusive lock of the inode.
pub(crate) struct LeafChange<'a> {
    blocks: &'a BlockPool,
    leaf: PmBlock,
}

impl<'a> LeafChange<'a> {
    pub(crate) fn begin(blocks: &'a BlockPool, leaf: PmBlock) -> LeafChange<'a> {
        LeafChange { blocks, leaf }
    }
}

impl Drop for LeafChange<'_> {
    fn drop(&mut self) {
        self.blocks.bump(self.leaf);
    }
}
