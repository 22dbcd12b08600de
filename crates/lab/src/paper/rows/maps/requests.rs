//! Rows hashfs-8 and maps-hot: whole requests of the engine in this process, with each file map.

use super::sheet::{FENCES, MapRow, PoolFile, Sheet, TwinFiles, series};
use crate::mapping::access::{Access, Accesses, Twins, middle};
use crate::mapping::contestant::{Contestant, present, reference, registered};
use crate::mapping::engine_pool::EnginePool;
use crate::mapping::files::{LEAST_BETWEEN, Layout, SCORE};
use crate::mapping::picks::Picks;
use crate::mapping::stopwatch::Stopwatch;
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must};
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_bench::stats::median;
use terrace_engine::{Caller, SetAttributes, Simulation, Wait, WriteFlags};
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_media::PmMedium;

const ROOT: Ino = Ino(1);
const CALLER: Caller = Caller { uid: 0, gid: 0 };
const BLOCK_BYTES: usize = BLOCK_SIZE as usize;

/// Lengths of requests: blocks, name, requests of a round by those of the shortest.
const WIDTHS: [(u64, &str, u64); 3] = [(1, "4 KiB", 1), (16, "64 KiB", 4), (256, "1 MiB", 32)];
/// Share of the radix tree in a request of 1 MiB, at most.
const RADIX_SHARE: f64 = 0.03;

fn make_file(pool: &EnginePool, name: &str) -> Outcome<Ino> {
    Ok(pool.fs.mknod(ROOT, name.as_bytes(), 0o644, 0, CALLER, Wait::Allowed)?.ino)
}

fn write(pool: &EnginePool, file: Ino, at: u64, bytes: &[u8]) -> Outcome<()> {
    let mut done = 0;
    while done < bytes.len() {
        let offset = at + done as u64;
        done += pool.fs.write(file, offset, &bytes[done..], WriteFlags::default(), Wait::Allowed)?;
    }
    Ok(())
}

/// A file of the engine with the layout score of the other rows: writes to a second file come between.
fn fill(pool: &EnginePool, blocks: u64, picks: &mut Picks) -> Outcome<Ino> {
    let (file, other) = (make_file(pool, "file")?, make_file(pool, "other")?);
    let bytes = vec![0x5a; 64 * BLOCK_BYTES];
    let (mut at, mut other_at) = (0, 0);
    while at < blocks {
        let most = (blocks - at).min(64);
        let mut run = 1;
        while run < most && picks.happens(SCORE) {
            run += 1;
        }
        write(pool, file, at * BLOCK_SIZE, &bytes[..run as usize * BLOCK_BYTES])?;
        at += run;
        if run < most {
            write(pool, other, other_at * BLOCK_SIZE, &bytes[..LEAST_BETWEEN as usize * BLOCK_BYTES])?;
            other_at += LEAST_BETWEEN;
        }
    }
    Ok(file)
}

fn measure_shares(
    (site, map, round): (&Site, &Contestant, usize),
    sheet: &mut Sheet,
    blocks: u64,
    reads: u64,
) -> Outcome<()> {
    let watch = Stopwatch::new(&*site.scratch.clock);
    let mut picks = Picks::new(round as u64 + 1);
    let mut requests = Vec::new();
    {
        let file = PoolFile::new(site, map.name)?;
        // Twice what the file and the blocks between have.
        let bytes = (blocks * 4 * BLOCK_SIZE).max(64 << 20);
        let pool = EnginePool::create(&file.path, bytes, map, None, &site.scratch.clock)?;
        let ino = fill(&pool, blocks, &mut picks)?;
        for (width, _, by) in WIDTHS {
            let mut into = vec![0; width as usize * BLOCK_BYTES];
            let count = (reads / by).max(4);
            let mut times = Vec::new();
            for _ in 0..count {
                let at = picks.below(blocks / width) * width * BLOCK_SIZE;
                let (ns, read) = watch.time(|| pool.fs.read(ino, at, &mut into, Wait::Allowed));
                read?;
                times.push(ns);
            }
            requests.push(middle(times));
        }
        pool.finish()?;
    }
    let places = TwinFiles::new(site)?;
    let layout = Layout { filled: true, ..Layout::new(1, blocks) };
    let mut twins = Twins::create(places.paths(), map, layout, round as u64 + 1)?;
    let mut cold = Vec::new();
    for (width, _, by) in WIDTHS {
        cold.push(twins.cold(Access::ReadRandom, width, &watch, (reads / by).clamp(4, 2000))?.1);
    }
    for ((width, at, by), (request_ns, cold_ns)) in WIDTHS.into_iter().zip(requests.into_iter().zip(cold)) {
        let count = (reads / by).max(4);
        let hot_ns = Accesses::new(Access::ReadRandom, width).time_hot(&mut twins.timed, &watch, count)?;
        sheet.add(round, (map.name, "request"), Metric::NsPerOperation, at, request_ns);
        sheet.add(round, (map.name, "map"), Metric::NsPerOperation, at, hot_ns);
        sheet.add(round, (map.name, "map cold"), Metric::NsPerOperation, at, cold_ns);
        sheet.add(round, (map.name, "share"), Metric::ShareOfRequest, at, hot_ns / request_ns);
        let cold_share = cold_ns / (request_ns - hot_ns + cold_ns).max(cold_ns);
        sheet.add(round, (map.name, "share cold"), Metric::ShareOfRequest, at, cold_share);
    }
    Ok(())
}

/// Row hashfs-8: the share of the map in reads of 4 KiB, 64 KiB and 1 MiB.
pub(crate) fn io_size(row: &Row, options: &Options) -> Outcome<()> {
    let (blocks, reads) = if options.quick { (2048, 64) } else { (1 << 16, 40_000) };
    let claims = |sheet: &mut Sheet| {
        let share = |map: &str| series(map, "share");
        let [.., (_, largest, _)] = WIDTHS;
        for map in present(&["radix"]) {
            let text = "published 3 % of a read of 1 MiB";
            sheet.claim(text, &share(map), "", largest, Must::AtMost(RADIX_SHARE));
        }
        for (_, at, _) in &WIDTHS[1..] {
            for grouped in present(&["hashfs"]) {
                for linear in present(&["hashfs-linear"]) {
                    let text = "hashfs between radix and hashfs-linear";
                    sheet.claim(text, &share(grouped), &share(linear), at, Must::AtMost(1.0));
                    sheet.claim(text, &share(grouped), &share(reference()), at, Must::AtLeast(1.0));
                }
            }
        }
        for map in registered().map(|map| map.name).filter(|map| *map != reference()) {
            for (_, at, _) in WIDTHS {
                sheet.claim(
                    "whole requests",
                    &series(map, "request"),
                    &series(reference(), "request"),
                    at,
                    Must::Shown,
                );
            }
        }
    };
    let row_of_maps = MapRow {
        axis: "bytes of a read",
        metric: Metric::ShareOfRequest,
        maps: registered().collect(),
        data_bytes: blocks * BLOCK_SIZE,
        notes: vec![format!(
            "Reads at random multiples of their length in a file of {} MiB, layout score {SCORE}, in process, PM alone. A share \
             is the time of the map, measured in a pool of its own, by the time of the request; cold: with the lines of the \
             map out of the caches.",
            (blocks * BLOCK_SIZE) >> 20
        )],
        measure: &|site, map, round, sheet| measure_shares((site, map, round), sheet, blocks, reads),
        claims: &claims,
    };
    row_of_maps.run(row, options)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Overwrite,
    OneBlock,
    Append,
    Read,
}

impl Request {
    const ALL: [Request; 4] = [Request::Overwrite, Request::OneBlock, Request::Append, Request::Read];

    fn name(self) -> &'static str {
        match self {
            Request::Overwrite => "overwrite",
            Request::OneBlock => "one block overwritten",
            Request::Append => "append",
            Request::Read => "read",
        }
    }
}

/// Blocks of the files that are overwritten and read.
const HOT_BLOCKS: u64 = 1024;
/// Files that are appended to, and their blocks when they are emptied.
const APPENDED: u64 = 16;
const MOST_APPENDED: u64 = 512;

/// Files of a hot pool.
struct HotFiles {
    overwritten: Ino,
    read: Ino,
    appended: Vec<(Ino, u64)>,
    picks: Picks,
    buffer: Vec<u8>,
}

impl HotFiles {
    fn create(pool: &EnginePool) -> Outcome<HotFiles> {
        let chunk = vec![0x11; 16 * BLOCK_BYTES];
        let filled = |name: &str| -> Outcome<Ino> {
            let file = make_file(pool, name)?;
            let offsets = (0..HOT_BLOCKS).step_by(16).map(|block| block * BLOCK_SIZE);
            offsets.into_iter().try_for_each(|at| write(pool, file, at, &chunk))?;
            Ok(file)
        };
        let (overwritten, read) = (filled("overwritten")?, filled("read")?);
        let appended: Outcome<Vec<(Ino, u64)>> =
            (0..APPENDED).map(|number| Ok((make_file(pool, &format!("appended-{number}"))?, 0))).collect();
        let (picks, buffer) = (Picks::new(9), vec![0x22; BLOCK_BYTES]);
        Ok(HotFiles { overwritten, read, appended: appended?, picks, buffer })
    }

    fn once(&mut self, pool: &EnginePool, request: Request) -> Outcome<()> {
        match request {
            Request::Overwrite => {
                let at = self.picks.below(HOT_BLOCKS) * BLOCK_SIZE;
                write(pool, self.overwritten, at, &self.buffer)
            }
            Request::OneBlock => write(pool, self.overwritten, 0, &self.buffer),
            Request::Append => {
                let index = self.picks.below(APPENDED) as usize;
                let (file, end) = &mut self.appended[index];
                write(pool, *file, *end * BLOCK_SIZE, &self.buffer)?;
                *end += 1;
                Ok(())
            }
            Request::Read => {
                let at = self.picks.below(HOT_BLOCKS) * BLOCK_SIZE;
                pool.fs.read(self.read, at, &mut self.buffer, Wait::Allowed)?;
                Ok(())
            }
        }
    }

    /// Empties files that have grown, and does background work: between batches.
    fn tidy(&mut self, pool: &EnginePool) -> Outcome<()> {
        for (file, end) in self.appended.iter_mut().filter(|(_, end)| *end >= MOST_APPENDED) {
            let change = SetAttributes { size: Some(0), ..Default::default() };
            pool.fs.setattr(*file, &change, Wait::Allowed)?;
            *end = 0;
        }
        pool.fs.run_background(256);
        Ok(())
    }
}

fn measure_hot(
    (site, map, round): (&Site, &Contestant, usize),
    sheet: &mut Sheet,
    batches: usize,
    batch: u64,
) -> Outcome<()> {
    let file = PoolFile::new(site, map.name)?;
    let pool = EnginePool::create(&file.path, 128 << 20, map, None, &site.scratch.clock)?;
    let watch = Stopwatch::new(&*site.scratch.clock);
    let mut files = HotFiles::create(&pool)?;
    let mut times = Request::ALL.map(|_| Vec::new());
    let mut fences = Request::ALL.map(|_| 0);
    for _ in 0..batches {
        for (index, request) in Request::ALL.into_iter().enumerate() {
            files.tidy(&pool)?;
            let before = pool.memory.counters().fences;
            let (ns, done) = watch.time(|| (0..batch).try_for_each(|_| files.once(&pool, request)));
            done?;
            fences[index] += pool.memory.counters().fences - before;
            times[index].push(ns / batch as f64);
        }
    }
    for ((request, times), fences) in Request::ALL.into_iter().zip(times).zip(fences) {
        sheet.add(round, (map.name, ""), Metric::NsPerOperation, request.name(), median(&times));
        if request != Request::Read {
            let each = fences as f64 / (batches as u64 * batch) as f64;
            sheet.add(round, (map.name, FENCES), Metric::FencesPerOperation, request.name(), each);
        }
    }
    pool.finish()
}

/// Row maps-hot: requests of 4 KiB on files that the caches hold.
pub(crate) fn hot(row: &Row, options: &Options) -> Outcome<()> {
    let (batches, batch) = if options.quick { (3, 40) } else { (60, 500) };
    let claims = |sheet: &mut Sheet| {
        for map in registered().filter(|map| map.name != reference()) {
            let most = if map.kind.is_table() { 1.25 } else { 1.4 };
            for request in [Request::Overwrite, Request::Append, Request::Read] {
                let text = "hot requests by the radix tree";
                sheet.claim(text, map.name, reference(), request.name(), Must::AtMost(most));
            }
            let one = Request::OneBlock.name();
            let must = if map.kind.is_table() { Must::AtMost(1.3) } else { Must::Shown };
            sheet.claim("one block overwritten for ever", map.name, reference(), one, must);
            for request in [Request::Overwrite, Request::OneBlock, Request::Append] {
                let (ours, theirs) = (series(map.name, FENCES), series(reference(), FENCES));
                sheet.claim("as many fences", &ours, &theirs, request.name(), Must::Within(1.02));
            }
        }
    };
    let row_of_maps = MapRow {
        axis: "request",
        metric: Metric::NsPerOperation,
        maps: registered().collect(),
        data_bytes: HOT_BLOCKS * BLOCK_SIZE,
        notes: vec![format!(
            "Requests of 4 KiB in process, data=atomic, PM alone, files of {} MiB; medians of {batches} batches of {batch} \
             requests. Files are emptied and background work is done between batches.",
            (HOT_BLOCKS * BLOCK_SIZE) >> 20
        )],
        measure: &|site, map, round, sheet| measure_hot((site, map, round), sheet, batches, batch),
        claims: &claims,
    };
    row_of_maps.run(row, options)
}
