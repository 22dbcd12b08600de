//! A pool and the reference beside it: media, mount, and the engine's numbers of the reference's inodes.
//!
//! `happen` runs the actions of a history, `power` loses power and judges the images, `operate` runs
//! operations on both and compares.

use crate::action::Fault;
use crate::bounds;
use crate::config::{BASE, Config, Counts};
use crate::descriptors::Descriptors;
use crate::media::{Media, Setup};
use crate::power::Crash;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use terrace_check::{Code, Severity};
use terrace_engine::{
    Atime, DeviceClass, Engine, FormatOptions, FsError, InPlace, MountOptions, NewDevice, Simulation, Wait,
    format, read_superblock,
};
use terrace_format::Ino;
use terrace_reference::{CrashState, Id, Limits, Op, ROOT, Reference, Stamp, Torn};
use terrace_runtime::{Clock, ManualClock, Step, narrow};

/// The work that may run at an interleaving point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nesting {
    /// No work.
    None,
    /// Operations that need not wait.
    Operations,
    /// Operations and, except at device flushes, other background work.
    Background,
}

/// A pool under test, the reference, and the state of the run.
pub struct World {
    pub config: Config,
    pub rng: SmallRng,
    pub media: Media,
    pub clock: Arc<ManualClock>,
    pub fs: Option<Arc<Engine>>,
    pub model: Reference,
    /// The engine's number and generation of each inode.
    pub numbers: BTreeMap<Id, (Ino, u32)>,
    /// The newest generation seen of each number.
    pub generations: BTreeMap<u64, u32>,
    pub lookups: BTreeMap<Id, u64>,
    pub opens: BTreeMap<Id, u64>,
    pub cookies: BTreeMap<(Id, Vec<u8>), u64>,
    pub hot: Option<Id>,
    pub counts: Counts,
    pub log: VecDeque<String>,
    pub crash: Crash,
    pub nesting: Nesting,
    /// The time at which the last operation ended.
    pub last_end: i64,
    pub asked_cookie: u64,
    /// Until background work has ended more blocks may be in use than the reference says.
    pub lenient: bool,
    /// The bytes that the crash may have torn.
    pub torn: Option<Torn>,
    /// A device lied about a flush and then lost power.
    pub may_be_damaged: bool,
    pub depth: usize,
    /// Inodes of the operations in whose middle other operations run.
    pub under_way: Vec<Id>,
    /// The fault in force.
    pub fault: Option<Fault>,
    /// The devices that have the fault, or had the last one.
    pub failing: Vec<usize>,
    pub lied: bool,
    /// On PM where only `persist` makes durable: the states since the last persist.
    pub unpersisted: Vec<CrashState>,
    /// Bytes of PM that the last mount read before it answered.
    pub mount_read: Cell<u64>,
    /// Hashes of the judged images.
    pub seen: Rc<RefCell<HashSet<u64>>>,
    pub steps: Vec<Option<Box<dyn Step>>>,
    /// Blocks in use in the empty pool.
    pub fresh_blocks: u64,
    /// A mount after a crash is being judged: files with waiting writes are taken over as the mount shows
    /// them.
    pub settling: bool,
    /// Descriptors, and the errors that they must be told.
    pub descriptors: Descriptors,
    /// A tier pin that files may have besides the reference's, while a job changes tier pins.
    pub pins_unsure: Option<Option<u8>>,
    /// The operation that ran last at an interleaving point of the operation under way, and the point.
    pub last_amid: Option<(&'static str, Op)>,
    /// The outermost operation under way, and the time at which it began.
    pub alone: Option<(Op, i64)>,
    /// Actions after which leaks could have been judged.
    pub quiet_moments: u64,
    /// The end of the last read.
    pub last_read: Option<(Id, u64)>,
    /// The end of the last write.
    pub last_write: Option<(Id, u64)>,
}

/// A world in which operations can run in the middle of each other.
pub type Shared = Rc<RefCell<World>>;

/// The most dirty bytes in DRAM.
pub const DIRTY_BYTES: u64 = 256 << 10;
const START_NS: u64 = 1_700_000_000_000_000_000;

/// The options of mkfs.
pub fn format_options(config: Config, uuid: [u8; 16], hash_key: [u8; 16]) -> FormatOptions {
    let device = |(index, (tier, _)): (usize, (u8, u64))| NewDevice {
        tier,
        class: DeviceClass::Ssd,
        uuid: [index as u8 + 1; 16],
        path: format!("/device{index}").into(),
    };
    FormatOptions {
        label: "simulated".into(),
        uuid,
        hash_key,
        seal_secret: Some([11; 16]),
        policy: config.policy,
        data_ordered: config.data_ordered,
        data_checksums: config.data_checksums,
        chunk_blocks: 16,
        created_ns: START_NS as i64,
        root: Default::default(),
        devices: config.devices().into_iter().enumerate().map(device).collect(),
    }
}

impl World {
    /// A new pool.
    pub fn new(config: Config, hash_seed: u64, setup: Setup) -> Shared {
        let setup = Setup { persist_only: config.persist_only, ..setup };
        let mut media = Media::new(2 << 20, config.devices().into_iter().map(|(_, blocks)| blocks), &setup);
        let hash_key = hash_seed.to_le_bytes().repeat(2).try_into().unwrap_or([0; 16]);
        let options = format_options(config, [7; 16], hash_key);
        let superblock = format(&media.pool(), &options).unwrap();
        media.grow_old(&superblock.geometry());
        // The largest values that records in the smallest lanes can hold.
        let limits = Limits { target_bytes: 2048, xattr_bytes: 2048, ..Limits::default() };
        let clock = Arc::new(ManualClock::new(START_NS));
        let mut model = Reference::new(limits, config.relatime, Stamp::at(START_NS as i64));
        model.set_buffers(config.buffers());
        let mut world = World::over(config, media, clock, model);
        world.remount_media();
        let space = world.fs().statfs(Wait::Allowed).unwrap();
        world.fresh_blocks = space.blocks - space.free;
        Rc::new(RefCell::new(world))
    }

    /// A world without any state except its model.
    fn over(config: Config, media: Media, clock: Arc<ManualClock>, model: Reference) -> World {
        World {
            config,
            rng: SmallRng::seed_from_u64(0),
            media,
            clock,
            fs: None,
            model,
            numbers: BTreeMap::from([(ROOT, (Ino(1), 1))]),
            generations: BTreeMap::from([(1, 1)]),
            lookups: BTreeMap::new(),
            opens: BTreeMap::new(),
            cookies: BTreeMap::new(),
            hot: None,
            counts: Counts::default(),
            log: VecDeque::new(),
            crash: Crash::None,
            nesting: Nesting::None,
            last_end: 0,
            asked_cookie: 0,
            lenient: false,
            torn: None,
            may_be_damaged: false,
            depth: 0,
            under_way: Vec::new(),
            fault: None,
            failing: Vec::new(),
            lied: false,
            unpersisted: Vec::new(),
            mount_read: Cell::new(0),
            seen: Rc::default(),
            steps: Vec::new(),
            fresh_blocks: 0,
            settling: false,
            descriptors: Descriptors::default(),
            pins_unsure: None,
            last_amid: None,
            alone: None,
            quiet_moments: 0,
            last_read: None,
            last_write: None,
        }
    }

    /// A world on other media with a copy of this world's knowledge.
    pub fn fork(&self, media: Media) -> Shared {
        let clock = Arc::new(ManualClock::new(self.clock.monotonic_ns() + 3_600_000_000_000));
        Rc::new(RefCell::new(World {
            rng: self.rng.clone(),
            numbers: self.numbers.clone(),
            generations: self.generations.clone(),
            cookies: self.cookies.clone(),
            may_be_damaged: self.may_be_damaged,
            seen: Rc::clone(&self.seen),
            fresh_blocks: self.fresh_blocks,
            pins_unsure: self.pins_unsure,
            ..World::over(self.config, media, clock, self.model.clone())
        }))
    }

    pub fn fs(&self) -> &Arc<Engine> {
        self.fs.as_ref().expect("mounted")
    }

    pub fn note(&mut self, what: String) {
        if self.log.len() == 200 {
            self.log.pop_front();
        }
        self.log.push_back(format!("{}{what}", "  ".repeat(self.depth)));
    }

    pub fn ino(&self, id: Id) -> Ino {
        self.numbers.get(&id).map_or(Ino(0), |(ino, _)| *ino)
    }

    /// Whether an error may come from a metadata page on a failing lower tier.
    pub fn may_lie_below(&self, error: &FsError) -> bool {
        self.faulty() && self.config.has_metadata_below() && error.errno() == libc::EIO
    }

    /// Whether a lower tier has a fault now.
    pub fn faulty(&self) -> bool {
        self.fault.is_some()
    }

    /// Whether a write-back may fail now. It may also fail after a device came back without its unflushed
    /// writes: the next flush reports the loss, once.
    pub fn may_fail(&self) -> bool {
        self.faulty() || self.media.devices.iter().any(|device| device.has_loss_to_tell())
    }

    pub fn mount(&self, media: &Media) -> Arc<Engine> {
        bounds::begin();
        narrow::set_name_hash_bits(self.config.hash_bits);
        let (superblock, warning) = read_superblock(&*media.pm, true).unwrap();
        assert_eq!(warning, None);
        let clock: Arc<dyn Clock> = self.clock.clone();
        let before = media.pm.bytes_read();
        let fs = Engine::mount(media.pool(), superblock, self.mount_options(), clock);
        let fs = fs.unwrap_or_else(|error| panic!("mount: {error}"));
        self.mount_read.set(media.pm.bytes_read() - before);
        fs
    }

    /// The options of each mount.
    pub fn mount_options(&self) -> MountOptions {
        MountOptions {
            atime: if self.config.relatime { Atime::Relative } else { Atime::Never },
            threshold_percent: Some(self.config.threshold_percent),
            promote_first_touch: self.config.promote_first_touch,
            home: self.config.home,
            metadata_moves: self.config.metadata,
            // Small, so that clean pages are dropped and prefetched pages expire.
            cache_bytes: 2 << 20,
            group_bytes: 256 << 10,
            parameters: self.config.parameters,
            // Small, because the files are small.
            in_place: InPlace { extent_blocks: 3, one_of: 3 },
            // Small, so that writers have to make room.
            buffer_bytes: if self.config.buffers() { DIRTY_BYTES } else { 0 },
            ..MountOptions::default()
        }
    }

    /// Recovers, and drops the mount.
    pub fn only_mount(&self) {
        drop(self.mount(&self.media));
    }

    pub fn remount_media(&mut self) {
        let fs = self.mount(&self.media);
        self.steps = fs.background_steps().into_iter().map(|(step, _)| Some(step)).collect();
        self.fs = Some(fs);
        self.unpersisted.clear();
    }

    /// Unmounts.
    pub fn unmount_engine(&self) {
        self.fs().unmount().unwrap_or_else(|error| panic!("unmount: {error}"));
    }

    pub fn end_mount(&mut self) {
        let status = self.fs().status().unwrap();
        self.counts.lowered += status.metadata.lowered_pages;
        self.counts.fetched += status.metadata.fetched_pages;
        let report = status.migration;
        self.counts.demoted_bytes += report.demoted_bytes;
        self.counts.promoted_bytes += report.promoted_bytes;
        self.counts.clean_evicted_bytes += report.clean_evicted_bytes;
        self.counts.skipped_bytes += report.skipped_bytes;
        self.counts.in_place_bytes += report.in_place_bytes;
        self.counts.moved_below_bytes += report.moved_below_bytes;
        self.counts.spilled_bytes += report.spilled_bytes;
        self.counts.spill_failures += report.spill_failures;
        self.counts.to_dram_bytes += report.to_dram_bytes;
        if let (Some(placement), None) = (status.placement, self.config.home) {
            self.counts.steered_bytes += placement.block_home_bytes;
        }
        self.steps.clear();
        self.fs = None;
    }

    /// After a mount no caller holds references, and inodes without a name are gone.
    pub fn forget_volatile(&mut self) {
        self.lookups.clear();
        self.opens.clear();
        self.descriptors.clear();
        self.forget_gone();
    }

    /// Drops the world's knowledge of inodes that are gone.
    pub fn forget_gone(&mut self) {
        let model = &self.model;
        self.numbers.retain(|id, _| model.node(*id).is_ok());
        // With few hashes a name that is made anew gets another cookie. A removal that a crash completed has
        // no answer, so names are looked up in the reference.
        let narrow = self.config.hash_bits < BASE.hash_bits;
        let is_there = |id: Id, name: &[u8]| match narrow {
            true => model.lookup(id, name).is_ok(),
            false => model.node(id).is_ok(),
        };
        self.cookies.retain(|(id, name), _| is_there(*id, name));
    }

    pub fn assert_clean(&mut self) {
        let report = self.media.check();
        self.counts.partial += report.summary.pm_blocks.partial;
        self.counts.data_checksums += report.summary.pm_blocks.checksums;
        let told = |code: Code| code == Code::ColdChecksum || code.row().severity == Severity::Note;
        let damaged = self.may_be_damaged && report.findings.iter().all(|finding| told(finding.code));
        // check hashes names with all bits, so cookies of a narrow hash are findings.
        let is_narrow = self.config.hash_bits < BASE.hash_bits;
        let expected = |code: Code| code == Code::DentryCookie || code.row().severity == Severity::Note;
        let narrow = is_narrow && report.findings.iter().all(|finding| expected(finding.code));
        assert!(report.is_clean() || damaged || narrow, "check: {:#?}", report.findings);
    }

    /// Mounts, and lets background work come to rest.
    pub fn begin_quiet(&mut self) {
        self.remount_media();
        self.fs().run_background(1000);
    }

    /// Ends a mount in order.
    pub fn unmount_and_check(&mut self) {
        self.steps.clear();
        self.unmount_engine();
        self.model.all_written_back();
        self.fs = None;
        self.assert_clean();
    }

    /// Leaves a file "old" in the pool, and unmounts.
    pub fn leave_a_file(&mut self) {
        let caller = terrace_engine::Caller { uid: 0, gid: 0 };
        self.fs().mknod(Ino(1), b"old", 0o100644, 0, caller, Wait::Allowed).unwrap();
        self.steps.clear();
        self.unmount_engine();
        self.fs = None;
    }
}
