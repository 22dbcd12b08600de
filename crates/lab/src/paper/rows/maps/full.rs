//! Row maps-full: insertions of one block into PM that is 95 % full, until no block is free.

use super::sheet::{MapRow, PoolFile, Sheet, series};
use crate::mapping::access::{Access, Accesses, fill_with_pieces};
use crate::mapping::contestant::{Contestant, present, registered, tables};
use crate::mapping::files::{Files, Layout, SCORE};
use crate::mapping::pool::Opening;
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must};
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_format::BLOCK_SIZE;

const LONGEST_NS: f64 = 10e6;
const FREE: &str = "blocks left free";
const LONGEST: &str = "longest insertion";
const FROM: &str = "95 % on";
const AT_95: &str = "95 to 96 %";
const PIECES: &str = "95 % on, 16 apart";

fn measure(site: &Site, map: &Contestant, round: usize, sheet: &mut Sheet, blocks: u64) -> Outcome<()> {
    let file = PoolFile::new(site, map.name)?;
    let layout = Layout { load: 0.95, filled: true, ..Layout::new(1, blocks) };
    let mut files = Files::create(&file.path, map, layout, round as u64 + 1, Opening::Bare)?;
    let mut times = Accesses::new(Access::Append, 1).fill(&mut files)?;
    sheet.add(round, (map.name, FREE), Metric::Blocks, FROM, files.pool.free() as f64);
    let first = times.len() / 5;
    let longest = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
    sheet.add(round, (map.name, LONGEST), Metric::MaxLatencyNs, AT_95, longest(&times[..first]));
    sheet.add(round, (map.name, LONGEST), Metric::MaxLatencyNs, FROM, longest(&times));
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
    sheet.add(round, (map.name, ""), Metric::NsPerOperation, FROM, median);
    drop((files, file));
    let file = PoolFile::new(site, map.name)?;
    let layout = Layout { pm_bytes: Some(layout.pm_bytes() / 4), ..Layout::new(1, 64) };
    let mut files = Files::create(&file.path, map, layout, round as u64 + 1, Opening::Bare)?;
    let mut times = fill_with_pieces(&mut files, 0.95)?;
    sheet.add(round, (map.name, FREE), Metric::Blocks, PIECES, files.pool.free() as f64);
    sheet.add(round, (map.name, LONGEST), Metric::MaxLatencyNs, PIECES, longest(&times));
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
    sheet.add(round, (map.name, ""), Metric::NsPerOperation, PIECES, median);
    Ok(())
}

/// Row maps-full.
pub(crate) fn full(row: &Row, options: &Options) -> Outcome<()> {
    let blocks: u64 = if options.quick { 2048 } else { 1 << 17 };
    let claims = |sheet: &mut Sheet| {
        for map in tables().chain(present(&["cuckoo", "clustered"])) {
            let text = "takes data until no block is free";
            sheet.claim(text, &series(map, FREE), "", FROM, Must::Never(0.0));
            let text = "longest insertion at 95 %";
            sheet.claim(text, &series(map, LONGEST), "", AT_95, Must::Never(LONGEST_NS));
            sheet.claim("longest insertion of all", &series(map, LONGEST), "", FROM, Must::Shown);
            let text = "blocks that are 16 apart";
            sheet.claim(text, &series(map, FREE), "", PIECES, Must::Never(0.0));
            sheet.claim(text, &series(map, LONGEST), "", PIECES, Must::Never(LONGEST_NS));
        }
    };
    let row_of_maps = MapRow {
        axis: "use of PM",
        metric: Metric::NsPerOperation,
        maps: registered().collect(),
        data_bytes: blocks * BLOCK_SIZE,
        notes: vec![format!(
            "A file of {} MiB, layout score {SCORE}; blocks of another file fill PM to 95 %. Then one block after the other is \
             appended until no free block is left; times are those of the processor, medians. A tree stops when a node finds no block. \
             16 apart: a quarter of this PM, filled with blocks whose numbers are multiples of 16, each a line of a clustered table.",
            (blocks * BLOCK_SIZE) >> 20
        )],
        measure: &|site, map, round, sheet| measure(site, map, round, sheet, blocks),
        claims: &claims,
    };
    row_of_maps.run(row, options)
}
