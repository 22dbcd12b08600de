//! The page of a block that a write into DRAM changes: the lines that it gets beside the written bytes, from media.
//!
//! Invariants:
//! 1. A page for a block tier holds its whole block; a partial write reads the rest before (PM under the lock, cold blocks
//!    without one).
//! 2. A page for PM has the written lines, the first and the last line completed, and all lines past the durable end
//!    ([HiNFS] section 3.3). Behind the durable end the dirty lines begin there: a raised size shows bytes of the file alone.
//! 3. Bytes past the visible end of the file are zeros, and so are lines outside of the page's valid lines.

use smallvec::{SmallVec, smallvec};
use terrace_cache::{Lines, Page};
use terrace_format::inode::flag;
use terrace_format::{BLOCK_SIZE, FileBlock, PmBlock};
use terrace_map::Mapping;
use terrace_map::file_map::MapChange;
use terrace_placement::Home;
use terrace_store::lookup::below::read_below;
use terrace_store::lookup::newest::{is_hidden, is_written_below};
use terrace_store::operation::need::Attempt;
use terrace_store::operation::op::Op;
use terrace_store::parts::dram::lazy_writes::LazyAblation;
use terrace_store::store::Store;
use terrace_store::types::inode::Inode;
use terrace_store::types::{BlockRange, LINE};
use terrace_wal::Error;

/// A page to write into, and the lines that the write adds.
pub(super) struct Prepared {
    /// The page.
    pub(super) page: Written,
    /// Edge lines of the write that the page has not: the first byte of each, and its bytes.
    pub(super) edges: SmallVec<[(usize, [u8; LINE]); 2]>,
    /// Lines that the page has from now on.
    pub(super) valid: Lines,
    /// Lines of these that no medium has.
    pub(super) dirty: Lines,
}

impl Prepared {
    /// Whether the block gets a dirty page.
    pub(super) fn is_new(&self) -> bool {
        !matches!(self.page, Written::Present)
    }
}

/// The page that a write changes.
pub(super) enum Written {
    /// The dirty page of the block, which stays with its home.
    Present,
    /// A new page, of the bytes of the write and zeros.
    New,
    /// A new page with the rest of the block.
    Filled(Page),
}

/// The page for bytes `from..to` of a block; `None`: a lazy write goes the direct way. The caller holds the inode's exclusive
/// lock.
///
/// # Errors
/// EIO; a cold block that is not in DRAM is a need.
pub(super) fn prepare(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    block: FileBlock,
    (from, to): (usize, usize),
    home: Home,
) -> Attempt<Option<Prepared>> {
    let present = inode.pending.and_then(|_| store.dram.cache().lines_of(inode.page_key(block)));
    if present.is_none() && home == Home::Block {
        let dirty = Lines::touched(from, to);
        return Ok(Some(Prepared { dirty, ..whole_block(store, op, inode, block, (from, to))? }));
    }
    if present.is_none() && !can_lie_below_lines(store, inode, block)? {
        return Ok(None);
    }
    if present.is_none() && store.dram.lazy_writes().options().ablation == LazyAblation::Blocks {
        return whole_block(store, op, inode, block, (from, to)).map(Some);
    }
    let durable = inode.durable_size().saturating_sub(block.0 * BLOCK_SIZE).min(BLOCK_SIZE) as usize;
    let from = from.min(durable);
    let mut edges = SmallVec::new();
    let has = present.unwrap_or_default();
    for at in [from / LINE * LINE, to / LINE * LINE] {
        let is_cut = at < to && (at < from || at + LINE > to);
        let is_known =
            has.contains(Lines::touched(at, at + 1)) || edges.iter().any(|(known, _)| *known == at);
        if is_cut && !is_known {
            let mut line = [0; LINE];
            read_below(store, op, inode, block, at, &mut line)?;
            edges.push((at, line));
        }
    }
    let dirty = Lines::touched(from, to);
    let past_end = Lines::touched(durable.next_multiple_of(LINE), BLOCK_SIZE as usize);
    let page = if present.is_some() { Written::Present } else { Written::New };
    Ok(Some(Prepared { page, edges, valid: dirty.union(past_end), dirty }))
}

/// A page with every line of its block dirty.
fn whole_block(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    block: FileBlock,
    (from, to): (usize, usize),
) -> Attempt<Prepared> {
    let mut page = Written::New;
    if to - from < BLOCK_SIZE as usize {
        let mut whole = Page::zeroed();
        read_below(store, op, inode, block, 0, whole.bytes_mut())?;
        page = Written::Filled(whole);
    }
    Ok(Prepared { page, edges: SmallVec::new(), valid: Lines::ALL, dirty: Lines::ALL })
}

/// Whether some lines of a block can be written back into PM without a read of a device.
fn can_lie_below_lines(store: &Store, inode: &Inode, block: FileBlock) -> Attempt<bool> {
    let has_partial = store.mode.has_partial && !store.mode.no_partial_shadows;
    let is_cold = !has_partial && inode.slot.has(flag::HAS_COLD);
    Ok(!is_cold || is_hidden(store, inode, block)? || !is_written_below(store, inode, block)?)
}

/// A change of more blocks asks for its own room alone: with pages that wait it would be larger than a map takes at once.
const LARGE_CHANGE: u64 = 60;
/// The number of waiting pages before a change, and behind it, for which it leaves room.
const WAITING: usize = 8;

/// Room in the map for blocks that write-back puts into PM, beside the pages of the file that wait for it already: an extent
/// map has no place for their blocks yet. The caller holds the inode's exclusive lock.
///
/// # Errors
/// Room in the map is a need; EIO.
pub(super) fn expect_map_room(store: &Store, inode: &Inode, range: BlockRange) -> Attempt<()> {
    // In a map that is a table of all files room depends on the blocks, which write-back chooses.
    if store.persistent.superblock().map_kind().is_table() {
        return Ok(());
    }
    let mut mappings: SmallVec<[Option<Mapping>; 4]> = SmallVec::from_elem(None, range.count() as usize);
    store.persistent.map().lookup_run(&inode.map(), range.first, &mut mappings)?;
    if mappings.iter().flatten().filter(|mapping| !mapping.unwritten).count() == mappings.len() {
        return Ok(());
    }
    // Any blocks will do: the room depends on neighbours alone. Blocks of a larger change may lie apart; pages of small
    // appends mostly get neighbours.
    let (mut at, mut last) = (store.persistent.blocks().first_block(), None);
    let mut some = |block: FileBlock, is_apart: bool| {
        let follows = !is_apart && last.is_some_and(|last: FileBlock| last.plus(1) == block);
        (at, last) = (PmBlock(at.0 + if follows { 1 } else { 2 }), Some(block));
        Some(Mapping::written(at))
    };
    let change_of = |first, mappings| MapChange { inode: inode.map(), first, mappings };
    let (before, behind) = waiting_beside(store, inode, range);
    let mut waiting: Vec<MapChange> =
        before.into_iter().map(|block| change_of(block, smallvec![some(block, false)])).collect();
    let mut own = SmallVec::new();
    for (mapping, number) in mappings.into_iter().zip(0..) {
        let is_apart = range.count() > 1;
        own.push(
            mapping.filter(|mapping| !mapping.unwritten).or_else(|| some(range.first.plus(number), is_apart)),
        );
    }
    waiting.extend(behind.into_iter().map(|block| change_of(block, smallvec![some(block, false)])));
    let change = change_of(range.first, own);
    match store.persistent.map().missing_room(&waiting, &change)? {
        Some(room) => Err(Error::from(room).into()),
        None => Ok(()),
    }
}

/// Blocks of pages for PM that wait before a range, and behind it, ascending.
fn waiting_beside(store: &Store, inode: &Inode, range: BlockRange) -> (Vec<FileBlock>, Vec<FileBlock>) {
    if range.count() > LARGE_CHANGE {
        return (Vec::new(), Vec::new());
    }
    let cache = store.dram.cache();
    let is_lazy = |block: &FileBlock| cache.home_of(inode.page_key(*block)) == Some(Home::Pm);
    let mut before = cache.dirty_blocks_before(inode.ino, range.first, WAITING);
    before.reverse();
    before.retain(is_lazy);
    let mut behind = cache.dirty_blocks(inode.ino, range.end, FileBlock(u64::MAX), WAITING);
    behind.retain(is_lazy);
    (before, behind)
}
