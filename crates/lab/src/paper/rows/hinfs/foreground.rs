//! Row hinfs-foreground: requests for a file while its pages are written back.

use super::pool::{ALWAYS, LazyPool, Size, Way};
use super::{BUFFER_SHARE, Comparison};
use crate::paper::rows::maps::sheet::Sheet;
use std::sync::Arc;
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must};
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_bench::stats::quantile;
use terrace_bench::workload::numbers::Picks;
use terrace_bench::workload::target::{FileTarget, OpenedFile};
use terrace_runtime::Clock;
use terrace_runtime::sync::atomic::{AtomicBool, Ordering};
use terrace_runtime::thread::spawn;

const FILE: &str = "foreground";
const PAGE: usize = 4096;
const PIECE: usize = 1 << 20;
const IDLE: &str = "idle buffer";
const WRITTEN_BACK: &str = "under write-back";
const READ: &str = "read";
const WRITE: &str = "direct write";

/// Signals between the foreground and the writer of dirty pages.
#[derive(Default)]
struct Flags {
    /// A write-back is under way.
    is_busy: AtomicBool,
    is_over: AtomicBool,
}

/// Makes each page of the file dirty, and writes them back, until the foreground is over.
fn write_back_again(target: &dyn FileTarget, bytes: u64, flags: &Flags) -> std::io::Result<()> {
    let mut file = target.open(FILE, false)?;
    let piece = vec![0x62; PIECE];
    while !flags.is_over.load(Ordering::Acquire) {
        for at in (0..bytes).step_by(PIECE) {
            file.write_at(&piece, at, false)?;
        }
        flags.is_busy.store(true, Ordering::Release);
        let synced = file.sync();
        flags.is_busy.store(false, Ordering::Release);
        synced?;
    }
    Ok(())
}

/// The foreground: nanoseconds of reads and of direct writes.
struct Foreground<'a> {
    clock: &'a Arc<dyn Clock>,
    file: Box<dyn OpenedFile>,
    bytes: u64,
    picks: Picks,
    /// Requests count while it is set; without a flag all of them.
    counts: Option<&'a AtomicBool>,
    wanted: usize,
}

impl Foreground<'_> {
    fn samples(&mut self, is_read: bool, limit_ns: u64) -> Outcome<Vec<f64>> {
        let mut page = vec![0x66; PAGE];
        let mut samples = Vec::new();
        let end_ns = self.clock.monotonic_ns() + limit_ns;
        while samples.len() < self.wanted && self.clock.monotonic_ns() < end_ns {
            if self.counts.is_some_and(|counts| !counts.load(Ordering::Acquire)) {
                std::hint::spin_loop();
                continue;
            }
            let at = self.picks.below(self.bytes / PAGE as u64) * PAGE as u64;
            let begin_ns = self.clock.monotonic_ns();
            match is_read {
                true => drop(self.file.read_at(&mut page, at)?),
                false => self.file.write_at(&page, at, true)?,
            }
            samples.push((self.clock.monotonic_ns() - begin_ns) as f64);
        }
        Ok(samples)
    }
}

/// Row hinfs-foreground.
pub(crate) fn foreground(row: &Row, options: &Options) -> Outcome<()> {
    let size = Size::of(options, BUFFER_SHARE);
    // Half of the buffer: no write-back begins by itself.
    let bytes = (size.buffer_bytes / 2).next_multiple_of(PIECE as u64);
    let wanted = if options.quick { 100 } else { usize::MAX };
    let limit_ns = (options.seconds * 1e9) as u64;
    let measure = |site: &Site, way: &Way, round: usize, sheet: &mut Sheet| {
        let pool = LazyPool::create(site, way, &size)?;
        let (target, clock) = (pool.target(), &site.scratch.clock);
        let mut file = target.open(FILE, true)?;
        let piece = vec![0x61; PIECE];
        for at in (0..bytes).step_by(PIECE) {
            file.write_at(&piece, at, false)?;
        }
        pool.fs.sync()?;
        let flags: Arc<Flags> = Arc::default();
        let picks = Picks::new(round as u64 + 1);
        let mut foreground = Foreground { clock, file, bytes, picks, counts: None, wanted };
        let mut add = |foreground: &mut Foreground<'_>, series: &str| -> Outcome<()> {
            for (at, is_read) in [(READ, true), (WRITE, false)] {
                let samples = foreground.samples(is_read, limit_ns)?;
                let words = |metric, share, words| (metric, quantile(&samples, share), words);
                for (metric, value, words) in
                    [words(Metric::P99LatencyNs, 0.99, ""), words(Metric::MedianLatencyNs, 0.5, "median")]
                {
                    sheet.add(round, (series, words), metric, at, value);
                }
            }
            Ok(())
        };
        add(&mut foreground, IDLE)?;
        let writer = {
            let (target, flags) = (target.clone(), flags.clone());
            spawn("dirty", move || write_back_again(&*target, bytes, &flags))?
        };
        foreground.counts = Some(&flags.is_busy);
        let done = add(&mut foreground, WRITTEN_BACK);
        flags.is_over.store(true, Ordering::Release);
        writer.join().map_err(|_| "the writer panicked")??;
        done?;
        drop((foreground, target));
        pool.finish()
    };
    let claims = |sheet: &mut Sheet| {
        for at in [READ, WRITE] {
            sheet.claim("p99", WRITTEN_BACK, IDLE, at, Must::MoreByAtMost(250_000.0));
        }
    };
    let notes = vec![
        "In process. One thread reads, or writes with O_DSYNC, 4 KiB at random places of a file; another makes every page of the \
         same file dirty and calls fsync, again and again. Requests count while the fsync is under way: 99th percentile, and \
         series `median`."
            .into(),
    ];
    let (axis, metric) = ("request", Metric::P99LatencyNs);
    Comparison { ways: &[ALWAYS], axis, metric, notes, measure: &measure, claims: &claims }.run(row, options)
}
