//! How often a block is written between syncs, and the choice that follows: lazy or eager ([HiNFS] section 3.2.1, the buffer
//! benefit model).

use crate::header::Lines;
use terrace_format::FileBlock;

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
    /// cost less by way of DRAM ([HiNFS] inequality 1).
    pub fn is_lazy(&self, written: u64, flushed: u64) -> bool {
        let (written, flushed) = (written as f64, flushed as f64);
        written * self.dram_ns + flushed * self.pm_ns < written * self.pm_ns
    }
}

/// The state of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SyncState {
    /// Lines written since the last sync, each as often as it was.
    pub(crate) written: u32,
    /// Lines that the next sync would write, of a block that is written to PM: different ones since the last sync.
    pub(crate) direct: Lines,
    /// The last write.
    pub(crate) last_ns: u64,
    /// The choice of the last sync; `None` before the first.
    pub(crate) is_eager: Option<bool>,
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
    /// Blocks with a choice before.
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
    /// Blocks with another choice than before, or with their first: whether they are eager.
    pub new: Vec<(FileBlock, bool)>,
}

impl SyncState {
    pub(crate) fn new() -> SyncState {
        SyncState { written: 0, direct: Lines::default(), last_ns: 0, is_eager: None }
    }

    /// Chooses at the begin of a sync; `dirty`: lines of the page, if the block has one. Gives whether the block is eager, if it
    /// was not known before.
    pub(crate) fn judge(
        &mut self,
        dirty: Lines,
        now_ns: u64,
        costs: LineCosts,
        ages: SyncAges,
        verdicts: &mut SyncVerdicts,
    ) -> Option<bool> {
        let is_old = now_ns.saturating_sub(self.last_ns) >= ages.old_ns;
        let direct = if is_old { Lines::default() } else { self.direct };
        let flushed = u64::from(dirty.union(direct).0.count_ones());
        let written = u64::from(self.written);
        let is_eager = !costs.is_lazy(written, flushed);
        verdicts.lines += written;
        verdicts.again += u64::from(self.is_eager.is_some());
        verdicts.agreed += u64::from(self.is_eager == Some(is_eager));
        match is_eager {
            true => {
                verdicts.eager += 1;
                verdicts.copied_twice += u64::from(dirty.0.count_ones());
            }
            false => verdicts.lazy += 1,
        }
        (self.written, self.direct) = (0, Lines::default());
        let before = self.is_eager.replace(is_eager);
        (before != Some(is_eager)).then_some(is_eager)
    }
}
