//! Status of writes that wait in DRAM for write-back into PM (docs/write-buffer.md).

use crate::engine::Engine;
use serde::Serialize;
use terrace_cache::{LineCosts, SyncVerdicts};
use terrace_placement::Home;
use terrace_store::parts::dram::lazy_counts::PageCounts;
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
    /// Writes of a block into a page that waited already, since the mount.
    pub page_hits: u64,
    /// Writes of a block that made a page.
    pub page_misses: u64,
    /// The share of hits in both; `None` without a write.
    pub hit_ratio: Option<f64>,
    /// Lines written over lines that waited.
    pub merged_lines: u64,
    /// Bytes that were never written to PM, as a truncation, a punched hole or a removal dropped them.
    pub dead_bytes: u64,
    /// Blocks whose writes between syncs are counted.
    pub counted_blocks: u64,
    /// Blocks that syncs made lazy, each as often as they did.
    pub made_lazy: u64,
    /// Blocks that syncs made eager.
    pub made_eager: u64,
    /// Blocks that had a choice of an earlier sync,
    pub made_again: u64,
    /// and of them those that got the same.
    pub agreed: u64,
    /// The share of these in those; `None` without such a block.
    pub agreement: Option<f64>,
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
        (_, false, _) if !lazy.options().has_page() => "the buffer has no page",
        (LazyOption::Auto | LazyOption::On, false, _) if engine.store.mode.read_only => {
            "the mount is read-only"
        }
        (LazyOption::Off | LazyOption::On, ..) => "as the mount option lazy says",
        (LazyOption::Auto, ..) if engine.store.persistent.pm().journal_status().is_some() => {
            "the fast tier is DRAM with a journal"
        }
        (LazyOption::Auto, _, None) if lazy.is_given_up() => "persistent memory could not be measured",
        (LazyOption::Auto, _, None) => "persistent memory was not measured yet",
        (LazyOption::Auto, true, _) => "persistent memory is much slower than DRAM",
        (LazyOption::Auto, false, _) => {
            "persistent memory is less than 1.5 times, or less than 40 ns a line, slower than DRAM"
        }
    };
    let SyncVerdicts { lazy: made_lazy, eager, again, agreed, lines, copied_twice } = lazy.counts().choices();
    let PageCounts { hits, misses, merged_lines } = lazy.counts().writes();
    LazyStatus {
        on,
        reason,
        dram_line_ns: measured.map(|LineCosts { dram_ns, .. }| dram_ns),
        pm_line_ns: measured.map(|LineCosts { pm_ns, .. }| pm_ns),
        pages: cache.dirty_pages_of(Home::Pm),
        page_hits: hits,
        page_misses: misses,
        hit_ratio: share(hits, hits + misses),
        merged_lines,
        dead_bytes: lazy.counts().dead_bytes(),
        counted_blocks: cache.sync_states(),
        made_lazy,
        made_eager: eager,
        made_again: again,
        agreed,
        agreement: share(agreed, again),
        synced_lines: lines,
        lines_copied_twice: copied_twice,
    }
}

fn share(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| part as f64 / all as f64)
}
