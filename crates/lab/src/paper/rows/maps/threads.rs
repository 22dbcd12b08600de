//! Row hashfs-10: threads that read and append to one file. Beyond the cores of the machine there are the models under the
//! scheduler: times of more threads than cores are the kernel's.

use super::sheet::{MapRow, PoolFile, Sheet, series};
use crate::mapping::access::middle;
use crate::mapping::contestant::{Contestant, reference, registered};
use crate::mapping::files::{Files, Layout, SCORE};
use crate::mapping::picks::Picks;
use crate::mapping::pool::Opening;
use crate::mapping::stopwatch::Stopwatch;
use std::hint::black_box;
use std::sync::Arc;
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must};
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_format::{BLOCK_SIZE, FileBlock};
use terrace_runtime::sync::RwLock;

/// Most growth from one thread to two, by the growth of the radix tree.
const ALIKE: f64 = 1.05;
const GROWTH: &str = "growth";
const READ: &str = "read";
const APPEND: &str = "append";

#[derive(Clone, Copy)]
struct Size {
    blocks: u64,
    /// Reads and appends of each thread.
    turns: u64,
}

/// The file that all threads use: its lock has its end.
struct Shared {
    files: Files,
    end: RwLock<u64>,
}

/// Mean nanoseconds in the map of a read and of an append, without the wait for the file's lock.
fn turns(shared: &Shared, watch: &Stopwatch, turns: u64, seed: u64) -> Outcome<(f64, f64)> {
    let (mut picks, mut read_ns, mut append_ns) = (Picks::new(seed), Vec::new(), Vec::new());
    let inode = &shared.files.inodes[0];
    for _ in 0..turns {
        let end = shared.end.read();
        let block = FileBlock(picks.below(*end));
        let (ns, found) = watch.time(|| shared.files.pool.map().lookup(inode, block));
        black_box(found?);
        drop(end);
        read_ns.push(ns);
        let mut end = shared.end.write();
        let (ns, done) = watch.time(|| shared.files.pool.insert(inode, FileBlock(*end), 1));
        done?;
        *end += 1;
        drop(end);
        append_ns.push(ns);
    }
    Ok((middle(read_ns), middle(append_ns)))
}

fn measure(site: &Site, map: &Contestant, round: usize, sheet: &mut Sheet, size: Size) -> Outcome<()> {
    let file = PoolFile::new(site, map.name)?;
    let layout = Layout { later: size.turns * 4, ..Layout::new(1, size.blocks) };
    let files = Files::create(&file.path, map, layout, round as u64 + 1, Opening::Bare)?;
    let shared = Arc::new(Shared { files, end: RwLock::new(size.blocks) });
    // The first pass meets caches that are empty.
    turns(&shared, &Stopwatch::new(&*site.scratch.clock), size.turns, 7)?;
    let mut means = Vec::new();
    for threads in [1, 2] {
        let mut running = Vec::new();
        for seed in 0..threads {
            let (shared, watch) = (shared.clone(), Stopwatch::new(&*site.scratch.clock));
            running.push(terrace_runtime::thread::spawn("appender", move || {
                turns(&shared, &watch, size.turns, seed).map_err(|error| error.to_string())
            })?);
        }
        let ended: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
        let (mut read_ns, mut append_ns) = (0.0, 0.0);
        for times in ended {
            let (read, append) = times.unwrap_or_else(|_| Err("a thread panicked".to_string()))?;
            read_ns += read / threads as f64;
            append_ns += append / threads as f64;
        }
        let name = if threads == 1 { "1 thread".to_string() } else { format!("{threads} threads") };
        sheet.add(round, (map.name, ""), Metric::NsPerOperation, &format!("{READ}, {name}"), read_ns);
        sheet.add(round, (map.name, ""), Metric::NsPerOperation, &format!("{APPEND}, {name}"), append_ns);
        means.push((read_ns, append_ns));
    }
    if let [(read_one, append_one), (read_two, append_two)] = means[..] {
        sheet.add(round, (map.name, GROWTH), Metric::Ratio, READ, read_two / read_one);
        sheet.add(round, (map.name, GROWTH), Metric::Ratio, APPEND, append_two / append_one);
    }
    Ok(())
}

/// Row hashfs-10.
pub(crate) fn threads(row: &Row, options: &Options) -> Outcome<()> {
    let size = match options.quick {
        true => Size { blocks: 2048, turns: 100 },
        false => Size { blocks: 1 << 18, turns: 20_000 },
    };
    let claims = |sheet: &mut Sheet| {
        for map in registered().map(|map| map.name) {
            for at in [READ, APPEND] {
                let text = "published: grows by at most 13 % to eight threads";
                sheet.claim(text, &series(map, GROWTH), "", at, Must::Shown);
                if map != reference() {
                    let (ours, theirs) = (series(map, GROWTH), series(reference(), GROWTH));
                    sheet.claim("grows no more than the radix tree", &ours, &theirs, at, Must::AtMost(ALIKE));
                }
            }
        }
    };
    let row_of_maps = MapRow {
        axis: "operation, threads",
        metric: Metric::NsPerOperation,
        maps: registered().collect(),
        data_bytes: size.blocks * BLOCK_SIZE,
        notes: vec![format!(
            "One file of {} MiB, layout score {SCORE}. Each thread reads a random block, then appends a block, {} times; its \
             times are those of the map, without the wait for the lock of the file.",
            (size.blocks * BLOCK_SIZE) >> 20,
            size.turns
        )],
        measure: &|site, map, round, sheet| measure(site, map, round, sheet, size),
        claims: &claims,
    };
    row_of_maps.run(row, options)
}
