//! The contract of a file map.
//!
//! Crash rules. A change is visible after a crash exactly if the transaction it was logged in is (I1); the map
//! stores nothing in place itself. Content of new map pages is streamed before the record that links them and
//! ordered before it by `make_room` (T4); a page comes from a claim, so no record above the checkpoint writes
//! to it (T6). Room is made in earlier transactions of its own (T7): a crash between them leaves room that no
//! block uses, which is sound, counts as the file's, and goes with the next change or `prune` over it.
//!
//! Locks. The inode's lock is held exclusively from the first read on which a change depends until its commit
//! (T2), and at least shared for reads. Answers read without it, errors included, mean nothing until the
//! caller has seen an unchanged version (S6); whatever is there, reads end and do not panic. The lock owns the cursor, so
//! no read without it has one ([`Cursor`]); a map that has cursors gives the page of a leaf a new version at the end of each
//! transaction that moves entries out of it. `change`, `exchange` and `make_room` may lock parts of the map that inodes
//! share; the guard that they give lives until the stores of the record are issued. `change` and `exchange` are called
//! after the catalog's shards are locked (L1).
//!
//! An operation that writes new blocks:
//! ```text
//! claim = blocks.claim(count, purpose)?
//! if let Some(room) = map.missing_room(&[], &change)? {          // gives up, and in transactions of their own:
//!     loop { claim = blocks.claim(room.pages, purpose)?; map.make_room(tx, .., &mut claim)?; commit } }
//!                                                           // stream the data to the blocks
//! guard = map.change(tx, &changes, ..)?                     // + owners of the data blocks, size, times
//! commit; drop(guard)
//! ```
//! A transaction that is given up after `make_room` gives the claim back (`Claim::give_back_all`); one that is
//! given up after `change` or `prune`, or in which they failed, keeps the blocks in `freed` (`BlockPool::keep`).

use crate::clustered::Claimed;
use crate::cuckoo::Held;
use crate::cursor::{Cursor, LeafChange};
pub use crate::map_inode::{MapInode, Mapping};
pub use crate::presence_change::PresenceChange;
pub(crate) use crate::presence_change::Witness;
use smallvec::SmallVec;
use terrace_blocks::Claim;
use terrace_format::inode::InodeSlot;
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_runtime::sync::MutexGuard;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_wal::{Error, MapRoom, Result, Tx};

/// PM blocks freed by a transaction, for `BlockPool::freed` after its commit.
pub type Freed = SmallVec<[PmBlock; 8]>;

/// A block of a file that PM holds, and where.
pub type Mapped = (FileBlock, Mapping);

/// New mappings of consecutive blocks of a file; `None` clears.
#[derive(Debug, Clone)]
pub struct MapChange {
    /// The inode, whose lock is held exclusively.
    pub inode: MapInode,
    /// The first block.
    pub first: FileBlock,
    /// A mapping for each block from the first on.
    pub mappings: SmallVec<[Option<Mapping>; 4]>,
}

impl MapChange {
    /// The block behind the last one.
    pub fn end(&self) -> FileBlock {
        FileBlock(self.first.0.saturating_add(self.mappings.len() as u64))
    }

    /// Runs of neighbouring PM blocks in it.
    pub fn runs(&self) -> usize {
        let follows = |a: &Option<Mapping>, b: &Option<Mapping>| match (a, b) {
            (Some(a), Some(b)) => a.block.0 + 1 == b.block.0 && a.unwritten == b.unwritten,
            (None, None) => true,
            _ => false,
        };
        self.mappings.chunk_by(follows).filter(|run| run.first().is_some_and(Option::is_some)).count()
    }

    /// Whether it only clears.
    pub fn is_removal(&self) -> bool {
        self.mappings.iter().all(Option::is_none)
    }
}

/// The size that a change of a file map adds to a record, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapRecord {
    /// Bytes for each run of consecutive file blocks.
    pub run: usize,
    /// Bytes for each block beside.
    pub block: usize,
    /// Most blocks that the changes of a transaction map, and most runs that they remove.
    pub most_blocks: usize,
}

impl MapRecord {
    /// Bytes for `blocks` blocks in `runs` runs.
    #[inline]
    pub const fn bytes(&self, runs: usize, blocks: usize) -> usize {
        self.run * runs + self.block * blocks
    }
}

/// Holds what inodes share of a map from a change in a transaction until its stores are issued. Dropped without
/// [`Self::committed`] or [`Self::ended`] it takes back what memory knows of the change: no record was written.
#[must_use]
#[derive(Default)]
pub struct MapGuard<'a>(Shared<'a>);

#[derive(Default)]
#[allow(clippy::large_enum_variant)] // it lives on the stack of a commit
enum Shared<'a> {
    #[default]
    Nothing,
    Presence(PresenceChange<'a>),
    Raise(Raise<'a>),
    /// The locks go first: the map says by its lines which blocks of a failed change are there.
    Stripes(Held<'a>, Option<PresenceChange<'a>>),
    /// The claims of lines go first, too.
    Lines(Claimed<'a>, Option<PresenceChange<'a>>),
    Leaf(#[allow(dead_code)] LeafChange<'a>), // is dropped
}

impl<'a> MapGuard<'a> {
    pub(crate) fn presence(change: PresenceChange<'a>) -> MapGuard<'a> {
        MapGuard(Shared::Presence(change))
    }

    pub(crate) fn leaf(change: LeafChange<'a>) -> MapGuard<'a> {
        MapGuard(Shared::Leaf(change))
    }

    pub(crate) fn raising(raise: Raise<'a>) -> MapGuard<'a> {
        MapGuard(Shared::Raise(raise))
    }

    pub(crate) fn stripes(held: Held<'a>, presence: Option<PresenceChange<'a>>) -> MapGuard<'a> {
        MapGuard(Shared::Stripes(held, presence))
    }

    pub(crate) fn lines(claimed: Claimed<'a>, presence: Option<PresenceChange<'a>>) -> MapGuard<'a> {
        MapGuard(Shared::Lines(claimed, presence))
    }

    /// The record is committed, its stores are issued.
    #[inline]
    pub fn committed(self) {
        if !matches!(self.0, Shared::Nothing) {
            self.committed_shared();
        }
    }

    #[inline(never)]
    fn committed_shared(self) {
        match self.0 {
            Shared::Nothing | Shared::Leaf(_) => {}
            Shared::Presence(change) => change.committed(),
            Shared::Stripes(held, change) => {
                held.committed();
                change.into_iter().for_each(PresenceChange::committed);
            }
            Shared::Lines(claimed, change) => {
                drop(claimed);
                change.into_iter().for_each(PresenceChange::committed);
            }
            Shared::Raise(raise) => raise.committed(),
        }
    }

    /// The transaction ended: committed, or with an error; after an error of a record that stopped the log the record may be
    /// valid, and a block that may be there counts as there.
    #[inline]
    pub fn ended<T>(self, committed: &Result<T>, is_stopped: bool) {
        match committed {
            Ok(_) => self.committed(),
            Err(error) => self.failed(error, is_stopped),
        }
    }

    #[cold]
    #[inline(never)]
    fn failed(self, error: &Error, is_stopped: bool) {
        match self.0 {
            // Refused before a record was written.
            _ if matches!(error, Error::Stopped) || !is_stopped => {}
            Shared::Presence(change) => change.doubtful(),
            Shared::Stripes(held, change) => {
                drop(held);
                change.into_iter().for_each(PresenceChange::doubtful);
            }
            Shared::Lines(_, change) => change.into_iter().for_each(PresenceChange::doubtful),
            _ => {}
        }
    }
}

/// A word of the map that all inodes share and that is being raised: told to look-ups when its record is committed.
pub struct Raise<'a> {
    pub(crate) word: &'a AtomicU64,
    pub(crate) new: u64,
    pub(crate) _lock: MutexGuard<'a, ()>,
}

impl Raise<'_> {
    fn committed(self) {
        self.word.store(self.new, Ordering::Release);
    }
}

/// Maps (inode, file block) to PM block.
///
/// Ranges are clipped to `MAX_FILE_BLOCK`, the last block that a map can have. Errors are the medium's, and
/// `Corrupt` for content that no sound map has.
pub trait FileMap: Send + Sync {
    /// The mapping of one block.
    ///
    /// # Errors
    /// See [`FileMap`].
    fn lookup(&self, inode: &MapInode, block: FileBlock) -> Result<Option<Mapping>>;

    /// The mappings of the `out.len()` blocks from `first`.
    ///
    /// # Errors
    /// See [`FileMap`].
    fn lookup_run(&self, inode: &MapInode, first: FileBlock, out: &mut [Option<Mapping>]) -> Result<()>;

    /// As [`Self::lookup`], with the cursor of the lock that the caller holds.
    ///
    /// # Errors
    /// See [`FileMap`].
    fn lookup_with(&self, _: &Cursor, inode: &MapInode, block: FileBlock) -> Result<Option<Mapping>> {
        FileMap::lookup(self, inode, block)
    }

    /// As [`Self::lookup_run`], with the cursor of the lock that the caller holds.
    ///
    /// # Errors
    /// See [`FileMap`].
    fn lookup_run_with(
        &self,
        _: &Cursor,
        inode: &MapInode,
        first: FileBlock,
        out: &mut [Option<Mapping>],
    ) -> Result<()> {
        FileMap::lookup_run(self, inode, first, out)
    }

    /// The next mapped blocks in `from..to`, ascending, at most `most`, appended to `out`. Absent parts are not visited
    /// block by block. Gives the block to go on at, which may come before `most` are found; `None` at the end of the
    /// range.
    ///
    /// # Errors
    /// See [`FileMap`].
    fn mapped(
        &self,
        inode: &MapInode,
        from: FileBlock,
        to: FileBlock,
        most: usize,
        out: &mut Vec<Mapped>,
    ) -> Result<Option<FileBlock>>;

    /// Whether an inode maps no block and has no page of the map, by its slot or by what memory knows.
    fn is_empty(&self, ino: Ino, slot: &InodeSlot) -> bool;

    /// Reads what a map has to tell beside an unreadable block table, once, so that files can be judged
    /// (`blocks::hidden`). Called without locks.
    ///
    /// # Errors
    /// See [`FileMap`].
    fn learn(&self) -> Result<()> {
        Ok(())
    }

    /// The room that a change lacks after `earlier` changes of its transaction; without a lack they do not fail for want of
    /// room.
    ///
    /// # Errors
    /// See [`FileMap`].
    fn missing_room(&self, earlier: &[MapChange], change: &MapChange) -> Result<Option<MapRoom>>;

    /// Makes room in `tx`, a transaction of its own (T7): as much as the claim has pages for and a record of the largest
    /// size takes. The caller commits and loops until nothing is logged any more. Streams and orders the pages' content.
    ///
    /// # Errors
    /// See [`FileMap`]; then the caller gives up `tx` and gives the claim back.
    fn make_room(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        room: &MapRoom,
        claim: &mut Claim<'_>,
    ) -> Result<MapGuard<'_>>;

    /// The size that changes add to a record at most, without freed pages.
    fn record(&self) -> MapRecord;

    /// Logs changes, only words that differ, and frees pages that they emptied while the record stays below `limit`
    /// bytes: freed blocks are released in `tx` and pushed to `freed`. Owners of data blocks are logged by the caller.
    /// Called once in a transaction.
    ///
    /// # Errors
    /// `MapRoom`; see [`FileMap`]; the caller then gives up `tx` and keeps what is in `freed`.
    fn change(
        &self,
        tx: &mut Tx,
        changes: &[MapChange],
        limit: usize,
        freed: &mut Freed,
    ) -> Result<MapGuard<'_>>;

    /// Maps one block to new content and gives its earlier mapping; `None`, with nothing logged, when room is missing. `tx` has
    /// written nothing of the map yet. The cursor is that of the lock that the caller holds.
    ///
    /// The guard, to be held until the stores of the record are issued, goes into the caller's place, which has none: it is
    /// large, some maps have none, and to hand it up through the calls took a tenth of a write.
    ///
    /// # Errors
    /// See [`FileMap`].
    fn exchange<'s>(
        &'s self,
        cursor: Option<&Cursor>,
        tx: &mut Tx,
        inode: &MapInode,
        block: (FileBlock, Mapping),
        guard: &mut MapGuard<'s>,
    ) -> Result<Option<Option<Mapping>>>;

    /// Frees pages of a range, its first block and its length, that hold nothing any more, as seen in `tx`, while the record stays below `limit`
    /// bytes. Bounded: it says where to go on, in another transaction. Freed blocks are released in `tx` and pushed to
    /// `freed`.
    ///
    /// # Errors
    /// See [`FileMap`]; the caller then gives up `tx` and keeps what is in `freed`.
    fn prune(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        range: (FileBlock, usize),
        limit: usize,
        freed: &mut Freed,
    ) -> Result<Option<FileBlock>>;

    /// Calls `visit` with each page of this inode's map: its PM block and its level (0: leaf).
    ///
    /// # Errors
    /// See [`FileMap`]; also when there are more pages than the pool has blocks.
    fn visit_pages(&self, inode: &MapInode, visit: &mut dyn FnMut(PmBlock, u8)) -> Result<()>;
}
