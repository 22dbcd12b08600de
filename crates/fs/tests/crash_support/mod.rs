//! Crash tests: a pool whose media crash at one instant, a canonical dump of a tree, and the judge of a
//! crash image (check, mount, compare, background, check again). docs/semantics.md says what may be left.
#![allow(dead_code, clippy::unwrap_used, clippy::disallowed_methods, clippy::panic, clippy::type_complexity)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_check::{Devices, Options, check};
use terrace_format::Ino;
use terrace_fs::{
    Allocate, Atime, Caller, DeviceClass, FormatOptions, Fs, FsResult, MountOptions, NewDevice, PolicyKind,
    PoolMedia, SetAttributes, Wait, WriteFlags, XattrMode, format, read_superblock,
};
use terrace_media::block::{DeviceImage, DeviceSnapshot, SimulatedDevice};
use terrace_media::crash::CrashClock;
use terrace_media::pm::{CrashSnapshot, RecordedPm};
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::ManualClock;
use terrace_runtime::sync::Mutex;

pub const ROOT: Ino = Ino(1);
pub const CALLER: Caller = Caller { uid: 0, gid: 0 };
pub const W: Wait = Wait::Allowed;
pub const BLOCK: u64 = 4096;
/// Wall time of every test world's start.
const EPOCH_NS: u64 = 1_700_000_000_000_000_000;

/// States that were judged, over all tests of the process.
pub static STATES: AtomicU64 = AtomicU64::new(0);
/// Mounts that were crashed inside recovery.
pub static RECOVERY_STATES: AtomicU64 = AtomicU64::new(0);

/// What a world is made of.
#[derive(Clone, Copy)]
pub struct Shape {
    pub pm_bytes: u64,
    pub device_blocks: u64,
    pub ordered: bool,
    pub persist_only: bool,
}

pub const SMALL: Shape =
    Shape { pm_bytes: 2 << 20, device_blocks: 1025, ordered: false, persist_only: false };

/// A pool on media that crash together.
pub struct World {
    pub shape: Shape,
    pub clock: Arc<CrashClock>,
    pub pm: Arc<RecordedPm>,
    pub device: Arc<SimulatedDevice>,
    pub time: Arc<ManualClock>,
}

impl World {
    /// A new, formatted pool.
    pub fn new(shape: Shape) -> World {
        let clock = CrashClock::new();
        let pm = Arc::new(RecordedPm::with_clock(vec![0; shape.pm_bytes as usize], &clock));
        pm.set_persist_only(shape.persist_only);
        let image = DeviceImage::zeroed(shape.device_blocks);
        let device = Arc::new(SimulatedDevice::with_clock("simulated", image, &clock));
        let world = World { shape, clock, pm, device, time: Arc::new(ManualClock::new(EPOCH_NS)) };
        format(&world.media(), &format_options(shape.ordered)).unwrap();
        world
    }

    /// What a crash left.
    pub fn from_images(shape: Shape, pm: Vec<u8>, device: DeviceImage) -> World {
        let clock = CrashClock::new();
        let pm = Arc::new(RecordedPm::with_clock(pm, &clock));
        pm.set_persist_only(shape.persist_only);
        let device = Arc::new(SimulatedDevice::with_clock("simulated", device, &clock));
        World { shape, clock, pm, device, time: Arc::new(ManualClock::new(EPOCH_NS + 3_600_000_000_000)) }
    }

    pub fn media(&self) -> PoolMedia {
        self.media_with(self.device.clone())
    }

    /// As `media`, with something in the device's place.
    pub fn media_with(&self, device: Arc<dyn BlockMedium>) -> PoolMedia {
        let pm: Arc<dyn PmMedium> = self.pm.clone();
        PoolMedia { pm, block: vec![device] }
    }

    pub fn mount(&self) -> Arc<Fs> {
        self.mount_with(options()).unwrap()
    }

    pub fn mount_with(&self, options: MountOptions) -> FsResult<Arc<Fs>> {
        let (superblock, _) = read_superblock(&*self.pm, true).unwrap();
        Fs::mount(self.media(), superblock, options, self.time.clone())
    }

    /// Findings of a check that reads cold blocks; empty when clean.
    pub fn findings(&self) -> Vec<String> {
        let pm: Arc<dyn PmMedium> = self.pm.clone();
        let device: Arc<dyn BlockMedium> = self.device.clone();
        let options = Options { read_cold: true, ..Default::default() };
        let report = check(&Devices { pm, block: vec![Some(device)] }, &options);
        if report.is_clean() {
            return Vec::new();
        }
        report.findings.iter().map(|finding| format!("{finding:?}")).collect()
    }

    #[track_caller]
    pub fn assert_clean(&self) {
        let findings = self.findings();
        assert!(findings.is_empty(), "check: {findings:#?}");
    }

    /// The world after losing power now, with everything that was stored (`true`) or only what is durable.
    pub fn crashed(&self, newest: bool) -> World {
        let snapshot = self.pm.snapshot();
        let image = if newest { snapshot.image_newest() } else { snapshot.image_oldest() };
        let device = self.device.snapshot();
        let device = if newest { device.image_all() } else { device.image_none() };
        World::from_images(self.shape, image, device)
    }
}

/// Mount options of the tests: no atime, no second-touch surprises.
pub fn options() -> MountOptions {
    MountOptions { atime: Atime::Never, ..MountOptions::default() }
}

pub fn format_options(ordered: bool) -> FormatOptions {
    FormatOptions {
        label: "crash".into(),
        uuid: [7; 16],
        hash_key: [9; 16],
        policy: PolicyKind::Anticache,
        data_ordered: ordered,
        chunk_blocks: 16,
        created_ns: EPOCH_NS as i64,
        devices: vec![NewDevice { tier: 1, class: DeviceClass::Ssd, uuid: [1; 16], path: "/tier0".into() }],
    }
}

/// Everything of a tree that a user can see but atime, by path.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Dump(pub BTreeMap<String, Entry>);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub mode: u32,
    pub nlink: u32,
    pub owner: (u32, u32),
    pub rdev: u32,
    pub size: u64,
    pub blocks: u64,
    pub times: (i64, i64, i64),
    pub inode: (u64, u32),
    pub content: Vec<u8>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Dump {
    /// Walks the whole tree.
    pub fn of(fs: &Fs) -> Dump {
        let mut dump = Dump::default();
        walk(fs, ROOT, "", &mut dump);
        dump
    }

    /// Without st_blocks: pieces of an intent or preallocation change it.
    #[must_use]
    pub fn without_blocks(mut self) -> Dump {
        self.0.values_mut().for_each(|entry| entry.blocks = 0);
        self
    }

    /// Also without times, for states that another run reaches by another way.
    #[must_use]
    pub fn without_times(mut self) -> Dump {
        self.0.values_mut().for_each(|entry| {
            entry.blocks = 0;
            entry.times = (0, 0, 0);
        });
        self
    }

    /// Where two trees differ, in a few words.
    pub fn difference(&self, other: &Dump) -> String {
        let mut text = String::new();
        for name in self.0.keys().chain(other.0.keys()) {
            let (a, b) = (self.0.get(name), other.0.get(name));
            if a == b || text.contains(name.as_str()) && !name.is_empty() {
                continue;
            }
            match (a, b) {
                (Some(a), Some(b)) => {
                    let at = a.content.iter().zip(&b.content).position(|(x, y)| x != y);
                    text += &format!(" [{name}: {} / {}, content differs at {at:?}]", a.short(), b.short());
                }
                (a, _) => {
                    text += &format!(" [{name} only in the {}]", if a.is_some() { "first" } else { "second" })
                }
            }
        }
        text
    }
}

impl Entry {
    fn short(&self) -> String {
        format!(
            "mode {:o} nlink {} size {} blocks {} times {:?} ino {:?} xattrs {}",
            self.mode,
            self.nlink,
            self.size,
            self.blocks,
            (self.times.0 % 1_000_000_000, self.times.1 % 1_000_000_000, self.times.2 % 1_000_000_000),
            self.inode,
            self.xattrs.len()
        )
    }
}

fn walk(fs: &Fs, ino: Ino, path: &str, dump: &mut Dump) {
    let a = fs.getattr(ino).unwrap();
    let mut content = Vec::new();
    match a.mode & 0o170000 {
        0o100000 => {
            content = vec![0; a.size as usize];
            let mut done = 0;
            while done < content.len() {
                let count = fs.read(ino, done as u64, &mut content[done..], W);
                let count = count.unwrap_or_else(|error| panic!("reading {path} at {done}: {error}"));
                assert!(count > 0, "{path} ends early");
                done += count;
            }
        }
        0o120000 => content = fs.readlink(ino).unwrap(),
        _ => {}
    }
    let names = fs.listxattr(ino).unwrap();
    let names = names.split(|b| *b == 0).filter(|name| !name.is_empty());
    let mut xattrs: Vec<(Vec<u8>, Vec<u8>)> =
        names.map(|name| (name.to_vec(), fs.getxattr(ino, name).unwrap())).collect();
    xattrs.sort();
    let entry = Entry {
        mode: a.mode,
        nlink: a.nlink,
        owner: (a.uid, a.gid),
        rdev: a.rdev,
        size: a.size,
        blocks: a.blocks,
        times: (a.mtime_ns, a.ctime_ns, a.btime_ns),
        inode: (a.ino.0, a.generation),
        content,
        xattrs,
    };
    dump.0.insert(path.to_string(), entry);
    if a.mode & 0o170000 != 0o040000 {
        return;
    }
    let mut names = Vec::new();
    fs.readdir(ino, 0, &mut |entry| {
        if entry.cookie > 2 {
            names.push((entry.name.clone(), entry.ino));
        }
        true
    })
    .unwrap();
    for (name, child) in names {
        let found = fs.lookup(ino, &name).unwrap();
        assert_eq!(found.ino, child);
        walk(fs, child, &format!("{path}/{}", String::from_utf8_lossy(&name)), dump);
        fs.forget(child, 1);
    }
}

/// What a crash may leave.
#[derive(Clone, Default)]
pub struct Allowed {
    /// Whole states, st_blocks left out.
    pub states: Vec<Dump>,
    /// States without times, of prefixes of a sequence.
    pub prefixes: Vec<Dump>,
    /// Something else that decides (data=ordered).
    pub other: Option<Arc<dyn Fn(&Dump) -> bool + Send + Sync>>,
}

impl Allowed {
    pub fn check(&self, found: &Dump) -> Result<(), String> {
        let plain = found.clone().without_blocks();
        if self.states.contains(&plain) || self.other.as_ref().is_some_and(|other| other(found)) {
            return Ok(());
        }
        let bare = plain.clone().without_times();
        if self.prefixes.contains(&bare) {
            return Ok(());
        }
        let mut text = String::from("a state that is not allowed:");
        for (index, state) in self.states.iter().enumerate() {
            text += &format!("\n  against {index}:{}", plain.difference(state));
        }
        for (index, state) in self.prefixes.iter().enumerate() {
            text += &format!("\n  against prefix {index}:{}", bare.difference(state));
        }
        Err(text)
    }
}

/// Checks, mounts, compares, works off the background, unmounts and checks a crash image.
pub fn judge(shape: Shape, pm: Vec<u8>, device: DeviceImage, allowed: &Allowed) -> Result<(), String> {
    STATES.fetch_add(1, Ordering::Relaxed);
    let world = World::from_images(shape, pm, device);
    let findings = world.findings();
    if !findings.is_empty() {
        return Err(format!("check before the mount: {findings:#?}"));
    }
    let fs = world.mount_with(options()).map_err(|error| format!("mount: {error}"))?;
    let found = Dump::of(&fs);
    allowed.check(&found)?;
    fs.run_background(10_000);
    let later = Dump::of(&fs);
    if later.clone().without_blocks() != found.clone().without_blocks() {
        return Err(format!("background work changed the tree:{}", found.difference(&later)));
    }
    fs.unmount().map_err(|error| format!("unmount: {error}"))?;
    drop(fs);
    let findings = world.findings();
    if !findings.is_empty() {
        return Err(format!("check after the unmount: {findings:#?}"));
    }
    Ok(())
}

/// A key of an image of a snapshot: what its undecided lines became.
fn image_key(snapshot: &CrashSnapshot, image: &[u8]) -> u64 {
    let mut key = Arc::as_ptr(&snapshot.durable) as u64;
    let mut mix = |value: u64| key = (key ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    for line in &snapshot.pending {
        let at = line.offset().0 as usize;
        let (now, old) = (&image[at..at + 64], &snapshot.durable[at..at + 64]);
        if now != old {
            mix(at as u64);
            now.as_chunks::<8>().0.iter().for_each(|word| mix(u64::from_le_bytes(*word)));
        }
    }
    key
}

/// How hard to look.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Images of one event at most; subsets of up to `lines` undecided lines are all tried if they are
    /// fewer.
    pub per_event: usize,
    pub lines: u32,
    /// Images of one case at most, about.
    pub per_case: usize,
    /// Images of a crash inside one recovery, about; three recoveries of a case are crashed.
    pub recoveries: usize,
}

impl Effort {
    /// `TERRACE_CRASH_SAMPLES` multiplies the default.
    pub fn default_times(factor: f64) -> Effort {
        let samples = std::env::var("TERRACE_CRASH_SAMPLES").ok().and_then(|s| s.parse::<f64>().ok());
        let factor = factor * samples.unwrap_or(1.0);
        Effort {
            per_event: (24.0 * factor).clamp(6.0, 256.0) as usize,
            lines: 8,
            per_case: (150.0 * factor).max(40.0) as usize,
            recoveries: (20.0 * factor).max(4.0) as usize,
        }
    }
}

/// A moment at which the media crash together.
pub struct Moment {
    pub pm: CrashSnapshot,
    pub device: DeviceSnapshot,
}

/// Images of a moment that were not seen before.
pub fn images_of(
    moment: &Moment,
    effort: Effort,
    seed: u64,
    seen: &mut std::collections::HashSet<u64>,
) -> Vec<(Vec<u8>, DeviceImage)> {
    let mut devices = vec![moment.device.image_none()];
    if moment.device.unflushed_count() > 0 {
        devices.push(moment.device.image_all());
        devices.extend((0..2).map(|i| moment.device.image_random(seed + i)));
    }
    let mut images = Vec::new();
    let many = moment.pm.images_exhaustive(effort.lines);
    let all = many.map(|images| images.take(effort.per_event + 1).collect::<Vec<_>>());
    let few = match all {
        Some(all) if all.len() <= effort.per_event => all,
        _ => {
            let mut few = vec![moment.pm.image_oldest(), moment.pm.image_newest()];
            let random = effort.per_event.saturating_sub(2).max(1) as u64;
            few.extend((0..random).map(|i| moment.pm.image_random(seed * 1000 + i)));
            few
        }
    };
    for (index, image) in few.into_iter().enumerate() {
        let device_key = moment.device.unflushed_count() as u64;
        if !seen.insert(image_key(&moment.pm, &image) ^ device_key.wrapping_mul(0x517c_c1b7_2722_0a95)) {
            continue;
        }
        // The first image meets every device image, the others one each.
        if index == 0 {
            images.extend(devices.iter().map(|device| (image.clone(), device.clone())));
        } else {
            images.push((image, devices[index % devices.len()].clone()));
        }
    }
    images
}

type Act = Box<dyn Fn(&World, &Arc<Fs>) + Send + Sync>;

/// One operation and what a crash inside it may leave.
pub struct Case {
    pub name: &'static str,
    pub shape: Shape,
    pub setup: Act,
    pub act: Act,
    /// What is allowed besides the states before and after: each is run after another setup, and its
    /// state counts without times.
    pub prefixes: Vec<Act>,
    /// data=ordered and the like.
    pub other: Option<Arc<dyn Fn(&Dump) -> bool + Send + Sync>>,
}

impl Case {
    pub fn new(
        name: &'static str,
        setup: impl Fn(&World, &Arc<Fs>) + Send + Sync + 'static,
        act: impl Fn(&World, &Arc<Fs>) + Send + Sync + 'static,
    ) -> Case {
        Case {
            name,
            shape: SMALL,
            setup: Box::new(setup),
            act: Box::new(act),
            prefixes: Vec::new(),
            other: None,
        }
    }
    #[must_use]
    pub fn shape(mut self, shape: Shape) -> Case {
        self.shape = shape;
        self
    }
    #[must_use]
    pub fn or(mut self, act: impl Fn(&World, &Arc<Fs>) + Send + Sync + 'static) -> Case {
        self.prefixes.push(Box::new(act));
        self
    }
    #[must_use]
    pub fn or_if(mut self, other: impl Fn(&Dump) -> bool + Send + Sync + 'static) -> Case {
        self.other = Some(Arc::new(other));
        self
    }

    fn prepared(&self) -> (World, Arc<Fs>) {
        let world = World::new(self.shape);
        let fs = world.mount();
        (self.setup)(&world, &fs);
        world.pm.persist();
        (world, fs)
    }

    /// The state that a crash now leaves, as a mount shows it.
    fn state_now(&self, world: &World, newest: bool) -> Dump {
        let left = world.crashed(newest);
        let fs = left.mount();
        Dump::of(&fs)
    }

    /// Runs the case: crashes at every event of the operation, inside recovery, and after it.
    pub fn run(&self, effort: Effort) -> Result<String, String> {
        let fail = |error: String| format!("case {:?}: {error}", self.name);
        // First run: what is before, what after, how many events.
        let (world, fs) = self.prepared();
        let before = self.state_now(&world, false);
        let first_event = world.clock.now();
        (self.act)(&world, &fs);
        let events = world.clock.now() - first_event;
        let after = self.state_now(&world, true);
        drop(fs);
        let mut allowed =
            Allowed { states: vec![before, after], prefixes: Vec::new(), other: self.other.clone() };
        allowed.states.iter_mut().for_each(|state| *state = state.clone().without_blocks());
        for prefix in &self.prefixes {
            let (world, fs) = self.prepared();
            prefix(&world, &fs);
            allowed.prefixes.push(self.state_now(&world, true).without_times());
        }
        // Second run: photographs at every event, or evenly spread ones.
        let most = (effort.per_case as u64 / 2).max(1);
        let stride = events.div_ceil(most).max(1);
        let (world, fs) = self.prepared();
        let begin = world.clock.now();
        let moments: Arc<Mutex<Vec<Moment>>> = Arc::default();
        let (pm, device) = (Arc::downgrade(&world.pm), Arc::downgrade(&world.device));
        let kept = Arc::clone(&moments);
        world.clock.on_event(Some(Box::new(move |event| {
            // Before a fence most is undecided: these moments are preferred.
            let fence = !matches!(
                event.kind,
                terrace_media::crash::EventKind::Store | terrace_media::crash::EventKind::WriteBack
            );
            let fence = fence && (stride == 1 || event.number % 3 == 0);
            if (event.number - begin) % stride == 0 || fence {
                let (Some(pm), Some(device)) = (pm.upgrade(), device.upgrade()) else { return };
                kept.lock().push(Moment { pm: pm.snapshot(), device: device.snapshot() });
            }
        })));
        (self.act)(&world, &fs);
        world.clock.on_event(None);
        let last = Moment { pm: world.pm.snapshot(), device: world.device.snapshot() };
        drop(fs);
        let mut seen = std::collections::HashSet::new();
        let moments = std::mem::take(&mut *moments.lock());
        let count = moments.len();
        let share =
            Effort { per_event: effort.per_event.min((2 * effort.per_case / count.max(1)).max(3)), ..effort };
        let (mut states, mut recoveries) = (0, 0);
        for (index, moment) in moments.iter().enumerate() {
            let images = images_of(moment, share, index as u64, &mut seen);
            for (number, (pm, device)) in images.into_iter().enumerate() {
                if number == 1 && index % (count / 3).max(1) == 0 {
                    let most = effort.recoveries;
                    recoveries += crash_recovery(self.shape, &pm, &device, &allowed, most).map_err(fail)?;
                }
                judge(self.shape, pm, device, &allowed).map_err(|error| {
                    fail(format!(
                        "crash at event {} of {events}, image {number}: {error}",
                        moment.pm.event - begin
                    ))
                })?;
                states += 1;
            }
        }
        // After the call returned nothing but its result is left, unless only `persist` makes durable.
        let strict = Allowed { states: vec![allowed.states[1].clone()], ..Allowed::default() };
        let last_allowed = if self.shape.persist_only { &allowed } else { &strict };
        for (pm, device) in images_of(&last, effort, 99, &mut std::collections::HashSet::new()) {
            judge(self.shape, pm, device, last_allowed)
                .map_err(|error| fail(format!("crash after the call: {error}")))?;
            states += 1;
        }
        Ok(format!("{:<28} {events:>5} events {states:>5} states {recoveries:>4} in recovery", self.name))
    }
}

/// Crashes inside the mount of an image, and mounts again.
pub fn crash_recovery(
    shape: Shape,
    pm: &[u8],
    device: &DeviceImage,
    allowed: &Allowed,
    most: usize,
) -> Result<usize, String> {
    let world = World::from_images(shape, pm.to_vec(), device.clone());
    let moments: Arc<Mutex<Vec<Moment>>> = Arc::default();
    let (weak_pm, weak_device) = (Arc::downgrade(&world.pm), Arc::downgrade(&world.device));
    let kept = Arc::clone(&moments);
    world.clock.on_event(Some(Box::new(move |_| {
        let (Some(pm), Some(device)) = (weak_pm.upgrade(), weak_device.upgrade()) else { return };
        kept.lock().push(Moment { pm: pm.snapshot(), device: device.snapshot() });
    })));
    let fs = world.mount_with(options()).map_err(|error| format!("mount: {error}"))?;
    world.clock.on_event(None);
    drop(fs);
    let moments = std::mem::take(&mut *moments.lock());
    let mut seen = std::collections::HashSet::new();
    let per_event = (most / moments.len().max(1)).max(1);
    let stride = (moments.len() / most).max(1);
    let mut count = 0;
    for (index, moment) in moments.iter().enumerate() {
        if index % stride != 0 && index + 1 != moments.len() {
            continue;
        }
        let effort = Effort { per_event, lines: 4, per_case: most, recoveries: 0 };
        for (pm, device) in images_of(moment, effort, index as u64, &mut seen) {
            RECOVERY_STATES.fetch_add(1, Ordering::Relaxed);
            count += 1;
            judge(shape, pm, device, allowed).map_err(|error| format!("crashed inside recovery: {error}"))?;
        }
    }
    Ok(count)
}

/// Runs something on a thread whose index picks a lane.
pub fn in_lane<R: Send>(lane: usize, lanes: usize, run: impl FnOnce() -> R + Send) -> R {
    let mut run = Some(run);
    loop {
        let done = std::thread::scope(|scope| {
            let run = &mut run;
            let work = move || match terrace_runtime::thread::index() % lanes == lane {
                true => run.take().map(|run| run()),
                false => None,
            };
            scope.spawn(work).join().unwrap()
        });
        if let Some(done) = done {
            return done;
        }
    }
}

pub fn create(fs: &Fs, parent: Ino, name: &str) -> Ino {
    let ino = fs.mknod(parent, name.as_bytes(), 0o100644, 0, CALLER, W).unwrap().ino;
    fs.forget(ino, 1);
    ino
}

pub fn mkdir(fs: &Fs, parent: Ino, name: &str) -> Ino {
    let ino = fs.mkdir(parent, name.as_bytes(), 0o755, CALLER, W).unwrap().ino;
    fs.forget(ino, 1);
    ino
}

pub fn find(fs: &Fs, path: &str) -> Ino {
    let mut at = ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at = fs.lookup(at, name.as_bytes()).unwrap().ino;
        fs.forget(at, 1);
    }
    at
}

pub fn write(fs: &Fs, ino: Ino, offset: u64, data: &[u8]) {
    fs.write(ino, offset, data, WriteFlags::default(), W).unwrap();
}

pub fn read(fs: &Fs, ino: Ino) -> Vec<u8> {
    let mut content = vec![0; fs.getattr(ino).unwrap().size as usize];
    let count = fs.read(ino, 0, &mut content, W).unwrap();
    assert_eq!(count, content.len());
    content
}

pub fn set_size(fs: &Fs, ino: Ino, size: u64) {
    fs.setattr(ino, &SetAttributes { size: Some(size), ..Default::default() }, W).unwrap();
}

pub fn punch(fs: &Fs, ino: Ino, offset: u64, length: u64) {
    fs.fallocate(ino, offset, length, Allocate::PunchHole, W).unwrap();
}

pub fn set_xattr(fs: &Fs, ino: Ino, name: &str, value: &[u8]) {
    fs.setxattr(ino, name.as_bytes(), value, XattrMode::Any, W).unwrap();
}

/// Bytes that say where they are.
pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|i| {
            (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed.wrapping_mul(97)) | 1
        })
        .collect()
}
