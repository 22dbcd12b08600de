//! Row journal-stalled: a device stops answering for a while.

use super::{MEMORY_SHARE, small};
use crate::paper::rows::maps::sheet::{MapRow, Sheet};
use rustix::process::{Pid, Signal, kill_process};
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must, Scale};
use terrace_bench::comparison::{Row, scale};
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_bench::site::mounted::Mounted;
use terrace_bench::site::run::Act;
use terrace_bench::site::subject::{Journal, Peer, Tuning};
use terrace_bench::workload::load::{Kind, Load};
use terrace_bench::workload::worker::Sync;

const DATA_BYTES: u64 = 128 << 20;
const STALLED: &str = "stalled";
const UNSTALLED: &str = "unstalled";

/// A device that stalls, and the operation that goes on.
#[derive(Clone, Copy)]
struct Stall {
    at: &'static str,
    /// Class of the journal's device.
    journal: &'static str,
    /// Class of tier 1.
    tier: &'static str,
    write: bool,
    metric: Metric,
}

const STALLS: [Stall; 2] = [
    Stall {
        at: "fsync, tier 1 stalls",
        journal: "host",
        tier: "ssd",
        write: true,
        metric: Metric::P99LatencyNs,
    },
    Stall {
        at: "read, the journal stalls",
        journal: "ssd",
        tier: "host",
        write: false,
        metric: Metric::NsPerOperation,
    },
];

/// The stopped server of an emulated device; the server goes on at the drop.
struct Stopped(Pid);

impl Stopped {
    fn new(process: u32) -> Outcome<Stopped> {
        let process = Pid::from_raw(process as i32).ok_or("a device without a process")?;
        kill_process(process, Signal::STOP)?;
        Ok(Stopped(process))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // The server may have died: then its device is gone, and the run fails.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

fn load(scale: &Scale, stall: &Stall, round: usize) -> Load {
    let file_bytes = scale.dataset_bytes / 4;
    let sync = if stall.write { Sync::Fsync } else { Sync::Never };
    let (write, io_bytes) = (stall.write, 4096);
    let kind = Kind::Random { write, sync, files: 1, file_bytes, io_bytes, theta: 0.0, single: None };
    Load { seed: round as u64 + 1, ..scale.load(kind, 1) }
}

/// The server of the only emulated device of a subject.
fn server(mounted: &Mounted) -> Outcome<u32> {
    Ok(mounted.device_processes().next().ok_or("a subject without an emulated device")?)
}

/// Row journal-stalled.
pub(crate) fn stalled(row: &Row, options: &Options) -> Outcome<()> {
    let scale = small(&scale(options), DATA_BYTES);
    let measure = |site: &Site, stall: &Stall, round: usize, sheet: &mut Sheet| {
        let journal =
            Journal { class: Some(stall.journal), tier_class: Some(stall.tier), ..Journal::default() };
        let tuning = Tuning { journal: Some(journal), ..Tuning::default() };
        let subject = scale.subject("local", Peer::Local, MEMORY_SHARE, tuning);
        let mounted = site.mount(&subject, None)?;
        let load = load(&scale, stall, round);
        site.perform(&mounted, &load, Act::Populate)?;
        // The first run is not counted.
        site.perform(&mounted, &load, Act::Run)?;
        for series in if round.is_multiple_of(2) { [UNSTALLED, STALLED] } else { [STALLED, UNSTALLED] } {
            site.perform(&mounted, &load, Act::Settle)?;
            let stopped = (series == STALLED).then(|| Stopped::new(server(&mounted)?)).transpose()?;
            let measure = site.perform(&mounted, &load, Act::Run)?.ok_or("a run without a measure")?;
            drop(stopped);
            sheet.add(round, (series, ""), stall.metric, stall.at, stall.metric.of(&measure, 1));
        }
        mounted.finish(site)
    };
    let claims = |sheet: &mut Sheet| {
        for stall in STALLS {
            sheet.claim("a stalled device is not felt", STALLED, UNSTALLED, stall.at, Must::AtMost(1.05));
        }
    };
    let notes = vec![
        "In this process, one thread, 4 KiB at random places of a file in tier 0. The device that stalls is an emulated SSD whose \
         server is stopped for the whole figure; the other device is a file of the disk. fsync: 99th percentile; read: mean."
            .into(),
    ];
    let stalls = MapRow {
        axis: "operation",
        metric: Metric::P99LatencyNs,
        maps: STALLS.into(),
        data_bytes: scale.dataset_bytes,
        notes,
        measure: &measure,
        claims: &claims,
    };
    stalls.run(row, options)
}
