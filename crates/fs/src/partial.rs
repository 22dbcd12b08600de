//! Partial shadows (design 4.2, 4.6 S5, 11): a small write to a cold block stores its lines in PM and does not read
//! the lower tier; reads merge line by line.
//!
//! A PM block whose table entry has fewer than all lines shadows a written cold block; the other lines are that
//! block's. Invariants: while a PM block is partial, the cold extent under it stays (only demotion, truncation and
//! completion end that, each in the transaction that ends the partial block too), it is never clean, and a line
//! becomes valid in the transaction that its bytes are durable with. A line that is not valid is seen by nobody, so
//! its bytes are stored in place under either data mode; a change of a valid line takes a new block, or is made in
//! place where data=ordered, or where only bytes past the end of the file change (S5).
//! What cannot be had without the cold block (the rest of an edge line) is read from there, and the write then makes
//! a full block of all it has: see docs/decisions/0008.
//!
//! Locks: the inode's, for reads shared. It is the lock of the table entries of its blocks (T2).

use crate::data_checksum::covered;
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::{Attempt, Op};
use crate::slot::Inode;
use crate::types::BlockRange;
use crate::write::Staged;
use std::borrow::Cow;
use terrace_cache::Page;
use terrace_format::address::LINE_SIZE;
use terrace_format::inode::flag;
use terrace_format::keys::ColdExtent;
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, Corrupt, FileBlock, Ino, LineMask, PmBlock};
use terrace_map::Mapping;
use terrace_runtime::planted::{Mistake, planted};

const LINE: usize = LINE_SIZE as usize;
const BLOCK: usize = BLOCK_SIZE as usize;

/// A partial block that is read.
pub(crate) struct Shadow {
    pub block: FileBlock,
    /// How far the reader goes on: read together if the lower tier has to be.
    pub until: FileBlock,
    pub pm: PmBlock,
    pub lines: LineMask,
}

/// Part of a block that is written, over a cold or a partial one.
pub(crate) struct Part<'a> {
    pub block: FileBlock,
    pub old: Option<Mapping>,
    /// The lines that `old` holds.
    pub lines: LineMask,
    /// Bytes of the block.
    pub from: usize,
    pub to: usize,
    /// `None`: zeros.
    pub data: Option<&'a [u8]>,
    /// Bytes of the block before the end of the file.
    pub valid: usize,
}

/// What became of a part.
pub(crate) enum Outcome {
    /// It is in a new block.
    Moved(Mapping),
    /// It is stored into the block that stays.
    Stays,
    /// Nothing was done: the rest of an edge line lies on the lower tier.
    NeedsRest,
}

impl Fs {
    /// The lines that a mapped block holds. The caller holds the inode's lock.
    ///
    /// # Errors
    /// EIO, also where the block table gives the block to another.
    pub(crate) fn lines_of(&self, ino: Ino, block: FileBlock, mapping: Mapping) -> FsResult<LineMask> {
        if mapping.unwritten {
            return Ok(LineMask::FULL);
        }
        Ok(self.blocks.lines(mapping.block, ino, block)?)
    }

    /// Whether a part of a block is written by lines: over a partial block, or over a cold one that is not to be read.
    pub(crate) fn is_by_lines(
        &self,
        old: Option<Mapping>,
        lines: LineMask,
        cold: Option<&ColdExtent>,
        valid: usize,
    ) -> bool {
        match old {
            Some(_) => !lines.is_full(),
            None => {
                let makes = self.has_partial && !self.read_first && valid > 0;
                makes && cold.is_some_and(|extent| !extent.unwritten)
            }
        }
    }

    /// Stores a part of a block as lines. The caller holds the inode's exclusive lock.
    pub(crate) fn stage_lines<'a>(
        &self,
        inode: &Inode,
        part: &Part<'a>,
        staged: &mut Staged<'a>,
    ) -> Attempt<Outcome> {
        let held = if part.old.is_some() { part.lines } else { LineMask::EMPTY };
        // What lies between the end of the file and the write becomes visible: zeros.
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
            && (unseen || self.data_ordered && part.data.is_some())
        {
            staged.store_later(old.block, begin, part.content(begin, end));
            if lines != held {
                self.blocks.set_lines(&mut staged.tx, old.block, lines);
            }
            return Ok(Outcome::Stays);
        }
        let new = staged.take()?;
        match part.old {
            None => staged.store(new, begin as u64, part.content(begin, end))?,
            Some(old) => {
                let mut content = vec![0; BLOCK];
                self.read_lines(old.block, held, &mut content)?;
                content[begin..end].copy_from_slice(&part.content(begin, end));
                let hull = lines.hull();
                staged.store(new, hull.start as u64, content[hull].to_vec())?;
                staged.release(old.block);
            }
        }
        let lines = if planted(Mistake::LinesLostAtUnion) { touched } else { lines };
        staged.own_lines(new, Owner::File { ino: inode.ino, block: part.block, unwritten: false }, lines);
        Ok(Outcome::Moved(Mapping::written(new)))
    }

    /// Copies lines of a PM block over the same bytes of `content`, a whole block.
    pub(crate) fn read_lines(&self, pm: PmBlock, lines: LineMask, content: &mut [u8]) -> FsResult<()> {
        for run in lines.runs() {
            let at = pm.offset().plus(run.start as u64);
            self.pm.read(at, content.get_mut(run).unwrap_or(&mut []))?;
        }
        Ok(())
    }

    /// Reads a block from byte `skip` on: a whole one judged by its checksum, a partial one merged. Looks at the lower tier
    /// only for lines that PM lacks.
    pub(crate) fn read_shadow(
        &self,
        op: &mut Op,
        inode: &Inode,
        shadow: &Shadow,
        skip: usize,
        target: &mut [u8],
    ) -> Attempt<()> {
        let end = skip + target.len();
        if shadow.lines.is_full() {
            return Ok(self.read_data(shadow.pm, skip as u64, target)?);
        }
        if shadow.lines.contains(LineMask::touching(skip, end)) {
            self.pm.read(shadow.pm.offset().plus(skip as u64), target)?;
            return Ok(());
        }
        let page = self.page_below(op, inode, shadow.block, shadow.until)?;
        target.copy_from_slice(&page.bytes()[skip..end]);
        for run in shadow.lines.runs() {
            let (from, to) = (run.start.max(skip), run.end.min(end));
            if from < to {
                self.pm.read(shadow.pm.offset().plus(from as u64), &mut target[from - skip..to - skip])?;
            }
        }
        Ok(())
    }

    /// The content of the cold copy under a partial block. The caller holds the inode's lock.
    pub(crate) fn page_below(
        &self,
        op: &mut Op,
        inode: &Inode,
        block: FileBlock,
        until: FileBlock,
    ) -> Attempt<Page> {
        self.extent_below(inode, block)?;
        self.cold_page(op, inode, block, until)
    }

    /// The cold extent under a partial block, cut to it. A pool in which there is none is damaged.
    pub(crate) fn extent_below(&self, inode: &Inode, block: FileBlock) -> FsResult<ColdExtent> {
        let range = BlockRange::new(block, block.plus(1));
        let extents = match inode.slot.has(flag::HAS_COLD) {
            true => self.cold_extents(inode.ino, range)?,
            false => Vec::new(),
        };
        let found = extents.iter().filter(|extent| !extent.unwritten);
        found.filter_map(|extent| extent.slice(range.first, range.end)).next().ok_or_else(|| {
            let site = format!("inode {} block {block}", inode.ino);
            let corrupt = Corrupt::new(site, "a cold copy under a partial block", "none");
            FsError::Engine(corrupt.into())
        })
    }

    /// Gives a partial block its other lines, in place: nobody sees them before the record does. `below` is its cold
    /// copy's present content. The caller holds the inode's exclusive lock.
    pub(crate) fn stage_completion(
        &self,
        inode: &Inode,
        (block, pm): (FileBlock, PmBlock),
        lines: LineMask,
        below: &[u8],
        staged: &mut Staged<'_>,
    ) -> FsResult<()> {
        for run in lines.missing().runs() {
            let bytes = below.get(run.clone()).unwrap_or(&[]).to_vec();
            staged.store_later(pm, run.start, bytes.into());
        }
        if self.has_checksums {
            let mut content = below.to_vec();
            self.read_lines(pm, lines, &mut content)?;
            let checksum = self.checksum_of(&content, covered(block.0 * BLOCK_SIZE, inode.durable_size()));
            let owner = Owner::File { ino: inode.ino, block, unwritten: false };
            self.blocks.set_checksum(&mut staged.tx, pm, owner, checksum);
        } else {
            self.blocks.set_lines(&mut staged.tx, pm, LineMask::FULL);
        }
        Ok(())
    }
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
