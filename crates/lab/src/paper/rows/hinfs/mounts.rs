//! Rows hinfs-mount, hinfs-memory and hinfs-auto: the write buffer of the daemon, through the mount.

use super::jobs::personality_load;
use super::pool::{ATOMIC, DIRECT, LAZY, LAZY_ATOMIC, LAZY_ORDERED, ORDERED, Size, Way};
use super::{BUFFER_SHARE, Comparison};
use crate::paper::rows::maps::sheet::{MapRow, Sheet};
use std::sync::Arc;
use std::time::Duration;
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must};
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_bench::site::mounted::Mounted;
use terrace_bench::site::run::Act;
use terrace_bench::site::subject::{Peer, Subject, Tuning};
use terrace_bench::workload::load::{Kind, Load};
use terrace_bench::workload::personality::{Order, Personality};
use terrace_bench::workload::worker::{Measure, Sync};
use terrace_engine::BufferOptions;
use terrace_runtime::Clock;
use terrace_runtime::sync::atomic::{AtomicBool, Ordering};

/// A mount with PM for all of the data.
pub(super) fn subject(way: &Way, size: &Size) -> Subject {
    Subject {
        label: way.name.into(),
        peer: Peer::Terrace,
        pm_bytes: size.pm_bytes(),
        device_bytes: 64 << 20,
        tuning: way.tuning(size),
        given: None,
    }
}

/// Makes the files of a load on a mount, waits, and runs it; what waits at the end is written to PM inside the clock. Gives
/// the time too.
fn run_load(site: &Site, mounted: &Mounted, load: &Load, idle: Option<Duration>) -> Outcome<(Measure, u64)> {
    site.perform(mounted, load, Act::Populate)?;
    site.write_back(mounted)?;
    if let Some(idle) = idle {
        site.scratch.clock.sleep(idle);
    }
    let measure = site.perform(mounted, load, Act::Run)?.ok_or("a run without a measure")?;
    let begin_ns = site.scratch.now_ns();
    site.write_back(mounted)?;
    let ns = measure.elapsed_ns + (site.scratch.now_ns() - begin_ns);
    Ok((measure, ns))
}

const FILESERVER: &str = "fileserver";
const REWRITES: &str = "64 KiB rewrites, 800 ns";
const SYNCED: &str = "64 KiB rewrites, 800 ns, synced";

/// Rewrites of a file that the buffer can hold.
fn rewrites(size: &Size, options: &Options, sync: Sync) -> Load {
    let io_bytes = 64 << 10;
    let file_bytes = size.data_bytes / 4;
    let kind = Kind::Random { write: true, sync, files: 1, file_bytes, io_bytes, theta: 0.0, single: None };
    let operations = if options.quick { 50 } else { u64::MAX };
    Load { kind, threads: 1, limit_ns: (options.seconds * 1e9) as u64, operations, seed: 1 }
}

/// File systems on memory that is not slowed, beside.
const PEERS: [(&str, Peer); 2] = [("ext4-pm", Peer::Ext4Pm), ("tmpfs", Peer::Tmpfs)];

/// fileserver on the peers.
fn measure_peers(site: &Site, sheet: &mut Sheet, (size, load): (&Size, &Load), round: usize) -> Outcome<()> {
    for (name, peer) in PEERS {
        let subject = Subject {
            label: name.into(),
            peer,
            pm_bytes: size.pm_bytes(),
            device_bytes: 64 << 20,
            tuning: Tuning::default(),
            given: None,
        };
        let mounted = site.mount(&subject, None)?;
        let (measure, ns) = run_load(site, &mounted, load, None)?;
        let rate = measure.operations as f64 / ns.max(1) as f64 * 1e9;
        sheet.add(round, (name, ""), Metric::OperationsPerS, FILESERVER, rate);
        mounted.finish(site)?;
    }
    Ok(())
}

/// Row hinfs-mount.
pub(crate) fn mounts(row: &Row, options: &Options) -> Outcome<()> {
    let size = Size::of(options, BUFFER_SHARE);
    let slow = Size { speed: "line:800:1000000000".into(), ..size.clone() };
    let measure = |site: &Site, way: &Way, round: usize, sheet: &mut Sheet| {
        let fileserver =
            personality_load((Personality::Fileserver, Order::Even), 1, &size, options, round as u64 + 1);
        if way.name == LAZY_ATOMIC.name {
            measure_peers(site, sheet, (&size, &fileserver), round)?;
        }
        let loads = [
            (FILESERVER, &size, fileserver),
            (REWRITES, &slow, rewrites(&size, options, Sync::Never)),
            (SYNCED, &slow, rewrites(&size, options, Sync::Fsync)),
        ];
        for (at, size, load) in loads {
            let mounted = site.mount(&subject(way, size), None)?;
            // The file was synced when it was made: its blocks are eager for as long.
            let idle = (way.is_lazy() && at == REWRITES).then_some(BufferOptions::default().idle);
            let (measure, ns) = run_load(site, &mounted, &load, idle)?;
            let rate = measure.operations as f64 / ns.max(1) as f64 * 1e9;
            sheet.add(round, (way.name, ""), Metric::OperationsPerS, at, rate);
            mounted.finish(site)?;
        }
        Ok(())
    };
    let claims = |sheet: &mut Sheet| {
        for (at, least) in [(FILESERVER, 1.3), (REWRITES, 1.5), (SYNCED, 0.95)] {
            sheet.claim("through the mount", LAZY.name, DIRECT, at, Must::AtLeast(least));
        }
        for (name, _) in PEERS {
            sheet.claim("beside memory that is not slowed", LAZY.name, name, FILESERVER, Must::Shown);
        }
    };
    let notes = vec![
        "Through the mount, one thread, PM for all of the data. fileserver as in hinfs-7. Rewrites: 64 KiB at random places of a \
         file of a quarter of the data, which the buffer can hold, five seconds after the fsync of its making; synced: fsync after \
         each. What waits at the end is written \
         to PM inside the clock. `direct` and `lazy` are the faster of data=atomic and data=ordered. ext4-pm and tmpfs have memory that is not slowed."
            .into(),
    ];
    let (axis, metric) = ("load", Metric::OperationsPerS);
    let ways = &[LAZY_ATOMIC, LAZY_ORDERED, ATOMIC, ORDERED];
    Comparison { ways, axis, metric, notes, measure: &measure, claims: &claims }.run(row, options)
}

/// Anonymous memory of a process.
fn anonymous_bytes(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// The most anonymous memory that a process has until a flag is set.
fn most_anonymous_bytes(clock: &dyn Clock, process: u32, is_done: &AtomicBool) -> u64 {
    let mut most = 0;
    loop {
        // The last look is after the end.
        let is_last = is_done.load(Ordering::Acquire);
        most = most.max(anonymous_bytes(process).unwrap_or(0));
        if is_last {
            return most;
        }
        clock.sleep(Duration::from_millis(5));
    }
}

/// Bounds of the daemon's memory: of the budget, and beside it.
const MOST_OF_BUDGET: f64 = 1.03;
const MOST_BESIDE_BYTES: f64 = 16.0 * 1024.0 * 1024.0;

/// Row hinfs-memory.
pub(crate) fn memory(row: &Row, options: &Options) -> Outcome<()> {
    let size = Size::of(options, BUFFER_SHARE);
    let measure = |site: &Site, way: &Way, round: usize, sheet: &mut Sheet| {
        let load =
            personality_load((Personality::Fileserver, Order::Even), 2, &size, options, round as u64 + 1);
        let mounted = site.mount(&subject(way, &size), None)?;
        let process = mounted.process().ok_or("a mount without a process")?;
        let is_done = Arc::new(AtomicBool::new(false));
        let most = std::thread::scope(|scope| {
            let looks = scope.spawn(|| most_anonymous_bytes(&*site.scratch.clock, process, &is_done));
            let done = run_load(site, &mounted, &load, None);
            is_done.store(true, Ordering::Release);
            let most = looks.join().map_err(|_| "a look at the daemon's memory panicked");
            done.and_then(|_| Ok(most?))
        })?;
        sheet.add(round, (way.name, ""), Metric::MemoryBytes, FILESERVER, most as f64);
        mounted.finish(site)
    };
    let claims = |sheet: &mut Sheet| {
        let most = Must::MoreByAtMost(MOST_OF_BUDGET * size.buffer_bytes as f64 + MOST_BESIDE_BYTES);
        sheet.claim("budget and little more", LAZY.name, ATOMIC.name, FILESERVER, most);
    };
    let notes = vec![format!(
        "RssAnon of the daemon, the most of looks 5 ms apart, while fileserver runs with two threads. The buffer has {} MiB: at \
         most 1.03 times that and 16 MiB more than with lazy=off.",
        size.buffer_bytes >> 20
    )];
    let (axis, metric) = ("load", Metric::MemoryBytes);
    Comparison { ways: &[LAZY, ATOMIC], axis, metric, notes, measure: &measure, claims: &claims }
        .run(row, options)
}

/// A kind of PM for row hinfs-auto.
struct Medium {
    name: &'static str,
    speed: Option<&'static str>,
}

const MEDIA: [Medium; 3] = [
    Medium { name: "plain RAM", speed: None },
    // Its 4 KiB take 2.1 µs: less than a page in DRAM costs beside its stores (row hinfs-13).
    Medium { name: "100 ns a run, 2 GB/s", speed: Some("run:100:2000000000") },
    Medium { name: "200 ns a line", speed: Some("line:200:1000000000") },
];
const MOUNTS: usize = 20;
const AUTO: &str = "lazy=auto";
/// Three measurements take half a second.
const MEASURED_WITHIN: Duration = Duration::from_secs(30);

/// Mounts a new pool with lazy=auto; whether lazy writes are on once PM was measured.
fn is_on(site: &Site, medium: &Medium) -> Outcome<bool> {
    let tuning = Tuning {
        lazy: Some("auto"),
        buffer_bytes: Some(16 << 20),
        emulate_pm: medium.speed.map(String::from),
        ..Tuning::default()
    };
    let subject = Subject {
        label: "auto".into(),
        peer: Peer::Terrace,
        pm_bytes: 64 << 20,
        device_bytes: 64 << 20,
        tuning,
        given: None,
    };
    let mounted = site.mount(&subject, None)?;
    let end_ns = site.scratch.now_ns() + MEASURED_WITHIN.as_nanos() as u64;
    let status = loop {
        let status = site.status(&mounted)["dram"]["lazy"].take();
        if status["pm_line_ns"].is_number() {
            break status;
        }
        if site.scratch.now_ns() > end_ns {
            return Err("persistent memory was not measured".into());
        }
        site.scratch.clock.sleep(Duration::from_millis(20));
    };
    let is_on = status["on"].as_bool().ok_or("a status without dram.lazy.on")?;
    mounted.finish(site)?;
    Ok(is_on)
}

/// Row hinfs-auto.
pub(crate) fn auto(row: &Row, options: &Options) -> Outcome<()> {
    let count = if options.quick { 2 } else { MOUNTS };
    let measure = |site: &Site, medium: &Medium, round: usize, sheet: &mut Sheet| {
        let mut on = 0;
        for _ in 0..count {
            site.teardown.go_on()?;
            on += usize::from(is_on(site, medium)?);
        }
        sheet.add(round, (medium.name, ""), Metric::Mounts, AUTO, on as f64);
        Ok(())
    };
    let claims = |sheet: &mut Sheet| {
        let [ram, runs, slow] = MEDIA.each_ref().map(|medium| medium.name);
        sheet.claim("off in each mount", ram, "", AUTO, Must::Never(0.0));
        sheet.claim("off in each mount", runs, "", AUTO, Must::Never(0.0));
        // A mean of logarithms may fall short of a count by rounding.
        sheet.claim("on in each mount", slow, "", AUTO, Must::AtLeast(count as f64 - 0.5));
    };
    let notes = vec![format!(
        "In each round {count} new pools are mounted; the figure counts those with lazy writes on."
    )];
    let row_of_media = MapRow {
        axis: "option",
        metric: Metric::Mounts,
        maps: MEDIA.into(),
        data_bytes: options.dataset_bytes,
        notes,
        measure: &measure,
        claims: &claims,
    };
    row_of_media.run(row, options)
}
