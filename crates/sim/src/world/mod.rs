//! A pool and the reference beside it.
//!
//! Each part owns its state: `pool` the media, their faults and the mount; `known` the engine's numbers and the
//! references of callers; `amid` the work under way; `tolerance` the accepted differences; `power` the supply and
//! the states that a crash may leave; `habits` the memory of the choice. `actions` run histories on a world,
//! `judges` compare and judge. Invariant: the parts know nothing of the world.

pub mod amid;
pub mod descriptors;
pub mod habits;
pub mod known;
pub mod pool;
pub mod power;
pub mod tolerance;

use crate::config::Config;
use crate::counts::Counts;
use crate::kinds::BASE;
use crate::media::{Media, Setup};
use amid::Amid;
use habits::Habits;
use known::Known;
use pool::Pool;
use power::Power;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use terrace_check::{Code, Severity};
use terrace_engine::{DeviceClass, FormatOptions, NewDevice, Simulation, Wait, format};
use terrace_format::Ino;
use terrace_reference::{Limits, Reference, Stamp};
use terrace_runtime::{Clock, ManualClock};
use tolerance::Tolerance;

/// A pool under test, the reference, and the state of the run.
pub struct World {
    /// The kind of run.
    pub config: Config,
    /// The choices of the action under way.
    pub rng: SmallRng,
    /// The engine's side.
    pub pool: Pool,
    /// The reference.
    pub model: Reference,
    /// The numbers of inodes, and references.
    pub known: Known,
    /// The work under way.
    pub amid: Amid,
    /// Differences that are accepted now.
    pub tolerance: Tolerance,
    /// The power supply.
    pub power: Power,
    /// Files that the choice of operations prefers.
    pub habits: Habits,
    /// The work done so far.
    pub counts: Counts,
    /// The last lines of the log.
    pub log: VecDeque<String>,
    /// The time at which the last operation ended.
    pub last_end: i64,
    /// Hashes of the judged images.
    pub seen: Rc<RefCell<HashSet<u64>>>,
    /// Blocks in use in the empty pool.
    pub fresh_blocks: u64,
    /// Actions after which leaks could have been judged.
    pub quiet_moments: u64,
}

/// A world in which operations can run in the middle of each other.
pub type Shared = Rc<RefCell<World>>;

/// Lines of the log that are kept.
const LOG_LINES: usize = 200;

/// The time of mkfs.
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
        map: config.file_map(),
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
        let setup = Setup { tier0: config.tier0, ..setup };
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
        let space = world.pool.fs().statfs(Wait::Allowed).unwrap();
        world.fresh_blocks = space.blocks - space.free;
        Rc::new(RefCell::new(world))
    }

    /// A world without any state except its model.
    fn over(config: Config, media: Media, clock: Arc<ManualClock>, model: Reference) -> World {
        World {
            config,
            rng: SmallRng::seed_from_u64(0),
            pool: Pool::new(config, media, clock),
            model,
            known: Known::default(),
            amid: Amid::default(),
            tolerance: Tolerance::default(),
            power: Power::default(),
            habits: Habits::default(),
            counts: Counts::default(),
            log: VecDeque::new(),
            last_end: 0,
            seen: Rc::default(),
            fresh_blocks: 0,
            quiet_moments: 0,
        }
    }

    /// A world on other media with a copy of this world's knowledge.
    pub fn fork(&self, media: Media) -> Shared {
        let clock = Arc::new(ManualClock::new(self.pool.clock.monotonic_ns() + 3_600_000_000_000));
        let mut fork = World::over(self.config, media, clock, self.model.clone());
        fork.rng = self.rng.clone();
        fork.known = self.known.durable();
        fork.pool.may_be_damaged = self.pool.may_be_damaged;
        fork.seen = Rc::clone(&self.seen);
        fork.fresh_blocks = self.fresh_blocks;
        fork.tolerance.pins_unsure = self.tolerance.pins_unsure;
        Rc::new(RefCell::new(fork))
    }

    pub fn note(&mut self, what: String) {
        if self.log.len() == LOG_LINES {
            self.log.pop_front();
        }
        self.log.push_back(format!("{}{what}", "  ".repeat(self.amid.depth)));
    }

    pub fn remount_media(&mut self) {
        let fs = self.pool.mount(&self.pool.media);
        self.pool.steps = fs.background_steps().into_iter().map(|(step, _)| Some(step)).collect();
        self.pool.fs = Some(fs);
        self.power.unpersisted.clear();
    }

    pub fn end_mount(&mut self) {
        let status = self.pool.fs().status().unwrap();
        self.counts.moved.lowered += status.metadata.lowered_pages;
        self.counts.moved.fetched += status.metadata.fetched_pages;
        let report = status.migration;
        self.counts.moved.demoted_bytes += report.demoted_bytes;
        self.counts.moved.promoted_bytes += report.promoted_bytes;
        self.counts.moved.clean_evicted_bytes += report.clean_evicted_bytes;
        self.counts.moved.skipped_bytes += report.skipped_bytes;
        self.counts.moved.in_place_bytes += report.in_place_bytes;
        self.counts.moved.moved_below_bytes += report.moved_below_bytes;
        self.counts.moved.spilled_bytes += report.spilled_bytes;
        self.counts.moved.spill_failures += report.spill_failures;
        self.counts.moved.to_dram_bytes += report.to_dram_bytes;
        if let (Some(placement), None) = (status.placement, self.config.home) {
            self.counts.moved.steered_bytes += placement.block_home_bytes;
        }
        self.pool.steps.clear();
        self.pool.fs = None;
    }

    pub fn assert_clean(&mut self) {
        let report = self.pool.media.check();
        self.counts.partial += report.summary.pm_blocks.partial;
        self.counts.data_checksums += report.summary.pm_blocks.checksums;
        let told = |code: Code| code == Code::ColdChecksum || code.row().severity == Severity::Note;
        let damaged = self.pool.may_be_damaged && report.findings.iter().all(|finding| told(finding.code));
        // check hashes names with all bits, so cookies of a narrow hash are findings.
        let is_narrow = self.config.hash_bits < BASE.hash_bits;
        let expected = |code: Code| code == Code::DentryCookie || code.row().severity == Severity::Note;
        let narrow = is_narrow && report.findings.iter().all(|finding| expected(finding.code));
        assert!(report.is_clean() || damaged || narrow, "check: {:#?}", report.findings);
    }

    /// Mounts, and lets background work come to rest.
    pub fn begin_quiet(&mut self) {
        self.remount_media();
        self.pool.fs().run_background(1000);
    }

    /// Ends a mount in order.
    pub fn unmount_and_check(&mut self) {
        self.pool.steps.clear();
        self.pool.unmount_engine();
        self.model.all_written_back();
        self.pool.fs = None;
        self.assert_clean();
    }

    /// Leaves a file "old" in the pool, and unmounts.
    pub fn leave_a_file(&mut self) {
        let caller = terrace_engine::Caller { uid: 0, gid: 0 };
        self.pool.fs().mknod(Ino(1), b"old", 0o100644, 0, caller, Wait::Allowed).unwrap();
        self.pool.steps.clear();
        self.pool.unmount_engine();
        self.pool.fs = None;
    }

    /// After a mount no caller holds references, and inodes without a name are gone.
    pub fn forget_volatile(&mut self) {
        self.known.drop_references();
        self.forget_gone();
    }

    /// Drops the knowledge of inodes that are gone.
    pub fn forget_gone(&mut self) {
        self.known.forget_gone(&self.model, self.config.hash_bits < BASE.hash_bits);
    }
}
