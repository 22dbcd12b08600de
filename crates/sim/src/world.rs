//! A pool, the reference beside it, and what happens between operations: background work, migrations with operations
//! in their middle, remounts, loss of power in the middle of anything, faults of the lower tier.
//!
//! One thread: background work and waiting operations call `terrace_runtime::interleave` points, where other
//! operations run to their end. All choices come from the seeds of the actions.

use crate::action::{Action, Entry, Fault};
use crate::media::{Media, Moment, Setup};
use crate::operate::operate;
use crate::pm_fault::poisoned;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::AddAssign;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use terrace_check::{Code, Severity};
use terrace_format::Ino;
use terrace_fs::{
    Atime, DeviceClass, FormatOptions, Fs, MountOptions, NewDevice, PolicyKind, Wait, format, read_superblock,
};
use terrace_media::block::Times;
use terrace_reference::{Allocate, Change, CrashState, Id, Limits, New, Op, ROOT, Reference, Stamp, Torn};
use terrace_runtime::{Clock, ManualClock, Next, Step, interleave, thread};

/// One kind of run.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// For messages and command lines.
    pub name: &'static str,
    /// 0: no lower tier.
    pub device_blocks: u64,
    /// data=ordered.
    pub data_ordered: bool,
    /// Placement.
    pub policy: PolicyKind,
    /// See the mount option.
    pub promote_first_touch: bool,
    /// PM use above which blocks go down.
    pub threshold_percent: u8,
    /// File blocks that the run tries not to exceed.
    pub most_blocks: u64,
    /// Files at most, about.
    pub files: usize,
    /// Directories at most, about.
    pub directories: usize,
    /// Different names in use.
    pub names: usize,
    /// ENOSPC is expected.
    pub fills: bool,
    /// Reads keep relative access times. Not with loss of power amid operations: what a read did is not known then.
    pub relatime: bool,
    /// PM on which only `persist` makes durable.
    pub persist_only: bool,
    /// Power fails in the middle of operations.
    pub power_fails: bool,
    /// The lower tier misbehaves.
    pub faults: bool,
    /// PM fails now and then.
    pub pm_faults: bool,
    /// Different images looked at after each loss of power, beside the one that the run goes on with.
    pub images: u64,
}

impl Config {
    /// The atomic write size of the tiny lanes (C13).
    pub fn atomic_blocks(&self) -> u64 {
        56
    }
}

/// The default pool under test.
pub const BASE: Config = Config {
    name: "atomic",
    device_blocks: 5120,
    data_ordered: false,
    policy: PolicyKind::Anticache,
    promote_first_touch: false,
    threshold_percent: 60,
    most_blocks: 1800,
    files: 50,
    directories: 12,
    names: 30,
    fills: false,
    relatime: true,
    persist_only: false,
    power_fails: false,
    faults: false,
    pm_faults: false,
    images: 0,
};

/// Power fails anywhere; images are looked at after each time.
const POWER: Config = Config { name: "power", power_fails: true, relatime: false, images: 6, ..BASE };

/// The kinds of runs that long runs take turns with.
pub const CONFIGS: [Config; 10] = [
    POWER,
    Config { name: "power-ordered", data_ordered: true, promote_first_touch: true, ..POWER },
    Config { name: "power-no-tier", device_blocks: 0, most_blocks: 180, files: 30, names: 20, ..POWER },
    Config { name: "power-full", device_blocks: 512, most_blocks: 860, files: 60, fills: true, ..POWER },
    Config { name: "power-persist", persist_only: true, ..POWER },
    Config { name: "power-small", most_blocks: 300, files: 8, directories: 4, names: 8, ..POWER },
    Config { name: "faults", faults: true, relatime: false, ..BASE },
    Config { name: "faults-power", faults: true, ..POWER },
    Config { name: "faults-pm", pm_faults: true, relatime: false, ..BASE },
    Config { name: "brim", device_blocks: 0, most_blocks: 10_000, files: 40, fills: true, ..BASE },
];

/// What a run did.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    /// Operations done.
    pub operations: u64,
    /// Operations on the content of files.
    pub file_operations: u64,
    /// Of them, those with a demoted or shadowed block in their range.
    pub met_cold: u64,
    /// Operations done in the middle of others or of background work.
    pub amid: u64,
    /// Operations that got ENOSPC.
    pub no_space: u64,
    /// Operations that were told to wait.
    pub would_block: u64,
    /// Operations that got EIO while a device misbehaved.
    pub errors: u64,
    /// Faults injected.
    pub faults: u64,
    /// Orderly remounts.
    pub remounts: u64,
    /// Crashes, of them those inside an operation, inside background work, inside recovery.
    pub crashes: u64,
    pub crashes_amid_operation: u64,
    pub crashes_amid_background: u64,
    pub crashes_amid_recovery: u64,
    /// Different images (by hash) that were recovered, checked and compared.
    pub states: u64,
    pub demoted_bytes: u64,
    pub promoted_bytes: u64,
    pub clean_evicted_bytes: u64,
    pub skipped_bytes: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.operations += other.operations;
        self.file_operations += other.file_operations;
        self.met_cold += other.met_cold;
        self.amid += other.amid;
        self.no_space += other.no_space;
        self.would_block += other.would_block;
        self.errors += other.errors;
        self.faults += other.faults;
        self.remounts += other.remounts;
        self.crashes += other.crashes;
        self.crashes_amid_operation += other.crashes_amid_operation;
        self.crashes_amid_background += other.crashes_amid_background;
        self.crashes_amid_recovery += other.crashes_amid_recovery;
        self.states += other.states;
        self.demoted_bytes += other.demoted_bytes;
        self.promoted_bytes += other.promoted_bytes;
        self.clean_evicted_bytes += other.clean_evicted_bytes;
        self.skipped_bytes += other.skipped_bytes;
    }
}

/// Loss of power.
pub enum Crash {
    /// None planned.
    None,
    /// At this event of the clock; what is chosen then is drawn from the seed.
    Armed { seed: u64 },
    /// It happened; what may be left.
    Taken { seed: u64, moment: Box<Moment>, states: Vec<CrashState> },
}

impl Crash {
    /// Whether power has failed: nothing that runs on counts any more.
    pub fn is_taken(&self) -> bool {
        matches!(self, Crash::Taken { .. })
    }
}

/// What may run at an interleaving point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nesting {
    /// Nothing.
    None,
    /// Operations that need not wait.
    Operations,
    /// Also other background work, but for device flushes.
    Background,
}

/// See the module.
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
    pub counts: Counts,
    pub log: VecDeque<String>,
    pub crash: Crash,
    pub nesting: Nesting,
    /// When the last operation ended.
    pub last_end: i64,
    pub asked_cookie: u64,
    /// More blocks may be in use than the reference says, until background work has ended.
    pub lenient: bool,
    /// What the crash may have torn.
    pub torn: Option<Torn>,
    /// A device lied and then lost power.
    pub may_be_damaged: bool,
    depth: usize,
    /// Inodes of the operations in whose middle others run.
    pub under_way: Vec<Id>,
    /// Faults in force.
    fault: Option<Fault>,
    lied: bool,
    /// Where only `persist` makes durable: the states since the last one.
    unpersisted: Vec<CrashState>,
    /// Bytes of PM that the last mount read before it answered.
    mount_read: Cell<u64>,
    /// Hashes of the images looked at.
    pub seen: Rc<RefCell<HashSet<u64>>>,
    steps: Vec<Option<Box<dyn Step>>>,
    /// Blocks in use in the empty pool.
    fresh_blocks: u64,
}

/// A world that operations can run in the middle of each other in.
pub type Shared = Rc<RefCell<World>>;

const START_NS: u64 = 1_700_000_000_000_000_000;

/// What mkfs is told.
pub fn format_options(config: Config, uuid: [u8; 16], hash_key: [u8; 16]) -> FormatOptions {
    let device = NewDevice { tier: 1, class: DeviceClass::Ssd, uuid: [1; 16], path: "/tier1".into() };
    FormatOptions {
        label: "simulated".into(),
        uuid,
        hash_key,
        policy: config.policy,
        data_ordered: config.data_ordered,
        chunk_blocks: 16,
        created_ns: START_NS as i64,
        root: Default::default(),
        devices: if config.device_blocks > 0 { vec![device] } else { Vec::new() },
    }
}

impl World {
    /// A new pool.
    pub fn new(config: Config, hash_seed: u64, setup: Setup) -> Shared {
        let setup = Setup { persist_only: config.persist_only, ..setup };
        let mut media = Media::new(2 << 20, config.device_blocks, &setup);
        let hash_key = hash_seed.to_le_bytes().repeat(2).try_into().unwrap_or([0; 16]);
        let options = format_options(config, [7; 16], hash_key);
        let superblock = format(&media.pool(), &options).unwrap();
        media.grow_old(&superblock.geometry());
        // What the smallest lanes can record.
        let limits = Limits { target_bytes: 2048, xattr_bytes: 2048, ..Limits::default() };
        let mut world = World {
            config,
            rng: SmallRng::seed_from_u64(0),
            media,
            clock: Arc::new(ManualClock::new(START_NS)),
            fs: None,
            model: Reference::new(limits, config.relatime, Stamp::at(START_NS as i64)),
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
            lied: false,
            unpersisted: Vec::new(),
            mount_read: Cell::new(0),
            seen: Rc::default(),
            steps: Vec::new(),
            fresh_blocks: 0,
        };
        world.remount_media();
        let space = world.fs().statfs(Wait::Allowed).unwrap();
        world.fresh_blocks = space.blocks - space.free;
        Rc::new(RefCell::new(world))
    }

    pub fn fs(&self) -> &Arc<Fs> {
        self.fs.as_ref().expect("mounted")
    }

    pub fn note(&mut self, what: String) {
        if self.log.len() == 60 {
            self.log.pop_front();
        }
        self.log.push_back(format!("{}{what}", "  ".repeat(self.depth)));
    }

    pub fn ino(&self, id: Id) -> Ino {
        self.numbers.get(&id).map_or(Ino(0), |(ino, _)| *ino)
    }

    /// Whether the lower tier misbehaves now.
    pub fn faulty(&self) -> bool {
        self.fault.is_some()
    }

    fn mount(&self, media: &Media) -> Arc<Fs> {
        let (superblock, warning) = read_superblock(&*media.pm, true).unwrap();
        assert_eq!(warning, None);
        let options = MountOptions {
            atime: if self.config.relatime { Atime::Relative } else { Atime::Never },
            threshold_percent: Some(self.config.threshold_percent),
            promote_first_touch: self.config.promote_first_touch,
            // Small, so that cached pages are evicted and prefetched ones expire.
            cache_bytes: 2 << 20,
            group_bytes: 256 << 10,
            ..MountOptions::default()
        };
        let clock: Arc<dyn Clock> = self.clock.clone();
        let before = media.pm.bytes_read();
        let fs = Fs::mount(media.pool(), superblock, options, clock);
        let fs = fs.unwrap_or_else(|error| panic!("mount: {error}"));
        self.mount_read.set(media.pm.bytes_read() - before);
        fs
    }

    /// Recovers, and drops the mount.
    pub fn only_mount(&self) {
        drop(self.mount(&self.media));
    }

    fn remount_media(&mut self) {
        let fs = self.mount(&self.media);
        self.steps = fs.background_steps().into_iter().map(|(step, _)| Some(step)).collect();
        self.fs = Some(fs);
        self.unpersisted.clear();
    }

    /// Unmounts. A device that lost what was not flushed says so once, to whoever flushes first; nothing named it yet (M1).
    fn unmount_engine(&self) {
        if let Err(error) = self.fs().unmount() {
            assert!(self.config.faults && error.errno() == libc::EIO, "unmount: {error}");
            self.fs().unmount().unwrap();
        }
    }

    fn end_mount(&mut self) {
        let report = self.fs().status().unwrap().migration;
        self.counts.demoted_bytes += report.demoted_bytes;
        self.counts.promoted_bytes += report.promoted_bytes;
        self.counts.clean_evicted_bytes += report.clean_evicted_bytes;
        self.counts.skipped_bytes += report.skipped_bytes;
        self.steps.clear();
        self.fs = None;
    }

    /// Nobody refers to anything after a mount; inodes without a name are gone.
    fn forget_volatile(&mut self) {
        self.lookups.clear();
        self.opens.clear();
        self.forget_gone();
    }

    /// Drops what is kept of inodes that are gone.
    pub fn forget_gone(&mut self) {
        let model = &self.model;
        self.numbers.retain(|id, _| model.node(*id).is_ok());
        self.cookies.retain(|(id, _), _| model.node(*id).is_ok());
    }

    /// Remembers what is there before the first operation since everything was made durable.
    pub fn durable_start(&mut self) {
        if self.config.persist_only && self.unpersisted.is_empty() {
            self.unpersisted.push(self.earlier());
        }
    }

    /// The states since everything was made durable last, where only `persist` does that.
    pub fn unpersisted(&self) -> Vec<CrashState> {
        self.unpersisted.clone()
    }

    fn earlier(&self) -> CrashState {
        let name = "what was there before, not yet made durable".into();
        CrashState { tree: self.model.clone(), torn: None, name }
    }

    /// Remembers what an operation left, and what was there while it ran, where only `persist` makes durable.
    pub fn durable_history(&mut self, op: &Op, inside: Vec<CrashState>, succeeded: bool) {
        if !self.config.persist_only {
            return;
        }
        self.unpersisted.extend(inside.into_iter().skip(1));
        let persists = matches!(op, Op::Fsync { .. } | Op::Write { sync: true, .. });
        if persists && succeeded {
            self.unpersisted.clear();
        }
        self.unpersisted.push(self.earlier());
    }

    /// Whether power failed in what just ran. Keeps the moment.
    pub fn take_crash(&mut self) -> bool {
        let Crash::Armed { seed } = self.crash else { return false };
        let Some(moment) = self.media.take_moment() else { return false };
        self.crash = Crash::Taken { seed, moment: Box::new(moment), states: Vec::new() };
        true
    }

    /// What may be left of the operation in which power failed.
    pub fn power_failed(&mut self, mut found: Vec<CrashState>) {
        // Where only `persist` makes durable any suffix of what returned may be lost too (C6).
        found.append(&mut self.unpersisted);
        if found.len() > 1 {
            self.counts.crashes_amid_operation += 1;
        }
        if let Crash::Taken { states, .. } = &mut self.crash {
            *states = found;
        }
    }

    /// The only state allowed when nothing that can be seen is under way.
    pub fn state_now(&self) -> Vec<CrashState> {
        vec![CrashState { tree: self.model.clone(), torn: None, name: "now".into() }]
    }
}

/// Runs something of the engine with operations in its middle.
fn with_nesting<R>(world: &Shared, nesting: Nesting, run: impl FnOnce() -> R) -> R {
    world.borrow_mut().nesting = nesting;
    let result = run();
    world.borrow_mut().nesting = Nesting::None;
    result
}

/// What runs at the engine's interleaving points.
pub fn install_hook(world: &Shared) {
    let weak = Rc::downgrade(world);
    interleave::set_hook(Some(Rc::new(move |point| {
        if let Some(world) = weak.upgrade() {
            at_point(&world, point);
        }
    })));
}

fn at_point(world: &Shared, point: &'static str) {
    let planned = {
        let Ok(mut now) = world.try_borrow_mut() else { return };
        if now.nesting == Nesting::None || now.depth >= 2 || now.crash.is_taken() {
            return;
        }
        let count = if now.rng.random_ratio(1, 3) { now.rng.random_range(1..4) } else { 0 };
        now.depth += 1;
        (count, now.nesting)
    };
    let (count, nesting) = planned;
    for _ in 0..count {
        let step = nesting == Nesting::Background && point != "device:flush" && {
            let mut now = world.borrow_mut();
            now.rng.random_ratio(1, 4)
        };
        if step {
            world.borrow_mut().nesting = Nesting::Operations;
            let which = world.borrow_mut().rng.random_range(0..8);
            step_once(world, which);
            continue;
        }
        let Some(op) = world.borrow_mut().choose_amid() else { continue };
        operate(world, op, false);
    }
    let mut now = world.borrow_mut();
    now.nesting = nesting;
    now.depth -= 1;
}

/// One step of one kind of background work.
fn step_once(world: &Shared, which: usize) -> Next {
    let taken = {
        let mut now = world.borrow_mut();
        let count = now.steps.len().max(1);
        now.steps.get_mut(which % count).and_then(Option::take)
    };
    let Some(mut step) = taken else { return Next::Done };
    let next = step.step();
    let mut now = world.borrow_mut();
    let count = now.steps.len().max(1);
    if let Some(place) = now.steps.get_mut(which % count) {
        *place = Some(step);
    }
    next
}

impl World {
    /// An operation for the middle of something else: it must not need to wait for that.
    fn choose_amid(&mut self) -> Option<Op> {
        self.counts.amid += 1;
        let mut op = match self.under_way.last().copied() {
            // Two descriptors of one file.
            Some(id) if self.rng.random_ratio(1, 4) => self.choose_of(id),
            _ => self.choose(),
        };
        match &mut op {
            // The second piece of a longer one may wait.
            Op::Write { length, .. } => *length = (*length).min(50 * 4096),
            // One edge may be zeros in place when the other has to wait; the kernel asks again.
            Op::Fallocate { mode: Allocate::PunchHole, .. } if self.config.data_ordered => return None,
            Op::Make { id, .. } => *id = Id(Id::APART.0 + (self.rng.random::<u64>() >> 20)),
            // The kernel holds the inode of a request that is under way.
            Op::Remove { .. } | Op::Rename { .. } | Op::Release { .. } | Op::Forget { .. } => {
                let involved = self.model.involved(&op);
                if self.under_way.iter().any(|id| involved.contains(id)) {
                    return None;
                }
            }
            _ => {}
        }
        Some(op)
    }

    /// A mistake that ends the run: background work is at rest and time alone moves it on.
    fn background_ended(&mut self) {
        if self.take_crash() {
            self.counts.crashes_amid_background += 1;
            let states = self.state_now();
            self.power_failed(states);
        }
    }
}

/// Does one action of a history.
pub fn apply(world: &Shared, entry: &Entry) {
    world.borrow_mut().rng = SmallRng::seed_from_u64(entry.seed);
    match &entry.action {
        Action::Op(op) => operate(world, op.clone(), true),
        Action::Background(rounds) => background(world, *rounds),
        Action::Step(which) => {
            world.borrow_mut().note(format!("step {which}"));
            world.borrow().clock.advance(Duration::from_millis(11));
            with_nesting(world, Nesting::Background, || step_once(world, *which));
            world.borrow_mut().background_ended();
        }
        Action::SyncDown => sync_down(world),
        Action::Remount => world.borrow_mut().remount(),
        Action::Compare => world.borrow_mut().compare_when_well(),
        Action::Advance(time) => world.borrow().clock.advance(*time),
        Action::Reuse => reuse(world),
        Action::PowerFails(events) => world.borrow_mut().arm(*events, entry.seed),
        Action::Crash => world.borrow_mut().crash_now(entry.seed),
        Action::Fault(fault) => world.borrow_mut().inject(*fault),
        Action::Poisoned { access, times, action } => poisoned(world, entry.seed, (*access, *times), action),
    }
    recover_if_taken(world);
}

fn recover_if_taken(world: &Shared) {
    if world.borrow().crash.is_taken() {
        world.borrow_mut().recover();
    }
}

fn background(world: &Shared, rounds: usize) {
    world.borrow_mut().note(format!("background work, {rounds} rounds"));
    world.borrow().clock.advance(Duration::from_millis(20));
    let kinds = world.borrow().steps.len();
    let ended = with_nesting(world, Nesting::Background, || {
        (0..rounds).any(|_| {
            let again =
                (0..kinds).fold(false, |again, which| again | (step_once(world, which) == Next::Again));
            !again || world.borrow().crash.is_taken()
        })
    });
    // What cannot be done waits for its time (M6); there are 512 blocks to move.
    assert!(ended || rounds < 200, "background work does not come to rest in {rounds} rounds");
    world.borrow_mut().background_ended();
}

fn sync_down(world: &Shared) {
    let fs = {
        let mut now = world.borrow_mut();
        if now.config.device_blocks == 0 {
            assert_eq!(now.fs().sync_to(1, &mut |_| {}).map_err(|e| e.errno()), Err(libc::EINVAL));
            return;
        }
        now.note("sync to tier 1".into());
        // It tries for ever while a device fails.
        if now.faulty() {
            return;
        }
        now.fs().clone()
    };
    let quiet = world.borrow_mut().rng.random_ratio(1, 2);
    let nesting = if quiet { Nesting::None } else { Nesting::Background };
    let result = with_nesting(world, nesting, || fs.sync_to(1, &mut |_| {}));
    drop(fs);
    let mut now = world.borrow_mut();
    now.background_ended();
    if now.crash.is_taken() {
        return;
    }
    match result {
        Ok(()) if quiet => now.assert_all_below(),
        Ok(()) => {}
        // A flush that failed for one group counts against others in flight (M1).
        Err(error) if now.config.faults && error.errno() == libc::EIO => return,
        Err(error) => assert!(now.config.fills && error.errno() == libc::ENOSPC, "sync to tier 1: {error}"),
    }
    now.unpersisted.clear();
}

/// Frees blocks and asks for new ones at once, through both lanes: records that are still above the
/// checkpoint name or write what is now free (T6).
fn reuse(world: &Shared) {
    world.borrow_mut().note("blocks freed and wanted again at once:".into());
    let times = world.borrow_mut().rng.random_range(1..4);
    for _ in 0..times {
        let ops = world.borrow_mut().choose_reuse();
        for (second_lane, op) in ops {
            thread::set_index(usize::from(second_lane));
            operate(world, op, true);
        }
        thread::set_index(0);
    }
}

impl World {
    fn choose_reuse(&mut self) -> Vec<(bool, Op)> {
        let (old, new) = (self.file(), self.file());
        let size = self.size_of(old);
        let blocks = size / 4096;
        let mut ops = Vec::new();
        match self.rng.random_range(0..3) {
            // Map nodes come and go.
            0 => {
                let far = self.rng.random_range(512..1100);
                ops.push((false, self.rewrite(old, blocks.max(far), 1)));
                let change = Change { size: Some(size), ..Change::default() };
                ops.push((false, Op::SetAttributes { id: old, change }));
            }
            // One of two blocks that a record names by checksum; the record stays its lane's last.
            1 => {
                ops.push((true, self.rewrite(old, blocks, 2)));
                ops.push((false, self.rewrite(old, blocks, 1)));
            }
            // The last name of a directory, and with it a page of the catalog.
            _ => {
                let (directory, name) = (self.directory(), b"alone".to_vec());
                let (new, id) = (New::Directory(0o755), Id(Id::APART.0 + (self.rng.random::<u64>() >> 20)));
                ops.push((false, Op::Make { id, directory, name: name.clone(), new, owner: (0, 0) }));
                ops.push((false, Op::Remove { directory, name, as_directory: true }));
            }
        }
        for _ in 0..self.rng.random_range(1..4) {
            let (first, count) = (self.rng.random_range(0..8), self.rng.random_range(1..3));
            ops.push((false, self.rewrite(new, first, count)));
        }
        ops
    }

    /// A write of whole blocks.
    fn rewrite(&mut self, id: Id, first: u64, blocks: u64) -> Op {
        let (offset, length) = (first * 4096, blocks as usize * 4096);
        Op::Write { id, offset, length, seed: self.rng.random(), kill_set_id: false, sync: false }
    }

    /// After a sync to tier 1: what is still in PM has its copy below, or was never written.
    fn assert_all_below(&mut self) {
        let ids: Vec<Id> = self.model.nodes().map(|(id, _)| id).collect();
        for id in ids {
            let found = self.fs().whereabouts(self.ino(id)).unwrap();
            let unwritten = self.unwritten_blocks(id) * 4096;
            assert!(found.tiers[0].1 <= found.clean_bytes + unwritten, "{id:?}: {found:?}");
        }
    }

    /// The whole tree, unless cold content cannot be read now.
    fn compare_when_well(&mut self) {
        if !self.faulty() {
            self.compare_all();
        }
    }

    /// Unmounts, checks, mounts and compares.
    fn remount(&mut self) {
        if self.faulty() {
            return;
        }
        self.note("remount".into());
        self.counts.remounts += 1;
        self.steps.clear();
        self.unmount_engine();
        if self.take_crash() {
            let states = self.state_now();
            return self.power_failed(states);
        }
        self.end_mount();
        self.assert_clean();
        self.model.drop_references();
        self.forget_volatile();
        self.remount_media();
        // The cost of a mount depends on the lanes, never on the pool (T8): two checkpoints and the first place of each
        // lane.
        let read = self.mount_read.get();
        assert!(read <= 3 * 4096, "the mount read {read} bytes of PM before it answered");
        assert!(self.fs().status().unwrap().recovery.clean);
        self.compare_all();
    }

    /// Unmounts and mounts; what is there then is one of these states.
    pub fn remount_to(&mut self, mut states: Vec<CrashState>) {
        self.steps.clear();
        self.unmount_engine();
        self.end_mount();
        states.iter_mut().for_each(|state| state.tree.drop_references());
        let media = Media::after(&self.media.now(), 1, &self.media.setup().clone());
        self.look_at(media, &states);
    }

    fn assert_clean(&self) {
        let report = self.media.check();
        let told = |code: Code| code == Code::ColdChecksum || code.row().severity == Severity::Note;
        let damaged = self.may_be_damaged && report.findings.iter().all(|finding| told(finding.code));
        assert!(report.is_clean() || damaged, "check: {:#?}", report.findings);
    }

    fn arm(&mut self, events: u64, seed: u64) {
        if matches!(self.crash, Crash::None) {
            self.note(format!("power fails after {events} more events"));
            self.media.clock.set_crash_at(Some(self.media.clock.now() + events));
            self.crash = Crash::Armed { seed };
        }
    }

    fn crash_now(&mut self, seed: u64) {
        let states = self.state_now();
        self.lose_power(seed, states);
    }

    /// Power fails now.
    pub fn lose_power(&mut self, seed: u64, states: Vec<CrashState>) {
        self.media.clock.set_crash_at(None);
        let _ = self.media.take_moment();
        self.crash = Crash::Taken { seed, moment: Box::new(self.media.now()), states: Vec::new() };
        self.power_failed(states);
    }

    /// Puts a fault in force, or ends it.
    fn inject(&mut self, fault: Fault) {
        let Some(device) = self.media.device.clone() else { return };
        if self.faulty() && fault != Fault::Heals {
            self.inject(Fault::Heals);
        }
        self.note(format!("{fault:?}"));
        self.counts.faults += 1;
        let blocks = device_blocks(&device);
        match fault {
            Fault::Fails { operation, errno, times } => {
                let times = times.map_or(Times::Forever, Times::Count);
                device.fail_next(operation, 0..blocks, errno, times);
            }
            Fault::Stalls => device.stall_without_waiting(),
            Fault::Vanishes => device.vanish(libc::ENODEV),
            Fault::Lies => {
                device.lie_about_flush(true);
                self.lied = true;
            }
            Fault::Heals => {
                device.clear_failures();
                device.unstall();
                if self.fault == Some(Fault::Vanishes) {
                    let lost_power = self.rng.random::<bool>().then(|| self.rng.random());
                    device.come_back(lost_power);
                    self.may_be_damaged |= self.lied && lost_power.is_some();
                }
                device.lie_about_flush(false);
            }
        }
        self.fault = (fault != Fault::Heals).then_some(fault);
    }
}

fn device_blocks(device: &Arc<terrace_media::block::SimulatedDevice>) -> u64 {
    terrace_media::BlockMedium::blocks(&**device)
}

impl World {
    /// Power has failed: looks at images that the media may hold, and goes on with one of them.
    fn recover(&mut self) {
        let Crash::Taken { seed, moment, states } = std::mem::replace(&mut self.crash, Crash::None) else {
            return;
        };
        self.counts.crashes += 1;
        self.note(format!("power failed, {} states allowed", states.len()));
        self.end_mount();
        self.nesting = Nesting::None;
        self.fault = None;
        self.may_be_damaged |= std::mem::take(&mut self.lied);
        let mut states = states;
        for state in &mut states {
            state.tree.drop_references();
        }
        let kept = (self.model.clone(), self.numbers.clone(), self.generations.clone(), self.cookies.clone());
        let mut choice = SmallRng::seed_from_u64(seed);
        for side in 0..self.config.images {
            let image: u64 = if side < 2 { side * 5 } else { choice.random() };
            let media = Media::after(&moment, image, self.media.setup());
            if !self.seen.borrow_mut().insert(media.hash()) {
                continue;
            }
            self.note(format!("  image {image:#x}"));
            self.look_at(media, &states);
            self.steps.clear();
            self.unmount_engine();
            self.fs = None;
            self.assert_clean();
            (self.model, self.numbers, self.generations, self.cookies) = kept.clone();
        }
        let image = choice.random();
        self.note(format!("  goes on with image {image:#x}"));
        let mut media = Media::after(&moment, image, self.media.setup());
        while choice.random_ratio(1, 3) {
            media = self.crash_again(&media, &mut choice);
        }
        self.seen.borrow_mut().insert(media.hash());
        self.look_at(media, &states);
        self.clock.advance(Duration::from_millis(1));
        self.last_end = self.now();
    }

    /// Recovers, loses power in the middle of it, and gives what that may leave.
    fn crash_again(&mut self, media: &Media, choice: &mut SmallRng) -> Media {
        self.counts.crashes_amid_recovery += 1;
        let target = media.clock.now() + choice.random_range(0..80);
        media.clock.set_crash_at(Some(target));
        let fs = self.mount(media);
        fs.run_background(choice.random_range(0..20));
        media.clock.set_crash_at(None);
        let moment = media.take_moment().unwrap_or_else(|| media.now());
        drop(fs);
        let image = choice.random();
        self.note(format!("  power fails again in recovery, image {image:#x}"));
        Media::after(&moment, image, self.media.setup())
    }

    /// Checks, mounts, finds the state that it is in among those allowed, and lets background work end.
    fn look_at(&mut self, media: Media, states: &[CrashState]) {
        self.counts.states += 1;
        self.media = media;
        self.assert_clean();
        self.remount_media();
        self.settle(states);
        self.fs().run_background(10_000);
        self.compare_all();
    }

    /// Another world on these media that knows what this one knows.
    pub fn fork(&self, media: Media) -> Shared {
        let world = World {
            config: self.config,
            rng: self.rng.clone(),
            media,
            clock: Arc::new(ManualClock::new(self.clock.monotonic_ns() + 3_600_000_000_000)),
            fs: None,
            model: self.model.clone(),
            numbers: self.numbers.clone(),
            generations: self.generations.clone(),
            lookups: BTreeMap::new(),
            opens: BTreeMap::new(),
            cookies: self.cookies.clone(),
            hot: None,
            counts: Counts::default(),
            log: VecDeque::new(),
            crash: Crash::None,
            nesting: Nesting::None,
            last_end: 0,
            asked_cookie: 0,
            lenient: false,
            torn: None,
            may_be_damaged: self.may_be_damaged,
            depth: 0,
            under_way: Vec::new(),
            fault: None,
            lied: false,
            unpersisted: Vec::new(),
            mount_read: Cell::new(0),
            seen: Rc::clone(&self.seen),
            steps: Vec::new(),
            fresh_blocks: self.fresh_blocks,
        };
        Rc::new(RefCell::new(world))
    }

    /// Leaves a file "old" in the pool, and unmounts.
    pub fn leave_a_file(&mut self) {
        let caller = terrace_fs::Caller { uid: 0, gid: 0 };
        self.fs().mknod(Ino(1), b"old", 0o100644, 0, caller, Wait::Allowed).unwrap();
        self.steps.clear();
        self.unmount_engine();
        self.fs = None;
    }

    /// Looks at what a crash left, and unmounts.
    pub fn look_and_leave(&mut self, states: &[CrashState]) {
        let mut states = states.to_vec();
        states.iter_mut().for_each(|state| state.tree.drop_references());
        self.assert_clean();
        self.remount_media();
        self.settle(&states);
        self.fs().run_background(10_000);
        self.compare_all();
        self.unmount_and_check();
    }

    /// Looks at what these media hold in place of those of now, and unmounts.
    pub fn look_at_and_leave(&mut self, media: Media, states: &[CrashState]) {
        self.steps.clear();
        self.fs = None;
        self.media = media;
        self.look_and_leave(states);
    }

    /// Ends a mount in order.
    pub fn unmount_and_check(&mut self) {
        self.steps.clear();
        self.unmount_engine();
        self.fs = None;
        self.assert_clean();
    }

    /// Mounts, and lets background work come to rest.
    pub fn begin_quiet(&mut self) {
        self.remount_media();
        self.fs().run_background(1000);
    }

    /// Takes over the first allowed state that the mount shows.
    pub fn settle(&mut self, states: &[CrashState]) {
        let mut found = Vec::new();
        // What fits exactly comes first: st_blocks tells one prefix of an fallocate from another.
        let turns = states.iter().map(|state| (false, state)).chain(states.iter().map(|state| (true, state)));
        for (lenient, state) in turns {
            self.lenient = lenient;
            self.model = state.tree.clone();
            self.torn = state.torn.clone();
            let kept = (self.numbers.clone(), self.generations.clone(), self.cookies.clone());
            self.forget_volatile();
            let compared = crate::caught(|| self.compare_all());
            match compared {
                Ok(()) => {
                    self.note(format!("  state: {}", state.name));
                    // What was never durable may be made again under the same number.
                    let there: BTreeMap<u64, u32> =
                        self.numbers.values().map(|(ino, generation)| (ino.0, *generation)).collect();
                    self.generations.retain(|ino, _| !self.config.persist_only || there.contains_key(ino));
                    (self.lenient, self.torn) = (false, None);
                    return;
                }
                Err(error) if lenient => found.push(format!("not {:?}: {error}", state.name)),
                Err(_) => {}
            }
            (self.numbers, self.generations, self.cookies) = kept;
        }
        panic!("the mount shows none of the {} states allowed: {}", states.len(), found.join("; "));
    }

    /// Removes every name and sees that all space comes back (I6, I7).
    pub fn remove_everything(&mut self) -> Vec<Op> {
        let mut left: Vec<Id> = vec![ROOT];
        let mut ops: Vec<Op> = Vec::new();
        while let Some(id) = left.pop() {
            let entries = self.model.node(id).ok().and_then(|node| node.entries()).cloned();
            for (name, child) in entries.unwrap_or_default() {
                let as_directory = self.model.node(child).is_ok_and(|node| node.is_directory());
                ops.push(Op::Remove { directory: id, name, as_directory });
                if as_directory {
                    left.push(child);
                }
            }
        }
        ops.reverse();
        ops
    }

    /// What must hold of a pool from which everything was removed.
    fn assert_empty(&mut self) {
        self.steps.clear();
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
        self.unmount_engine();
        self.end_mount();
        self.assert_clean();
    }
}

/// The end of a history: all is well again, everything is compared, removed, and gone.
pub fn end(world: &Shared) {
    {
        let mut now = world.borrow_mut();
        now.media.clock.set_crash_at(None);
        now.crash = Crash::None;
        if now.faulty() {
            now.inject(Fault::Heals);
        }
        now.note("the end: compare, remount, remove everything".into());
        now.compare_all();
        now.remount();
    }
    let ops = world.borrow_mut().remove_everything();
    for op in ops {
        operate(world, op, true);
    }
    world.borrow_mut().assert_empty();
}
