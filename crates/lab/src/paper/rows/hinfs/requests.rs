//! Rows hinfs-1 and hinfs-10: requests of 64 B to 1 MiB at random offsets of one file.

use super::pool::{ATOMIC, BLOCKS, DIRECT, LAZY, LazyPool, ORDERED, Size, Taken, Way};
use super::{BUFFER_SHARE, Comparison};
use crate::paper::rows::maps::sheet::Sheet;
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must};
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_bench::workload::numbers::Picks;
use terrace_media::pm::{PmModel, PmSpeed};

/// Bytes of a request.
const SIZES: [(u64, &str); 8] = [
    (64, "64 B"),
    (256, "256 B"),
    (512, "512 B"),
    (1 << 10, "1 KiB"),
    (4 << 10, "4 KiB"),
    (16 << 10, "16 KiB"),
    (64 << 10, "64 KiB"),
    (1 << 20, "1 MiB"),
];
/// Sizes below a line of which a block has many.
const SMALL_BYTES: u64 = 512;
/// Pages that a round writes, by those of the buffer.
const ROUND: u64 = 5;
const PAGE: u64 = 4096;
/// The file is made by requests of this size.
const PIECE: usize = 1 << 20;

/// Requests of one size.
struct Requests<'a> {
    bytes: u64,
    /// Reads among three requests.
    reads: u64,
    size: &'a Size,
}

impl Requests<'_> {
    /// As many requests as write [`ROUND`] times the pages of the buffer.
    fn count(&self) -> u64 {
        let written = self.size.buffer_bytes * ROUND / self.bytes.max(PAGE);
        (written * 3 / (3 - self.reads)).max(10)
    }

    /// Does them on a new file of a new pool.
    fn run(&self, site: &Site, way: &Way, round: usize) -> Outcome<(u64, Taken)> {
        let pool = LazyPool::create(site, way, self.size)?;
        let target = pool.target();
        let mut file = target.open("requests", true)?;
        let mut buffer = vec![0x2f; PIECE];
        for at in (0..self.size.data_bytes).step_by(PIECE) {
            file.write_at(&buffer, at, false)?;
        }
        pool.fs.sync()?;
        let mut picks = Picks::new(round as u64 + 1);
        let request = &mut buffer[..self.bytes as usize];
        let ((), taken) = pool.timed(&site.scratch.clock, || {
            for number in 0..self.count() {
                let at = picks.below(self.size.data_bytes - self.bytes + 1);
                match number % 3 < self.reads {
                    true => drop(file.read_at(request, at)?),
                    false => file.write_at(request, at, false)?,
                }
            }
            Ok(())
        })?;
        drop((file, target));
        pool.finish()?;
        Ok((self.count(), taken))
    }
}

fn sizes_of(options: &Options) -> &'static [(u64, &'static str)] {
    if options.quick { &SIZES[..2] } else { &SIZES }
}

/// The time that the lines of a run take in PM. In a model that has no time of a line, the time that was waited.
fn written_ns(speed: &PmSpeed, taken: &Taken) -> u64 {
    match speed.model {
        PmModel::Line => taken.pm.lines * speed.write_ns,
        PmModel::Run => taken.pm.waited_ns,
    }
}

/// Row hinfs-1: the time that direct writes spend in PM.
pub(crate) fn shares(row: &Row, options: &Options) -> Outcome<()> {
    let size = Size::of(options, BUFFER_SHARE);
    let speed = PmSpeed::parse(&size.speed)?;
    let measure = |site: &Site, way: &Way, round: usize, sheet: &mut Sheet| {
        for (bytes, at) in sizes_of(options) {
            let requests = Requests { bytes: *bytes, reads: 1, size: &size };
            let (count, taken) = requests.run(site, way, round)?;
            let share = written_ns(&speed, &taken) as f64 / taken.ns as f64;
            sheet.add(round, (way.name, ""), Metric::ShareOfTime, at, share);
            let waited = taken.pm.waited_ns as f64 / taken.ns as f64;
            sheet.add(round, (way.name, "spinning"), Metric::ShareOfTime, at, waited);
            let of_one = |value: u64| value as f64 / count as f64;
            sheet.add(round, (way.name, "time"), Metric::NsPerOperation, at, of_one(taken.ns));
            sheet.add(round, (way.name, "lines"), Metric::LinesPerOperation, at, of_one(taken.pm.lines));
        }
        Ok(())
    };
    let claims = |sheet: &mut Sheet| {
        for (bytes, at) in sizes_of(options) {
            let must = match *bytes {
                64 => Must::AtLeast(0.16),
                small if small < PAGE => Must::Shown,
                _ => Must::AtLeast(0.8),
            };
            for way in [ATOMIC, ORDERED] {
                sheet.claim("writes to PM", way.name, "", at, must);
            }
        }
    };
    let notes = vec![
        "In process, PM alone, one thread, lazy=off, one file: of three requests one reads and two write, at random bytes of \
         the file. The share is the time that the lines written to PM take, 200 ns each unless --emulate-pm says otherwise, by the \
         time of the run. Series `spinning`: the part of it that the emulation adds to the time of the memory itself; `time` and \
         `lines`: of a request."
            .into(),
    ];
    let (axis, metric) = ("bytes of a request", Metric::ShareOfTime);
    Comparison { ways: &[ATOMIC, ORDERED], axis, metric, notes, measure: &measure, claims: &claims }
        .run(row, options)
}

/// Row hinfs-10: the grain of fetching and of write-back.
pub(crate) fn sizes(row: &Row, options: &Options) -> Outcome<()> {
    let size = Size::of(options, BUFFER_SHARE);
    let measure = |site: &Site, way: &Way, round: usize, sheet: &mut Sheet| {
        for (bytes, at) in sizes_of(options) {
            let requests = Requests { bytes: *bytes, reads: 0, size: &size };
            let (count, taken) = requests.run(site, way, round)?;
            let rate = count as f64 / taken.ns as f64 * 1e9;
            sheet.add(round, (way.name, ""), Metric::OperationsPerS, at, rate);
            let stored = taken.data_bytes as f64 / count as f64;
            sheet.add(round, (way.name, "stored"), Metric::PmBytesPerOperation, at, stored);
        }
        Ok(())
    };
    let claims = |sheet: &mut Sheet| {
        for (bytes, at) in sizes_of(options) {
            let volume = match *bytes {
                small if small <= SMALL_BYTES => Must::AtMost(0.25),
                small if small < PAGE => Must::AtMost(1.0),
                _ => Must::Shown,
            };
            sheet.claim("bytes stored to PM", "lazy stored", "whole blocks stored", at, volume);
            sheet.claim("lines instead of blocks", "lazy", BLOCKS.name, at, Must::Shown);
            sheet.claim("by way of DRAM", "lazy", DIRECT, at, Must::Shown);
        }
    };
    let notes = vec![
        "In process, PM alone, one thread, writes at random bytes of one file, as many as touch five times the pages of the \
         buffer; bytes that wait at the end are written to PM inside the clock. `whole blocks` (HiNFS-NCLFW) reads and writes \
         back all 64 lines of a block. Series `stored`: bytes of the file that were stored to PM, by requests. `direct` is the \
         faster of data=atomic and data=ordered."
            .into(),
    ];
    let (axis, metric) = ("bytes of a request", Metric::OperationsPerS);
    let ways = &[LAZY, BLOCKS, ATOMIC, ORDERED];
    Comparison { ways, axis, metric, notes, measure: &measure, claims: &claims }.run(row, options)
}
