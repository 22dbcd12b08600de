//! Rows tpfs-8, -9, -10, zig-4r, -4w: fio's random reads and writes of 4 KiB.

use super::{ALL, both, subjects};
use crate::paper::plan::{Cell, Metric, Must, Plan, Scale, Work};
use crate::site::peer::{Peer, Tuning};
use crate::site::programs::Program;
use crate::workload::load::{Kind, Sync};

/// [TPFS table 3].
const LOCALITIES: [(f64, &str); 5] =
    [(1.04, "90/10"), (0.88, "80/20"), (0.71, "70/30"), (0.44, "60/40"), (0.0, "50/50")];
/// The publications have 32 and 20, each with a file of its own.
const THREADS: u64 = 4;

fn kind(scale: &Scale, write: bool, theta: f64) -> Kind {
    let sync = if write { Sync::Flag } else { Sync::Never };
    let file_bytes = scale.dataset_bytes / THREADS;
    Kind::Random { write, sync, files: THREADS, file_bytes, io_bytes: 4096, theta, single: None }
}

fn localities(scale: &Scale, write: bool, cache_share: f64) -> Plan {
    let cache = (scale.dataset_bytes as f64 * cache_share) as u64;
    let mut plan = Plan::new(Metric::OperationsPerS, "locality", cache);
    let shares = [(1.0 / 16.0, "6%"), (0.25, "25%"), (ALL, "200%")];
    subjects(&mut plan, scale, &shares, cache);
    // The floor of the FUSE path: a file of 4 MiB that holds nothing.
    plan.subjects.push(scale.subject("null", Peer::Null, ALL, Tuning::default()));
    for (theta, name) in LOCALITIES.iter().take(if scale.quick { 1 } else { 5 }) {
        plan.point(scale, -theta, *name, &kind(scale, write, *theta), THREADS);
        if scale.fio {
            with_fio(&mut plan, scale, write, *theta, name);
        }
    }
    plan.notes.push(format!("{THREADS} threads, a private file each; θ in the order of the axis 1.04 to 0."));
    plan
}

/// The same by fio, on what has a directory: its files beside those of the own generator.
fn with_fio(plan: &mut Plan, scale: &Scale, write: bool, theta: f64, at: &str) {
    let program = Program::Fio {
        write,
        theta: format!("{theta}"),
        files: THREADS,
        file_bytes: scale.dataset_bytes / THREADS,
        milliseconds: scale.limit_ns / 1_000_000,
    };
    for (subject, found) in plan.subjects.iter().enumerate() {
        if !matches!(found.peer, Peer::Local | Peer::Null) {
            let (series, work) = (format!("{} (fio)", found.label), Work::Program(program.clone()));
            plan.cells.push(Cell { subject, series, x: -theta, at: at.to_string(), work });
        }
    }
}

fn reads(scale: &Scale, cache_share: f64) -> Plan {
    let mut plan = localities(scale, false, cache_share);
    both(&mut plan, "PM-rich is as fast as PM alone", "200%", "pm-only", Must::AtLeast(0.98));
    plan.claim("a little PM against data journalling", "terrace 6%", "ext4-dj", Must::Shown);
    plan
}

fn writes(scale: &Scale, cache_share: f64) -> Plan {
    let mut plan = localities(scale, true, cache_share);
    both(&mut plan, "PM-rich is as fast as PM alone", "200%", "pm-only", Must::AtLeast(0.98));
    plan.claim("never below data journalling", "terrace 6%", "ext4-dj", Must::AtLeast(1.0));
    plan.claim("never below the external log", "terrace 6%", "xfs-ml", Must::AtLeast(1.0));
    plan
}

/// 16 of 32 GB of DRAM.
pub(crate) fn tpfs_reads(scale: &Scale) -> Plan {
    reads(scale, 0.5)
}
pub(crate) fn tpfs_writes(scale: &Scale) -> Plan {
    writes(scale, 0.5)
}
/// 10 of 32 GB.
pub(crate) fn ziggurat_reads(scale: &Scale) -> Plan {
    reads(scale, 0.31)
}
pub(crate) fn ziggurat_writes(scale: &Scale) -> Plan {
    writes(scale, 0.31)
}

/// PM fixed, DRAM from twice the data to a sixteenth of it.
pub(crate) fn sensitivity(scale: &Scale) -> Plan {
    let mut plan = Plan::new(Metric::OperationsPerS, "DRAM cache of the data", scale.dataset_bytes * 2);
    let shares = [(2.0, "200%"), (1.0, "100%"), (0.5, "50%"), (0.25, "25%"), (0.0625, "6%")];
    for (share, text) in shares.iter().take(if scale.quick { 1 } else { shares.len() }) {
        let cache_bytes = Some((scale.dataset_bytes as f64 * share) as u64);
        let tuning = Tuning { cache_bytes, ..Tuning::default() };
        for (peer, name) in [(Peer::Terrace, "terrace"), (Peer::Local, "local")] {
            let subject = plan.subjects.len();
            plan.subjects.push(scale.subject(format!("{name} cache {text}"), peer, 1.25, tuning.clone()));
            for (write, what) in [(false, "read"), (true, "write")] {
                let work = Work::Load(scale.load(kind(scale, write, 0.71), THREADS));
                let (series, at) = (format!("{name} {what}"), (*text).to_string());
                plan.cells.push(Cell { subject, series, x: *share, at, work });
            }
        }
    }
    plan.notes.push("PM is 125 % of the data (published: 400 %), locality 70/30.".to_string());
    plan
}
