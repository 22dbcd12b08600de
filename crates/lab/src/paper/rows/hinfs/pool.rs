//! A pool of emulated PM alone, mounted in this process with its background threads.

use super::super::maps::sheet::PoolFile;
use std::sync::Arc;
use terrace_bench::comparison::options::Options;
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_bench::site::subject::Tuning;
use terrace_bench::workload::local::LocalTarget;
use terrace_bench::workload::target::FileTarget;
use terrace_engine::{
    Background, BufferOptions, Engine, FormatOptions, LazyAblation, LazyOption, MountOptions, PolicyKind,
    PoolMedia, format, read_superblock,
};
use terrace_format::map_kind::MapKind;
use terrace_media::pm::{Delayed, EmulatedPm, PmSpeed, RamPm};
use terrace_runtime::Clock;

/// A way of writes into PM.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub(super) name: &'static str,
    lazy: LazyOption,
    ablation: LazyAblation,
    ordered: bool,
}

/// By the choice for each block.
pub(super) const LAZY: Way =
    Way { name: "lazy", lazy: LazyOption::On, ablation: LazyAblation::Nothing, ordered: false };
/// As [`LAZY`], beside [`LAZY_ORDERED`].
pub(super) const LAZY_ATOMIC: Way = Way { name: "lazy, atomic", ..LAZY };
/// As [`LAZY`], and eager blocks are overwritten in place.
pub(super) const LAZY_ORDERED: Way = Way { name: "lazy, ordered", ordered: true, ..LAZY };
/// HiNFS-WB.
pub(super) const ALWAYS: Way = Way { name: "always lazy", ablation: LazyAblation::Always, ..LAZY };
/// HiNFS-NCLFW.
pub(super) const BLOCKS: Way = Way { name: "whole blocks", ablation: LazyAblation::Blocks, ..LAZY };
/// A write without room in a full buffer goes the direct way at once.
pub(super) const PAST_FULL: Way =
    Way { name: "lazy, past a full buffer", ablation: LazyAblation::PastFull, ..LAZY };
/// Blocks without a sync are lazy, as published.
pub(super) const PUBLISHED: Way =
    Way { name: "published first states", ablation: LazyAblation::Published, ..LAZY };
pub(super) const ATOMIC: Way = Way { name: "direct, atomic", lazy: LazyOption::Off, ..LAZY };
pub(super) const ORDERED: Way = Way { name: "direct, ordered", ordered: true, ..ATOMIC };
/// The faster of [`ATOMIC`] and [`ORDERED`].
pub(super) const DIRECT: &str = "direct";

impl Way {
    pub(super) fn is_lazy(&self) -> bool {
        self.lazy == LazyOption::On
    }

    /// The same of a mount of the daemon, which knows no ablation.
    pub(super) fn tuning(&self, size: &Size) -> Tuning {
        Tuning {
            lazy: Some(if self.is_lazy() { "on" } else { "off" }),
            buffer_bytes: Some(size.buffer_bytes),
            data: Some(if self.ordered { "ordered" } else { "atomic" }),
            emulate_pm: Some(size.speed.clone()),
            ..Tuning::default()
        }
    }
}

/// Speed and sizes of a pool.
#[derive(Debug, Clone)]
pub(super) struct Size {
    /// As the mount option `emulate-pm` has it.
    pub(super) speed: String,
    pub(super) data_bytes: u64,
    pub(super) buffer_bytes: u64,
}

/// PM by the data.
const PM_SHARE: f64 = 2.5;
/// The least bytes of PM.
const LEAST_PM_BYTES: u64 = 128 << 20;
/// 200 ns for a line, 1 GB/s ([HiNFS] section 5.1).
const SPEED: &str = "line:200:1000000000";

impl Size {
    /// By the options of the row, with a buffer of a share of the data.
    pub(super) fn of(options: &Options, buffer_share: f64) -> Size {
        let data_bytes = if options.quick { 8 << 20 } else { options.dataset_bytes };
        let buffer_bytes = ((data_bytes as f64 * buffer_share) as u64).next_multiple_of(4096);
        let speed = options.emulate_pm.clone().unwrap_or_else(|| SPEED.into());
        Size { speed, data_bytes, buffer_bytes }
    }

    pub(super) fn pm_bytes(&self) -> u64 {
        ((self.data_bytes as f64 * PM_SHARE) as u64).max(LEAST_PM_BYTES).next_multiple_of(1 << 20)
    }
}

/// The cost of a run.
pub(super) struct Taken {
    pub(super) ns: u64,
    pub(super) pm: Delayed,
    /// Bytes of files that were stored to PM.
    pub(super) data_bytes: u64,
}

/// A mounted pool.
pub(super) struct LazyPool {
    pub(super) fs: Arc<Engine>,
    pub(super) pm: Arc<EmulatedPm>,
    background: Background,
    _file: PoolFile,
}

impl LazyPool {
    pub(super) fn create(site: &Site, way: &Way, size: &Size) -> Outcome<LazyPool> {
        let file = PoolFile::new(site, "pool")?;
        let memory = Arc::new(RamPm::create(&file.path, size.pm_bytes())?);
        let options = FormatOptions {
            map: MapKind::Radix,
            label: "hinfs".into(),
            uuid: [1; 16],
            hash_key: [2; 16],
            seal_secret: Some([3; 16]),
            policy: PolicyKind::PREDICTIVE,
            data_ordered: way.ordered,
            data_checksums: false,
            chunk_blocks: 4096,
            created_ns: 1,
            root: Default::default(),
            devices: Vec::new(),
        };
        format(&PoolMedia { pm: memory.clone(), block: Vec::new() }, &options)?;
        let (superblock, _) = read_superblock(&*memory, true)?;
        let clock = site.scratch.clock.clone();
        let pm = Arc::new(EmulatedPm::new(memory, PmSpeed::parse(&size.speed)?, clock.clone()));
        let options = MountOptions {
            buffer: BufferOptions {
                lazy: way.lazy,
                ablation: way.ablation,
                ..BufferOptions::of(size.buffer_bytes)
            },
            ..MountOptions::default()
        };
        let media = PoolMedia { pm: pm.clone(), block: Vec::new() };
        let fs = Engine::mount(media, superblock, options, clock)?;
        let background = fs.start_background()?;
        Ok(LazyPool { fs, pm, background, _file: file })
    }

    /// The files of the pool.
    pub(super) fn target(&self) -> Arc<dyn FileTarget> {
        Arc::new(LocalTarget::new(self.fs.clone(), None))
    }

    /// Bytes of files that were stored to PM since the mount.
    fn stored_bytes(&self) -> Outcome<u64> {
        Ok(self.fs.io_report()?.tiers.first().map_or(0, |pm| pm.sums.write_bytes))
    }

    /// Does a job. What it leaves in DRAM is written to PM inside the clock.
    pub(super) fn timed<T>(
        &self,
        clock: &Arc<dyn Clock>,
        job: impl FnOnce() -> Outcome<T>,
    ) -> Outcome<(T, Taken)> {
        let (before, stored) = (self.pm.delayed(), self.stored_bytes()?);
        let begin_ns = clock.monotonic_ns();
        let done = job()?;
        self.fs.sync()?;
        let ns = (clock.monotonic_ns() - begin_ns).max(1);
        let after = self.pm.delayed();
        let pm = Delayed {
            lines: after.lines - before.lines,
            bytes: after.bytes - before.bytes,
            waited_ns: after.waited_ns - before.waited_ns,
        };
        Ok((done, Taken { ns, pm, data_bytes: self.stored_bytes()? - stored }))
    }

    /// Unmounts.
    pub(super) fn finish(self) -> Outcome<()> {
        drop(self.background);
        Ok(self.fs.unmount()?)
    }
}
