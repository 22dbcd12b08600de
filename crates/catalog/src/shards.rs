//! The locks of shards, shared and exclusive, and the writes that an exclusive lock allows.
//!
//! Lock order: a thread locks the shards of an operation at once, in ascending order and each once (L1).

use crate::catalog::Catalog;
use crate::node::Node;
use crate::reader::{Reader, Way};
use crate::touched::Touched;
use smallvec::SmallVec;
use std::cell::RefCell;
use terrace_format::PmBlock;
use terrace_format::geometry::ROOTS_BLOCK;
use terrace_format::keys::Key;
use terrace_runtime::sync::{Ranked, RwLockReadGuard, RwLockWriteGuard};
use terrace_wal::Tx;

impl Catalog {
    /// Locks a shard shared.
    pub fn read(&self, shard: u32) -> ShardRead<'_> {
        ShardRead { _guard: self.lock_of(shard).read(), catalog: self, shard, way: RefCell::new(None) }
    }

    /// Locks shards exclusively, in ascending order and each once (L1).
    pub fn write(&self, shards: &[u32]) -> ShardsWrite<'_> {
        let mut held: SmallVec<[u32; 4]> = SmallVec::from_slice(shards);
        held.sort_unstable();
        held.dedup();
        let guards = held.iter().map(|shard| self.lock_of(*shard).write());
        ShardsWrite {
            _guards: guards.collect(),
            catalog: self,
            held,
            touched: Touched::default(),
            way: RefCell::new(None),
            emptied: SmallVec::new(),
        }
    }
}

/// Shared lock of a shard.
pub struct ShardRead<'a> {
    catalog: &'a Catalog,
    shard: u32,
    way: RefCell<Option<Way>>,
    _guard: Ranked<RwLockReadGuard<'a, ()>>,
}

impl ShardRead<'_> {
    /// Reads the shard.
    pub fn reader(&self) -> Reader<'_> {
        let held = std::slice::from_ref(&self.shard);
        Reader { catalog: self.catalog, overlay: None, held, way: Some(&self.way), reads_aside: true }
    }
}

/// Exclusive locks of shards. Edits collect in a [`Tx`]; commit it while the locks are held.
pub struct ShardsWrite<'a> {
    pub(crate) catalog: &'a Catalog,
    held: SmallVec<[u32; 4]>,
    /// Pages that the transaction writes. Reads of other pages skip the transaction.
    touched: Touched,
    way: RefCell<Option<Way>>,
    /// A key of each leaf whose last cell was removed.
    pub(crate) emptied: SmallVec<[Key; 2]>,
    _guards: SmallVec<[Ranked<RwLockWriteGuard<'a, ()>>; 4]>,
}

impl ShardsWrite<'_> {
    /// Reads the locked shards as they will be after `tx`.
    pub fn reader<'b>(&'b self, tx: &'b Tx) -> Reader<'b> {
        Reader {
            catalog: self.catalog,
            overlay: Some((tx, &self.touched)),
            held: &self.held,
            way: Some(&self.way),
            reads_aside: false,
        }
    }
    /// Reads the locked shards as they are.
    pub(crate) fn committed(&self) -> Reader<'_> {
        // The committed tree may have another shape, so the remembered way is not used.
        Reader { catalog: self.catalog, overlay: None, held: &self.held, way: None, reads_aside: false }
    }
    /// The catalog.
    pub fn catalog(&self) -> &Catalog {
        self.catalog
    }
    /// Whether a shard is among the locked ones.
    pub(crate) fn holds(&self, shard: u32) -> bool {
        self.held.contains(&shard)
    }
}

impl ShardsWrite<'_> {
    /// Notes a write to a page: `bytes` at `at`.
    pub(crate) fn touch(&mut self, node: &Node, at: usize, bytes: &[u8]) {
        // The way to a leaf may be another now.
        if node.level() > 0 {
            *self.way.get_mut() = None;
        }
        self.touched.note(node.block, at, bytes);
    }

    /// Stores the root of a shard; none for an empty tree.
    pub(crate) fn write_root(&mut self, tx: &mut Tx, shard: u32, root: Option<PmBlock>) {
        tx.write_u64(self.catalog.wal().geometry().shard_root(shard), root.map_or(0, |block| block.0));
        *self.way.get_mut() = None;
        // The block of roots is read by single words, so no copy of it is kept.
        self.touched.note(ROOTS_BLOCK, 0, &[]);
    }
}
