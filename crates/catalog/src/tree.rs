//! Shards, their locks, and reading: descent, get, next, previous, scan.

use crate::aside::Aside;
use crate::node::{Node, NodeBuffer, damaged};
use smallvec::SmallVec;
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use terrace_blocks::BlockPool;
use terrace_format::below::is_below;
use terrace_format::geometry::ROOTS_BLOCK;
use terrace_format::keys::Key;
use terrace_format::page::PAGE_SIZE;
use terrace_format::{Corrupt, PmBlock, PmOffset};
use terrace_media::PmMedium;
use terrace_runtime::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use terrace_wal::{PageBelow, Result, Tx, Wal};

/// A shard's lock, on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Shard(RwLock<()>);

/// The catalog of a pool. Keeps nothing volatile but locks.
pub struct Catalog {
    blocks: Arc<BlockPool>,
    wal: Arc<Wal>,
    pm: Arc<dyn PmMedium>,
    shards: Box<[Shard]>,
    /// A key of each leaf that lost most of its keys, for [`Catalog::shrink_step`]. Locked last.
    sparse: Mutex<BTreeSet<Key>>,
    aside: Aside,
}

/// Most leaves that are remembered as sparse at a time. A leaf beyond this limit is remembered later, when it
/// has lost half of its remaining bytes.
const MOST_SPARSE: usize = 4096;

impl Catalog {
    /// The catalog of an opened pool. Reads nothing.
    pub fn new(blocks: Arc<BlockPool>) -> Catalog {
        let wal = Arc::clone(blocks.wal());
        let shards = (0..wal.geometry().catalog_shards).map(|_| Shard::default());
        Catalog {
            pm: Arc::clone(wal.pm()),
            shards: shards.collect(),
            sparse: Mutex::default(),
            aside: Aside::default(),
            wal,
            blocks,
        }
    }

    /// The block pool.
    pub fn blocks(&self) -> &Arc<BlockPool> {
        &self.blocks
    }
    /// The log.
    pub fn wal(&self) -> &Arc<Wal> {
        &self.wal
    }
    /// Copies of pages below PM, catalog leaves and inode pages.
    pub fn aside(&self) -> &Aside {
        &self.aside
    }
    pub(crate) fn pm(&self) -> &dyn PmMedium {
        &*self.pm
    }
    fn checksums(&self) -> &terrace_wal::PageChecksums {
        self.wal.checksums()
    }
    /// Number of shards.
    pub fn shard_count(&self) -> u32 {
        self.shards.len() as u32
    }
    /// Shards without a page: the first key of each takes a block. Looks without locks, at a word for each shard.
    pub fn empty_shards(&self) -> u32 {
        let root = |shard| self.pm.load_u64(self.wal.geometry().shard_root(shard)).unwrap_or(0);
        (0..self.shard_count()).filter(|shard| root(*shard) == 0).count() as u32
    }
    /// The shard of an inode number, or of a chunk number for chunk keys.
    pub fn shard_of(&self, ino: u64) -> u32 {
        (ino % self.shards.len() as u64) as u32
    }
    /// The shard of a key, or of a key's first four bytes.
    pub fn shard_of_key(&self, key: &[u8]) -> u32 {
        let ino = key.first_chunk::<4>();
        self.shard_of(ino.map_or(0, |ino| u64::from(u32::from_be_bytes(*ino))))
    }

    fn lock_of(&self, shard: u32) -> &RwLock<()> {
        let place = shard as usize % self.shards.len();
        match self.shards.get(place) {
            Some(shard) => &shard.0,
            None => unreachable!("a pool has at least one shard"),
        }
    }

    /// Remembers a leaf that lost most of its keys.
    pub(crate) fn note_sparse(&self, key: &Key) {
        let mut sparse = self.sparse.lock();
        if sparse.len() < MOST_SPARSE {
            sparse.insert(key.clone());
        }
    }

    /// Takes a remembered sparse leaf out of the set.
    pub(crate) fn take_sparse(&self) -> Option<Key> {
        self.sparse.lock().pop_first()
    }

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
            touched: SmallVec::new(),
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
    _guard: RwLockReadGuard<'a, ()>,
}

impl ShardRead<'_> {
    /// Reads the shard.
    pub fn reader(&self) -> Reader<'_> {
        let held = std::slice::from_ref(&self.shard);
        Reader { catalog: self.catalog, overlay: None, held, way: Some(&self.way), reads_aside: true }
    }
}

/// The way of the last descent. Under the same locks, and until an inner page is changed, keys that its leaf covers
/// lie at its end: edits of neighbouring keys need not read the inner pages again.
struct Way {
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

/// From this many writes on, a touched page is kept as a copy with the writes applied. Without the copy each
/// read looks through all writes, and an edit in a long transaction costs as much as all edits before it.
const MANY_WRITES: u16 = 12;

/// A page that a transaction writes.
pub(crate) struct Touched {
    block: PmBlock,
    /// The page with the stores of this transaction; made by the first read of the page.
    page: OnceCell<Box<[u8; PAGE_SIZE]>>,
}

/// Exclusive locks of shards. Edits collect in a [`Tx`]; commit it while the locks are held.
pub struct ShardsWrite<'a> {
    pub(crate) catalog: &'a Catalog,
    held: SmallVec<[u32; 4]>,
    /// Pages that the transaction writes. Reads of other pages skip the transaction.
    pub(crate) touched: SmallVec<[Touched; 8]>,
    way: RefCell<Option<Way>>,
    /// A key of each leaf whose last cell was removed.
    pub(crate) emptied: SmallVec<[Key; 2]>,
    _guards: SmallVec<[RwLockWriteGuard<'a, ()>; 4]>,
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

/// Reads locked shards. Cheap to copy.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    pub(crate) catalog: &'a Catalog,
    overlay: Option<(&'a Tx, &'a [Touched])>,
    held: &'a [u32],
    way: Option<&'a RefCell<Option<Way>>>,
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

/// A place in a leaf.
struct Cursor {
    shard: u32,
    path: Path,
    leaf: NodeBuffer,
    index: usize,
    /// Pages visited: a sound tree has no more than the pool has blocks.
    visited: u64,
}

impl Cursor {
    #[inline]
    fn new() -> Cursor {
        Cursor { shard: 0, path: Path::new(), leaf: Node::empty(), index: 0, visited: 0 }
    }
}

impl<'a> Reader<'a> {
    /// Reads a whole page.
    #[inline]
    pub(crate) fn bytes(&self, block: PmBlock, into: &mut [u8; PAGE_SIZE]) -> Result<()> {
        self.catalog.checksums().ensure(block)?;
        let touched = self.overlay.and_then(|(tx, touched)| Some((tx, find(touched, block)?)));
        let Some((tx, touched)) = touched else {
            return Ok(self.catalog.pm().read(block.offset(), into)?);
        };
        if let Some(page) = touched.page.get() {
            *into = **page;
            return Ok(());
        }
        tx.read(self.catalog.pm(), block.offset(), into)?;
        if tx.write_count() >= MANY_WRITES {
            let _ = touched.page.set(Box::new(*into));
        }
        Ok(())
    }

    fn word(&self, offset: PmOffset) -> Result<u64> {
        match self.overlay {
            Some((tx, touched)) if find(touched, offset.block()).is_some() => {
                tx.read_u64(self.catalog.pm(), offset)
            }
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
        self.catalog.blocks.verify(PmBlock(word), site)
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
        let word = self.word(self.catalog.wal.geometry().shard_root(shard))?;
        if word == 0 {
            return Ok(None);
        }
        self.location(word, "catalog root").map(Some)
    }

    /// Reads the leaf that covers `key` into `node`, each page on the way too, and tells `visit` of
    /// the inner ones; false when the tree is empty.
    #[inline]
    fn walk(&self, key: &[u8], node: &mut Node, mut visit: impl FnMut(Step)) -> Result<bool> {
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

    /// The first key at or after `from` that starts with `prefix`, and its value.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn next(&self, from: &Key, prefix: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let mut found = None;
        self.scan(from, prefix, |key, value| {
            found = Some((key.to_vec(), value.to_vec()));
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// Visits keys from `from` on, ascending, as long as they start with `prefix` and `visit` continues.
    /// `from` is at or after `prefix` and in the same shard.
    ///
    /// # Errors
    /// A damaged page (also keys that do not ascend); the medium's.
    pub fn scan(
        &self,
        from: &Key,
        prefix: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut cursor = Cursor::new();
        let Some(place) = self.start(&from.0, &mut cursor)? else {
            return Ok(());
        };
        cursor.index = place.unwrap_or_else(|after| after);
        // The first key to come may be `from` itself.
        self.scan_on(cursor, SmallVec::from_slice(&from.0), prefix, visit)
    }

    /// As [`Self::scan`], from the last key at or before `from` on if there is one that starts with `prefix`.
    ///
    /// # Errors
    /// A damaged page (also keys that do not ascend); the medium's.
    pub fn scan_around(
        &self,
        from: &Key,
        prefix: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut cursor = Cursor::new();
        let Some(place) = self.start(&from.0, &mut cursor)? else {
            return Ok(());
        };
        cursor.index = place.map_or_else(|after| after, |at| at + 1);
        while cursor.index == 0 {
            // A leaf whose lower bound is at most the prefix begins before all keys of the prefix. The
            // previous leaf, which may lie on a lower tier, is not needed then.
            if self.low_of(&cursor.path)?.as_slice() <= prefix || !self.previous_leaf(&mut cursor)? {
                return self.scan(from, prefix, visit);
            }
        }
        let leaf = &cursor.leaf;
        let before = leaf.key(&leaf.cell(cursor.index - 1)?);
        if before > from.0.as_slice() {
            return Err(damaged(leaf.block, "keys", "ascending keys", "a larger key"));
        }
        let last = SmallVec::from_slice(before);
        cursor.index -= usize::from(before.starts_with(prefix));
        self.scan_on(cursor, last, prefix, visit)
    }

    /// Goes on at a cursor; `last` is at or before the first key to come.
    fn scan_on(
        &self,
        mut cursor: Cursor,
        mut last: SmallVec<[u8; 64]>,
        prefix: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut first = true;
        loop {
            let (leaf, mut before) = (&cursor.leaf, last.as_slice());
            for index in cursor.index..leaf.count() {
                let cell = leaf.cell(index)?;
                let key = leaf.key(&cell);
                if key < before || (key == before && !first) {
                    return Err(damaged(leaf.block, "keys", "ascending keys", "a smaller key"));
                }
                if !key.starts_with(prefix) || visit(key, leaf.value(&cell)).is_break() {
                    return Ok(());
                }
                (before, first) = (key, false);
            }
            last = SmallVec::from_slice(before);
            if !self.next_leaf(&mut cursor, prefix)? {
                return Ok(());
            }
        }
    }

    /// The last key at or before `from` that starts with `prefix`, and its value.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn previous(&self, from: &Key, prefix: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.previous_with(from, prefix, |key, value| (key.to_vec(), value.to_vec()))
    }

    /// As [`Self::previous`], without allocation.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn previous_with<R>(
        &self,
        from: &Key,
        prefix: &[u8],
        use_cell: impl FnOnce(&[u8], &[u8]) -> R,
    ) -> Result<Option<R>> {
        let mut cursor = Cursor::new();
        let Some(place) = self.start(&from.0, &mut cursor)? else {
            return Ok(None);
        };
        cursor.index = place.map_or_else(|after| after, |at| at + 1);
        while cursor.index == 0 {
            // As in `scan_around`: the previous leaf has no key with the prefix, and may lie on a lower tier.
            if self.low_of(&cursor.path)?.as_slice() <= prefix || !self.previous_leaf(&mut cursor)? {
                return Ok(None);
            }
        }
        let leaf = &cursor.leaf;
        let cell = leaf.cell(cursor.index - 1)?;
        let key = leaf.key(&cell);
        if key > from.0.as_slice() {
            return Err(damaged(leaf.block, "keys", "ascending keys", "a larger key"));
        }
        Ok(key.starts_with(prefix).then(|| use_cell(key, leaf.value(&cell))))
    }

    /// Moves a cursor to the leaf that covers `key`.
    #[inline]
    fn start(&self, key: &[u8], cursor: &mut Cursor) -> Result<Option<std::result::Result<usize, usize>>> {
        cursor.shard = self.shard(key);
        let (path, leaf) = (&mut cursor.path, &mut cursor.leaf);
        if self.walk(key, leaf, |step| path.push(step))? { leaf.search(key).map(Some) } else { Ok(None) }
    }

    /// A lower bound of the keys below the last step of a path: empty for the first leaf.
    fn low_of(&self, path: &[Step]) -> Result<Vec<u8>> {
        let Some(step) = path.iter().rev().find(|step| step.index > 0) else {
            return Ok(Vec::new());
        };
        let node = self.node(step.block, Some(step.level))?;
        Ok(node.key(&node.cell(step.index)?).to_vec())
    }

    /// Moves to the start of the next leaf; false at the end of the tree, and where all that follows is behind
    /// `prefix`: that leaf need not be in PM.
    fn next_leaf(&self, cursor: &mut Cursor, prefix: &[u8]) -> Result<bool> {
        self.move_leaf(
            cursor,
            |key| key > prefix && !key.starts_with(prefix),
            |step| {
                step.index += 1;
                step.index < step.count
            },
            |_| 0,
        )
    }

    /// Moves behind the last cell of the previous leaf; false at the start of the tree.
    fn previous_leaf(&self, cursor: &mut Cursor) -> Result<bool> {
        let moved = self.move_leaf(
            cursor,
            |_| false,
            |step| {
                step.index = step.index.wrapping_sub(1);
                step.index < step.count
            },
            |node| node.count() - 1,
        )?;
        cursor.index = cursor.leaf.count();
        Ok(moved)
    }

    fn move_leaf(
        &self,
        cursor: &mut Cursor,
        behind: impl Fn(&[u8]) -> bool,
        advance: impl Fn(&mut Step) -> bool,
        enter: impl Fn(&Node) -> usize,
    ) -> Result<bool> {
        while let Some(step) = cursor.path.last_mut() {
            if advance(step) {
                break;
            }
            cursor.path.pop();
        }
        let Some(top) = cursor.path.last().copied() else {
            return Ok(false);
        };
        let node = &mut cursor.leaf;
        self.node_into(top.block, Some(top.level), node)?;
        let mut index = top.index;
        if behind(node.key(&node.cell(index)?)) {
            return Ok(false);
        }
        while node.level() > 0 {
            cursor.visited += 1;
            if cursor.visited > self.catalog.blocks.end_block().0 {
                let expected = "at most as many pages as the pool has";
                return Err(damaged(node.block, "tree", expected, "a page reached twice"));
            }
            let Some(child) = self.child(node, index)? else {
                if self.aside_into(cursor.shard, index, node)? {
                    break;
                }
                let key = self.low_of(&cursor.path)?;
                return Err(PageBelow::Leaf { shard: cursor.shard, key }.into());
            };
            self.node_into(child, Some(node.level() - 1), node)?;
            if node.level() > 0 {
                index = enter(node);
                cursor.path.push(step(node, index));
            }
        }
        cursor.index = 0;
        Ok(true)
    }
}

fn find(touched: &[Touched], block: PmBlock) -> Option<&Touched> {
    touched.iter().find(|touched| touched.block == block)
}

fn step(node: &Node, index: usize) -> Step {
    Step { block: node.block, level: node.level(), index, count: node.count() }
}

impl ShardsWrite<'_> {
    /// Notes a write to a page: `bytes` at `at`.
    pub(crate) fn touch(&mut self, node: &Node, at: usize, bytes: &[u8]) {
        // The way to a leaf may be another now.
        if node.level() > 0 {
            *self.way.get_mut() = None;
        }
        self.touch_block(node.block, at, bytes);
    }

    fn touch_block(&mut self, block: PmBlock, at: usize, bytes: &[u8]) {
        let Some(touched) = self.touched.iter_mut().find(|touched| touched.block == block) else {
            return self.touched.push(Touched { block, page: OnceCell::new() });
        };
        if let Some(page) = touched.page.get_mut()
            && let Some(place) = page.get_mut(at..at + bytes.len())
        {
            place.copy_from_slice(bytes);
        }
    }

    pub(crate) fn write_root(&mut self, tx: &mut Tx, shard: u32, root: Option<PmBlock>) {
        tx.write_u64(self.catalog.wal.geometry().shard_root(shard), root.map_or(0, |block| block.0));
        *self.way.get_mut() = None;
        // The block of roots is read by single words, so no copy of it is kept.
        self.touch_block(ROOTS_BLOCK, 0, &[]);
    }
}
