//! Rows hinfs-…: the write buffer in front of slow persistent memory, in process ([HiNFS] section 5).

mod pool;

use super::maps::sheet::{MapRow, Sheet};
use pool::{LazyPool, WAYS, Way};
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must};
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_bench::workload::load::{Kind, Load};
use terrace_bench::workload::personality::{Order, Personality};

/// Bytes of the buffer by those of the data: 2 of 5 GB.
const BUFFER_SHARE: f64 = 0.4;
/// PM by the data.
const PM_SHARE: f64 = 2.5;
/// The least bytes of PM.
const LEAST_PM_BYTES: u64 = 128 << 20;

/// Mean bytes of a file ([HiNFS] section 5.1).
fn file_bytes(which: Personality) -> u64 {
    match which {
        Personality::Webproxy | Personality::Varmail => 16 << 10,
        _ => 128 << 10,
    }
}

/// A run of a personality in one way.
struct Flow {
    which: Personality,
    threads: u64,
    speed: String,
    buffer_share: f64,
}

impl Flow {
    /// Measures operations and PM's share, and adds them to the sheet.
    fn measure(
        &self,
        (site, way, round): (&Site, &Way, usize),
        (sheet, at): (&mut Sheet, &str),
        options: &Options,
    ) -> Outcome<()> {
        let data = if options.quick { 8 << 20 } else { options.dataset_bytes };
        let pm_bytes = ((data as f64 * PM_SHARE) as u64).max(LEAST_PM_BYTES).next_multiple_of(1 << 20);
        let buffer_bytes = ((data as f64 * self.buffer_share) as u64).next_multiple_of(4096);
        let pool = LazyPool::create(site, way, &self.speed, pm_bytes, buffer_bytes)?;
        let mean = file_bytes(self.which);
        let kind = Kind::Personality {
            which: self.which,
            files: (data / mean).max(20),
            file_bytes: mean,
            sync_every_write: false,
            order: Order::Even,
        };
        let limit_ns = (options.seconds * 1e9) as u64;
        let operations = if options.quick { 50 } else { u64::MAX };
        let load = Load { kind, threads: self.threads, limit_ns, operations, seed: round as u64 + 1 };
        let target = pool.target();
        load.populate(&*target)?;
        pool.fs.sync()?;
        let (clock, before) = (&site.scratch.clock, pool.pm.delayed());
        let begin_ns = clock.monotonic_ns();
        let measure = load.run(&target, clock)?;
        // All that was written reaches PM inside the clock.
        pool.fs.sync()?;
        let taken_ns = (clock.monotonic_ns() - begin_ns).max(1);
        let value = measure.operations as f64 / taken_ns as f64 * 1e9;
        sheet.add(round, (way.name, ""), Metric::OperationsPerS, at, value);
        let lines = pool.pm.delayed().lines - before.lines;
        let per_operation = lines as f64 / measure.operations.max(1) as f64;
        sheet.add(round, (way.name, "lines"), Metric::LinesPerOperation, at, per_operation);
        drop(target);
        pool.finish()
    }
}

/// Row hinfs-7: the personalities, by threads.
pub(crate) fn personalities(row: &Row, options: &Options) -> Outcome<()> {
    let speed = options.emulate_pm.clone().unwrap_or_else(|| "line:200:1000000000".into());
    let threads: &[u64] = if options.quick { &[1] } else { &[1, 2] };
    let places: Vec<(Personality, u64)> =
        Personality::ALL.iter().flat_map(|which| threads.iter().map(|count| (*which, *count))).collect();
    let name = |(which, threads): (Personality, u64)| format!("{} {threads}", which.name());
    let measure = |site: &Site, way: &Way, round: usize, sheet: &mut Sheet| {
        places.iter().try_for_each(|place| {
            let flow =
                Flow { which: place.0, threads: place.1, speed: speed.clone(), buffer_share: BUFFER_SHARE };
            flow.measure((site, way, round), (sheet, &name(*place)), options)
        })
    };
    let claims = |sheet: &mut Sheet| {
        for place in &places {
            let must = match place {
                (Personality::Fileserver, 1) => Must::AtLeast(1.8),
                (Personality::Fileserver, 2) => Must::AtLeast(1.25),
                (Personality::Webproxy, 1) => Must::AtLeast(1.5),
                (Personality::Varmail, _) => Must::AtLeast(0.97),
                _ => Must::AtLeast(1.0),
            };
            let at = name(*place);
            sheet.claim("by way of DRAM", "lazy", "direct", &at, must);
            sheet.claim("beside data=ordered", "lazy", "direct, ordered", &at, Must::Shown);
            sheet.claim("without the choice of eager blocks", "always lazy", "direct", &at, Must::Shown);
        }
    };
    run(row, options, (&measure, &claims), "personality and threads")
}

/// Row hinfs-12: the cost of PM.
pub(crate) fn costs(row: &Row, options: &Options) -> Outcome<()> {
    const COSTS: [u64; 4] = [50, 100, 200, 800];
    let places: Vec<(Personality, u64)> =
        Personality::ALL.iter().flat_map(|which| COSTS.map(|cost| (*which, cost))).collect();
    let name = |(which, cost): (Personality, u64)| format!("{} {cost} ns", which.name());
    let measure = |site: &Site, way: &Way, round: usize, sheet: &mut Sheet| {
        places.iter().try_for_each(|place| {
            let speed = format!("line:{}:1000000000", place.1);
            let flow = Flow { which: place.0, threads: 1, speed, buffer_share: BUFFER_SHARE };
            flow.measure((site, way, round), (sheet, &name(*place)), options)
        })
    };
    let claims = |sheet: &mut Sheet| {
        for place in &places {
            let must = match place {
                (Personality::Webproxy, 200) => Must::AtLeast(1.5),
                (Personality::Webproxy, 800) => Must::AtLeast(4.0),
                (_, 50) => Must::AtLeast(1.0),
                _ => Must::Shown,
            };
            sheet.claim("by way of DRAM", "lazy", "direct", &name(*place), must);
        }
    };
    run(row, options, (&measure, &claims), "personality and cost of a line")
}

/// Row hinfs-11: the size of the buffer.
pub(crate) fn buffers(row: &Row, options: &Options) -> Outcome<()> {
    let speed = options.emulate_pm.clone().unwrap_or_else(|| "line:200:1000000000".into());
    let places: Vec<(Personality, u64)> = [Personality::Fileserver, Personality::Webproxy]
        .into_iter()
        .flat_map(|which| [10, 20, 40, 70, 100].map(|percent| (which, percent)))
        .collect();
    let name = |(which, percent): (Personality, u64)| format!("{} {percent} %", which.name());
    let measure = |site: &Site, way: &Way, round: usize, sheet: &mut Sheet| {
        places.iter().try_for_each(|place| {
            let buffer_share = place.1 as f64 / 100.0;
            let flow = Flow { which: place.0, threads: 1, speed: speed.clone(), buffer_share };
            flow.measure((site, way, round), (sheet, &name(*place)), options)
        })
    };
    let claims = |sheet: &mut Sheet| {
        let between = |which: Personality| (name((which, 10)), name((which, 100)));
        let (from, to) = between(Personality::Fileserver);
        sheet.between("rises with the buffer", "lazy", (&from, &to), Must::AtLeast(1.25));
        let (from, to) = between(Personality::Webproxy);
        sheet.between("flat", "lazy", (&from, &to), Must::Within(1.1));
    };
    run(row, options, (&measure, &claims), "personality and buffer by data")
}

/// Measures a way in a round.
type Measure<'a> = &'a dyn Fn(&Site, &Way, usize, &mut Sheet) -> Outcome<()>;

fn run(
    row: &Row,
    options: &Options,
    (measure, claims): (Measure<'_>, &dyn Fn(&mut Sheet)),
    axis: &'static str,
) -> Outcome<()> {
    let row_of_ways = MapRow {
        axis,
        metric: Metric::OperationsPerS,
        maps: WAYS.to_vec(),
        data_bytes: options.dataset_bytes,
        notes: vec![
            "In process, with background threads, PM alone. Files of 128 KiB (webproxy, varmail 16 KiB); bytes that wait at the end \
             are written to PM inside the clock. Series `lines`: lines of PM written for each operation."
                .into(),
        ],
        measure,
        claims,
    };
    row_of_ways.run(row, options)
}
