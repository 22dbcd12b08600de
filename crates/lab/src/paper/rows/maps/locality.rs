//! Row hashfs-5: one-block operations on a file of 1 GiB, hot and cold.

use super::add_counts;
use super::sheet::{FENCES, LINES_READ, MapRow, ROUNDS, Sheet, TwinFiles, WRITTEN, series};
use crate::mapping::access::{Access, Accesses, Twins};
use crate::mapping::contestant::{Contestant, others, present, reference, registered, tables};
use crate::mapping::files::{Layout, SCORE};
use crate::mapping::stopwatch::Stopwatch;
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must};
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_format::BLOCK_SIZE;

const ALL: [Access; 4] = [Access::ReadSequential, Access::ReadRandom, Access::Append, Access::Insert];
/// Fences of insertions, which now and then make room.
const EQUAL: f64 = 1.05;
/// Hot sequential reads, by the best map.
const HOT_SEQUENTIAL: f64 = 2.0;

/// Size of a run.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) blocks: u64,
    pub(super) hot: u64,
    pub(super) cold: u64,
    pub(super) holes: u64,
}

impl Size {
    pub(super) fn of(quick: bool) -> Size {
        match quick {
            true => Size { blocks: 2048, hot: 200, cold: 50, holes: 400 },
            false => Size { blocks: 1 << 18, hot: 100_000, cold: 4000, holes: 1 << 14 },
        }
    }

    pub(super) fn layout(&self) -> Layout {
        let later = self.hot + self.cold;
        Layout { holes: self.holes, later, ..Layout::new(1, self.blocks) }
    }
}

fn hot(access: Access) -> String {
    format!("{}, hot", access.name())
}

fn cold(access: Access) -> String {
    format!("{}, cold", access.name())
}

/// Row hashfs-5.
pub(crate) fn locality(row: &Row, options: &Options) -> Outcome<()> {
    let size = Size::of(options.quick);
    let row_of_maps = MapRow {
        axis: "operation",
        metric: Metric::NsPerOperation,
        maps: registered().collect(),
        data_bytes: size.blocks * BLOCK_SIZE,
        notes: notes(size),
        measure: &|site, map, round, sheet| measure(site, map, round, sheet, size),
        claims: &claims,
    };
    row_of_maps.run(row, options)
}

fn notes(size: Size) -> Vec<String> {
    vec![
        format!(
            "A file of {} MiB, layout score {SCORE}, PM at most half full. Hot: {} operations; cold: {} operations, each \
             after its lines have left the caches; counts are those of the cold operations, distinct lines of each.",
            (size.blocks * BLOCK_SIZE) >> 20,
            size.hot,
            size.cold
        ),
        "Times are those of the map alone: an insertion is its claim, its record with fence, and its stores in place, without \
         inode and data. PM is DRAM here. Presence, free set and versions of blocks are volatile and stay in the \
         caches, with code and page tables."
            .to_string(),
    ]
}

fn measure(site: &Site, map: &Contestant, round: usize, sheet: &mut Sheet, size: Size) -> Outcome<()> {
    let watch = Stopwatch::new(&*site.scratch.clock);
    let places = TwinFiles::new(site)?;
    let mut twins = Twins::create(places.paths(), map, size.layout(), round as u64 + 1)?;
    for access in ALL {
        let (counts, ns) = twins.cold(access, 1, &watch, size.cold)?;
        add_counts(sheet, round, map.name, &cold(access), &counts);
        sheet.add(round, (map.name, ""), Metric::NsPerOperation, &cold(access), ns);
    }
    for access in ALL {
        let ns = Accesses::new(access, 1).time_hot(&mut twins.timed, &watch, size.hot)?;
        sheet.add(round, (map.name, ""), Metric::NsPerOperation, &hot(access), ns);
    }
    Ok(())
}

fn claims(sheet: &mut Sheet) {
    let at = cold(Access::ReadRandom);
    for (map, lines, rounds) in [("hashfs-linear", 1.3, 1.1), ("cuckoo", 2.0, 1.0), ("radix", 3.001, 3.001)] {
        for map in present(&[map]) {
            sheet.claim("cold look-up, lines", &series(map, LINES_READ), "", &at, Must::AtMost(lines));
            sheet.claim("cold look-up, rounds", &series(map, ROUNDS), "", &at, Must::AtMost(rounds));
        }
    }
    for map in present(&["extent"]) {
        for words in [LINES_READ, ROUNDS] {
            let (ours, theirs) = (series(map, words), series(reference(), words));
            sheet.claim("cold look-up, more than the radix tree", &ours, &theirs, &at, Must::AtLeast(1.01));
        }
    }
    let names: Vec<&str> = registered().map(|map| map.name).collect();
    let at = hot(Access::ReadSequential);
    sheet.best("the best map", &names, Metric::NsPerOperation, &at);
    for map in &names {
        let text = "hot sequential reads by the best map";
        sheet.claim(text, map, "the best map", &at, Must::AtMost(HOT_SEQUENTIAL));
    }
    for access in [Access::Append, Access::Insert] {
        let at = cold(access);
        for map in names.iter().filter(|map| **map != reference()) {
            let (ours, theirs) = (series(map, FENCES), series(reference(), FENCES));
            sheet.claim("as many fences", &ours, &theirs, &at, Must::Within(EQUAL));
        }
        for (table, other) in tables().flat_map(|table| others().map(move |other| (table, other))) {
            let (ours, theirs) = (series(other, WRITTEN), series(table, WRITTEN));
            sheet.claim("a line fewer is written", &ours, &theirs, &at, Must::MoreByAtLeast(1.0));
            let (ours, theirs) = (series(other, LINES_READ), series(table, LINES_READ));
            sheet.claim("fewest lines are read", &ours, &theirs, &at, Must::MoreByAtLeast(0.0));
            sheet.claim("published 14 to 20 times", other, table, &at, Must::Shown);
        }
    }
    let at = cold(Access::ReadRandom);
    for (table, other) in tables().flat_map(|table| others().map(move |other| (table, other))) {
        sheet.claim("published up to 15 times", other, table, &at, Must::Shown);
    }
}
