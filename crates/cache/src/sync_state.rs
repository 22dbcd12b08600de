//! How often a block is written between syncs, and the choice that follows: lazy or eager ([HiNFS] section 3.2.1, the buffer
//! benefit model).

use crate::header::Lines;
use terrace_format::address::LINE_SIZE;
use terrace_format::{BLOCK_SIZE, FileBlock};

/// Nanoseconds that memory takes for a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LineCosts {
    /// DRAM.
    pub dram_ns: f64,
    /// PM.
    pub pm_ns: f64,
}

impl LineCosts {
    /// Whether lines that were written `written` times between two syncs, the later of which wrote `flushed` of them to PM,
    /// cost less by way of DRAM than the `direct` lines that the same writes store to PM the direct way ([HiNFS] inequality
    /// 1, where `direct` is `written`: its direct writes store in place).
    pub fn is_lazy(&self, written: u64, flushed: u64, direct: u64) -> bool {
        let [written, flushed, direct] = [written, flushed, direct].map(|lines| lines as f64);
        written * self.dram_ns + flushed * self.pm_ns < direct * self.pm_ns
    }
}

/// A write to a block.
#[derive(Debug, Clone, Copy)]
pub struct WrittenLines {
    /// Its lines.
    pub lines: Lines,
    /// The number of lines that a direct write stores: more than `lines` where a new block takes the rest of the old block over,
    /// or zeros.
    pub direct: u32,
    /// Whether the file has no bytes there yet: either way the whole block is stored.
    pub is_new: bool,
    /// Whether the file ends before the first byte.
    pub is_append: bool,
}

/// The lines of a file that an append writes, numbered from the begin of the file.
#[derive(Debug, Clone, Copy)]
pub struct AppendedLines {
    /// The first line.
    pub first: u64,
    /// The line behind the last.
    pub end: u64,
    /// As `first`, with the lines before it in a new block, which is stored whole.
    pub stored_first: u64,
    /// As `end`, with the lines behind it in a new block.
    pub stored_end: u64,
    /// Lines that a direct write stores.
    pub direct: u64,
}

impl AppendedLines {
    /// The lines of an append to one block.
    pub(crate) fn of(block: FileBlock, write: WrittenLines) -> AppendedLines {
        assert!(write.lines.0 != 0, "a write of no bytes to block {block}");
        let first = block.0 * LINES + u64::from(write.lines.0.trailing_zeros());
        let end = (block.0 + 1) * LINES - u64::from(write.lines.0.leading_zeros());
        let (stored_first, stored_end) =
            if write.is_new { (block.0 * LINES, (block.0 + 1) * LINES) } else { (first, end) };
        AppendedLines { first, end, stored_first, stored_end, direct: write.direct.into() }
    }

    /// The lines of an append of `length` bytes at `offset` to a file of `size` bytes. A block that has bytes of the file is written
    /// in place, a new block whole.
    pub fn behind(size: u64, offset: u64, length: u64) -> AppendedLines {
        assert!(offset >= size && length > 0, "bytes from {offset} are not behind the end at {size}");
        let (first, end) = (offset / LINE_SIZE, (offset + length).div_ceil(LINE_SIZE));
        let is_new = |line: u64| line / LINES * BLOCK_SIZE >= size;
        let stored_first = if is_new(first) { first / LINES * LINES } else { first };
        let stored_end = if is_new(end - 1) { end.next_multiple_of(LINES) } else { end };
        AppendedLines { first, end, stored_first, stored_end, direct: stored_end - stored_first }
    }
}

/// Direct writes behind the end of a file since the last sync. Only lines at their seams are written twice, so their blocks need
/// no states.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Appended {
    pub(crate) generation: u32,
    /// Blocks that were appended to.
    blocks: u64,
    last_block: FileBlock,
    /// Lines written.
    written: u64,
    /// Lines that these writes stored.
    direct: u64,
    /// Different lines of them; all of new blocks.
    distinct: u64,
    /// The line behind those counted in `distinct`.
    end_line: u64,
    last_ns: u64,
}

/// Appends by way of DRAM cost at most this part of the direct way, or stay direct: pages and write-back cost more than lines.
const APPENDS_COST: f64 = 0.75;

/// Lines of a block.
const LINES: u64 = BLOCK_SIZE / LINE_SIZE;

impl Appended {
    pub(crate) fn new(generation: u32) -> Appended {
        Appended {
            generation,
            blocks: 0,
            last_block: FileBlock(0),
            written: 0,
            direct: 0,
            distinct: 0,
            end_line: 0,
            last_ns: 0,
        }
    }

    /// Notes an append.
    pub(crate) fn note(&mut self, write: AppendedLines, now_ns: u64) {
        let AppendedLines { first, end, stored_first, stored_end, direct } = write;
        assert!(
            stored_first <= first && first < end && end <= stored_end,
            "an append of lines {first}..{end}"
        );
        let (first_block, last_block) = (FileBlock(first / LINES), FileBlock((end - 1) / LINES));
        if self.blocks == 0 || first_block < self.last_block {
            // The first append, or the file was cut.
            self.end_line = stored_first;
        }
        let is_again = self.blocks > 0 && first_block == self.last_block;
        self.blocks += last_block.0 - first_block.0 + u64::from(!is_again);
        self.last_block = last_block;
        self.written += end - first;
        self.direct += direct;
        self.distinct += stored_end.saturating_sub(stored_first.max(self.end_line));
        self.end_line = stored_end.max(self.end_line);
        self.last_ns = now_ns;
    }

    /// Chooses at a sync. Lines that write-back would have written before the sync count for nothing.
    pub(crate) fn judge(
        &self,
        (costs, ages, now_ns): (LineCosts, SyncAges, u64),
        verdicts: &mut SyncVerdicts,
    ) {
        if now_ns.saturating_sub(self.last_ns) >= ages.old_ns {
            return;
        }
        let direct = (self.direct as f64 * APPENDS_COST) as u64;
        verdicts.lines += self.written;
        match costs.is_lazy(self.written, self.distinct, direct) {
            true => verdicts.lazy += self.blocks,
            false => verdicts.eager += self.blocks,
        }
    }
}

/// The state of a block.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SyncState {
    /// Lines written since the last sync, each as often as it was.
    pub(crate) written: u32,
    /// Lines that these writes store to PM the direct way.
    pub(crate) written_direct: u32,
    /// Whether the block had no bytes at the first write.
    pub(crate) is_new: bool,
    /// Lines that the next sync would write, of a block that is written to PM: different ones since the last sync.
    pub(crate) direct: Lines,
    /// The last write.
    pub(crate) last_ns: u64,
    /// Whether the last sync made the block lazy. An eager block has no state until the next write.
    pub(crate) is_lazy: bool,
}

/// Ages that the choice looks at.
#[derive(Debug, Clone, Copy)]
pub struct SyncAges {
    /// Pages that are dirty for as long are written back: lines of a ghost count as written back.
    pub old_ns: u64,
    /// A file without a sync for as long is lazy.
    pub idle_ns: u64,
}

/// The result of a sync.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SyncVerdicts {
    /// Blocks that are lazy from now on.
    pub lazy: u64,
    /// Blocks that are eager from now on.
    pub eager: u64,
    /// Blocks that were lazy before. Eager blocks are known by flags of PM blocks (`store/src/steering/kept_choices.rs`).
    pub again: u64,
    /// Blocks with the same choice again.
    pub agreed: u64,
    /// Lines written since the last sync.
    pub lines: u64,
    /// Lines that were written to DRAM, and by the sync to PM, in blocks that are eager from now on.
    pub copied_twice: u64,
}

/// The choices of a sync.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Judged {
    /// All choices, counted.
    pub verdicts: SyncVerdicts,
    /// Blocks that are eager, and blocks that are lazy and were not: whether they are eager.
    pub new: Vec<(FileBlock, bool)>,
}

impl SyncState {
    /// Notes a write, to PM if `is_direct`.
    pub(crate) fn note(&mut self, write: WrittenLines, is_direct: bool, now_ns: u64) {
        self.written = self.written.saturating_add(write.lines.0.count_ones());
        self.written_direct = self.written_direct.saturating_add(write.direct);
        self.is_new |= write.is_new;
        self.last_ns = now_ns;
        if is_direct {
            self.direct = self.direct.union(write.lines);
        }
    }

    /// Chooses at the begin of a sync; `dirty`: lines of the page, if the block has one. Gives whether the block is eager.
    pub(crate) fn judge(
        &mut self,
        dirty: Lines,
        (costs, ages, now_ns): (LineCosts, SyncAges, u64),
        verdicts: &mut SyncVerdicts,
    ) -> bool {
        let is_old = now_ns.saturating_sub(self.last_ns) >= ages.old_ns;
        let direct = if is_old { Lines::default() } else { self.direct };
        let flushed = match dirty.union(direct) {
            Lines(0) => 0,
            _ if self.is_new => u64::from(Lines::ALL.0.count_ones()),
            lines => u64::from(lines.0.count_ones()),
        };
        let written = u64::from(self.written);
        let is_eager = !costs.is_lazy(written, flushed, u64::from(self.written_direct));
        verdicts.lines += written;
        verdicts.again += u64::from(self.is_lazy);
        verdicts.agreed += u64::from(self.is_lazy && !is_eager);
        match is_eager {
            true => {
                verdicts.eager += 1;
                verdicts.copied_twice += u64::from(dirty.0.count_ones());
            }
            false => verdicts.lazy += 1,
        }
        self.begin_anew();
        self.is_lazy = !is_eager;
        is_eager
    }

    /// Forgets the writes until now.
    pub(crate) fn begin_anew(&mut self) {
        (self.written, self.written_direct, self.is_new, self.direct) = (0, 0, false, Lines::default());
    }
}
