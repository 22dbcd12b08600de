//! Every load, tiny, in process and on a directory. Loads are bounded by operations, and tests drive the
//! clock, so no result depends on time.

use crate::regret::scripts::{REST_NS, VARIANTS, scripts};
use crate::regret::steps::Steps;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use terrace_bench::comparison::plan::Scale;
use terrace_bench::trace::{self, Recorder};
use terrace_bench::workload::anticache::NameOperation;
use terrace_bench::workload::burst::Arrivals;
use terrace_bench::workload::directory::Directory;
use terrace_bench::workload::load::{Kind, Load};
use terrace_bench::workload::local::LocalTarget;
use terrace_bench::workload::personality::{Order, Personality};
use terrace_bench::workload::synced::SyncedFlow;
use terrace_bench::workload::target::FileTarget;
use terrace_bench::workload::worker::{Measure, Sync};
use terrace_engine::{
    DeviceClass, Engine, FormatOptions, MountOptions, NewDevice, Parameters, PolicyKind, PoolMedia,
};
use terrace_media::block::SimulatedDevice;
use terrace_media::pm::RamPm;
use terrace_runtime::{Clock, ManualClock};

/// A directory in memory if possible: syncfs of a busy disk takes long.
fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::new(1_700_000_000_000_000_000))
}

/// A small pool in memory that never migrates.
fn pool(directory: &Path) -> Arc<Engine> {
    mount_with(directory, MountOptions::default())
}

fn mount_with(directory: &Path, mounted: MountOptions) -> Arc<Engine> {
    let media = PoolMedia {
        pm: Arc::new(RamPm::create(directory.join("pm"), 48 << 20).unwrap()),
        block: vec![Arc::new(SimulatedDevice::new(4096))],
    };
    let device = NewDevice { tier: 1, class: DeviceClass::Ssd, uuid: [1; 16], path: "/tier".into() };
    let options = FormatOptions {
        map: Default::default(),
        label: "bench".into(),
        uuid: [7; 16],
        hash_key: [9; 16],
        seal_secret: Some([9; 16]),
        policy: PolicyKind::STATIC,
        data_ordered: false,
        data_checksums: false,
        chunk_blocks: 16,
        created_ns: 0,
        root: Default::default(),
        devices: vec![device],
    };
    terrace_engine::format(&media, &options).unwrap();
    let (superblock, _) = terrace_engine::read_superblock(&*media.pm, true).unwrap();
    Engine::mount(media, superblock, mounted, clock()).unwrap()
}

fn loads() -> Vec<Load> {
    let load = |kind: Kind, threads| Load { kind, threads, limit_ns: u64::MAX, operations: 7, seed: 3 };
    let mut all = Vec::new();
    for which in Personality::ALL {
        for sync_every_write in [false, true] {
            let order = if sync_every_write { Order::Rotation } else { Order::Even };
            let kind = Kind::Personality { which, files: 6, file_bytes: 40 << 10, sync_every_write, order };
            all.push(load(kind, 2));
        }
    }
    for (write, sync) in [(false, Sync::Never), (true, Sync::Flag), (true, Sync::Fsync)] {
        let (file_bytes, io_bytes) = (64 << 10, 4096);
        let kind = Kind::Random { write, sync, files: 2, file_bytes, io_bytes, theta: 0.9, single: None };
        all.push(load(kind, 2));
    }
    for arrivals in [Arrivals::Closed, Arrivals::PerSecond(1e4)] {
        all.push(load(Kind::Burst { bytes: 80 << 10, arrivals }, 2));
    }
    for scan in [false, true] {
        all.push(load(Kind::Commits { cold_bytes: (1 << 20) + 5000, scan }, 3));
    }
    for (append, cold) in [(false, false), (true, true)] {
        all.push(load(Kind::Small { append, cold }, 1));
    }
    for write in [false, true] {
        all.push(load(Kind::Whole { bytes: (6 << 20) + 4096, write }, 1));
    }
    for (flow, threads) in [
        (SyncedFlow::CreateAndRemove, 2),
        (SyncedFlow::Sequential { io_bytes: 8192, file_bytes: 64 << 10 }, 2),
        (SyncedFlow::Overwrite { file_bytes: 64 << 10, streams: false }, 2),
        (SyncedFlow::Overwrite { file_bytes: 64 << 10, streams: true }, 3),
    ] {
        all.push(load(Kind::Synced { flow, files: threads }, threads));
    }
    all.push(load(Kind::AppendSync { bytes: 1000 }, 1));
    all.push(load(Kind::Bulk { file_bytes: (1 << 20) + 5000 }, 1));
    all.push(load(Kind::Hotness { files: 14, file_bytes: 8 << 10, hot: 6 }, 1));
    for operation in NameOperation::ALL.into_iter().filter(|it| *it != NameOperation::Unlink16M) {
        all.push(load(Kind::Names { operation }, 2));
    }
    all
}

fn run_all(target: Arc<dyn FileTarget>) -> Vec<Measure> {
    let run = |load: &Load| {
        let done = load.populate(&*target).and_then(|()| {
            // The second run begins with the files that the first run left.
            load.run(&target, &clock())?;
            load.run(&target, &clock())
        });
        done.unwrap_or_else(|error| panic!("{load:?}: {error}"))
    };
    loads().iter().map(run).collect()
}

/// Row dram-reads promotes from PM into DRAM, so its files must begin in PM. Large asynchronous writes go to
/// a lower tier if PM has little room; synchronous writes go to PM.
#[test]
fn files_filled_durably_begin_in_pm() {
    let below = |sync: Sync| {
        let scratch = scratch();
        let parameters = Parameters { large_pm_percent: Some(0), ..Parameters::default() };
        let options =
            MountOptions { policy: Some(PolicyKind::PREDICTIVE), parameters, ..MountOptions::default() };
        let fs = mount_with(scratch.path(), options);
        let target = LocalTarget::new(fs.clone(), None);
        let (file_bytes, io_bytes) = (12 << 20, 4096);
        let kind =
            Kind::Random { write: false, sync, files: 1, file_bytes, io_bytes, theta: 0.0, single: None };
        Load { kind, threads: 1, limit_ns: 1, operations: 1, seed: 1 }.populate(&target).unwrap();
        fs.status().unwrap().placement.unwrap().block_home_bytes
    };
    assert_eq!(below(Sync::Flag), 0);
    assert!(below(Sync::Never) > 0);
}

#[test]
fn loads_do_the_same_in_process_and_on_a_directory() {
    let scratch = scratch();
    let root = scratch.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let here = run_all(Arc::new(LocalTarget::new(pool(scratch.path()), None)));
    let there = run_all(Arc::new(Directory::new(&root)));
    for ((load, a), b) in loads().iter().zip(&here).zip(&there) {
        // The scanning or streaming thread counts no operations.
        let streams =
            matches!(&load.kind, Kind::Synced { flow: SyncedFlow::Overwrite { streams: true, .. }, .. });
        let scanning = u64::from(streams || matches!(load.kind, Kind::Commits { scan: true, .. }));
        assert!(a.operations >= 7 * (load.threads - scanning), "{load:?}: {a:?}");
        assert_eq!((a.bytes_scanned > 0, a.failed), (scanning > 0, 0), "{load:?}");
        let counts = |measure: &Measure| (measure.operations, measure.bytes_read, measure.bytes_written);
        assert_eq!(counts(a), counts(b), "{load:?}");
    }
}

/// Rounds can be compared only if a flow keeps number and sizes of its files.
#[test]
fn personalities_keep_number_and_sizes_of_files() {
    let scratch = scratch();
    // The mean sizes that each flow leaves in the long run.
    for (which, mean, order) in [
        (Personality::Fileserver, 64 << 10, Order::Even),
        (Personality::Webserver, 64 << 10, Order::Even),
        (Personality::Webproxy, 8 << 10, Order::Even),
        (Personality::Varmail, 32 << 10, Order::Even),
        (Personality::Varmail, 32 << 10, Order::Rotation),
    ] {
        let kind = Kind::Personality { which, files: 20, file_bytes: mean, sync_every_write: false, order };
        let load = Load { kind, threads: 2, limit_ns: u64::MAX, operations: 200, seed: 3 };
        let name = format!("{}-{order:?}", which.name());
        let base = Directory::new(&scratch.path().join(&name));
        std::fs::create_dir(scratch.path().join(&name)).unwrap();
        let target: Arc<dyn FileTarget> = Arc::new(base);
        load.populate(&*target).unwrap();
        load.run(&target, &clock()).unwrap();
        let names = target.list("d0").unwrap();
        assert_eq!(names.len(), 16, "{}", which.name());
        let sizes = names.iter().map(|name| target.size(&format!("d0/{name}")).unwrap());
        let average = sizes.sum::<u64>() / 16;
        assert!((mean / 2..mean * 2).contains(&average), "{}: {average}", which.name());
    }
}

/// Rows run several personalities on one file system: varmail's f20 to f39 lie in the directory of
/// fileserver's f0 to f19, and fileserver must not take them.
#[test]
fn personalities_share_directories_but_no_files() {
    let scratch = scratch();
    let target: Arc<dyn FileTarget> = Arc::new(Directory::new(scratch.path()));
    let load = |which, files| {
        let order = Order::Even;
        let kind = Kind::Personality { which, files, file_bytes: 4096, sync_every_write: false, order };
        Load { kind, threads: 1, limit_ns: u64::MAX, operations: 100, seed: 3 }
    };
    let all = [load(Personality::Fileserver, 40), load(Personality::Varmail, 60)];
    for load in &all {
        load.populate(&*target).unwrap();
    }
    // Flows delete and create names; in the second run each flow begins with the names that exist.
    for load in all.iter().chain(&all) {
        load.run(&target, &clock()).unwrap();
    }
}

#[test]
fn an_impossible_load_is_refused() {
    let scratch = scratch();
    let target: Arc<dyn FileTarget> = Arc::new(Directory::new(scratch.path()));
    let kind = Kind::AppendSync { bytes: 1 };
    for threads in [0, 1000] {
        let load = Load { kind: kind.clone(), threads, limit_ns: 1, operations: 1, seed: 0 };
        assert!(load.run(&target, &clock()).is_err());
    }
    let load = Load { kind, threads: 1, limit_ns: 1, operations: 1, seed: 0 };
    assert!(load.run(&target, &clock()).is_err(), "its directory was not made");
}

/// Replay of a recorded load on a new pool repeats its operations.
#[test]
fn a_recorded_load_replays() {
    let first = scratch();
    let path = first.path().join("trace");
    let recorder = Arc::new(Recorder::create(&path, clock()).unwrap());
    let kind = Kind::Personality {
        which: Personality::Varmail,
        files: 4,
        file_bytes: 20 << 10,
        sync_every_write: false,
        order: Order::Rotation,
    };
    let load = Load { kind, threads: 1, limit_ns: u64::MAX, operations: 10, seed: 1 };
    let target: Arc<dyn FileTarget> = Arc::new(LocalTarget::new(pool(first.path()), Some(recorder.clone())));
    load.populate(&*target).unwrap();
    load.run(&target, &clock()).unwrap();
    drop(target);
    let noted = recorder.finish().unwrap();
    let events = trace::read(&path).unwrap();
    assert_eq!(events.len() as u64, noted);
    let syncs = events.iter().filter(|event| event.kind == trace::Kind::Fsync).count();
    assert_eq!(syncs, 20, "two in each turn");
    let again = scratch();
    let target = LocalTarget::new(pool(again.path()), None);
    assert_eq!(trace::replay(&events, &target).unwrap(), noted);
}

/// Row regret records on files without data: the trace must equal a trace of a file system in process.
#[test]
fn a_trace_on_sizes_equals_a_trace_of_the_file_system() {
    let scale = Scale { dataset_bytes: 4 << 20, limit_ns: u64::MAX, quick: true, fio: false };
    for script in scripts(&scale, VARIANTS[0]) {
        let directory = scratch();
        let traced = script.record(&directory.path().join("sizes"), &clock()).unwrap();
        let path = directory.path().join("local");
        let recorder = Arc::new(Recorder::create(&path, clock()).unwrap());
        let fs = pool(directory.path());
        let target: Arc<dyn FileTarget> = Arc::new(LocalTarget::new(fs, Some(recorder.clone())));
        let populated = script.perform(&target, &recorder, &clock()).unwrap();
        drop(target);
        recorder.finish().unwrap();
        let events = trace::read(&path).unwrap();
        let kinds =
            |events: &[trace::Event]| -> Vec<_> { events.iter().map(|it| (it.kind, it.sync)).collect() };
        assert_eq!((kinds(&events), populated), (kinds(&traced.events), traced.populated), "{}", script.name);
        // Inode numbers differ, because the file system uses them again; steps number the lives of files
        // instead.
        assert!(Steps::of(&events, populated, REST_NS) == traced.steps, "{}", script.name);
        assert!(traced.steps.list.len() > 40, "{}", script.name);
    }
}
