//! Row maps-cold: requests on a file that lies on a lower tier, with each file map. The map has no block of the file.

use super::sheet::{MapRow, PoolFile, Sheet, series};
use crate::mapping::cold_pool::{ColdPool, NAME, ROOT};
use crate::mapping::contestant::{Contestant, reference, registered};
use crate::mapping::picks::Picks;
use crate::mapping::stopwatch::Stopwatch;
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must};
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_bench::stats::median;
use terrace_engine::{Seek, Simulation, Wait};
use terrace_format::BLOCK_SIZE;

/// Words of the series of lines, and of those in the block table and the area of the map.
const LINES: &str = "lines";
const TABLE_LINES: &str = "table lines";
/// File blocks for each line that a request may touch.
const BLOCKS_A_LINE: u64 = 128;
/// Requests whose lines are counted.
const OPEN: &str = "open";
const SEEK_HOLE: &str = "SEEK_HOLE";
const UNLINK: &str = "unlink";
/// The removal of the content, in the background.
const REMOVAL: &str = "removal";
/// Reads of blocks that DRAM holds.
const READ: &str = "4 KiB from DRAM";
/// Most time of a read by that with the radix tree.
const MOST_TIME: f64 = 1.15;
/// Steps of background work, more than there are.
const STEPS: usize = 1 << 20;

#[derive(Clone, Copy)]
struct Size {
    blocks: u64,
    /// Blocks that are read again and again.
    read_blocks: u64,
    batches: usize,
    batch: u64,
}

/// Times of reads of blocks that DRAM holds.
fn measure_reads(
    (map, round): (&Contestant, usize),
    pool: &ColdPool,
    watch: &Stopwatch,
    sheet: &mut Sheet,
    size: Size,
) -> Outcome<()> {
    let read_bytes = size.read_blocks * BLOCK_SIZE;
    let fs = pool.mount(2 * read_bytes + (64 << 20))?;
    let mut large = vec![0; 1 << 20];
    for at in (0..read_bytes).step_by(large.len()) {
        fs.read(pool.file, at, &mut large, Wait::Allowed)?;
        fs.run_background(STEPS);
    }
    let in_dram = fs.whereabouts(pool.file)?.dram_bytes;
    assert!(in_dram >= read_bytes, "{in_dram} of {read_bytes} bytes are in DRAM");
    let (mut picks, mut buffer, mut times) = (Picks::new(round as u64 + 1), vec![0; 4096], Vec::new());
    for _ in 0..size.batches {
        let (ns, done) = watch.time(|| {
            (0..size.batch).try_for_each(|_| {
                let at = picks.below(size.read_blocks) * BLOCK_SIZE;
                fs.read(pool.file, at, &mut buffer, Wait::Allowed).map(|_| ())
            })
        });
        done?;
        times.push(ns / size.batch as f64);
    }
    sheet.add(round, (map.name, ""), Metric::NsPerOperation, READ, median(&times));
    Ok(fs.unmount()?)
}

/// Lines that requests on the whole file touch.
fn measure_lines((map, round): (&Contestant, usize), pool: &ColdPool, sheet: &mut Sheet) -> Outcome<()> {
    let (fs, counted) = pool.mount_counted()?;
    let tables = pool.tables()?;
    let mut add = |at: &str| {
        let touched = counted.touched();
        counted.end();
        let of_tables = touched.iter().filter(|line| tables.contains(line)).count();
        for (words, lines) in [(LINES, touched.len()), (TABLE_LINES, of_tables)] {
            sheet.add(round, (map.name, words), Metric::LinesPerOperation, at, lines as f64);
        }
    };
    counted.begin();
    let ino = fs.lookup(ROOT, NAME)?.ino;
    fs.open(ino, false, false, Wait::Allowed)?;
    add(OPEN);
    counted.begin();
    let hole = fs.seek(ino, 0, Seek::Hole)?;
    add(SEEK_HOLE);
    assert!(hole == pool.bytes, "a hole at {hole} in a file of {} bytes", pool.bytes);
    fs.release(ino);
    fs.forget(ino, 1);
    counted.begin();
    fs.unlink(ROOT, NAME, Wait::Allowed)?;
    add(UNLINK);
    counted.begin();
    fs.run_background(STEPS);
    add(REMOVAL);
    Ok(fs.unmount()?)
}

fn measure((site, map, round): (&Site, &Contestant, usize), sheet: &mut Sheet, size: Size) -> Outcome<()> {
    let watch = Stopwatch::new(&*site.scratch.clock);
    let place = PoolFile::new(site, map.name)?;
    let pool = ColdPool::create(&place.path, size.blocks, map, &site.scratch.clock)?;
    measure_reads((map, round), &pool, &watch, sheet, size)?;
    measure_lines((map, round), &pool, sheet)
}

/// Row maps-cold.
pub(crate) fn cold(row: &Row, options: &Options) -> Outcome<()> {
    let size = match options.quick {
        true => Size { blocks: 1 << 14, read_blocks: 1 << 10, batches: 3, batch: 40 },
        false => Size { blocks: 1 << 18, read_blocks: 1 << 14, batches: 200, batch: 500 },
    };
    let most = (size.blocks / BLOCKS_A_LINE) as f64;
    let claims = |sheet: &mut Sheet| {
        for map in registered() {
            let (lines, of_tables) = (series(map.name, LINES), series(map.name, TABLE_LINES));
            let must = if map.kind.is_shared() { Must::Never(most) } else { Must::Shown };
            for at in [OPEN, SEEK_HOLE, UNLINK] {
                sheet.claim("a line of PM for 128 blocks at most", &lines, "", at, must);
            }
            if map.kind.is_shared() {
                let text = "a line of the table for 128 blocks at most";
                sheet.claim(text, &of_tables, "", SEEK_HOLE, must);
                sheet.claim(text, &of_tables, "", REMOVAL, Must::Shown);
            }
            if map.name != reference() {
                let theirs = series(reference(), LINES);
                sheet.claim("lines of the removal", &lines, &theirs, REMOVAL, Must::Shown);
                let text = "cold blocks that DRAM holds";
                sheet.claim(text, map.name, reference(), READ, Must::AtMost(MOST_TIME));
            }
        }
    };
    let row_of_maps = MapRow {
        axis: "request",
        metric: Metric::NsPerOperation,
        maps: registered().collect(),
        data_bytes: size.blocks * BLOCK_SIZE,
        notes: vec![format!(
            "A demoted file of {} MiB, in process, policy=static, after the scan of the block table. Lines of PM that a request \
             reads or stores to, of any structure, each once; table lines: those in the block table and in the area of the map. \
             {most} is a line for {BLOCKS_A_LINE} blocks. The removal is the background work after the unlink. Reads at random \
             multiples of 4 KiB among {} MiB that DRAM holds; medians of {} batches of {} reads.",
            (size.blocks * BLOCK_SIZE) >> 20,
            (size.read_blocks * BLOCK_SIZE) >> 20,
            size.batches,
            size.batch
        )],
        measure: &|site, map, round, sheet| measure((site, map, round), sheet, size),
        claims: &claims,
    };
    row_of_maps.run(row, options)
}
