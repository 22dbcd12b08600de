//! Reading locked shards: pages, the descent from the root to a leaf, and look-ups of a key.
//!
//! Invariants:
//! 1. A reader reads only shards that are locked; it asserts so.
//! 2. Every page that is read has a verified header, and the level that its parent demands: a descent ends.
//! 3. A change never starts from a copy of a page below PM.

use crate::catalog::Catalog;
use crate::node::{Node, NodeBuffer, damaged};
use crate::touched::Touched;
use smallvec::SmallVec;
use std::cell::RefCell;
use terrace_format::below::{Identity, is_below};
use terrace_format::keys::Key;
use terrace_format::page::PAGE_SIZE;
use terrace_format::{Corrupt, PmBlock, PmOffset};
use terrace_wal::{PageBelow, Result, Tx};

/// The way of the last descent. Under the same locks, and until an inner page is changed, keys that its leaf covers
/// lie at its end: edits of neighbouring keys need not read the inner pages again.
pub(crate) struct Way {
    shard: u32,
    /// The keys that the leaf covers: from this one on, to before the other, or to the end.
    low: SmallVec<[u8; 32]>,
    high: Option<SmallVec<[u8; 32]>>,
    path: Path,
    leaf: PmBlock,
}

impl Way {
    fn leads_to(&self, shard: u32, key: &[u8]) -> bool {
        let below = |high: &SmallVec<[u8; 32]>| key < high.as_slice();
        self.shard == shard && self.low.as_slice() <= key && self.high.as_ref().is_none_or(below)
    }
}

/// Reads locked shards. Cheap to copy.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) overlay: Option<(&'a Tx, &'a Touched)>,
    pub(crate) held: &'a [u32],
    pub(crate) way: Option<&'a RefCell<Option<Way>>>,
    /// Whether leaves on lower tiers are read from copies in DRAM. Never set for a change: it must not start
    /// from a copy.
    pub(crate) reads_aside: bool,
}

/// A step of a descent: an inner page and which child was taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub block: PmBlock,
    pub level: u8,
    pub index: usize,
    pub count: usize,
}

/// The inner pages from root to leaf.
pub(crate) type Path = SmallVec<[Step; 4]>;

/// The step to a child of an inner page.
pub(crate) fn step(node: &Node, index: usize) -> Step {
    Step { block: node.block, level: node.level(), index, count: node.count() }
}

impl Reader<'_> {
    /// Reads a whole page.
    #[inline]
    fn bytes(&self, block: PmBlock, into: &mut [u8; PAGE_SIZE]) -> Result<()> {
        self.catalog.checksums().ensure(block)?;
        if let Some((tx, touched)) = self.overlay
            && touched.read_page(tx, self.catalog.pm(), block, into)?
        {
            return Ok(());
        }
        Ok(self.catalog.pm().read(block.offset(), into)?)
    }

    /// Reads a page; `level` is the level that its parent demands.
    pub(crate) fn node(&self, block: PmBlock, level: Option<u8>) -> Result<NodeBuffer> {
        let mut node = Node::empty();
        self.node_into(block, level, &mut node)?;
        Ok(node)
    }

    /// As [`Self::node`], into an existing one.
    #[inline]
    pub(crate) fn node_into(&self, block: PmBlock, level: Option<u8>, node: &mut Node) -> Result<()> {
        node.block = block;
        self.bytes(block, node.bytes_mut())?;
        node.verify(level)?;
        if node.level() == 0 {
            self.catalog.blocks().descriptor(block).set_in_use();
        }
        Ok(())
    }

    /// Replaces `node` by its child `index`, a leaf on a lower tier, if DRAM has a copy of the leaf that this
    /// reader may use; else gives false and leaves `node` unchanged.
    pub(crate) fn aside_into(&self, shard: u32, index: usize, node: &mut Node) -> Result<bool> {
        if !self.reads_aside {
            return Ok(false);
        }
        let word = self.child_word(node, index)?;
        let Some(copy) = self.catalog.aside().get(Identity::Catalog { shard }, word) else {
            return Ok(false);
        };
        *node.bytes_mut() = copy.bytes;
        node.verify(Some(0)).map(|()| true)
    }

    /// The location of the child that a cell of an inner page points to.
    #[inline]
    pub(crate) fn child_word(&self, node: &Node, index: usize) -> Result<u64> {
        let value = node.value(&node.cell(index)?);
        match <[u8; 8]>::try_from(value) {
            Ok(word) => Ok(u64::from_le_bytes(word)),
            Err(_) => Err(damaged(node.block, "child location", "8 bytes", value.len())),
        }
    }

    /// The child that a cell of an inner page points to; `None` for a leaf below PM.
    #[inline]
    pub(crate) fn child(&self, node: &Node, index: usize) -> Result<Option<PmBlock>> {
        let word = self.child_word(node, index)?;
        if is_below(word) && node.level() == 1 {
            return Ok(None);
        }
        self.location(word, "catalog child").map(Some)
    }

    fn word(&self, offset: PmOffset) -> Result<u64> {
        match self.overlay {
            Some((tx, touched)) if touched.has(offset.block()) => tx.read_u64(self.catalog.pm(), offset),
            _ => {
                self.catalog.checksums().ensure(offset.block())?;
                Ok(self.catalog.pm().load_u64(offset)?)
            }
        }
    }

    /// Checks the location of a page that is always in PM.
    pub(crate) fn location(&self, word: u64, site: &str) -> Result<PmBlock> {
        if is_below(word) {
            return Err(Corrupt::new(site, "a page in PM", format!("{word:#x}")).into());
        }
        self.catalog.blocks().verify(PmBlock(word), site)
    }

    /// The shard of a key; it must be locked.
    pub(crate) fn shard(&self, key: &[u8]) -> u32 {
        let shard = self.catalog.shard_of_key(key);
        self.must_hold(shard);
        shard
    }

    pub(crate) fn must_hold(&self, shard: u32) {
        assert!(self.held.contains(&shard), "catalog shard {shard} is not locked, {:?} are", self.held);
    }

    pub(crate) fn root(&self, shard: u32) -> Result<Option<PmBlock>> {
        let word = self.word(self.catalog.wal().geometry().shard_root(shard))?;
        if word == 0 {
            return Ok(None);
        }
        self.location(word, "catalog root").map(Some)
    }

    /// Reads the leaf that covers `key` into `node`, each page on the way too, and tells `visit` of
    /// the inner ones; false when the tree is empty.
    #[inline]
    pub(crate) fn walk(&self, key: &[u8], node: &mut Node, mut visit: impl FnMut(Step)) -> Result<bool> {
        let shard = self.shard(key);
        if let Some(way) = self.way
            && let Some(way) = way.borrow().as_ref().filter(|way| way.leads_to(shard, key))
        {
            way.path.iter().for_each(|step| visit(*step));
            self.node_into(way.leaf, Some(0), node)?;
            return Ok(true);
        }
        let Some(root) = self.root(shard)? else {
            return Ok(false);
        };
        let mut way = Way { shard, low: SmallVec::new(), high: None, path: Path::new(), leaf: PmBlock(0) };
        self.node_into(root, None, node)?;
        while node.level() > 0 {
            let index = node.child_index(key)?;
            let step = step(node, index);
            visit(step);
            if self.way.is_some() {
                way.path.push(step);
                if index > 0 {
                    way.low = SmallVec::from_slice(node.key(&node.cell(index)?));
                }
                if index + 1 < node.count() {
                    way.high = Some(SmallVec::from_slice(node.key(&node.cell(index + 1)?)));
                }
            }
            let Some(child) = self.child(node, index)? else {
                // The way ends in no page of PM: the next descent goes it again.
                return match self.aside_into(shard, index, node)? {
                    true => Ok(true),
                    false => Err(PageBelow::Leaf { shard, key: key.to_vec() }.into()),
                };
            };
            self.node_into(child, Some(node.level() - 1), node)?;
        }
        if let Some(last) = self.way {
            way.leaf = node.block;
            *last.borrow_mut() = Some(way);
        }
        Ok(true)
    }

    /// Reads the leaf that covers `key`; the way to it, or `None` when the tree is empty.
    #[inline]
    pub(crate) fn descend(&self, key: &[u8], leaf: &mut Node) -> Result<Option<Path>> {
        let mut path = Path::new();
        Ok(self.walk(key, leaf, |step| path.push(step))?.then_some(path))
    }

    /// Reads the leaf that covers `key`; where `key` is in it, or would be inserted.
    #[inline]
    pub(crate) fn locate(
        &self,
        key: &[u8],
        leaf: &mut Node,
    ) -> Result<Option<std::result::Result<usize, usize>>> {
        if self.walk(key, leaf, |_| ())? { leaf.search(key).map(Some) } else { Ok(None) }
    }

    /// Gives `use_value` the value of `key`. Allocates nothing.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    #[inline]
    pub fn get_with<R>(&self, key: &Key, use_value: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let mut leaf = Node::empty();
        let Some(Ok(index)) = self.locate(&key.0, &mut leaf)? else {
            return Ok(None);
        };
        Ok(Some(use_value(leaf.value(&leaf.cell(index)?))))
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn get(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        self.get_with(key, <[u8]>::to_vec)
    }

    /// Whether `key` is there.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn contains(&self, key: &Key) -> Result<bool> {
        Ok(matches!(self.locate(&key.0, &mut Node::empty())?, Some(Ok(_))))
    }
}
