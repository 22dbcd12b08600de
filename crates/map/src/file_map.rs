//! The contract of a file map.
//!
//! Crash rules. A change is visible after a crash exactly if the transaction it was logged in is (I1); the map
//! stores nothing in place itself. Content of new nodes is streamed before the record that links them and
//! ordered before it by `add_nodes` (T4); a node comes from a claim, so no record above the checkpoint writes
//! to it (T6). Nodes are added in earlier transactions of their own (T7): a crash between them leaves empty
//! nodes, which are sound, count as the file's, and go with the next `prune` over them.
//!
//! Locks. The inode's lock is held exclusively from the first read on which a change depends until its commit
//! (T2), and at least shared for reads. Answers read without it, errors included, mean nothing until the
//! caller has seen an unchanged version (S6); whatever is there, reads end and do not panic.
//!
//! An operation that writes new blocks:
//! ```text
//! loop { missing = map.missing_nodes(..)?; if 0 break;      // before the operation's own transaction
//!        n = missing.min(what fits a record);               // map.node_record_bytes(n)
//!        claim = blocks.claim(n, purpose)?; map.add_nodes(tx, .., &mut claim)?; commit }
//! claim = map.claim(inode, first, count, purpose)?          // stream the data to the blocks
//! map.set(tx, inode, first, &mappings)?                     // + owners of the data blocks, size, times
//! commit
//! ```
//! A transaction that is given up after `add_nodes` gives the claim back (`Claim::give_back_all`); one that is
//! given up after `prune`, or in which `prune` failed, keeps the blocks in `freed` (`BlockPool::keep`).

use smallvec::SmallVec;
use terrace_blocks::{Claim, Purpose};
use terrace_format::{FileBlock, Ino, PmBlock, PmOffset};
use terrace_wal::{Result, Tx};

/// Where a block of a file lies in PM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// The PM block.
    pub block: PmBlock,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
}

impl Mapping {
    /// A block with content.
    pub fn written(block: PmBlock) -> Mapping {
        Mapping { block, unwritten: false }
    }
}

/// The inode as a file map sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapInode {
    /// Its number.
    pub ino: Ino,
    /// Address of its 128-byte slot, whose direct pointers and root word belong to the map.
    pub slot: PmOffset,
}

impl MapInode {
    /// The slot of an inode whose page lies below PM and is read from a copy: such an inode maps no block of PM, and its map
    /// is read only. The address lies outside of every medium, so a store to it fails.
    pub const NOWHERE: PmOffset = PmOffset(1 << 62);

    /// Whether the inode maps no block, known without a look at PM.
    #[inline]
    pub fn is_nowhere(&self) -> bool {
        self.slot == MapInode::NOWHERE
    }
}

/// PM blocks freed by a transaction, for `BlockPool::freed` after its commit.
pub type Freed = SmallVec<[PmBlock; 8]>;

/// Maps (inode, file block) to PM block.
///
/// Ranges are clipped to `MAX_FILE_BLOCK`, the last block that a map can have. Errors are the medium's, and
/// `Corrupt` for content that no sound map has.
pub trait FileMap: Send + Sync {
    /// The mapping of one block, as it will be after `tx` if one is given.
    ///
    /// # Errors
    /// See [`FileMap`].
    fn lookup(&self, tx: Option<&Tx>, inode: &MapInode, block: FileBlock) -> Result<Option<Mapping>>;

    /// The mappings of the `out.len()` blocks from `first`.
    ///
    /// # Errors
    /// See [`FileMap`].
    fn lookup_run(
        &self,
        tx: Option<&Tx>,
        inode: &MapInode,
        first: FileBlock,
        out: &mut [Option<Mapping>],
    ) -> Result<()>;

    /// The first mapped block in `from..to`, without visiting absent parts one by one.
    ///
    /// # Errors
    /// See [`FileMap`].
    fn next_mapped(
        &self,
        inode: &MapInode,
        from: FileBlock,
        to: FileBlock,
    ) -> Result<Option<(FileBlock, Mapping)>>;

    /// Claims blocks for new content of `first..first + count`, in this order. A map whose slots are the
    /// blocks chooses the slots itself. The caller uses the claimed blocks for these file blocks only.
    ///
    /// # Errors
    /// `NoSpace`; see [`FileMap`].
    fn claim(&self, inode: &MapInode, first: FileBlock, count: usize, purpose: Purpose) -> Result<Claim<'_>>;

    /// Number of map nodes that `first..first + count` still needs; at 0 `set` cannot fail for want of nodes.
    ///
    /// # Errors
    /// See [`FileMap`].
    fn missing_nodes(&self, inode: &MapInode, first: FileBlock, count: usize) -> Result<usize>;

    /// Bytes by which `add_nodes` of at most `nodes` nodes lets a record grow.
    fn node_record_bytes(&self, nodes: usize) -> usize;

    /// Adds missing nodes of a range in `tx`, a transaction of its own (T7): at most as many as the claim
    /// holds and a record of the largest size has room for. Returns how many; the caller commits and loops
    /// until `missing_nodes` is 0. Streams and orders the nodes' content.
    ///
    /// # Errors
    /// See [`FileMap`]; then the caller gives up `tx` and gives the claim back.
    fn add_nodes(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        first: FileBlock,
        count: usize,
        claim: &mut Claim<'_>,
    ) -> Result<usize>;

    /// Bytes by which `set` of `count` consecutive blocks lets a record grow at most.
    fn set_record_bytes(&self, count: usize) -> usize;

    /// Sets or clears the mappings of consecutive blocks, logging changed words only and neighbouring words as
    /// one write. Owners of data blocks are logged by the caller. Clearing needs no nodes.
    ///
    /// # Errors
    /// `Corrupt` when a node that a mapping needs is missing; see [`FileMap`].
    fn set(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        first: FileBlock,
        mappings: &[Option<Mapping>],
    ) -> Result<()>;

    /// Maps one block to new content and tells what it was mapped to; `None`, with nothing logged, when a node is
    /// missing. `tx` has written nothing of the map yet.
    ///
    /// # Errors
    /// See [`FileMap`].
    fn exchange(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        block: FileBlock,
        new: Mapping,
    ) -> Result<Option<Option<Mapping>>>;

    /// Bytes by which one `prune` lets a record grow at most.
    fn prune_record_bytes(&self) -> usize;

    /// Frees nodes of the range that hold nothing any more, as seen in `tx`. Bounded: frees at most 8 nodes
    /// and says where to go on, in another transaction; a range of up to 512 blocks is done in one call.
    /// Freed blocks are released in `tx` and pushed to `freed`.
    ///
    /// # Errors
    /// See [`FileMap`]; the caller then gives up `tx` and keeps what is in `freed`.
    fn prune(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        first: FileBlock,
        count: usize,
        freed: &mut Freed,
    ) -> Result<Option<FileBlock>>;

    /// Calls `visit` with each node of this inode: its PM block and its level (0: leaf).
    ///
    /// # Errors
    /// See [`FileMap`]; also when there are more nodes than the pool has blocks.
    fn visit_nodes(&self, inode: &MapInode, visit: &mut dyn FnMut(PmBlock, u8)) -> Result<()>;
}
