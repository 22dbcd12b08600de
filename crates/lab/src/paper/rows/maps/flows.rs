//! Row hashfs-12: filebench in process, on emulated PM alone. Row maps-tiers: the same over a slow device with a little PM.

use super::sheet::{MapRow, PoolFile, Sheet};
use crate::mapping::contestant::{
    Contestant, LEVEL_HASH, PAGE_CACHED, level_hash, page_cached, reference, registered, tables,
};
use crate::mapping::engine_pool::EnginePool;
use crate::mapping::stopwatch::processor_ns;
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must, Plan, Scale};
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_bench::site::subject::{Peer, Tuning, pm_speed};
use terrace_bench::workload::load::{Kind, Load};
use terrace_bench::workload::personality::{Order, Personality};
use terrace_map::MAPS;
use terrace_media::pm::PmSpeed;

/// [HashFS table 2]: personality, mean size of a file, files. The flow of webproxy replaces files by files of one append,
/// up to 16 KiB.
const FLOWS: [(Personality, u64, u64); 2] =
    [(Personality::FileserverWhole, 128 << 10, 1000), (Personality::Webproxy, 8 << 10, 1000)];
/// PM by bytes of files.
const PM_BYTES: u64 = 768 << 20;
const QUICK_PM_BYTES: u64 = 64 << 20;
/// The speed of PM unless the command names another: the class of [TPFS table 1].
const SPEED: &str = "run";

struct Run {
    speed: PmSpeed,
    quick: bool,
    limit_ns: u64,
}

fn measure((site, map, round): (&Site, &Contestant, usize), sheet: &mut Sheet, run: &Run) -> Outcome<()> {
    for (which, file_bytes, files) in FLOWS {
        let file = PoolFile::new(site, "pool")?;
        let bytes = if run.quick { QUICK_PM_BYTES } else { PM_BYTES };
        let pool = EnginePool::create(&file.path, bytes, map, Some(run.speed), &site.scratch.clock)?;
        let files = if run.quick { files / 20 } else { files };
        let operations = if run.quick { 20 } else { u64::MAX };
        let kind =
            Kind::Personality { which, files, file_bytes, sync_every_write: false, order: Order::Even };
        let load = Load { kind, threads: 1, limit_ns: run.limit_ns, operations, seed: round as u64 + 1 };
        let target = pool.target();
        load.populate(&*target)?;
        // The load runs in this thread, and emulated PM waits by spinning.
        let begin_ns = processor_ns();
        let measure = load.run(&target, &site.scratch.clock)?;
        let taken_ns = (processor_ns() - begin_ns).max(1);
        let value = measure.operations as f64 / taken_ns as f64 * 1e9;
        sheet.add(round, (map.name, ""), Metric::OperationsPerS, which.name(), value);
        drop(target);
        pool.finish()?;
    }
    Ok(())
}

/// Row hashfs-12.
pub(crate) fn filebench(row: &Row, options: &Options) -> Outcome<()> {
    let speed = match &options.emulate_pm {
        Some(speed) => speed.clone(),
        None => pm_speed(SPEED)?,
    };
    let run = Run {
        speed: PmSpeed::parse(&speed)?,
        quick: options.quick,
        limit_ns: (options.seconds * 1e9) as u64,
    };
    let claims = |sheet: &mut Sheet| {
        for at in FLOWS.map(|(which, ..)| which.name()) {
            for map in registered().map(|map| map.name) {
                let text = "published: HashFS +26 %, radix −10 %; webproxy within 2 %";
                sheet.claim(text, map, PAGE_CACHED, at, Must::Shown);
                if map != reference() {
                    sheet.claim("beside the radix tree", map, reference(), at, Must::Shown);
                }
            }
            for table in tables() {
                sheet.claim("level hashing is not above HashFS", LEVEL_HASH, table, at, Must::NotAbove);
            }
        }
    };
    let row_of_maps = MapRow {
        axis: "personality",
        metric: Metric::OperationsPerS,
        maps: registered().chain(page_cached()).chain([level_hash()]).collect(),
        data_bytes: 128 << 20,
        notes: vec![format!(
            "In process, one thread, which also does the background work, by its processor time. fileserver: 1,000 files of 128 KiB, read by 1 MiB, \
             written by 16 KiB; webproxy: 1,000 files of up to 16 KiB. PM is emulated ({speed})."
        )],
        measure: &|site, map, round, sheet| measure((site, map, round), sheet, &run),
        claims: &claims,
    };
    row_of_maps.run(row, options)
}

/// Least throughput of each map by that of the radix tree.
const LEAST: f64 = 0.93;
/// DRAM for clean pages, by the data.
const CACHE_SHARE: f64 = 0.2;

/// Row maps-tiers: fileserver, webproxy and varmail in process, with PM for 6 % of the data over a SATA device.
pub(crate) fn tiers(scale: &Scale) -> Plan {
    let cache = (scale.dataset_bytes as f64 * CACHE_SHARE) as u64;
    let mut plan = Plan::new(Metric::OperationsPerS, "personality", cache);
    plan.class = Some("sata");
    let label = |map: &str| format!("local {map}");
    for map in MAPS {
        let tuning = Tuning { cache_bytes: Some(cache), map: Some(map.name), ..Tuning::default() };
        plan.subjects.push(scale.subject(label(map.name), Peer::Local, 0.06, tuning));
    }
    let third = Scale { dataset_bytes: scale.dataset_bytes / 3, ..*scale };
    let all = [Personality::Fileserver, Personality::Webproxy, Personality::Varmail];
    for (number, which) in all.into_iter().enumerate() {
        plan.point(scale, number as f64, which.name(), &third.personality(which, false), 1);
    }
    for map in MAPS.iter().map(|map| map.name).filter(|map| *map != reference()) {
        let must = if map == "hashfs-linear" { Must::Shown } else { Must::AtLeast(LEAST) };
        plan.claim("as fast as the radix tree", &label(map), &label(reference()), must);
    }
    plan.notes.push("Terrace has at least 32 MiB of PM; operations are filebench's flow operations.".into());
    plan
}
