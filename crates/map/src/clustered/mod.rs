//! Clustered map: one table for all files, in an area before the pool of blocks, whose lines map 16 consecutive file blocks
//! each (a clustered page table: Talluri, Hill, Khalidi, "A New Page Table for 64-bit Address Spaces", SOSP 1995;
//! docs/format.md "Clustered map").
//!
//! The first eight blocks of a file lie in its slot, as those of a radix tree. Each further piece of 16 blocks has a line: a
//! key, and 16 places in PM. A look-up reads the line at the hash of the piece. Where another piece has the line, the piece
//! has the next free line of the table. A search never ends at a free line, so a crash cannot cut a search.
//!
//! Memory knows which blocks are there (`blocks::presence`, without the blocks in slots): a search for any other block
//! ends at its first line. The word `map_reach` in the roots block bounds all searches: no line lies as far from its home.
//!
//! Invariants: 1. A piece has one line, at a distance below `map_reach`, while PM has a block of it. 2. There are more lines
//! than blocks in the pool, so a piece that comes finds a free line. 3. Presence is exact while no change is under way.
//!
//! Locks: a line with a key is under the lock of its inode. A free line is claimed (`claims`). A search reads keys of other
//! inodes, and compares them with its own key only.

mod change;
mod claims;
mod lost;
mod table;

pub(crate) use claims::Claimed;
pub use table::ClusteredMap;

use self::change::{BLOCK_BYTES, RUN_BYTES};
use crate::cursor::Cursor;
use crate::file_map::{FileMap, Freed, MapChange, MapGuard, MapInode, MapRecord, Mapped, Mapping, Raise};
use crate::hidden::{is_known_cold, is_whole, keep_shown};
use crate::map_row::MapRow;
use std::sync::Arc;
use terrace_blocks::Claim;
use terrace_blocks::pool::Known;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::clustered_map::{PIECE_BLOCKS, Piece};
use terrace_format::inode::{DIRECT_BLOCKS, InodeSlot};
use terrace_format::map_kind::MapKind;
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_wal::{Error, MapRoom, Result, Tx};

/// The row of this map.
pub(crate) const ROW: MapRow = MapRow {
    kind: MapKind::Clustered,
    name: "clustered",
    sentence: "A table of all files, a line for 16 blocks: for large files read at random; the fast tier has at most 512 GiB and can never grow",
    make: |blocks| Ok(Box::new(ClusteredMap::open(Arc::clone(blocks))?)),
};

/// Pieces whose homes are computed together.
const BATCH: usize = 16;

impl FileMap for ClusteredMap {
    #[inline]
    fn lookup(&self, inode: &MapInode, block: FileBlock) -> Result<Option<Mapping>> {
        if block > MAX_FILE_BLOCK || inode.is_nowhere() {
            return Ok(None);
        }
        if block.0 < DIRECT_BLOCKS {
            return self.slots.lookup_at(&self.slots.place(inode), block);
        }
        if is_known_cold(self.hashed()?, inode, block) {
            return Ok(None);
        }
        let piece = Piece::of(inode.ino, block);
        let mut out = [None];
        self.look_up(piece, self.lines.home(piece), (block.0 % PIECE_BLOCKS) as usize, &mut out)?;
        let [mapping] = out;
        Ok(mapping)
    }

    fn lookup_with(&self, cursor: &Cursor, inode: &MapInode, block: FileBlock) -> Result<Option<Mapping>> {
        if let Some(next) = cursor.announces(block) {
            self.pages.pm.expect_load(self.lines.at(self.lines.home(Piece::of(inode.ino, next))));
        }
        FileMap::lookup(self, inode, block)
    }

    fn lookup_run(&self, inode: &MapInode, first: FileBlock, out: &mut [Option<Mapping>]) -> Result<()> {
        let end = first.0.saturating_add(out.len() as u64).min(MAX_FILE_BLOCK.0 + 1);
        let end = if inode.is_nowhere() { first.0 } else { end };
        let (out, behind) = out.split_at_mut(end.saturating_sub(first.0) as usize);
        behind.fill(None);
        let in_slot = (DIRECT_BLOCKS.saturating_sub(first.0) as usize).min(out.len());
        let (slots, mut rest) = out.split_at_mut(in_slot);
        if !slots.is_empty() {
            self.slots.lookup_run_at(&self.slots.place(inode), first, slots)?;
        }
        let mut at = first.0 + in_slot as u64;
        while !rest.is_empty() {
            let piece = Piece::of(inode.ino, FileBlock(at));
            let pieces = (at % PIECE_BLOCKS + rest.len() as u64).div_ceil(PIECE_BLOCKS);
            let mut homes = [0; BATCH];
            let (homes, _) = homes.split_at_mut((pieces as usize).min(BATCH));
            self.lines.homes(piece, homes);
            if homes.len() > 1 {
                homes.iter().for_each(|home| self.pages.pm.expect_load(self.lines.at(*home)));
            }
            for (number, home) in (piece.number..).zip(homes) {
                let from = (at % PIECE_BLOCKS) as usize;
                let (part, behind) = rest.split_at_mut(rest.len().min(PIECE_BLOCKS as usize - from));
                self.look_up(Piece { number, ..piece }, *home, from, part)?;
                (at, rest) = (at + part.len() as u64, behind);
            }
        }
        Ok(())
    }

    fn mapped(
        &self,
        inode: &MapInode,
        from: FileBlock,
        to: FileBlock,
        most: usize,
        out: &mut Vec<Mapped>,
    ) -> Result<Option<FileBlock>> {
        assert!(most > 0, "a list of no blocks never gets full");
        if inode.is_nowhere() {
            return Ok(None);
        }
        let hashed = self.hashed()?;
        match hashed.known() {
            Known::All => {}
            // The blocks in the slot are known without the scan.
            Known::Part if to.0 <= DIRECT_BLOCKS => {}
            Known::Part => return Err(Error::TableUnread),
            Known::Doubtful => self.learn_all(hashed)?,
        }
        let before = out.len();
        if from.0 < DIRECT_BLOCKS {
            let slot_end = FileBlock(to.0.min(DIRECT_BLOCKS));
            let next = self.slots.mapped_at(&self.slots.place(inode), (from, slot_end), most, out)?;
            if next.is_some() || to.0 <= DIRECT_BLOCKS {
                return Ok(next);
            }
        }
        let (from, most) = (from.0.max(DIRECT_BLOCKS), most - (out.len() - before));
        if most == 0 {
            return Ok(Some(FileBlock(from)));
        }
        let range = (FileBlock(from), to);
        let mut blocks = Vec::new();
        let mut next = hashed.presence.list(inode.ino, range, most, &mut blocks);
        if hashed.known() == Known::Doubtful {
            next = keep_shown(hashed, inode.ino, range, next, &mut blocks)?;
        }
        for blocks in blocks.chunk_by(|a, b| a.0 / PIECE_BLOCKS == b.0 / PIECE_BLOCKS) {
            let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else { continue };
            let (piece, from) = (Piece::of(inode.ino, *first), (first.0 % PIECE_BLOCKS) as usize);
            let mut mappings = [None; PIECE_BLOCKS as usize];
            let (mappings, _) = mappings.split_at_mut((last.0 - first.0) as usize + 1);
            self.look_up(piece, self.lines.home(piece), from, mappings)?;
            out.extend(blocks.iter().filter_map(|block| {
                let mapping = mappings.get((block.0 - first.0) as usize).copied().flatten();
                Some((*block, mapping?))
            }));
        }
        Ok(next)
    }

    fn is_empty(&self, ino: Ino, slot: &InodeSlot) -> bool {
        slot.direct.iter().all(|pointer| pointer.get() == 0)
            && self.hashed().is_ok_and(|hashed| is_whole(hashed, ino) && hashed.presence.is_empty(ino))
    }

    fn learn(&self) -> Result<()> {
        self.learn_all(self.hashed()?)
    }

    fn missing_room(&self, earlier: &[MapChange], change: &MapChange) -> Result<Option<MapRoom>> {
        self.lacking(earlier, change)
    }

    fn make_room(
        &self,
        tx: &mut Tx,
        _: &MapInode,
        room: &MapRoom,
        _: &mut Claim<'_>,
    ) -> Result<MapGuard<'_>> {
        let raising = self.raising.lock();
        let needed = room.runs as u64;
        if needed <= self.reach() {
            return Ok(MapGuard::default());
        }
        let new = needed.next_power_of_two().min(self.lines.most_reach());
        tx.write_u64(self.pages.blocks.wal().geometry().map_reach(), new);
        Ok(MapGuard::raising(Raise { word: &self.reach, new, _lock: raising }))
    }

    fn record(&self) -> MapRecord {
        MapRecord { run: RUN_BYTES, block: BLOCK_BYTES, most_blocks: usize::MAX }
    }

    fn change(&self, tx: &mut Tx, changes: &[MapChange], _: usize, _: &mut Freed) -> Result<MapGuard<'_>> {
        self.change_lines(tx, changes)
    }

    #[inline]
    fn exchange<'s>(
        &'s self,
        _: Option<&Cursor>,
        tx: &mut Tx,
        inode: &MapInode,
        (block, new): (FileBlock, Mapping),
        guard: &mut MapGuard<'s>,
    ) -> Result<Option<Option<Mapping>>> {
        self.exchange_one(tx, inode, (block, new), guard)
    }

    fn prune(
        &self,
        _: &mut Tx,
        _: &MapInode,
        _: (FileBlock, usize),
        _: usize,
        _: &mut Freed,
    ) -> Result<Option<FileBlock>> {
        Ok(None)
    }

    fn visit_pages(&self, _: &MapInode, _: &mut dyn FnMut(PmBlock, u8)) -> Result<()> {
        Ok(())
    }
}
