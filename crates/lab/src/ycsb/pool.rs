//! A pool of PM alone, mounted in this process.
//!
//! All writes go to PM: there is no lower tier, no write waits in DRAM, and DRAM has no room for clean pages. So each
//! access asks the file map.

use std::path::Path;
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_bench::workload::local::LocalTarget;
use terrace_bench::workload::target::FileTarget;
use terrace_engine::{
    Background, BufferOptions, Engine, FormatOptions, MountOptions, PolicyKind, PoolMedia, format,
    read_superblock,
};
use terrace_map::MapRow;
use terrace_media::PmMedium;
use terrace_media::pm::{EmulatedPm, PmSpeed, RamPm};
use terrace_runtime::Clock;

/// DRAM for clean pages: too little for any.
const CACHE_BYTES: u64 = 32 << 10;

/// A mounted pool. Dropping stops its threads; [`Pool::finish`] also gives the errors of the unmount.
pub(crate) struct Pool {
    fs: Arc<Engine>,
    background: Background,
}

impl Pool {
    /// Makes and mounts a pool in a new file.
    ///
    /// # Errors
    /// When the file exists or is too small for a pool, or when the mount fails.
    pub(crate) fn create(
        path: &Path,
        bytes: u64,
        map: &MapRow,
        speed: Option<PmSpeed>,
        clock: &Arc<dyn Clock>,
    ) -> Outcome<Pool> {
        let memory = Arc::new(RamPm::create(path, bytes)?);
        let options = FormatOptions {
            map: map.kind,
            label: "ycsb".into(),
            uuid: [1; 16],
            hash_key: [2; 16],
            seal_secret: Some([3; 16]),
            policy: PolicyKind::STATIC,
            data_ordered: false,
            data_checksums: false,
            chunk_blocks: 4096,
            created_ns: 1,
            root: Default::default(),
            devices: Vec::new(),
        };
        format(&PoolMedia { pm: memory.clone(), block: Vec::new() }, &options)?;
        let pm: Arc<dyn PmMedium> = match speed {
            Some(speed) => Arc::new(EmulatedPm::new(memory, speed, clock.clone())),
            None => memory,
        };
        Pool::mount(pm, clock)
    }

    fn mount(pm: Arc<dyn PmMedium>, clock: &Arc<dyn Clock>) -> Outcome<Pool> {
        let (superblock, _) = read_superblock(&*pm, true)?;
        let media = PoolMedia { pm, block: Vec::new() };
        let options = MountOptions {
            buffer: BufferOptions::of(0),
            cache_bytes: CACHE_BYTES,
            ..MountOptions::default()
        };
        let fs = Engine::mount(media, superblock, options, clock.clone())?;
        let background = fs.start_background()?;
        Ok(Pool { fs, background })
    }

    /// The files of the pool.
    pub(crate) fn target(&self) -> Arc<dyn FileTarget> {
        Arc::new(LocalTarget::new(self.fs.clone(), None))
    }

    /// Unmounts.
    ///
    /// # Errors
    /// The unmount's.
    pub(crate) fn finish(self) -> Outcome<()> {
        drop(self.background);
        Ok(self.fs.unmount()?)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::PathBuf;
    use tempfile::TempDir;
    use terrace_runtime::SystemClock;

    /// A pool in a directory of its own.
    pub(crate) struct Scratch {
        pub(crate) pool: Pool,
        directory: TempDir,
    }

    pub(crate) fn pool(map: &MapRow, bytes: u64) -> Scratch {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let pool = Pool::create(&path(&directory), bytes, map, None, &clock()).unwrap();
        Scratch { pool, directory }
    }

    fn path(directory: &TempDir) -> PathBuf {
        directory.path().join("pm")
    }

    fn clock() -> Arc<dyn Clock> {
        Arc::new(SystemClock::default())
    }

    impl Scratch {
        pub(crate) fn mounted_again(self) -> Scratch {
            let Scratch { pool, directory } = self;
            pool.finish().unwrap();
            let pm = Arc::new(RamPm::open(path(&directory), false).unwrap());
            Scratch { pool: Pool::mount(pm, &clock()).unwrap(), directory }
        }
    }

    #[test]
    fn a_pool_has_the_given_map() {
        for row in terrace_map::MAPS {
            let Scratch { pool, directory } = pool(row, 32 << 20);
            pool.finish().unwrap();
            let pm = RamPm::open(path(&directory), false).unwrap();
            let (superblock, _) = read_superblock(&pm, true).unwrap();
            assert_eq!(superblock.map, row.kind.id(), "{}", row.name);
        }
    }
}
