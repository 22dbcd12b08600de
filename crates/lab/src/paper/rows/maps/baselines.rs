//! Rows hashfs-11 and hashfs-4.9: the extent tree in a page cache, and level hashing, beside the maps of the registry.

use super::add_counts;
use super::sheet::{LINES_READ, MapRow, PoolFile, ROUNDS, Sheet, TwinFiles, WRITTEN, series};
use crate::mapping::access::{Access, Accesses, Twins};
use crate::mapping::contestant::{
    Contestant, IN_PLACE_EXTENTS, LEVEL_HASH, PAGE_CACHED, level_hash, page_cached, registered, tables,
};
use crate::mapping::files::{Files, Layout, SCORE};
use crate::mapping::pool::Opening;
use crate::mapping::stopwatch::Stopwatch;
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must};
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_format::BLOCK_SIZE;

/// Size of a run.
#[derive(Clone, Copy)]
struct Size {
    blocks: u64,
    reads: u64,
    insertions: u64,
    cold: u64,
}

impl Size {
    fn of(quick: bool) -> Size {
        match quick {
            true => Size { blocks: 2048, reads: 500, insertions: 100, cold: 50 },
            false => Size { blocks: 1 << 18, reads: 1_000_000, insertions: 100_000, cold: 4000 },
        }
    }

    fn layout(self) -> Layout {
        let later = 2 * (self.insertions + self.cold);
        Layout { later, ..Layout::new(1, self.blocks) }
    }

    fn note(self) -> String {
        format!(
            "A file of {} MiB, layout score {SCORE}, PM at most half full; {} reads and {} appends, hot.",
            (self.blocks * BLOCK_SIZE) >> 20,
            self.reads,
            self.insertions
        )
    }

    /// Times of hot operations.
    fn time_hot(self, files: &mut Files, watch: &Stopwatch, access: Access) -> Outcome<f64> {
        let count = if access == Access::Append { self.insertions } else { self.reads };
        Accesses::new(access, 1).time_hot(files, watch, count)
    }
}

const ALL: [Access; 3] = [Access::ReadSequential, Access::ReadRandom, Access::Append];

/// Row hashfs-11: a million operations on extents in place and in a page cache.
pub(crate) fn page_cache(row: &Row, options: &Options) -> Outcome<()> {
    let size = Size::of(options.quick);
    let measure = |site: &Site, map: &Contestant, round: usize, sheet: &mut Sheet| {
        let file = PoolFile::new(site, map.name)?;
        let mut files = Files::create(&file.path, map, size.layout(), round as u64 + 1, Opening::Bare)?;
        let watch = Stopwatch::new(&*site.scratch.clock);
        for access in ALL {
            let ns = size.time_hot(&mut files, &watch, access)?;
            sheet.add(round, (map.name, ""), Metric::NsPerOperation, access.name(), ns);
        }
        Ok(())
    };
    let claims = |sheet: &mut Sheet| {
        for access in ALL {
            let text = "in place is not slower";
            sheet.claim(text, IN_PLACE_EXTENTS, PAGE_CACHED, access.name(), Must::NotAbove);
        }
    };
    let maps = registered().filter(|map| map.name == IN_PLACE_EXTENTS).chain(page_cached()).collect();
    let row_of_maps = MapRow {
        axis: "operation",
        metric: Metric::NsPerOperation,
        maps,
        data_bytes: size.blocks * BLOCK_SIZE,
        notes: vec![
            size.note(),
            "The page cache has a list of all pages under one lock, copies a node when it is read first, and writes lines \
             back with the checkpoint. PM is as fast as the copies here: both are DRAM."
                .to_string(),
        ],
        measure: &measure,
        claims: &claims,
    };
    row_of_maps.run(row, options)
}

/// Row hashfs-4.9: level hashing beside the maps that are the block table.
pub(crate) fn level_hashing(row: &Row, options: &Options) -> Outcome<()> {
    let size = Size::of(options.quick);
    let cold = |access: Access| format!("{}, cold", access.name());
    let measure = |site: &Site, map: &Contestant, round: usize, sheet: &mut Sheet| {
        let watch = Stopwatch::new(&*site.scratch.clock);
        let places = TwinFiles::new(site)?;
        let mut twins = Twins::create(places.paths(), map, size.layout(), round as u64 + 1)?;
        for access in ALL {
            let (counts, ns) = twins.cold(access, 1, &watch, size.cold)?;
            add_counts(sheet, round, map.name, &cold(access), &counts);
            sheet.add(round, (map.name, ""), Metric::NsPerOperation, &cold(access), ns);
        }
        for access in ALL {
            let ns = size.time_hot(&mut twins.timed, &watch, access)?;
            let at = format!("{}, hot", access.name());
            sheet.add(round, (map.name, ""), Metric::NsPerOperation, &at, ns);
        }
        Ok(())
    };
    let claims = |sheet: &mut Sheet| {
        for table in tables() {
            for access in ALL {
                let at = cold(access);
                let words = if access == Access::Append { WRITTEN } else { LINES_READ };
                let (ours, theirs) = (series(table, words), series(LEVEL_HASH, words));
                sheet.claim("level hashing: not fewer lines", &ours, &theirs, &at, Must::AtMost(1.0));
                sheet.claim("published: loses to HashFS", LEVEL_HASH, table, &at, Must::Shown);
            }
            let at = cold(Access::ReadRandom);
            let (ours, theirs) = (series(table, ROUNDS), series(LEVEL_HASH, ROUNDS));
            sheet.claim("level hashing: not fewer rounds", &ours, &theirs, &at, Must::AtMost(1.0));
        }
    };
    let row_of_maps = MapRow {
        axis: "operation",
        metric: Metric::NsPerOperation,
        maps: registered().filter(|map| map.kind.is_table()).chain([level_hash()]).collect(),
        data_bytes: size.blocks * BLOCK_SIZE,
        notes: vec![
            size.note(),
            "Level hashing has two levels of buckets of four entries, a key four buckets, and one movement at most; it has the \
             size of the pool and does not grow. Row hashfs-12 has it under filebench."
                .to_string(),
        ],
        measure: &measure,
        claims: &claims,
    };
    row_of_maps.run(row, options)
}
