//! Rows hashfs-6, -7 and -9, and the ranges of 16 blocks: look-ups and insertions by the layout of files, by their size, by
//! the load of the pool and by the length of a request.

use super::add_counts;
use super::sheet::{LINES_READ, MapRow, PoolFile, ROUNDS, Sheet, TwinFiles, WRITTEN, series};
use crate::mapping::access::{Access, Accesses, Twins};
use crate::mapping::contestant::{Contestant, others, present, reference, registered, tables};
use crate::mapping::files::{Files, Layout, SCORE};
use crate::mapping::pool::Opening;
use crate::mapping::stopwatch::Stopwatch;
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must};
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_format::BLOCK_SIZE;

/// Equal: figures of a map that a parameter must not change.
const ALIKE: f64 = 1.05;

/// Operations of a kind, on so many blocks each, and where in the row they stand.
struct Point<'a> {
    access: Access,
    width: u64,
    at: &'a str,
}

/// Operations of each point.
#[derive(Clone, Copy)]
struct Effort {
    cold: u64,
}

impl Effort {
    fn of(quick: bool) -> Effort {
        Effort { cold: if quick { 60 } else { 4000 } }
    }

    fn later(self) -> u64 {
        self.cold * 2
    }
}

fn place(access: Access, what: &str) -> String {
    format!("{}, {what}", access.name())
}

/// A file of 1 GiB, or a small one.
fn blocks(quick: bool) -> u64 {
    if quick { 2048 } else { 1 << 18 }
}

/// Measures points on one set of files, cold.
fn measure_points(
    (site, map, round): (&Site, &Contestant, usize),
    sheet: &mut Sheet,
    layout: Layout,
    effort: Effort,
    points: &[Point<'_>],
) -> Outcome<()> {
    let watch = Stopwatch::new(&*site.scratch.clock);
    let places = TwinFiles::new(site)?;
    let mut twins = Twins::create(places.paths(), map, layout, round as u64 + 1)?;
    for Point { access, width, at } in points {
        let (counts, ns) = twins.cold(*access, *width, &watch, effort.cold)?;
        add_counts(sheet, round, map.name, at, &counts);
        sheet.add(round, (map.name, ""), Metric::NsPerOperation, at, ns);
    }
    Ok(())
}

fn notes(effort: Effort, first: String) -> Vec<String> {
    vec![
        first,
        format!(
            "Counts and times of {} operations, each after its lines have left the caches; times are means of their middle half.",
            effort.cold
        ),
    ]
}

const LAYOUTS: [(f64, &str); 2] = [(1.0, "layout 1.0"), (0.7, "layout 0.7")];

/// Row hashfs-6: layout scores 1.0 and 0.7.
pub(crate) fn fragmentation(row: &Row, options: &Options) -> Outcome<()> {
    let (effort, quick) = (Effort::of(options.quick), options.quick);
    let accesses = [Access::ReadSequential, Access::ReadRandom, Access::Append];
    let measure = |site: &Site, map: &Contestant, round: usize, sheet: &mut Sheet| {
        for (score, what) in LAYOUTS {
            let later = effort.later();
            let layout = Layout { score, later, filled: true, ..Layout::new(1, blocks(quick)) };
            let places = accesses.map(|access| place(access, what));
            let points: Vec<Point<'_>> = accesses
                .iter()
                .zip(&places)
                .map(|(access, at)| Point { access: *access, width: 1, at })
                .collect();
            measure_points((site, map, round), sheet, layout, effort, &points)?;
        }
        Ok(())
    };
    let claims = |sheet: &mut Sheet| {
        let [whole, parted] = LAYOUTS.map(|(_, what)| place(Access::ReadRandom, what));
        for map in registered().map(|map| map.name) {
            match map {
                "extent" => {
                    let text = "layout 0.7 takes twice the lines";
                    sheet.between(text, &series(map, LINES_READ), (&whole, &parted), Must::AtLeast(2.0));
                }
                _ => {
                    let text = "layout 0.7 takes as many lines";
                    sheet.between(text, &series(map, LINES_READ), (&whole, &parted), Must::Within(ALIKE));
                    let [whole, parted] = LAYOUTS.map(|(_, what)| place(Access::Append, what));
                    sheet.between(text, &series(map, WRITTEN), (&whole, &parted), Must::Within(ALIKE));
                }
            }
            sheet.between("published: only extents suffer", map, (&whole, &parted), Must::Shown);
        }
    };
    let about = format!("A file of {} MiB, PM half full.", (blocks(quick) * BLOCK_SIZE) >> 20);
    let row_of_maps = MapRow {
        axis: "operation, layout score",
        metric: Metric::NsPerOperation,
        maps: registered().collect(),
        data_bytes: blocks(quick) * BLOCK_SIZE,
        notes: notes(effort, about),
        measure: &measure,
        claims: &claims,
    };
    row_of_maps.run(row, options)
}

/// Sizes of files: how many, blocks of each, name.
fn sizes(quick: bool) -> [(u64, u64, &'static str); 3] {
    match quick {
        true => [(64, 1, "4 KiB"), (4, 256, "1 MiB"), (1, 4096, "16 MiB")],
        // Files of a block are more than a table has hints of recent blocks.
        false => [(1 << 16, 1, "4 KiB"), (32, 1024, "4 MiB"), (1, 1 << 20, "4 GiB")],
    }
}

/// Row hashfs-7: files of 4 KiB, 4 MiB and 4 GiB in pools of one size and load.
pub(crate) fn file_size(row: &Row, options: &Options) -> Outcome<()> {
    let (effort, quick) = (Effort::of(options.quick), options.quick);
    let [.., (_, most, largest)] = sizes(quick);
    let pm_bytes = Some(Layout { later: effort.later(), ..Layout::new(1, most) }.pm_bytes());
    let accesses = [Access::ReadSequential, Access::ReadRandom, Access::Append];
    let measure = |site: &Site, map: &Contestant, round: usize, sheet: &mut Sheet| {
        for (files, blocks, what) in sizes(quick) {
            let later = effort.later();
            let layout = Layout { later, pm_bytes, load: 0.45, filled: true, ..Layout::new(files, blocks) };
            let places = accesses.map(|access| place(access, what));
            let points: Vec<Point<'_>> = accesses
                .iter()
                .zip(&places)
                .map(|(access, at)| Point { access: *access, width: 1, at })
                .collect();
            measure_points((site, map, round), sheet, layout, effort, &points)?;
        }
        Ok(())
    };
    let claims = |sheet: &mut Sheet| {
        let at = |what: &str| place(Access::ReadRandom, what);
        let [small, ..] = sizes(quick);
        let (small, large) = (at(small.2), at(largest));
        for map in tables().chain(present(&["cuckoo", "clustered"])) {
            for words in [LINES_READ, ROUNDS] {
                let text = "the size of the file is indifferent";
                sheet.between(text, &series(map, words), (&small, &large), Must::Within(ALIKE));
            }
        }
        let rounds = series(reference(), ROUNDS);
        sheet.claim("radix, the smallest file: a round", &rounds, "", &small, Must::Within(1.001));
        sheet.claim("radix, 4 GiB: four rounds", &rounds, "", &large, Must::AtLeast(3.99));
        for map in registered().map(|map| map.name) {
            let text = "published: trees +34 %, hash maps constant";
            sheet.between(text, map, (&small, &large), Must::Shown);
        }
    };
    let row_of_maps = MapRow {
        axis: "operation, size of a file",
        metric: Metric::NsPerOperation,
        maps: registered().collect(),
        data_bytes: most * BLOCK_SIZE,
        notes: notes(
            effort,
            format!(
                "65,536 files of 4 KiB, 32 of 4 MiB, one of 4 GiB; layout score {SCORE}, pools of one size, 45 % full."
            ),
        ),
        measure: &measure,
        claims: &claims,
    };
    row_of_maps.run(row, options)
}

const LOADS: [(f64, &str); 2] = [(0.8, "80 %"), (0.95, "95 %")];

/// Counts look-ups of absent blocks and insertions before the scan after a mount, without presence.
fn count_unscanned(
    (site, map, round): (&Site, &Contestant, usize),
    sheet: &mut Sheet,
    layout: Layout,
    load: &str,
) -> Outcome<()> {
    let file = PoolFile::new(site, map.name)?;
    let files = Files::create(&file.path, map, layout, round as u64 + 1, Opening::Bare)?;
    let mut files = files.unscanned(map)?;
    for access in [Access::ReadAbsent, Access::Append] {
        let mut accesses = Accesses::new(access, 1);
        // The first access to a page after a mount looks at its checksum.
        accesses.count(&mut files, layout.holes)?;
        let counts = accesses.count(&mut files, layout.holes)?;
        let at = format!("{}, without presence", place(access, load));
        add_counts(sheet, round, map.name, &at, &counts);
    }
    Ok(())
}

/// Row hashfs-9: pools that are 80 and 95 % full; also look-ups of absent blocks and insertions, with and without presence.
pub(crate) fn utilisation(row: &Row, options: &Options) -> Outcome<()> {
    let (effort, quick) = (Effort::of(options.quick), options.quick);
    let accesses = [Access::ReadSequential, Access::ReadRandom, Access::ReadAbsent, Access::Append];
    let holes = if quick { 100 } else { 2000 };
    let measure = |site: &Site, map: &Contestant, round: usize, sheet: &mut Sheet| {
        for (load, what) in LOADS {
            let later = effort.later();
            let layout = Layout { holes, later, load, filled: true, ..Layout::new(1, blocks(quick)) };
            let places = accesses.map(|access| place(access, what));
            let points: Vec<Point<'_>> = accesses
                .iter()
                .zip(&places)
                .map(|(access, at)| Point { access: *access, width: 1, at })
                .collect();
            measure_points((site, map, round), sheet, layout, effort, &points)?;
            if map.kind.is_shared() {
                count_unscanned((site, map, round), sheet, layout, what)?;
            }
        }
        Ok(())
    };
    let claims = |sheet: &mut Sheet| {
        for (_, what) in LOADS {
            let at = place(Access::ReadRandom, what);
            for (global, tree) in tables()
                .chain(present(&["cuckoo", "clustered"]))
                .flat_map(|global| present(&["radix", "extent"]).map(move |tree| (global, tree)))
            {
                let (ours, theirs) = (series(global, ROUNDS), series(tree, ROUNDS));
                sheet.claim("fewer rounds than the trees", &ours, &theirs, &at, Must::AtMost(0.999));
                sheet.claim("published: the hash maps beat the trees", global, tree, &at, Must::Shown);
            }
        }
        let at = place(Access::ReadRandom, LOADS[1].1);
        for (linear, cuckoo) in present(&["hashfs-linear"]).zip(present(&["cuckoo"])) {
            let (ours, theirs) = (series(linear, LINES_READ), series(cuckoo, LINES_READ));
            sheet.claim("reads more lines than cuckoo", &ours, &theirs, &at, Must::AtLeast(1.001));
            sheet.claim("published 12 to 14 % slower", linear, cuckoo, &at, Must::Shown);
        }
        for (table, other) in tables().flat_map(|table| others().map(move |other| (table, other))) {
            let at = place(Access::Append, LOADS[1].1);
            sheet.claim("insertions", table, other, &at, Must::Shown);
        }
    };
    let row_of_maps = MapRow {
        axis: "operation, use of PM",
        metric: Metric::NsPerOperation,
        maps: registered().collect(),
        data_bytes: blocks(quick) * BLOCK_SIZE,
        notes: notes(
            effort,
            format!(
                "A file of {} MiB with {holes} holes, layout score {SCORE}; blocks of another file fill the pool. Without \
                 presence: before the scan after a mount.",
                (blocks(quick) * BLOCK_SIZE) >> 20
            ),
        ),
        measure: &measure,
        claims: &claims,
    };
    row_of_maps.run(row, options)
}

const WIDTHS: [(u64, &str); 3] = [(1, "1 block"), (16, "16 blocks"), (256, "256 blocks")];

/// Row maps-range: look-ups of 1, 16 and 256 blocks at a load of 0.8.
pub(crate) fn ranges(row: &Row, options: &Options) -> Outcome<()> {
    let (effort, quick) = (Effort::of(options.quick), options.quick);
    let measure = |site: &Site, map: &Contestant, round: usize, sheet: &mut Sheet| {
        let layout = Layout { load: 0.8, filled: true, ..Layout::new(1, blocks(quick)) };
        let points = WIDTHS.map(|(width, at)| Point { access: Access::ReadRandom, width, at });
        measure_points((site, map, round), sheet, layout, effort, &points)
    };
    let claims = |sheet: &mut Sheet| {
        for (grouped, linear) in present(&["hashfs"]).zip(present(&["hashfs-linear"])) {
            let lines = |map: &str| series(map, LINES_READ);
            sheet.claim("16 blocks: faster", linear, grouped, WIDTHS[1].1, Must::AtLeast(1.8));
            let text = "16 blocks: fewer lines";
            sheet.claim(text, &lines(linear), &lines(grouped), WIDTHS[1].1, Must::AtLeast(1.8));
            let text = "one block: at most twice the lines";
            sheet.claim(text, &lines(grouped), &lines(linear), WIDTHS[0].1, Must::AtMost(2.0));
        }
        let published = present(&["radix", "extent", "cuckoo", "hashfs-linear"]);
        for (own, other) in published.flat_map(|other| present(&["clustered"]).map(move |own| (own, other))) {
            let (ours, theirs) = (series(own, LINES_READ), series(other, LINES_READ));
            let text = "16 blocks: fewer lines than the published maps";
            sheet.claim(text, &theirs, &ours, WIDTHS[1].1, Must::AtLeast(1.5));
            let text = "a block: hardly more lines than the published maps";
            sheet.claim(text, &ours, &theirs, WIDTHS[0].1, Must::AtMost(1.05));
        }
        for map in registered().map(|map| map.name).filter(|map| *map != reference()) {
            for (_, at) in WIDTHS {
                sheet.claim("beside the radix tree", map, reference(), at, Must::Shown);
            }
        }
    };
    let row_of_maps = MapRow {
        axis: "blocks of a look-up",
        metric: Metric::NsPerOperation,
        maps: registered().collect(),
        data_bytes: blocks(quick) * BLOCK_SIZE,
        notes: notes(
            effort,
            format!(
                "A file of {} MiB, layout score {SCORE}, PM 80 % full; the first block of a look-up is a multiple of its length.",
                (blocks(quick) * BLOCK_SIZE) >> 20
            ),
        ),
        measure: &measure,
        claims: &claims,
    };
    row_of_maps.run(row, options)
}
