//! Rows hinfs-7, -8, -11, -12 and hinfs-synced: personalities of filebench in process, by threads, buffer and cost of PM.

use super::jobs::personality_load;
use super::pool::{ATOMIC, DIRECT, LAZY, LAZY_ATOMIC, LAZY_ORDERED, LazyPool, ORDERED, PAST_FULL, Size, Way};
use super::{BUFFER_SHARE, Comparison, WAYS};
use crate::paper::rows::maps::sheet::Sheet;
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must};
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_bench::workload::personality::{Order, Personality};

/// A run of a personality in one way.
struct Flow {
    which: Personality,
    order: Order,
    threads: u64,
    size: Size,
}

impl Flow {
    /// Measures operations and PM's share, and adds them to the sheet.
    fn measure(
        &self,
        (site, way, round): (&Site, &Way, usize),
        (sheet, at): (&mut Sheet, &str),
        options: &Options,
    ) -> Outcome<()> {
        let pool = LazyPool::create(site, way, &self.size)?;
        let load =
            personality_load((self.which, self.order), self.threads, &self.size, options, round as u64 + 1);
        let target = pool.target();
        load.populate(&*target)?;
        pool.fs.sync()?;
        let clock = &site.scratch.clock;
        let done = pool.timed(clock, || Ok(load.run(&target, clock)?));
        let (measure, taken) = done.map_err(|error| format!("{at}, {}: {error}", way.name))?;
        let value = measure.operations as f64 / taken.ns as f64 * 1e9;
        sheet.add(round, (way.name, ""), Metric::OperationsPerS, at, value);
        let per_operation = taken.pm.lines as f64 / measure.operations.max(1) as f64;
        sheet.add(round, (way.name, "lines"), Metric::LinesPerOperation, at, per_operation);
        drop(target);
        pool.finish()
    }
}

/// Row hinfs-7: the personalities, by threads.
pub(crate) fn personalities(row: &Row, options: &Options) -> Outcome<()> {
    let runs = [(1, Order::Even), (2, Order::Even), (1, Order::Rotation)];
    by_threads(row, options, &runs, |place| match place {
        (Personality::Fileserver, 1) => Must::AtLeast(1.8),
        (Personality::Fileserver, _) => Must::AtLeast(1.25),
        (Personality::Webproxy, 1) => Must::AtLeast(1.5),
        (Personality::Varmail, _) => Must::AtLeast(0.97),
        _ => Must::AtLeast(1.0),
    })
}

/// Row hinfs-8: the personalities, by more threads than the machine has processors.
pub(crate) fn threads(row: &Row, options: &Options) -> Outcome<()> {
    by_threads(row, options, &[(4, Order::Even), (8, Order::Even)], |_| Must::Shown)
}

fn by_threads(
    row: &Row,
    options: &Options,
    runs: &[(u64, Order)],
    must: impl Fn((Personality, u64)) -> Must,
) -> Outcome<()> {
    let runs = if options.quick { &runs[..1] } else { runs };
    let places: Vec<(Personality, (u64, Order))> =
        Personality::ALL.iter().flat_map(|which| runs.iter().map(|run| (*which, *run))).collect();
    let name = |(which, (threads, order)): (Personality, (u64, Order))| match order {
        Order::Even => format!("{} {threads}", which.name()),
        Order::Rotation => format!("{} {threads}, in rotation", which.name()),
    };
    let measure = |site: &Site, way: &Way, round: usize, sheet: &mut Sheet| {
        places.iter().try_for_each(|place| {
            let (which, (threads, order)) = *place;
            let flow = Flow { which, order, threads, size: Size::of(options, BUFFER_SHARE) };
            flow.measure((site, way, round), (sheet, &name(*place)), options)
        })
    };
    let claims = |sheet: &mut Sheet| {
        for place in &places {
            let at = name(*place);
            sheet.claim("by way of DRAM", "lazy", DIRECT, &at, must((place.0, place.1.0)));
            sheet.claim("without the choice of eager blocks", "always lazy", DIRECT, &at, Must::Shown);
        }
    };
    run(row, options, &WAYS, (&measure, &claims), "personality and threads")
}

/// Row hinfs-synced: varmail, each of whose writes is synced once. Runs of a round follow each other within seconds.
pub(crate) fn synced(row: &Row, options: &Options) -> Outcome<()> {
    let name = |threads: u64| format!("varmail {threads}");
    let measure = |site: &Site, way: &Way, round: usize, sheet: &mut Sheet| {
        [1, 2, 4, 8].into_iter().try_for_each(|threads| {
            let size = Size::of(options, BUFFER_SHARE);
            let flow = Flow { which: Personality::Varmail, order: Order::Even, threads, size };
            flow.measure((site, way, round), (sheet, &name(threads)), options)
        })
    };
    let claims = |sheet: &mut Sheet| {
        for at in [name(1), name(2), name(4), name(8)] {
            sheet.claim("a mail is not copied twice", LAZY.name, DIRECT, &at, Must::Within(1.03));
            sheet.claim("data=atomic on both sides", LAZY_ATOMIC.name, ATOMIC.name, &at, Must::Shown);
            sheet.claim("data=ordered on both sides", LAZY_ORDERED.name, ORDERED.name, &at, Must::Shown);
        }
    };
    let ways = [LAZY_ATOMIC, ATOMIC, LAZY_ORDERED, ORDERED];
    run(row, options, &ways, (&measure, &claims), "threads")
}

/// Row hinfs-12: the cost of PM.
pub(crate) fn costs(row: &Row, options: &Options) -> Outcome<()> {
    const COSTS: [u64; 4] = [50, 100, 200, 800];
    let places: Vec<(Personality, u64)> =
        Personality::ALL.iter().flat_map(|which| COSTS.map(|cost| (*which, cost))).collect();
    let name = |(which, cost): (Personality, u64)| format!("{} {cost} ns", which.name());
    // The option `emulate-pm` chooses the model of PM: the row has costs of its own.
    let is_by_run = options.emulate_pm.as_ref().is_some_and(|speed| speed.starts_with("run"));
    let model = if is_by_run { "run" } else { "line" };
    let measure = |site: &Site, way: &Way, round: usize, sheet: &mut Sheet| {
        places.iter().try_for_each(|place| {
            let speed = format!("{model}:{}:1000000000", place.1);
            let flow = Flow {
                which: place.0,
                order: Order::Even,
                threads: 1,
                size: Size { speed, ..Size::of(options, BUFFER_SHARE) },
            };
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
            sheet.claim("by way of DRAM", "lazy", DIRECT, &name(*place), must);
        }
    };
    run(row, options, &[LAZY, ATOMIC, ORDERED], (&measure, &claims), "personality and cost of a line")
}

/// Row hinfs-11: the size of the buffer.
pub(crate) fn buffers(row: &Row, options: &Options) -> Outcome<()> {
    let loads = [
        (Personality::Fileserver, Order::Even),
        (Personality::Webproxy, Order::Even),
        (Personality::Webproxy, Order::Rotation),
    ];
    let places: Vec<((Personality, Order), u64)> =
        loads.into_iter().flat_map(|load| [10, 20, 40, 70, 100].map(|percent| (load, percent))).collect();
    let name = |((which, order), percent): ((Personality, Order), u64)| match order {
        Order::Even => format!("{} {percent} %", which.name()),
        Order::Rotation => format!("{} {percent} %, in rotation", which.name()),
    };
    let measure = |site: &Site, way: &Way, round: usize, sheet: &mut Sheet| {
        places.iter().try_for_each(|place| {
            let flow = Flow {
                which: place.0.0,
                order: place.0.1,
                threads: 1,
                size: Size::of(options, place.1 as f64 / 100.0),
            };
            flow.measure((site, way, round), (sheet, &name(*place)), options)
        })
    };
    let claims = |sheet: &mut Sheet| {
        for load in loads {
            let (from, to) = (name((load, 10)), name((load, 100)));
            match load.0 {
                Personality::Webproxy => sheet.between("flat", "lazy", (&from, &to), Must::Within(1.1)),
                _ => sheet.between("rises with the buffer", "lazy", (&from, &to), Must::AtLeast(1.25)),
            }
        }
        for place in &places {
            sheet.claim("waits beside a full buffer", LAZY.name, PAST_FULL.name, &name(*place), Must::Shown);
        }
    };
    run(row, options, &[LAZY, PAST_FULL], (&measure, &claims), "personality and buffer by data")
}

/// Measures a way in a round.
type Measure<'a> = &'a dyn Fn(&Site, &Way, usize, &mut Sheet) -> Outcome<()>;

fn run(
    row: &Row,
    options: &Options,
    ways: &[Way],
    (measure, claims): (Measure<'_>, &dyn Fn(&mut Sheet)),
    axis: &'static str,
) -> Outcome<()> {
    let notes = vec![
        "In process, with background threads, PM alone. Files of 128 KiB (webproxy, varmail 16 KiB); bytes that wait at the end \
         are written to PM inside the clock. Series `lines`: lines of PM written for each operation. `direct` is the faster of \
         data=atomic and data=ordered."
            .into(),
    ];
    Comparison { ways, axis, metric: Metric::OperationsPerS, notes, measure, claims }.run(row, options)
}
