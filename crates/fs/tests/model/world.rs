//! One run: the pool, the reference beside it, and what happens between operations: background work,
//! migrations with operations in their middle, remounts, crashes.

use crate::media::Media;
use crate::ops::Op;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use terrace_format::Ino;
use terrace_fs::{
    DeviceClass, FormatOptions, Fs, MountOptions, NewDevice, PolicyKind, Wait, format, read_superblock,
};
use terrace_reference::{Allocate, Change, Id, Limits, New, ROOT, Reference, Stamp};
use terrace_runtime::{Clock, ManualClock};

/// One kind of run.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    pub name: &'static str,
    /// Operations of the run.
    pub operations: u64,
    /// 0: no lower tier.
    pub device_blocks: u64,
    pub data_ordered: bool,
    pub policy: PolicyKind,
    pub promote_first_touch: bool,
    /// PM use above which blocks go down.
    pub threshold_percent: u8,
    /// File blocks that the run tries not to exceed.
    pub most_blocks: u64,
    pub files: usize,
    pub directories: usize,
    /// Different names in use.
    pub names: usize,
    /// ENOSPC is expected; otherwise at most one operation in a hundred may meet it.
    pub fills: bool,
}

/// What a run did.
#[derive(Debug, Default)]
pub struct Counts {
    pub operations: u64,
    /// Operations on the content of files.
    pub file_operations: u64,
    /// Of them, those with a demoted or shadowed block in their range.
    pub met_cold: u64,
    /// Operations done while a migration waited for its device.
    pub amid_migration: u64,
    pub no_space: u64,
    pub would_block: u64,
    pub remounts: u64,
    pub crashes: u64,
    pub crashes_amid_background: u64,
    pub crashes_amid_mount: u64,
    pub demoted_bytes: u64,
    pub promoted_bytes: u64,
    pub clean_evicted_bytes: u64,
    pub skipped_bytes: u64,
}

pub struct World {
    pub config: Config,
    pub rng: SmallRng,
    pub media: Media,
    pub clock: Arc<ManualClock>,
    pub fs: Option<Arc<Fs>>,
    pub model: Reference,
    /// The engine's number and generation of each inode.
    pub numbers: BTreeMap<Id, (Ino, u32)>,
    /// The newest generation seen of each number.
    pub generations: BTreeMap<u64, u32>,
    pub lookups: BTreeMap<Id, u64>,
    pub opens: BTreeMap<Id, u64>,
    pub cookies: BTreeMap<(Id, Vec<u8>), u64>,
    pub hot: Option<Id>,
    /// Operations go through the second lane.
    pub second_lane: bool,
    pub counts: Counts,
    pub log: VecDeque<String>,
    /// Blocks in use in the empty pool.
    fresh_blocks: u64,
}

const START_NS: u64 = 1_700_000_000_000_000_000;

impl World {
    pub fn new(config: Config, seed: u64) -> World {
        let mut media = Media::new(2 << 20, config.device_blocks);
        let device = NewDevice { tier: 1, class: DeviceClass::Ssd, uuid: [1; 16], path: "/tier1".into() };
        let options = FormatOptions {
            label: "model".into(),
            uuid: [7; 16],
            hash_key: seed.to_le_bytes().repeat(2).try_into().unwrap_or([0; 16]),
            policy: config.policy,
            data_ordered: config.data_ordered,
            chunk_blocks: 16,
            created_ns: START_NS as i64,
            root: Default::default(),
            devices: if config.device_blocks > 0 { vec![device] } else { Vec::new() },
        };
        let superblock = format(&media.pool(), &options).unwrap();
        media.grow_old(&superblock.geometry());
        // What the smallest lanes can record.
        let limits = Limits { target_bytes: 2048, xattr_bytes: 2048, ..Limits::default() };
        let mut world = World {
            config,
            rng: SmallRng::seed_from_u64(seed),
            media,
            clock: Arc::new(ManualClock::new(START_NS)),
            fs: None,
            model: Reference::new(limits, true, Stamp::at(START_NS as i64)),
            numbers: BTreeMap::from([(ROOT, (Ino(1), 1))]),
            generations: BTreeMap::from([(1, 1)]),
            lookups: BTreeMap::new(),
            opens: BTreeMap::new(),
            cookies: BTreeMap::new(),
            hot: None,
            second_lane: false,
            counts: Counts::default(),
            log: VecDeque::new(),
            fresh_blocks: 0,
        };
        world.fs = Some(world.mount());
        let space = world.fs().statfs(Wait::Allowed).unwrap();
        world.fresh_blocks = space.blocks - space.free;
        world
    }

    pub fn fs(&self) -> &Arc<Fs> {
        self.fs.as_ref().expect("mounted")
    }

    pub fn note(&mut self, what: String) {
        if self.log.len() == 50 {
            self.log.pop_front();
        }
        self.log.push_back(what);
    }

    fn mount(&self) -> Arc<Fs> {
        let (superblock, warning) = read_superblock(&*self.media.pm, true).unwrap();
        assert_eq!(warning, None);
        let options = MountOptions {
            threshold_percent: Some(self.config.threshold_percent),
            promote_first_touch: self.config.promote_first_touch,
            // Small, so that cached pages are evicted and prefetched ones expire.
            cache_bytes: 2 << 20,
            group_bytes: 256 << 10,
            ..MountOptions::default()
        };
        let clock: Arc<dyn Clock> = self.clock.clone();
        Fs::mount(self.media.pool(), superblock, options, clock).unwrap()
    }

    /// Does the whole run.
    pub fn run(&mut self) {
        while self.counts.operations < self.config.operations {
            match self.rng.random_range(0..4000) {
                0..=199 => self.background(),
                200..=229 => self.background_with_operations(),
                230..=233 => self.sync_down(),
                234..=236 => self.remount(),
                237..=246 => self.crash(),
                247..=249 => self.compare_all(),
                250..=299 => {
                    let pause = Duration::from_millis(self.rng.random_range(1..3000));
                    self.clock.advance(pause);
                }
                _ => {
                    let op = self.choose();
                    self.operate(op, Wait::Allowed, "");
                }
            }
        }
        self.note("the end: compare, remount, remove everything".into());
        self.compare_all();
        self.remount();
        self.remove_everything();
    }

    fn background(&mut self) {
        // Mostly partial, so that victims stay picked and orphans half removed.
        let limit = *[1, 1, 2, 5, 200].get(self.rng.random_range(0..5)).unwrap_or(&1);
        self.note(format!("run_background({limit})"));
        self.clock.advance(Duration::from_millis(20));
        self.fs().run_background(limit);
    }

    /// Background work that stops wherever it is about to use the device, for some operations.
    fn background_with_operations(&mut self) {
        let limit = self.rng.random_range(1..20);
        let drain = self.config.device_blocks > 0 && self.rng.random_ratio(1, 4);
        self.note(format!("run_background({limit}), drain {drain}, with operations amid:"));
        self.clock.advance(Duration::from_millis(20));
        let (fs, gate) = (self.fs().clone(), self.media.gate.clone());
        let work = || {
            if drain {
                // It may fail for lack of space in the pool that the test fills.
                let _ = fs.sync_to(1, &mut |_| {});
            } else {
                fs.run_background(limit);
            }
        };
        gate.beside(work, || {
            for _ in 0..self.rng.random_range(0..6) {
                let mut op = self.choose();
                if let Op::Write { length, .. } = &mut op {
                    // The second piece of a longer one may wait.
                    *length = (*length).min(50 * 4096);
                }
                let punches = matches!(op, Op::Fallocate { mode: Allocate::PunchHole, .. });
                if punches && self.config.data_ordered {
                    // One edge may be zeros in place when the other has to wait; the kernel asks again.
                    continue;
                }
                // What would wait for the migration is for another time; reads wait for the device only.
                let waits = matches!(op, Op::Read { .. });
                self.counts.amid_migration += 1;
                self.operate(op, if waits { Wait::Allowed } else { Wait::Never }, "  amid: ");
            }
        });
    }

    fn sync_down(&mut self) {
        if self.config.device_blocks == 0 {
            assert_eq!(self.fs().sync_to(1, &mut |_| {}).map_err(|e| e.errno()), Err(libc::EINVAL));
            return;
        }
        self.note("sync_to(1)".into());
        match self.fs().sync_to(1, &mut |_| {}) {
            Ok(()) => {
                let ids: Vec<Id> = self.model.nodes().map(|(id, _)| id).collect();
                for id in ids {
                    let found = self.fs().whereabouts(self.ino(id)).unwrap();
                    // What is still in PM has its copy below (or was never written).
                    let unwritten = self.unwritten_blocks(id) * 4096;
                    assert!(found.tiers[0].1 <= found.clean_bytes + unwritten, "{id:?}: {found:?}");
                }
            }
            Err(error) => assert!(self.config.fills && error.errno() == libc::ENOSPC, "sync_to: {error}"),
        }
    }

    fn end_mount(&mut self) {
        let report = self.fs().status().unwrap().migration;
        self.counts.demoted_bytes += report.demoted_bytes;
        self.counts.promoted_bytes += report.promoted_bytes;
        self.counts.clean_evicted_bytes += report.clean_evicted_bytes;
        self.counts.skipped_bytes += report.skipped_bytes;
        self.fs = None;
    }

    /// Unmounts, checks, mounts and compares.
    fn remount(&mut self) {
        self.note("remount".into());
        self.counts.remounts += 1;
        self.fs().unmount().unwrap();
        self.end_mount();
        self.assert_clean();
        self.forget_volatile();
        let fs = self.mount();
        assert!(fs.status().unwrap().recovery.clean);
        self.fs = Some(fs);
        self.compare_all();
    }

    /// Nobody refers to anything after a mount; inodes without a name are gone.
    fn forget_volatile(&mut self) {
        self.model.drop_references();
        self.lookups.clear();
        self.opens.clear();
        self.forget_gone();
    }

    /// Drops what the test kept of inodes that are gone.
    pub fn forget_gone(&mut self) {
        let model = &self.model;
        self.numbers.retain(|id, _| model.node(*id).is_ok());
        self.cookies.retain(|(id, _), _| model.node(*id).is_ok());
    }

    #[track_caller]
    fn assert_clean(&self) {
        let report = self.media.check();
        assert!(report.is_clean(), "check: {:#?}", report.findings);
    }

    /// Drops the mount without unmounting, takes any of the images that the media may hold, checks, mounts
    /// and compares: every operation had returned, so every image must hold it.
    fn crash(&mut self) {
        self.counts.crashes += 1;
        let reuse = self.rng.random_ratio(1, 2);
        if reuse {
            self.reuse();
        }
        let amid = !reuse && self.rng.random_ratio(1, 2);
        if amid {
            let now = self.media.clock.now();
            self.media.clock.set_crash_at(Some(now + self.rng.random_range(0..200)));
            self.clock.advance(Duration::from_millis(20));
            if self.config.device_blocks > 0 && self.rng.random_ratio(1, 4) {
                let _ = self.fs().sync_to(1, &mut |_| {});
            } else {
                self.fs().run_background(30);
            }
            self.counts.crashes_amid_background += 1;
        }
        let seed = self.rng.random();
        self.note(format!("crash, amid background work: {amid}, image {seed:#x}"));
        let moment = self.media.moment();
        self.end_mount();
        self.media = Media::after(&moment, seed);
        self.forget_volatile();
        while self.rng.random_ratio(1, 3) {
            self.counts.crashes_amid_mount += 1;
            let now = self.media.clock.now();
            self.media.clock.set_crash_at(Some(now + self.rng.random_range(0..60)));
            let fs = self.mount();
            fs.run_background(self.rng.random_range(0..20));
            let seed = self.rng.random();
            self.note(format!("crash amid recovery, image {seed:#x}"));
            let moment = self.media.moment();
            drop(fs);
            self.media = Media::after(&moment, seed);
        }
        self.assert_clean();
        self.fs = Some(self.mount());
        self.compare_all();
    }

    /// Frees blocks and asks for new ones at once, through both lanes: records that are still above the
    /// checkpoint name or write what is now free (T6). Ends with one of these ways, so that the crash
    /// finds those records.
    fn reuse(&mut self) {
        self.note("blocks freed and wanted again at once:".into());
        for _ in 0..self.rng.random_range(1..4) {
            let (old, new) = (self.file(), self.file());
            let blocks = self.size_of(old) / 4096;
            match self.rng.random_range(0..3) {
                // Map nodes come and go.
                0 => {
                    let (size, far) = (self.size_of(old), self.rng.random_range(512..1100));
                    self.rewrite(old, blocks.max(far), 1);
                    let change = Change { size: Some(size), ..Change::default() };
                    self.operate(Op::SetAttributes { id: old, change }, Wait::Allowed, "  reuse: ");
                }
                // One of two blocks that a record names by checksum; the record stays its lane's last.
                1 => {
                    self.second_lane = !self.second_lane;
                    self.rewrite(old, blocks, 2);
                    self.second_lane = !self.second_lane;
                    self.rewrite(old, blocks, 1);
                }
                // The last name of a directory, and with it a page of the catalog.
                _ => {
                    let (directory, name) = (self.directory(), b"alone".to_vec());
                    let owner = (0, 0);
                    let make = Op::Make { directory, name: name.clone(), new: New::Directory(0o755), owner };
                    self.operate(make, Wait::Allowed, "  reuse: ");
                    let remove = Op::Remove { directory, name, as_directory: true };
                    self.operate(remove, Wait::Allowed, "  reuse: ");
                }
            }
            for _ in 0..self.rng.random_range(1..4) {
                let (first, count) = (self.rng.random_range(0..8), self.rng.random_range(1..3));
                self.rewrite(new, first, count);
            }
        }
        self.second_lane = false;
    }

    /// Writes whole blocks.
    fn rewrite(&mut self, id: Id, first: u64, blocks: u64) {
        let seed = self.rng.random();
        let (offset, length) = (first * 4096, blocks as usize * 4096);
        let write = Op::Write { id, offset, length, seed, kill_set_id: false, sync: false };
        self.operate(write, Wait::Allowed, "  reuse: ");
    }

    /// Removes every name and sees that all space comes back (I6, I7).
    fn remove_everything(&mut self) {
        let mut left: Vec<Id> = vec![ROOT];
        let mut names: Vec<(Id, Vec<u8>, bool)> = Vec::new();
        while let Some(id) = left.pop() {
            let entries = self.model.node(id).ok().and_then(|node| node.entries()).cloned();
            for (name, child) in entries.unwrap_or_default() {
                let directory = self.model.node(child).is_ok_and(|node| node.is_directory());
                names.push((id, name, directory));
                if directory {
                    left.push(child);
                }
            }
        }
        for (directory, name, as_directory) in names.into_iter().rev() {
            self.operate(Op::Remove { directory, name, as_directory }, Wait::Allowed, "");
        }
        self.fs().run_background(10_000);
        let status = self.fs().status().unwrap();
        for tier in &status.tiers[1..] {
            assert_eq!(tier.used_bytes, 0, "blocks of an empty file system below PM");
        }
        let space = self.fs().statfs(Wait::Allowed).unwrap();
        let used = space.blocks - space.free;
        // The inode file does not shrink; 32 inodes share a page.
        let inodes = (self.config.files + self.config.directories) as u64 / 8 + 16;
        assert!(used <= self.fresh_blocks + inodes, "{used} blocks of an empty file system are in use");
        self.fs().unmount().unwrap();
        self.end_mount();
        self.assert_clean();
    }

    pub fn ino(&self, id: Id) -> Ino {
        self.numbers.get(&id).map_or(Ino(0), |(ino, _)| *ino)
    }
}
