//! Staging of written bytes, block by block: merge, replace, store in place, or lines over a cold copy.
//!
//! Called under the exclusive inode lock; nothing is changed until the commit.

use crate::change::lines::{Outcome, Part, is_by_lines, stage_lines};
use crate::change::merge::{merge_block, merge_dirty, replace, store_in_place};
use crate::change::staged::Staged;
use crate::error::{FsError, final_no_space};
use crate::inode::slot::check_owner;
use crate::lookup::cold_extents::cold_extents;
use crate::lookup::data_checksum::{checksum_of, covered};
use crate::lookup::intents::refuse_intents;
use crate::lookup::lines::lines_of;
use crate::operation::need::Attempt;
use crate::operation::op::Op;
use crate::store::Store;
use crate::types::inode::Inode;
use crate::types::segment::Segment;
use crate::types::{BLOCK, BlockRange};
use smallvec::SmallVec;
use std::borrow::Cow;
use terrace_blocks::Purpose;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::inode::flag;
use terrace_format::keys::ColdExtent;
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, FileBlock, LineMask};
use terrace_map::Mapping;
use terrace_placement::Home;
use terrace_runtime::planted::{Mistake, planted};

/// The present content of a segment's blocks: PM mappings and cold extents.
struct Under {
    mappings: SmallVec<[Option<Mapping>; 8]>,
    cold: Vec<ColdExtent>,
}

impl Under {
    fn cold_at(&self, block: FileBlock) -> Option<&ColdExtent> {
        self.cold.iter().find(|extent| extent.first <= block && block < extent.end())
    }
}

/// Puts a segment's bytes into new blocks, or in place past the end of the last block, and logs the map.
pub fn stage<'a>(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    segment: Segment<'a>,
    staged: &mut Staged<'a>,
) -> Attempt<()> {
    let range = segment.blocks();
    if range.is_empty() {
        return Ok(());
    }
    if range.end.0 > MAX_FILE_BLOCK.0 + 1 {
        return Err(FsError::TooLarge.into());
    }
    let length = segment.data.map_or(segment.length, |data| data.len() as u64);
    assert_eq!(length, segment.length, "bytes of a segment at {}", segment.offset);
    debug_assert!(
        store.inodes.locks().is_exclusive(inode.ino),
        "inode {} is written unlocked (T2)",
        inode.ino
    );
    refuse_intents(store, inode, range)?;
    let under = look_under(store, inode, range)?;
    let mut mappings: SmallVec<[Option<Mapping>; 8]> = under.mappings.clone();
    let mut changed = false;
    for index in 0..range.count() as usize {
        let block = range.first.plus(index as u64);
        if let Some(new) = stage_block(store, op, inode, &segment, block, &under, index, staged)? {
            mappings[index] = Some(new);
            changed = true;
        }
    }
    // Checked before map nodes are made: only an overwrite of allocated blocks may use the reserve.
    if op.purpose == Purpose::Overwrite && staged.blocks_delta > 0 {
        return Err(op.refused.take().unwrap_or_else(final_no_space).into());
    }
    if changed {
        staged.change_map(inode, range.first, mappings)?;
    }
    Ok(())
}

fn look_under(store: &Store, inode: &Inode, range: BlockRange) -> Attempt<Under> {
    let mut mappings: SmallVec<[Option<Mapping>; 8]> = SmallVec::new();
    mappings.resize(range.count() as usize, None);
    store.persistent.map().lookup_run(&inode.map(), range.first, &mut mappings)?;
    for (index, mapping) in (0..).zip(&mappings) {
        if let Some(mapping) = mapping {
            check_owner(store, inode, range.first.plus(index), mapping.block)?;
        }
    }
    let cold =
        if inode.slot.has(flag::HAS_COLD) { cold_extents(store, inode.ino, range)? } else { Vec::new() };
    Ok(Under { mappings, cold })
}

#[allow(clippy::too_many_arguments)] // a step of `stage`, split off for its length
fn stage_block<'a>(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    segment: &Segment<'a>,
    block: FileBlock,
    under: &Under,
    index: usize,
    staged: &mut Staged<'a>,
) -> Attempt<Option<Mapping>> {
    let start = block.0 * BLOCK_SIZE;
    let from = segment.offset.max(start) - start;
    let to = (segment.offset + segment.length).min(start + BLOCK_SIZE) - start;
    let (from, to) = (from as usize, to as usize);
    debug_assert!(from < to && to <= BLOCK, "bytes {from}..{to} of block {block}");
    let data = segment.data.map(|data| {
        let skip = (start + from as u64 - segment.offset) as usize;
        &data[skip..skip + (to - from)]
    });
    let old = under.mappings[index];
    let cold = under.cold_at(block);
    let whole = to - from == BLOCK;
    let valid = inode.durable_size().saturating_sub(start).min(BLOCK_SIZE) as usize;
    // Zeros that are only for the medium go below a dirty page.
    let dirty = match inode.pending {
        Some(_) if data.is_some() => store.dram.cache().dirty(inode.page_key(block)),
        _ => None,
    };
    let lines = old.map_or(Ok(LineMask::FULL), |old| lines_of(store, inode.ino, block, old))?;
    if dirty.is_none() && !whole && is_by_lines(store, old, lines, cold, valid) {
        let part = Part { block, old, lines, from, to, data, valid };
        match stage_lines(store, inode, &part, staged)? {
            Outcome::Moved(new) => return Ok(Some(new)),
            Outcome::Stays => return Ok(None),
            Outcome::NeedsRest => {}
        }
    } else if let Some(old) = old.filter(|old| !old.unwritten && dirty.is_none() && lines.is_full()) {
        let beyond_end = from >= valid && !whole;
        let owner = Owner::File { ino: inode.ino, block, unwritten: false };
        // A punch is whole or not at all, data=ordered or not (docs/semantics.md): its zeros need a new block.
        if (beyond_end || store.mode.data_ordered && data.is_some())
            && store_in_place(store, (old.block, owner), valid.min(from), from, to, data, staged)?
        {
            return Ok(None);
        }
    }
    // How far the file will be on media.
    let end = inode.size().max(segment.offset + segment.length);
    let nothing_there = match old {
        Some(old) => old.unwritten,
        None => cold.is_none_or(|extent| extent.unwritten),
    };
    let Some(data) = data else {
        if nothing_there {
            return Ok(None);
        }
        let seen = (old, lines, nothing_there);
        return merge_block(store, op, inode, block, seen, (from, to, end), None, valid, staged);
    };
    let settled = dirty.as_ref().filter(|dirty| !planted(Mistake::LazyPageStays) || dirty.home != Home::Pm);
    staged.absorbed.extend(settled.map(|dirty| dirty.key));
    if old.is_none() && cold.is_none() {
        staged.blocks_delta += 1;
        staged.placed += i64::from(dirty.is_some());
    }
    if let Some(old) = old.filter(|old| old.unwritten) {
        // No reader sees the bytes before the record that makes the block written.
        let content: Cow<'a, [u8]> = match (&dirty, whole) {
            (_, true) => data.into(),
            (dirty, false) => {
                let mut content = dirty.as_ref().map_or(vec![0; BLOCK], |dirty| dirty.page.bytes().to_vec());
                content[from..to].copy_from_slice(data);
                content.into()
            }
        };
        let checksum = checksum_of(store, &content, covered(start, end));
        staged.store_later(old.block, 0, content);
        let owner = Owner::File { ino: inode.ino, block, unwritten: false };
        staged.own_content(old.block, owner, checksum);
        return Ok(Some(Mapping::written(old.block)));
    }
    if whole {
        return replace(store, inode, block, old, (data.into(), end), staged).map(Some);
    }
    if let Some(dirty) = dirty {
        return merge_dirty(store, op, inode, &dirty, old, (from, data), end, staged).map(Some);
    }
    let seen = (old, lines, nothing_there);
    merge_block(store, op, inode, block, seen, (from, to, end), Some(data), valid, staged)
}
