//! Lines of a small write over a cold block: a partial shadow, without a read (decision 0008).

use crate::change::staged::Staged;
use crate::error::FsResult;
use crate::lookup::data_checksum::{checksum_of, covered};
use crate::lookup::lines::read_lines;
use crate::lookup::partial_shadow::BLOCK;
use crate::operation::need::Attempt;
use crate::store::Store;
use crate::types::LINE;
use crate::types::inode::Inode;
use std::borrow::Cow;
use terrace_blocks::Target;
use terrace_format::keys::ColdExtent;
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, FileBlock, LineMask, PmBlock};
use terrace_map::Mapping;
use terrace_runtime::planted::{Mistake, planted};

/// Part of a block that is written, over a cold or a partial one.
pub struct Part<'a> {
    /// The block that is written.
    pub block: FileBlock,
    /// Its mapping before.
    pub old: Option<Mapping>,
    /// The lines that `old` holds.
    pub lines: LineMask,
    /// Bytes of the block.
    pub from: usize,
    /// End of the bytes inside the block.
    pub to: usize,
    /// `None`: zeros.
    pub data: Option<&'a [u8]>,
    /// Bytes of the block before the end of the file.
    pub valid: usize,
}

/// How a part of the write was staged.
pub enum Outcome {
    /// The part is in a new block.
    Moved(Mapping),
    /// The part is stored into the present PM block.
    Stays,
    /// Nothing was done: the rest of an edge line lies on the lower tier.
    NeedsRest,
}

/// Whether a part of a block is written by lines: over a partial block, or over a cold one that is not to be read.
pub(crate) fn is_by_lines(
    store: &Store,
    old: Option<Mapping>,
    lines: LineMask,
    cold: Option<&ColdExtent>,
    valid: usize,
) -> bool {
    match old {
        Some(_) => !lines.is_full(),
        None => {
            let makes = store.mode.has_partial && !store.mode.no_partial_shadows && valid > 0;
            makes && cold.is_some_and(|extent| !extent.unwritten)
        }
    }
}

/// Stores a part of a block as lines. The caller holds the inode's exclusive lock.
pub(crate) fn stage_lines<'a>(
    store: &Store,
    inode: &Inode,
    part: &Part<'a>,
    staged: &mut Staged<'a>,
) -> Attempt<Outcome> {
    let (from, to) = (part.from, part.to);
    assert!(from < to && to <= BLOCK, "bytes {from}..{to} of block {}", part.block);
    let held = if part.old.is_some() { part.lines } else { LineMask::EMPTY };
    // The gap between the end of the file and the write becomes visible, so the write fills it with zeros.
    let begin = part.from.min(part.valid);
    let touched = LineMask::touching(begin, part.to);
    let head = LineMask::touching(begin, begin + 1);
    let tail = LineMask::touching(part.to - 1, part.to);
    let head_lacks = !begin.is_multiple_of(LINE) && !held.contains(head);
    let tail_lacks = !part.to.is_multiple_of(LINE) && part.to < part.valid && !held.contains(tail);
    if head_lacks || tail_lacks {
        return Ok(Outcome::NeedsRest);
    }
    // The rest of a last line that is new lies past the end of the file.
    let end = if held.contains(tail) { part.to } else { part.to.next_multiple_of(LINE) };
    let lines = held.union(touched);
    let unseen = held.intersection(touched).is_empty() || begin >= part.valid;
    if let Some(old) = part.old
        && (unseen || store.mode.data_ordered && part.data.is_some())
    {
        staged.store_later(old.block, begin, part.content(begin, end));
        if lines != held {
            store.persistent.blocks().set_lines(&mut staged.tx, old.block, lines);
        }
        return Ok(Outcome::Stays);
    }
    let new = staged.take(Target::File { ino: inode.ino, block: part.block })?;
    match part.old {
        None => staged.store(new, begin as u64, part.content(begin, end))?,
        Some(old) => {
            let mut content = vec![0; BLOCK];
            read_lines(store, old.block, held, &mut content)?;
            content[begin..end].copy_from_slice(&part.content(begin, end));
            let hull = lines.hull();
            staged.store(new, hull.start as u64, content[hull].to_vec())?;
            staged.release_for(old.block, new);
        }
    }
    let lines = if planted(Mistake::LinesLostAtUnion) { touched } else { lines };
    staged.own_lines(new, Owner::File { ino: inode.ino, block: part.block, unwritten: false }, lines);
    Ok(Outcome::Moved(Mapping::written(new)))
}

/// Gives a partial shadow its missing lines, in place: no reader sees a line before the record makes it
/// valid. `below` is the present content of the cold copy. The caller holds the inode's exclusive lock.
pub(crate) fn stage_completion(
    store: &Store,
    inode: &Inode,
    (block, pm): (FileBlock, PmBlock),
    lines: LineMask,
    below: &[u8],
    staged: &mut Staged<'_>,
) -> FsResult<()> {
    assert!(
        store.inodes.locks().is_exclusive(inode.ino),
        "lines of inode {} change unlocked (T2)",
        inode.ino
    );
    assert_eq!(below.len(), BLOCK, "bytes below block {block}, of which the missing lines are taken (S5)");
    for run in lines.missing().runs() {
        let bytes = below.get(run.clone()).unwrap_or(&[]).to_vec();
        staged.store_later(pm, run.start, bytes.into());
    }
    if store.mode.has_checksums {
        let mut content = below.to_vec();
        read_lines(store, pm, lines, &mut content)?;
        let checksum = checksum_of(store, &content, covered(block.0 * BLOCK_SIZE, inode.durable_size()));
        let owner = Owner::File { ino: inode.ino, block, unwritten: false };
        store.persistent.blocks().set_checksum(&mut staged.tx, pm, owner, checksum);
    } else {
        store.persistent.blocks().set_lines(&mut staged.tx, pm, LineMask::FULL);
    }
    Ok(())
}

impl<'a> Part<'a> {
    /// The bytes `begin..end` of the block as they will be: the data, zeros around it.
    fn content(&self, begin: usize, end: usize) -> Cow<'a, [u8]> {
        match self.data {
            Some(data) if (begin, end) == (self.from, self.to) => data.into(),
            data => {
                let mut content = vec![0; end - begin];
                if let Some(data) = data {
                    content[self.from - begin..self.to - begin].copy_from_slice(data);
                }
                content.into()
            }
        }
    }
}
