//! A pool of emulated PM alone, mounted in this process with its background threads.

use super::super::maps::sheet::PoolFile;
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_bench::workload::local::LocalTarget;
use terrace_bench::workload::target::FileTarget;
use terrace_engine::{
    Background, BufferOptions, Engine, FormatOptions, LazyAblation, LazyOption, MountOptions, PolicyKind,
    PoolMedia, format, read_superblock,
};
use terrace_format::map_kind::MapKind;
use terrace_media::pm::{EmulatedPm, PmSpeed, RamPm};

/// A way of writes into PM.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub(super) name: &'static str,
    lazy: LazyOption,
    ablation: LazyAblation,
    ordered: bool,
}

/// The ways that are compared.
pub(super) const WAYS: [Way; 4] = [
    Way { name: "lazy", lazy: LazyOption::On, ablation: LazyAblation::Nothing, ordered: false },
    Way { name: "always lazy", lazy: LazyOption::On, ablation: LazyAblation::Always, ordered: false },
    Way { name: "direct", lazy: LazyOption::Off, ablation: LazyAblation::Nothing, ordered: false },
    Way { name: "direct, ordered", lazy: LazyOption::Off, ablation: LazyAblation::Nothing, ordered: true },
];

/// A mounted pool.
pub(super) struct LazyPool {
    pub(super) fs: Arc<Engine>,
    pub(super) pm: Arc<EmulatedPm>,
    background: Background,
    _file: PoolFile,
}

impl LazyPool {
    pub(super) fn create(
        site: &Site,
        way: &Way,
        speed: &str,
        pm_bytes: u64,
        buffer_bytes: u64,
    ) -> Outcome<LazyPool> {
        let file = PoolFile::new(site, "pool")?;
        let memory = Arc::new(RamPm::create(&file.path, pm_bytes)?);
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
        let pm = Arc::new(EmulatedPm::new(memory, PmSpeed::parse(speed)?, clock.clone()));
        let options = MountOptions {
            buffer: BufferOptions {
                lazy: way.lazy,
                ablation: way.ablation,
                ..BufferOptions::of(buffer_bytes)
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

    /// Unmounts.
    pub(super) fn finish(self) -> Outcome<()> {
        drop(self.background);
        Ok(self.fs.unmount()?)
    }
}
