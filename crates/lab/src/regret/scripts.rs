//! The loads of row regret and their recording, on files without data, since a trace has no data.

use crate::regret::steps::Steps;
use std::io;
use std::path::Path;
use std::sync::Arc;
use terrace_bench::comparison::plan::Scale;
use terrace_bench::trace::{Event, Recorder};
use terrace_bench::workload::load::{Kind, Load};
use terrace_bench::workload::personality::{Order, Personality};
use terrace_bench::workload::programs::{RocksDb, Sqlite};
use terrace_bench::workload::sizes::SizesTarget;
use terrace_bench::workload::target::FileTarget;
use terrace_bench::workload::worker::Sync;
use terrace_runtime::Clock;

/// Rest between the making of the files and the measured part, after which every file is write-cold as a
/// whole.
pub(crate) const REST_NS: u64 = 60_000_000_000;

/// A trace.
pub(crate) struct Traced {
    pub name: &'static str,
    pub events: Vec<Event>,
    /// Events that make the files.
    pub populated: usize,
    pub steps: Steps,
}

/// A piece of a trace.
enum Part {
    Load(Load),
    /// A file read from begin to end by 1 MiB.
    Scan(String),
    /// The small files of this range in directory `clone`, made and never synced.
    Clone(std::ops::Range<u64>),
    /// Number of transactions; seed.
    Sqlite(Sqlite, u64, u64),
    /// Number of memtables, point reads during each; seed.
    RocksDb(RocksDb, u64, u64, u64),
}

/// The parts of a trace.
pub(crate) struct Script {
    pub name: &'static str,
    parts: Vec<Part>,
}

impl Part {
    fn populate(&self, target: &dyn FileTarget) -> io::Result<()> {
        match self {
            Part::Load(load) => load.populate(target),
            Part::Scan(_) => Ok(()),
            Part::Sqlite(sqlite, ..) => sqlite.populate(target),
            Part::RocksDb(rocksdb, ..) => rocksdb.populate(target),
            Part::Clone(_) => target.make_directory("clone"),
        }
    }

    fn perform(&self, target: &Arc<dyn FileTarget>, clock: &Arc<dyn Clock>) -> io::Result<()> {
        match self {
            Part::Load(load) => load.run(target, clock).map(|_| ()),
            Part::Sqlite(sqlite, transactions, seed) => sqlite.run(&**target, *transactions, *seed),
            Part::RocksDb(rocksdb, memtables, reads, seed) => {
                rocksdb.run(&**target, *memtables, *reads, *seed)
            }
            Part::Scan(path) => {
                let (mut file, mut at) = (target.open(path, false)?, 0);
                let mut piece = vec![0; 1 << 20];
                loop {
                    match file.read_at(&mut piece, at)? {
                        0 => return Ok(()),
                        bytes => at += bytes as u64,
                    }
                }
            }
            Part::Clone(numbers) => numbers.clone().try_for_each(|number| {
                let mut file = target.open(&format!("clone/{number}"), true)?;
                file.write_at(&vec![0x21; 2000 + (number as usize * 977) % 14_000], 0, false)
            }),
        }
    }
}

fn load(kind: Kind, operations: u64, seed: u64) -> Part {
    Part::Load(Load { kind, threads: 1, limit_ns: u64::MAX, operations, seed })
}

/// Parameters that differ between recordings of the same loads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Variant {
    pub name: &'static str,
    /// The order in which personalities take files.
    order: Order,
    /// Locality of random requests: [TPFS table 3].
    theta: f64,
    /// Added to every seed.
    seed: u64,
}

/// The figures of the first variant count. The further variants show the influence of the seed and of the
/// file order.
pub(crate) const VARIANTS: [Variant; 3] = [
    Variant { name: "as filebench", order: Order::Rotation, theta: 0.88, seed: 0 },
    Variant { name: "other seeds, θ 0.71", order: Order::Rotation, theta: 0.71, seed: 1000 },
    Variant { name: "files drawn evenly", order: Order::Even, theta: 0.88, seed: 0 },
];

/// Turns of a personality: some rounds through its files.
fn turns(which: Personality) -> u64 {
    match which {
        Personality::Fileserver | Personality::FileserverWhole | Personality::Webserver => 300,
        Personality::Webproxy => 40_000,
        Personality::Varmail => 20_000,
    }
}

/// The scripts of all traces.
pub(crate) fn scripts(scale: &Scale, variant: Variant) -> Vec<Script> {
    let (share, requests, rounds) = if scale.quick { (100, 200, 2) } else { (1, 60_000, 8) };
    let (data, seed) = (scale.dataset_bytes, variant.seed);
    let part = |share: u64| Scale { dataset_bytes: data / share, ..*scale };
    let random = |write, sync, file_bytes| {
        let theta = variant.theta;
        Kind::Random { write, sync, files: 1, file_bytes, io_bytes: 4096, theta, single: None }
    };
    let files = |scale: &Scale, which| match scale.personality(which, false) {
        Kind::Personality { which, files, file_bytes, sync_every_write, .. } => {
            Kind::Personality { which, files, file_bytes, sync_every_write, order: variant.order }
        }
        kind => kind,
    };
    let personality = |which: Personality| Script {
        name: which.name(),
        parts: vec![load(files(scale, which), (turns(which) / share).max(3), 1 + seed)],
    };
    let taking_turns = |name, of: &dyn Fn(u64) -> Vec<Part>| Script {
        name,
        parts: (1 + seed..=rounds + seed).flat_map(of).collect(),
    };
    let two = |name, kind: Kind| Script {
        name,
        parts: vec![load(kind.clone(), requests, 1 + seed), load(kind, requests, 2 + seed)],
    };
    let few = requests / 10;
    let copy_and_scan = |round: u64| {
        vec![
            load(random(true, Sync::Flag, data / 2), few, round),
            load(Kind::Bulk { file_bytes: data / 8 }, 1, round),
            load(random(false, Sync::Never, data / 2), few, round),
            Part::Scan("random/0".into()),
        ]
    };
    let mix = |round: u64| {
        vec![
            load(files(&part(3), Personality::Varmail), turns(Personality::Varmail) / 8 / share, round),
            load(Kind::Bulk { file_bytes: (data / 24).max(1 << 20) }, 2, round),
            load(random(true, Sync::Fsync, data / 3), few / 4, round),
            load(Kind::AppendSync { bytes: 4096 }, few / 8, round),
            Part::Clone(round * few / 30..(round + 1) * few / 30),
        ]
    };
    let rocksdb = RocksDb { table_bytes: data / 64, tables: 48 };
    vec![
        personality(Personality::Fileserver),
        personality(Personality::Webserver),
        personality(Personality::Webproxy),
        personality(Personality::Varmail),
        two("random read", random(false, Sync::Never, data)),
        two("random write", random(true, Sync::Flag, data)),
        taking_turns("copy and scan", &copy_and_scan),
        taking_turns("mix", &mix),
        Script {
            name: "sqlite",
            parts: vec![Part::Sqlite(Sqlite { file_bytes: data }, requests / 6, 1 + seed)],
        },
        Script {
            name: "rocksdb",
            parts: vec![Part::RocksDb(rocksdb, if scale.quick { 2 } else { 24 }, requests / 10, 1 + seed)],
        },
    ]
}

impl Script {
    /// Makes the files on a target and runs the parts; gives the number of events that made the files.
    ///
    /// # Errors
    /// Errors of the target.
    pub fn perform(
        &self,
        target: &Arc<dyn FileTarget>,
        recorder: &Recorder,
        clock: &Arc<dyn Clock>,
    ) -> io::Result<usize> {
        self.parts.iter().try_for_each(|part| part.populate(&**target))?;
        let populated = recorder.count() as usize;
        self.parts.iter().try_for_each(|part| part.perform(target, clock))?;
        Ok(populated)
    }

    /// Records the script; `path` is a temporary file.
    ///
    /// # Errors
    /// Errors of the file; an impossible operation of the script.
    pub fn record(&self, path: &Path, clock: &Arc<dyn Clock>) -> io::Result<Traced> {
        let recorder = Arc::new(Recorder::create(path, clock.clone())?);
        let target: Arc<dyn FileTarget> = Arc::new(SizesTarget::new(recorder.clone()));
        let populated = self.perform(&target, &recorder, clock)?;
        drop(target);
        recorder.finish()?;
        let events = terrace_bench::trace::read(path)?;
        std::fs::remove_file(path)?;
        let steps = Steps::of(&events, populated, REST_NS);
        Ok(Traced { name: self.name, events, populated, steps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every script is single-threaded and bounded by turns, so every run gives the same trace.
    #[test]
    fn scripts_repeat() {
        for quick in [false, true] {
            let scale = Scale { dataset_bytes: 512 << 20, limit_ns: 1, quick, fio: false };
            let scripts = scripts(&scale, VARIANTS[0]);
            assert_eq!(scripts.len(), 10);
            for part in scripts.iter().flat_map(|script| &script.parts) {
                let Part::Load(load) = part else { continue };
                let Load { threads, limit_ns, operations, .. } = load;
                assert!(*threads == 1 && *limit_ns == u64::MAX && *operations > 0 && *operations < 1 << 20);
            }
        }
    }
}
