//! The installation of pages whose lines are in PM: new blocks come into the file, lines of partial shadows become valid, and
//! the durable size rises, in one transaction; then the pages are clean.
//!
//! Invariants: lines are ordered before the record; a page is installed only with the birth of its copy; behind the durable
//! end pages are installed in the order of blocks (C28). A page with a later write stays dirty above the installed copy.

use crate::write_back::lazy_look::{LazyCopy, Look, Place};
use smallvec::SmallVec;
use terrace_cache::Installed;
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, FileBlock};
use terrace_map::Mapping;
use terrace_runtime::planted::{Mistake, planted};
use terrace_store::attempt::run::run_attempts;
use terrace_store::change::dirty::{placed, settle};
use terrace_store::change::record_room::record_of_scattered;
use terrace_store::change::staged::Staged;
use terrace_store::change::tail::stage_raised;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::{load, log_slot};
use terrace_store::lookup::intents::refuse_intents;
use terrace_store::lookup::lines::lines_of;
use terrace_store::lookup::newest::is_written_below;
use terrace_store::moving::errors::writing_back;
use terrace_store::operation::need::Attempt;
use terrace_store::operation::op::{Op, SMALL_RECORD};
use terrace_store::store::Store;
use terrace_store::types::inode::Inode;
use terrace_store::types::{BlockRange, Wait};
use terrace_wal::Reservation;

/// Installs the pages of a look, as many as can be now; gives for each page whether it was.
///
/// # Errors
/// EIO; `WouldBlock`. No page is installed then.
pub(super) fn install_lazy(look: &Look<'_>, wait: Wait) -> FsResult<Vec<bool>> {
    let store = look.store;
    let mut op = writing_back(wait);
    let record = record_of_scattered(store, look.pages.len()).max(SMALL_RECORD);
    run_attempts(store, &mut op, record, |reservation, op| install(look, reservation, op))
}

fn install(look: &Look<'_>, reservation: Reservation<'_>, op: &mut Op) -> Attempt<Vec<bool>> {
    let store = look.store;
    let most = (look.pages.len() >> op.piece_halvings).max(1);
    let nothing = vec![false; look.pages.len()];
    // The old last block rarely needs zeros in a new one.
    let claim = store.persistent.blocks().claim(op.extra_blocks, op.purpose)?;
    let _guard = store.inodes.locks().write(look.ino);
    let inode = match load(store, look.ino) {
        Ok(inode) if inode.slot.generation.get() == look.generation => inode,
        Ok(_) | Err(FsError::Stale) => return Ok(nothing),
        Err(error) => return Err(error.into()),
    };
    let mut staged = Staged::new(store, Some(claim), true);
    let chosen = choose(look, &inode, most)?;
    let pages = || look.pages.iter().zip(&chosen).filter(|(_, chosen)| **chosen).map(|(page, _)| page);
    let Some(first) = pages().next().map(|page| page.copy.key.block) else { return Ok(nothing) };
    let end = pages().next_back().map_or(first, |page| page.copy.key.block).plus(1);
    refuse_intents(store, &inode, BlockRange::new(first, end))?;
    let size = size_with(look, &inode, &chosen);
    assert!(size >= inode.durable_size(), "inode {} falls to {size} in write-back (S4)", inode.ino);
    let old_last = FileBlock(inode.durable_size() / BLOCK_SIZE);
    if size > inode.durable_size() && pages().all(|page| page.copy.key.block != old_last) {
        stage_raised(store, op, &inode, size, &mut staged)?;
    }
    stage_new(store, &inode, &pages().collect::<SmallVec<[&LazyCopy<'_>; 16]>>(), &mut staged)?;
    let has_new = pages().any(|page| matches!(page.place, Place::New { .. }));
    let mut slot = inode.slot;
    slot.size = size.into();
    slot.blocks = slot.blocks.get().saturating_add_signed(staged.blocks_delta).into();
    inode.log_pending_times(&mut slot);
    log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
    if has_new || !staged.tx.is_empty() {
        staged.commit(reservation)?;
    }
    // A movement may have looked after the stores, and before these lines were valid or the size had them (S6).
    for page in pages() {
        if let Place::Present { pm, .. } = &page.place
            && !planted(Mistake::OneVersionInPlace)
        {
            store.persistent.blocks().bump(*pm);
        }
    }
    let now = store.clock.monotonic_ns();
    let clean =
        pages().filter(|page| store.dram.cache().installed_in_pm(&page.copy, now) == Installed::Clean);
    store.persistent.blocks().promises().take_back(clean.count());
    settle(store, &inode, &slot, inode.size(), staged.placed);
    Ok(chosen)
}

/// The pages that can be installed now, of the first `most`.
fn choose(look: &Look<'_>, inode: &Inode, most: usize) -> Attempt<Vec<bool>> {
    let cache = look.store.dram.cache();
    let durable_block = FileBlock(inode.durable_size() / BLOCK_SIZE);
    let mut chosen = vec![false; look.pages.len()];
    // Behind the durable end the first dirty block that is not installed.
    let mut next = cache.next_dirty(inode.ino, durable_block, FileBlock(u64::MAX));
    for (page, chosen) in look.pages.iter().zip(&mut chosen).take(most) {
        let block = page.copy.key.block;
        if block >= durable_block && next.is_some_and(|next| next < block) {
            break;
        }
        let is_same = cache.state_of(page.copy.key).is_some_and(|(birth, _)| birth == page.copy.birth);
        *chosen = is_same && is_in_place(look.store, inode, page)?;
        if *chosen && next == Some(block) {
            next = cache.next_dirty(inode.ino, block.plus(1), FileBlock(u64::MAX));
        }
    }
    Ok(chosen)
}

/// Whether the block of a page has not moved since the copy, and a new block has the lines.
fn is_in_place(store: &Store, inode: &Inode, page: &LazyCopy<'_>) -> FsResult<bool> {
    let block = page.copy.key.block;
    let mapping = store.persistent.map().lookup(&inode.map(), block)?;
    match &page.place {
        Place::Present { pm, version, .. } => {
            let is_there = mapping.is_some_and(|mapping| !mapping.unwritten && mapping.block == *pm);
            Ok(is_there && store.persistent.blocks().descriptor(*pm).version() == *version)
        }
        Place::New { new: None, .. } | Place::Unstored => Ok(false),
        Place::New { old, lines, .. } => {
            let is_cold = || is_written_below(store, inode, block);
            Ok(mapping == *old && (lines.is_full() || is_cold()?))
        }
    }
}

/// The durable size with the pages: up to the first dirty page that is left, and not past the end at the time of the copies.
fn size_with(look: &Look<'_>, inode: &Inode, chosen: &[bool]) -> u64 {
    let durable = inode.durable_size();
    let is_chosen = |block: FileBlock| {
        let mut pages = look.pages.iter().zip(chosen);
        pages.any(|(page, chosen)| *chosen && page.copy.key.block == block)
    };
    let mut at = FileBlock(durable / BLOCK_SIZE);
    let mut size = inode.size().min(look.visible);
    while let Some(block) = look.store.dram.cache().next_dirty(inode.ino, at, FileBlock(u64::MAX)) {
        if !is_chosen(block) {
            size = size.min(block.0 * BLOCK_SIZE);
            break;
        }
        at = block.plus(1);
    }
    size.max(durable)
}

/// Puts new blocks into the map and gives them owners; lines of partial shadows become valid.
fn stage_new(store: &Store, inode: &Inode, pages: &[&LazyCopy<'_>], staged: &mut Staged<'_>) -> Attempt<()> {
    let is_new = |page: &LazyCopy<'_>| matches!(page.place, Place::New { .. });
    let follows = |a: &&LazyCopy<'_>, b: &&LazyCopy<'_>| {
        is_new(a) == is_new(b) && b.copy.key.block == a.copy.key.block.plus(1)
    };
    for run in pages.chunk_by(follows).filter(|run| is_new(run[0])) {
        let mut mappings: SmallVec<[Option<Mapping>; 16]> = SmallVec::new();
        for page in run {
            let Place::New { new: Some((new, ..)), .. } = &page.place else {
                unreachable!("a chosen page has its block (M1)")
            };
            mappings.push(Some(Mapping::written(*new)));
        }
        staged.change_map(inode, run[0].copy.key.block, mappings)?;
    }
    for page in pages {
        let block = page.copy.key.block;
        match &page.place {
            Place::Present { pm, stored, .. } => {
                let held = lines_of(store, inode.ino, block, Mapping::written(*pm))?;
                if !held.contains(*stored) {
                    let lines = held.union(*stored);
                    store.persistent.blocks().set_lines(&mut staged.tx, *pm, lines);
                }
            }
            Place::Unstored => {}
            Place::New { lines, new, .. } => {
                let Some((new, _, checksum)) = new else { continue };
                let owner = Owner::File { ino: inode.ino, block, unwritten: false };
                match lines.is_full() {
                    true => staged.own_content(*new, owner, *checksum),
                    false => staged.own_lines(*new, owner, *lines),
                }
                if !placed(store, inode, BlockRange::new(block, block.plus(1)))?[0] {
                    staged.blocks_delta += 1;
                    staged.placed += 1;
                }
            }
        }
    }
    // Last: a block that was released in an attempt without room looks as if it had changed.
    for page in pages {
        if let Place::New { old: Some(old), .. } = &page.place {
            staged.release(old.block);
        }
    }
    Ok(())
}
