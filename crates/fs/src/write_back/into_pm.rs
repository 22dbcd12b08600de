//! Dirty pages that go into PM: for what no lower tier takes (I9), at fsync, at unmount, and before a write to PM behind
//! them.
//!
//! As many as a write transaction takes go at once, in the order of their blocks, so that a crash leaves the file shorter
//! and never with a hole (C28): behind the durable end with all that was dirtied before them since they were named. A
//! page that was dropped meanwhile is passed over.

use smallvec::SmallVec;
use terrace_blocks::{Claim, Purpose};
use terrace_cache::DirtyPage;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_map::Mapping;
use terrace_placement::Home;
use terrace_runtime::interleave;
use terrace_store::attempt::run::run_attempts;
use terrace_store::change::dirty::placed;
use terrace_store::change::finish::settle_absorbed;
use terrace_store::change::merge::merge_dirty;
use terrace_store::change::record_room::{atomic_blocks, record_of};
use terrace_store::change::staged::Staged;
use terrace_store::change::tail::stage_raised;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::{load, log_slot};
use terrace_store::lookup::intents::refuse_intents;
use terrace_store::operation::need::Attempt;
use terrace_store::operation::op::{Op, SMALL_RECORD};
use terrace_store::store::Store;
use terrace_store::types::inode::Inode;
use terrace_store::types::{BlockRange, Wait};
use terrace_wal::{Error, NoSpace};

/// The most blocks of new data that a record names by checksum (T4).
const CHECKED_BLOCKS: usize = 2;

/// Settles the dirty pages of some blocks, ascending; past the durable end also the dirty pages between them.
///
/// # Errors
/// ENOSPC; EIO, after the other pages were tried; `WouldBlock`.
///
/// # Panics
/// When the blocks do not ascend.
pub fn absorb(store: &Store, ino: Ino, blocks: &[FileBlock], wait: Wait) -> FsResult<()> {
    let ascend = blocks.is_sorted_by(|a, b| a < b);
    assert!(ascend, "blocks of inode {ino} go into PM out of order (C28)");
    let _flight = store.dram.write_back().begin_lazy();
    let mut rest = blocks;
    let (mut one_by_one, mut failed) = (false, None);
    while !rest.is_empty() {
        let most = if one_by_one { 1 } else { rest.len().min(atomic_blocks(store) as usize) };
        match absorb_some(store, ino, &rest[..most], wait) {
            Ok(done) => rest = &rest[done..],
            // Damage holds back what it concerns, and no other page (I8).
            Err(error) if error.concerns_one_file() && !store.persistent.wal().is_stopped() => {
                if one_by_one {
                    failed.get_or_insert(error);
                    rest = &rest[1..];
                }
                one_by_one = true;
            }
            Err(error) => return Err(error),
        }
        if !rest.is_empty() {
            interleave::point("absorb:between-pieces");
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Settles the first pages in a single transaction. Returns the number of `blocks` done: none, if the dirty
/// pages between them filled the transaction.
fn absorb_some(store: &Store, ino: Ino, blocks: &[FileBlock], wait: Wait) -> FsResult<usize> {
    let mut op = Op { writes_back: true, ..Op::new(wait) };
    run_attempts(store, &mut op, record_of(store, blocks.len()).max(SMALL_RECORD), |reservation, op| {
        let most = (blocks.len() >> op.piece_halvings).max(1);
        let unpromised = count_unpromised(store, ino, blocks, most)?;
        // Pages with a promise lack only room in the map, if it was given up since they were accepted.
        op.purpose = if unpromised == 0 { Purpose::Demotion } else { Purpose::User };
        let (claim, unpromised) = claim_some(store, op, unpromised)?;
        let _guard = store.inodes.locks().write(ino);
        let inode = match load(store, ino) {
            Err(FsError::Stale) => return Ok(blocks.len()),
            inode => inode?,
        };
        let (pages, done) = next_pages(store, &inode, blocks, most, unpromised);
        let mut staged = Staged::new(store, Some(claim), pages.len() <= CHECKED_BLOCKS);
        let Some(last) = pages.last() else { return Ok(done) };
        let promised = pages.iter().filter(|page| page.home == Home::Pm).count();
        if promised > 0 {
            staged.join_claim(store.persistent.blocks().promises().claim(promised)?);
        }
        let end = (last.key.block.plus(1).0 * BLOCK_SIZE).min(inode.size());
        let old_last = FileBlock(inode.durable_size() / BLOCK_SIZE);
        // The old last block may not be among the pages: then the bytes past its old end are given zeros
        // (S5).
        if end > inode.durable_size() && pages.iter().all(|page| page.key.block != old_last) {
            stage_raised(store, op, &inode, end, &mut staged)?;
        }
        for run in pages.chunk_by(|a, b| b.key.block == a.key.block.plus(1)) {
            stage_absorbed(store, op, &inode, run, &mut staged)?;
        }
        let mut slot = inode.slot;
        slot.size = inode.durable_size().max(staged.absorbed_end(&inode)).into();
        slot.blocks = slot.blocks.get().saturating_add_signed(staged.blocks_delta).into();
        inode.log_pending_times(&mut slot);
        log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
        staged.commit(reservation)?;
        settle_absorbed(store, &inode, &slot, &staged);
        Ok(done)
    })
}

/// At most `most` blocks that go next, and how many of `blocks` are done with them. The caller holds the inode lock.
fn next_absorbed(store: &Store, inode: &Inode, blocks: &[FileBlock], most: usize) -> (Vec<FileBlock>, usize) {
    let end = FileBlock(inode.durable_size() / BLOCK_SIZE);
    let before = blocks.partition_point(|block| *block < end).min(most);
    let mut next = blocks[..before].to_vec();
    if let Some(last) = blocks.last() {
        next.extend(store.dram.cache().dirty_blocks(inode.ino, end, last.plus(1), most - before));
    }
    let done = match next.last() {
        Some(last) if next.len() == most => blocks.partition_point(|block| block <= last),
        _ => blocks.len(),
    };
    (next, done)
}

/// As [`next_absorbed`], with the pages, of which at most `unpromised` have no promise of a PM block.
fn next_pages(
    store: &Store,
    inode: &Inode,
    blocks: &[FileBlock],
    most: usize,
    unpromised: usize,
) -> (Vec<DirtyPage>, usize) {
    let (next, done) = next_absorbed(store, inode, blocks, most);
    let mut pages = Vec::with_capacity(next.len());
    let mut left = unpromised;
    for page in next.iter().filter_map(|block| store.dram.cache().dirty(inode.page_key(*block))) {
        if page.home == Home::Block {
            if left == 0 {
                let done = blocks.partition_point(|block| *block < page.key.block);
                return (pages, done);
            }
            left -= 1;
        }
        pages.push(page);
    }
    (pages, done)
}

/// The number of pages without a promise of a PM block, of the pages that go next.
fn count_unpromised(store: &Store, ino: Ino, blocks: &[FileBlock], most: usize) -> FsResult<usize> {
    let _guard = store.inodes.locks().read(ino);
    let inode = match load(store, ino) {
        Err(FsError::Stale) => return Ok(0),
        inode => inode?,
    };
    let (next, _) = next_absorbed(store, &inode, blocks, most);
    let home_of = |block: &&FileBlock| store.dram.cache().home_of(inode.page_key(**block));
    Ok(next.iter().filter(|block| home_of(block) == Some(Home::Block)).count())
}

/// Blocks for as many pages as there is room for, and for the tail of the old last block when that needs one.
fn claim_some<'s>(store: &'s Store, op: &Op, mut count: usize) -> Attempt<(Claim<'s>, usize)> {
    loop {
        match store.persistent.blocks().claim(count + op.extra_blocks, op.purpose) {
            Err(Error::NoSpace(NoSpace::Pm)) if count > 1 => count /= 2,
            claim => return Ok((claim?, count)),
        }
    }
}

/// New blocks with the content of dirty pages of consecutive file blocks.
fn stage_absorbed(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    pages: &[DirtyPage],
    staged: &mut Staged<'_>,
) -> Attempt<()> {
    let Some(first) = pages.first().map(|page| page.key.block) else { return Ok(()) };
    let range = BlockRange::new(first, first.plus(pages.len() as u64));
    refuse_intents(store, inode, range)?;
    let mut mappings: SmallVec<[Option<Mapping>; 8]> = SmallVec::from_elem(None, pages.len());
    store.persistent.map().lookup_run(&inode.map(), first, &mut mappings)?;
    let placed = placed(store, inode, range)?;
    for ((page, mapping), placed) in pages.iter().zip(&mut mappings).zip(placed) {
        if !placed {
            staged.blocks_delta += 1;
            staged.placed += 1;
        }
        staged.absorb(page);
        *mapping = Some(merge_dirty(store, op, inode, page, *mapping, (0, &[]), inode.size(), staged)?);
    }
    staged.change_map(inode, first, mappings)
}
