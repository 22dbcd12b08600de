//! Status of writes that wait in DRAM for write-back into PM (docs/write-buffer.md).

use crate::engine::Engine;
use serde::Serialize;
use terrace_cache::{LineCosts, SyncVerdicts};
use terrace_placement::Home;
use terrace_store::parts::dram::lazy_writes::LazyOption;
use terrace_store::pressure::buffer::has_lazy_writes;

/// Writes that wait in DRAM for write-back into PM.
#[derive(Debug, Clone, Serialize)]
pub struct LazyStatus {
    /// Whether writes may wait.
    pub on: bool,
    /// Why.
    pub reason: &'static str,
    /// Measured nanoseconds of a line of DRAM.
    pub dram_line_ns: Option<f64>,
    /// Measured nanoseconds of a line of PM.
    pub pm_line_ns: Option<f64>,
    /// Pages that wait.
    pub pages: u64,
    /// Blocks whose writes between syncs are counted.
    pub counted_blocks: u64,
    /// Blocks that syncs made lazy, each as often as they did.
    pub made_lazy: u64,
    /// Blocks that syncs made eager.
    pub made_eager: u64,
    /// Blocks that got the same choice as at the sync before.
    pub agreed: u64,
    /// Lines written before these syncs.
    pub synced_lines: u64,
    /// Lines of them that were written to DRAM and then to PM, in blocks that became eager.
    pub lines_copied_twice: u64,
}

pub(crate) fn lazy_status(engine: &Engine) -> LazyStatus {
    let (cache, lazy) = (engine.store.dram.cache(), engine.store.dram.lazy_writes());
    let on = has_lazy_writes(&engine.store);
    let measured = lazy.measured();
    let reason = match (lazy.options().lazy, on, measured) {
        (_, false, _) if lazy.options().bytes == 0 => "there is no buffer",
        (LazyOption::Off | LazyOption::On, ..) => "as the mount option lazy says",
        (LazyOption::Auto, _, None) => "persistent memory was not measured yet",
        (LazyOption::Auto, true, _) => "persistent memory is slower than DRAM",
        (LazyOption::Auto, false, _) => "persistent memory is as fast as DRAM",
    };
    let SyncVerdicts { lazy: made_lazy, eager, agreed, lines, copied_twice } = lazy.counted();
    LazyStatus {
        on,
        reason,
        dram_line_ns: measured.map(|LineCosts { dram_ns, .. }| dram_ns),
        pm_line_ns: measured.map(|LineCosts { pm_ns, .. }| pm_ns),
        pages: cache.dirty_pages_of(Home::Pm),
        counted_blocks: cache.sync_states(),
        made_lazy,
        made_eager: eager,
        agreed,
        synced_lines: lines,
        lines_copied_twice: copied_twice,
    }
}
