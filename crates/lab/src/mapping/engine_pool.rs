//! A pool of PM alone, mounted in this process with a map under test. The caller drives background work, in a single
//! thread: a figure depends on nobody's turn, and maps of the laboratory need no locks.
//!
//! All writes go to PM, and DRAM has no room for clean pages: a request asks the file map.

use super::contestant::Contestant;
use super::page_cache::PageCachedPm;
use std::io;
use std::path::Path;
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_bench::workload::local::LocalTarget;
use terrace_bench::workload::target::{FileTarget, OpenedFile};
use terrace_engine::{
    BufferOptions, Engine, FormatOptions, MountOptions, PolicyKind, PoolMedia, Simulation, format,
    mount_with_map, read_superblock,
};
use terrace_media::PmMedium;
use terrace_media::pm::{EmulatedPm, PmSpeed, RamPm};
use terrace_runtime::Clock;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// DRAM for clean pages: too little for any.
const CACHE_BYTES: u64 = 32 << 10;
/// Removals of names after which the content is removed.
const REMOVALS: u64 = 16;
const STEPS: usize = 1 << 10;

/// A mounted pool.
pub(crate) struct EnginePool {
    pub(crate) fs: Arc<Engine>,
    pub(crate) memory: Arc<RamPm>,
}

impl EnginePool {
    /// Makes and mounts a pool in a new file.
    ///
    /// # Errors
    /// When the file exists or is too small for a pool, or when the mount fails.
    pub(crate) fn create(
        path: &Path,
        bytes: u64,
        map: &Contestant,
        speed: Option<PmSpeed>,
        clock: &Arc<dyn Clock>,
    ) -> Outcome<EnginePool> {
        let memory = Arc::new(RamPm::create(path, bytes)?);
        let options = FormatOptions {
            map: map.kind,
            label: "maps".into(),
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
        let (superblock, _) = read_superblock(&*memory, true)?;
        let mut pm: Arc<dyn PmMedium> = memory.clone();
        if let Some(speed) = speed {
            pm = Arc::new(EmulatedPm::new(pm, speed, clock.clone()));
        }
        if map.is_page_cached {
            pm = Arc::new(PageCachedPm::new(pm, superblock.geometry()));
        }
        let options = MountOptions {
            buffer: BufferOptions::of(0),
            cache_bytes: CACHE_BYTES,
            ..MountOptions::default()
        };
        let media = PoolMedia { pm, block: Vec::new() };
        let fs = mount_with_map(media, superblock, options, clock.clone(), map.make)?;
        fs.run_background(1 << 20);
        Ok(EnginePool { fs, memory })
    }

    /// The files of the pool.
    pub(crate) fn target(&self) -> Arc<dyn FileTarget> {
        let files = LocalTarget::new(self.fs.clone(), None);
        Arc::new(Stepping { files, fs: self.fs.clone(), removals: AtomicU64::new(0) })
    }

    /// Unmounts.
    ///
    /// # Errors
    /// The unmount's.
    pub(crate) fn finish(self) -> Outcome<()> {
        Ok(self.fs.unmount()?)
    }
}

/// Files whose removals the calling thread finishes.
struct Stepping {
    files: LocalTarget,
    fs: Arc<Engine>,
    removals: AtomicU64,
}

impl FileTarget for Stepping {
    fn make_directory(&self, path: &str) -> io::Result<()> {
        self.files.make_directory(path)
    }
    fn remove_directory(&self, path: &str) -> io::Result<()> {
        self.files.remove_directory(path)
    }
    fn open(&self, path: &str, create: bool) -> io::Result<Box<dyn OpenedFile>> {
        self.files.open(path, create)
    }
    fn unlink(&self, path: &str) -> io::Result<()> {
        self.files.unlink(path)?;
        if self.removals.fetch_add(1, Ordering::Relaxed) % REMOVALS == REMOVALS - 1 {
            self.fs.run_background(STEPS);
        }
        Ok(())
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.files.rename(from, to)
    }
    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        self.files.link(from, to)
    }
    fn symlink(&self, text: &str, path: &str) -> io::Result<()> {
        self.files.symlink(text, path)
    }
    fn change_mode(&self, path: &str, mode: u32) -> io::Result<()> {
        self.files.change_mode(path, mode)
    }
    fn size(&self, path: &str) -> io::Result<u64> {
        self.files.size(path)
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.files.list(path)
    }
    fn settle(&self) -> io::Result<()> {
        self.files.settle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::contestant::{level_hash, page_cached, registered};
    use crate::mapping::picks::Picks;
    use std::collections::BTreeMap;
    use terrace_runtime::SystemClock;

    /// Files as they must be read, by name.
    type Model = BTreeMap<String, Vec<u8>>;

    fn act(target: &dyn FileTarget, model: &mut Model, picks: &mut Picks) {
        let name = format!("f{}", picks.below(8));
        match picks.below(8) {
            0 if model.remove(&name).is_some() => target.unlink(&name).unwrap(),
            1 => {
                let size = picks.below(200_000);
                target.open(&name, true).unwrap().set_size(size).unwrap();
                model.entry(name).or_default().resize(size as usize, 0);
            }
            _ => {
                let (at, length) = (picks.below(300_000) as usize, 1 + picks.below(40_000) as usize);
                let bytes: Vec<u8> = (0..length).map(|index| (index as u64 + picks.below(2)) as u8).collect();
                target.open(&name, true).unwrap().write_at(&bytes, at as u64, true).unwrap();
                let file = model.entry(name).or_default();
                file.resize(file.len().max(at + length), 0);
                file[at..at + length].copy_from_slice(&bytes);
            }
        }
    }

    /// Files have the written content with the maps of the laboratory and of the registry.
    #[test]
    fn files_of_every_map_have_the_written_content() {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        for map in registered().chain(page_cached()).chain([level_hash()]) {
            let path = directory.path().join(map.name);
            let pool = EnginePool::create(&path, 16 << 20, &map, None, &clock).unwrap();
            let (target, mut model, mut picks) = (pool.target(), Model::new(), Picks::new(3));
            for _ in 0..600 {
                act(&*target, &mut model, &mut picks);
            }
            for (name, content) in &model {
                let mut found = vec![1; content.len() + 1];
                let length = target.open(name, false).unwrap().read_at(&mut found, 0).unwrap();
                assert!(found[..length] == **content, "{}: {name}", map.name);
            }
            drop(target);
            pool.finish().unwrap();
            std::fs::remove_file(path).unwrap();
        }
    }
}
