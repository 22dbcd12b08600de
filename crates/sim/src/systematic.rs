//! Every operation, and every pair of operations that touch the same names or blocks, crashed before each
//! persistence event of the last of them, on a small pool with something of everything. What is allowed comes from
//! the reference (`Reference::crash_states`). See `subsets` for the images of a moment.

use crate::action::{Action, Entry};
use crate::config::{BASE, Config};
use crate::happen::apply;
use crate::media::{Media, Moment, Setup, soon_after_change};
use crate::run::Wrong;
use crate::subsets::{Choice, NEWEST, Random, all_subsets, any_states, some_subsets};
use crate::world::{Shared, World};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use terrace_media::block::DeviceImage;
use terrace_media::ordering::OrderingPoint;
use terrace_media::pm::CrashSnapshot;
use terrace_reference::{Allocate, BLOCK, Change, CrashState, Id, New, Op, ROOT, SetTime, XattrMode};
use terrace_runtime::planted::plant;
use terrace_runtime::thread;

/// How hard to look.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Up to so many undecided lines all subsets are taken.
    pub lines: u32,
    /// Images of a moment with more lines, about.
    pub samples: usize,
    /// Every so many-th moment is looked at, with another start for each case.
    pub stride: usize,
    /// The last step runs on a pool mounted anew, so that no line of an older record is undecided and nearly all moments
    /// are small enough for all subsets. Else as a running pool is.
    pub quiet: bool,
    /// Moments of one case after which recovery is crashed too.
    pub recoveries: usize,
    /// Moments of one case at which the daemon alone dies, is started again and works on; then power fails.
    pub deaths: usize,
    /// When an ordering point is changed: so many moments soon after it, in place of every `stride`-th.
    pub soon: usize,
}

impl Effort {
    /// No image is judged.
    pub const NONE: Effort =
        Effort { lines: 0, samples: 0, stride: 1, quiet: true, recoveries: 0, deaths: 0, soon: 0 };

    /// For what follows on each of many moments.
    fn less(self) -> Effort {
        Effort { lines: self.lines.min(2), samples: self.samples.min(6), ..self }
    }
}

/// A step of a case.
#[derive(Debug, Clone)]
pub struct Act {
    /// For messages.
    pub name: &'static str,
    /// What is done.
    pub action: Action,
    /// Inodes and names it touches.
    pub(crate) touches: Vec<(Id, Option<&'static str>)>,
}

pub(crate) const D: Id = Id(2);
const EMPTY: Id = Id(3);
const SUB: Id = Id(4);
pub(crate) const COLD: Id = Id(5);
pub(crate) const F: Id = Id(6);
const G: Id = Id(7);
pub(crate) const H: Id = Id(8);
pub(crate) const LINK: Id = Id(9);
const BIG: Id = Id(10);
/// Files that fill the first page of the inode file: one more inode needs a new page.
const FILLERS: std::ops::Range<u64> = 11..32;
const NEW: Id = Id(40);

/// The pool of all cases: small, so that comparing is quick.
pub const SMALL: Config = Config {
    name: "systematic",
    device_blocks: 1025,
    threshold_percent: 80,
    relatime: false,
    most_blocks: 300,
    ..BASE
};

fn make(id: Id, directory: Id, name: &str, new: New) -> Action {
    Action::Op(Op::Make { id, directory, name: name.into(), new, owner: (0, 0) })
}

fn write(id: Id, offset: u64, length: usize, seed: u64) -> Action {
    Action::Op(Op::Write { id, offset, length, seed, kill_set_id: false, sync: false })
}

fn change(id: Id, change: Change) -> Action {
    Action::Op(Op::SetAttributes { id, change })
}

fn size(id: Id, size: u64) -> Action {
    change(id, Change { size: Some(size), ..Change::default() })
}

fn punch(id: Id, offset: u64, length: u64) -> Action {
    Action::Op(Op::Fallocate { id, offset, length, mode: Allocate::PunchHole })
}

fn rename(from: (Id, &str), to: (Id, &str)) -> Action {
    Action::Op(Op::Rename { from: (from.0, from.1.into()), to: (to.0, to.1.into()), no_replace: false })
}

fn remove(directory: Id, name: &str, as_directory: bool) -> Action {
    Action::Op(Op::Remove { directory, name: name.into(), as_directory })
}

fn xattr(id: Id, length: usize, seed: u64) -> Action {
    Action::Op(Op::SetXattr { id, name: b"user.a".to_vec(), length, seed, mode: XattrMode::Any })
}

/// Names so long that the next one of its length splits a page of the catalog.
fn filler(id: u64) -> String {
    format!("{id}-{}", "filler".repeat(24))
}

/// What is there before each case.
fn populate() -> Vec<Action> {
    let mut all = vec![
        make(D, ROOT, "d", New::Directory(0o755)),
        make(EMPTY, ROOT, "empty", New::Directory(0o755)),
        make(SUB, D, "sub", New::Directory(0o755)),
        make(COLD, ROOT, "cold", New::Regular(0o644)),
        write(COLD, 0, 20_000, 1),
        Action::SyncDown,
        make(F, ROOT, "f", New::Regular(0o644)),
        write(F, 0, 10_000, 2),
        make(G, D, "g", New::Regular(0o4755)),
        write(G, 0, 5000, 3),
        Action::Op(Op::Link { id: G, directory: ROOT, name: b"hard".to_vec() }),
        make(H, D, "h", New::Regular(0o600)),
        xattr(H, 700, 4),
        make(LINK, ROOT, "link", New::Symlink(b"d/g".to_vec())),
        make(BIG, ROOT, "big", New::Regular(0o644)),
        write(BIG, 0, 90 * BLOCK + 10, 5),
    ];
    all.extend(FILLERS.map(|id| make(Id(id), D, &filler(id), New::Regular(0o600))));
    all.push(Action::Op(Op::Fsync { id: F }));
    all
}

/// All steps.
pub fn acts() -> Vec<Act> {
    let act = |name: &'static str, touches: &[(Id, Option<&'static str>)], action: Action| Act {
        name,
        action,
        touches: touches.to_vec(),
    };
    let of = |id: Id| (id, None);
    let at = |id: Id, name: &'static str| (id, Some(name));
    let all = |mode, uid, mtime| Change { mode, uid, mtime, ..Change::default() };
    vec![
        act("create", &[at(ROOT, "new")], make(NEW, ROOT, "new", New::Regular(0o644))),
        act("mkdir", &[at(D, "new"), of(D)], make(NEW, D, "new", New::Directory(0o755))),
        act(
            "create with a split",
            &[at(D, "long"), of(D)],
            make(NEW, D, &"long".repeat(60), New::Regular(0o644)),
        ),
        act("mknod", &[at(ROOT, "new")], make(NEW, ROOT, "new", New::Special(0o010600, 0))),
        act("symlink", &[at(ROOT, "s")], make(NEW, ROOT, "s", New::Symlink(vec![b'x'; 1500]))),
        act(
            "link",
            &[at(D, "f2"), of(F)],
            Action::Op(Op::Link { id: F, directory: D, name: b"f2".to_vec() }),
        ),
        act("unlink one of two", &[at(ROOT, "hard"), of(G)], remove(ROOT, "hard", false)),
        act("unlink the last, with data", &[at(ROOT, "f"), of(F)], remove(ROOT, "f", false)),
        act("unlink the last, cold", &[at(ROOT, "cold"), of(COLD)], remove(ROOT, "cold", false)),
        act("unlink with xattr", &[at(D, "h"), of(H)], remove(D, "h", false)),
        act("unlink symlink", &[at(ROOT, "link"), of(LINK)], remove(ROOT, "link", false)),
        act("unlink many blocks", &[at(ROOT, "big"), of(BIG)], remove(ROOT, "big", false)),
        act("rmdir", &[at(ROOT, "empty"), of(EMPTY)], remove(ROOT, "empty", true)),
        act(
            "rename in one directory",
            &[at(ROOT, "f"), at(ROOT, "z"), of(F)],
            rename((ROOT, "f"), (ROOT, "z")),
        ),
        act("rename across", &[at(ROOT, "f"), at(D, "z"), of(F), of(D)], rename((ROOT, "f"), (D, "z"))),
        act(
            "rename over a file",
            &[at(ROOT, "f"), at(D, "h"), of(F), of(H), of(D)],
            rename((ROOT, "f"), (D, "h")),
        ),
        act(
            "rename over a linked file",
            &[at(ROOT, "f"), at(ROOT, "hard"), of(F), of(G)],
            rename((ROOT, "f"), (ROOT, "hard")),
        ),
        act("rename a directory", &[at(D, "sub"), of(SUB), of(D)], rename((D, "sub"), (ROOT, "moved"))),
        act(
            "rename over a directory",
            &[at(D, "sub"), at(ROOT, "empty"), of(SUB), of(EMPTY), of(D)],
            rename((D, "sub"), (ROOT, "empty")),
        ),
        act("chmod", &[of(F)], change(F, all(Some(0o4711), None, None))),
        act("chown", &[of(D)], change(D, all(None, Some(7), None))),
        act("utimens", &[of(G)], change(G, all(None, None, Some(SetTime::At(-7))))),
        act(
            "size and others",
            &[of(F)],
            change(F, Change { size: Some(5), mtime: Some(SetTime::At(77)), ..Change::default() }),
        ),
        act("setxattr new", &[of(F)], xattr(F, 1000, 9)),
        act("setxattr longer", &[of(H)], xattr(H, 1400, 9)),
        act("setxattr shorter", &[of(H)], xattr(H, 1, 9)),
        act("removexattr", &[of(H)], Action::Op(Op::RemoveXattr { id: H, name: b"user.a".to_vec() })),
        act("write a new block", &[of(F)], write(F, 40_960, BLOCK, 9)),
        act("overwrite a block", &[of(F)], write(F, 4096, BLOCK, 9)),
        act("overwrite two blocks", &[of(F)], write(F, 0, 2 * BLOCK, 9)),
        act("overwrite many blocks", &[of(BIG)], write(BIG, 0, 20 * BLOCK, 9)),
        act("append in the last block", &[of(F)], write(F, 10_000, 100, 9)),
        act("append across blocks", &[of(F)], write(F, 10_000, 9000, 9)),
        act("unaligned overwrite", &[of(F)], write(F, 4000, 200, 9)),
        act("sparse, past a partial block", &[of(F)], write(F, 100_000, 10, 9)),
        act("far, new map nodes", &[of(F)], write(F, 600 * 4096, 5000, 9)),
        act("over a cold block, whole", &[of(COLD)], write(COLD, 4096, BLOCK, 9)),
        act("over a cold block, part", &[of(COLD)], write(COLD, 5000, 100, 9)),
        act("append to a cold block", &[of(COLD)], write(COLD, 20_000, 3000, 9)),
        act(
            "write with O_SYNC and set-id",
            &[of(G)],
            Action::Op(Op::Write { id: G, offset: 1, length: 3, seed: 9, kill_set_id: true, sync: true }),
        ),
        act(
            "overwrite a block with O_SYNC",
            &[of(F)],
            Action::Op(Op::Write {
                id: F,
                offset: 0,
                length: BLOCK,
                seed: 9,
                kill_set_id: false,
                sync: true,
            }),
        ),
        act("write in three pieces", &[of(BIG)], write(BIG, 0, 140 * BLOCK, 9)),
        act("truncate down", &[of(F)], size(F, 4500)),
        act("truncate to nothing", &[of(F)], size(F, 0)),
        act("truncate up in the block", &[of(F)], size(F, 11_000)),
        act("truncate cold", &[of(COLD)], size(COLD, 4500)),
        act("truncate up, cold", &[of(COLD)], size(COLD, 100_000)),
        act("truncate by intent", &[of(BIG)], size(BIG, 5000)),
        act("punch inside", &[of(F)], punch(F, 1000, 7000)),
        act("punch in one block", &[of(F)], punch(F, 1000, 70)),
        act("punch cold", &[of(COLD)], punch(COLD, 1000, 9000)),
        act("punch by intent", &[of(BIG)], punch(BIG, 5000, 300_000)),
        act(
            "allocate in the file",
            &[of(F)],
            Action::Op(Op::Fallocate { id: F, offset: 0, length: 60_000, mode: Allocate::KeepSize }),
        ),
        act(
            "allocate and extend",
            &[of(F)],
            Action::Op(Op::Fallocate { id: F, offset: 5000, length: 100_000, mode: Allocate::Extend }),
        ),
        act("demotion", &[of(F), of(G), of(BIG), of(COLD), of(H)], Action::SyncDown),
        act("background", &[of(F), of(G), of(BIG), of(COLD), of(H), of(LINK)], Action::Background(20)),
        act("fsync", &[of(F)], Action::Op(Op::Fsync { id: F })),
        act("unmount and mount", &[of(F), of(COLD)], Action::Remount),
        // Nothing comes after it.
        act("unmount", &[], Action::Unmount),
    ]
}

/// The steps of one case: the last is crashed.
pub type Case = Vec<Act>;

/// Every step alone, then every pair that touches the same inode or name.
pub fn cases() -> (Vec<Case>, Vec<Case>) {
    let all = acts();
    let singles = all.iter().map(|act| vec![act.clone()]).collect();
    let mut pairs = Vec::new();
    for first in &all {
        for second in &all {
            if first.touches.iter().any(|what| second.touches.contains(what)) {
                let mut second = second.clone();
                make_different(&mut second);
                pairs.push(vec![first.clone(), second]);
            }
        }
    }
    (singles, pairs)
}

/// As the second step of a pair: another inode, other content.
pub fn make_different(second: &mut Act) {
    match &mut second.action {
        Action::Op(Op::Make { id, .. }) => *id = Id(NEW.0 + 1),
        Action::Op(Op::Write { seed, .. }) => *seed += 1,
        _ => {}
    }
}

/// What a case gave.
#[derive(Default)]
pub struct Explored {
    /// Distinct images judged.
    pub states: u64,
    /// Persistence events of the last step.
    pub events: u64,
    /// Moments taken with all subsets, and sampled.
    pub all: u64,
    pub sampled: u64,
    /// The ordering points that the last step passed, and how often.
    pub points: BTreeMap<OrderingPoint, u64>,
    /// Those that any step of the case passed, its mount included.
    pub passed: BTreeMap<OrderingPoint, u64>,
    /// What did not hold.
    pub violation: Option<String>,
}

/// Runs a case.
pub fn explore(config: Config, case: &[Act], effort: Effort, seed: u64, wrong: Wrong) -> Explored {
    let setup = Setup { change: wrong.ordering, ..Setup::default() };
    judged(|explored| {
        let world = World::new(config, 1, setup.clone());
        plant(wrong.mistake);
        for action in populate() {
            apply(&world, &Entry { action, seed });
        }
        run_case(&world, case, effort, seed, explored);
    })
}

/// Runs a case on a copy of [`prepared`] media.
pub fn explore_on(known: &Shared, case: &[Act], effort: Effort, seed: u64, wrong: Wrong) -> Explored {
    judged(|explored| {
        let now = known.borrow();
        let device = now.media.device.as_ref().map(|device| device.visible_image());
        let setup =
            Setup { persist_only: now.config.persist_only, change: wrong.ordering, ..Setup::default() };
        let world = now.fork(Media::from_images(now.media.pm.visible_image(), device, &setup));
        plant(wrong.mistake);
        world.borrow_mut().begin_quiet();
        run_case(&world, case, Effort { quiet: false, ..effort }, seed, explored);
    })
}

/// Runs something, and keeps what did not hold.
pub(crate) fn judged(run: impl FnOnce(&mut Explored)) -> Explored {
    thread::set_index(0);
    let mut explored = Explored::default();
    let result = crate::caught(|| run(&mut explored));
    plant(None);
    explored.violation = result.err();
    explored
}

fn run_case(world: &Shared, case: &[Act], effort: Effort, seed: u64, explored: &mut Explored) {
    let Some((last, before)) = case.split_last() else { return };
    for act in before {
        apply(world, &Entry { action: act.action.clone(), seed });
    }
    if effort.quiet {
        apply(world, &Entry { action: Action::Remount, seed });
    }
    let config = world.borrow().config;
    let setup = world.borrow().media.setup().clone();
    let known = copy(world, &setup);
    let camera = world.borrow().media.camera();
    explored.passed = passed_points(world);
    world.borrow().media.clock.ordering().forget();
    let (moments, states) = camera.film(|| apply_last(world, &last.action, seed));
    explored.points = passed_points(world);
    explored.passed.extend(explored.points.clone());
    explored.events = moments.len() as u64;
    let count = moments.len();
    let of_stride =
        |index: &usize| (index + seed as usize).is_multiple_of(effort.stride) || index + 1 == count;
    let chosen: Vec<usize> = match setup.change {
        Some(_) if effort.soon > 0 => soon_after_change(&moments, effort.soon),
        _ => (0..count).filter(of_stride).collect(),
    };
    // So many of them, spread evenly, the last included.
    let is_of = |turn: usize, many: usize| {
        many > 0 && (chosen.len() - 1 - turn).is_multiple_of((chosen.len() / many).max(1))
    };
    let mut seen = HashSet::new();
    for (turn, index) in chosen.iter().copied().enumerate() {
        let moment = &moments[index];
        let mut states = &states[..];
        // Once the call has returned nothing but its result is left (C6).
        if index + 1 == count && (!config.persist_only || persists(&last.action)) {
            states = &states[states.len() - 1..];
            seen.clear();
        }
        let mut judged =
            judge_moment(&known, moment, states, effort, seed + index as u64, &mut seen, explored);
        if judged.is_ok() && is_of(turn, effort.recoveries) {
            judged = crash_recovery(&known, moment, states, effort, &mut seen, explored);
        }
        if judged.is_ok() && is_of(turn, effort.deaths) {
            judged = die_and_lose_power(&known, moment, states, effort, &mut seen, explored);
        }
        if let Err(error) = judged {
            let names: Vec<&str> = case.iter().map(|act| act.name).collect();
            panic!("{}: crash before event {index} of {count}: {error}", names.join(", then "));
        }
    }
}

fn passed_points(world: &Shared) -> BTreeMap<OrderingPoint, u64> {
    world.borrow().media.clock.ordering().points().into_iter().collect()
}

/// Crashes in the middle of the mount after a crash at `moment`, and mounts again.
fn crash_recovery(
    known: &Shared,
    moment: &Moment,
    states: &[CrashState],
    effort: Effort,
    seen: &mut HashSet<u64>,
    explored: &mut Explored,
) -> Result<(), String> {
    let device = moment.device.as_ref().map(|device| device.image_all());
    let setup = known.borrow().media.setup().clone();
    let fork = known.borrow().fork(Media::from_images(moment.pm.image_newest(), device, &setup));
    let camera = fork.borrow().media.camera();
    let (moments, ()) = camera.film(|| fork.borrow().only_mount());
    for index in of_second(&moments, &setup, effort) {
        judge_moment(known, &moments[index], states, effort.less(), index as u64, seen, explored)
            .map_err(|error| format!("crashed at event {index} of the recovery: {error}"))?;
    }
    Ok(())
}

/// Ends the daemon at `moment`, starts it again on what PM shows, has it move everything below PM, and loses power
/// meanwhile.
fn die_and_lose_power(
    known: &Shared,
    moment: &Moment,
    states: &[CrashState],
    effort: Effort,
    seen: &mut HashSet<u64>,
    explored: &mut Explored,
) -> Result<(), String> {
    let setup = known.borrow().media.setup().clone();
    let fork = known.borrow().fork(Media::resumed(moment, &setup));
    let camera = fork.borrow().media.camera();
    let (moments, moved) = camera.film(|| {
        fork.borrow_mut().begin_quiet();
        let fs = Arc::clone(fork.borrow().fs());
        fs.sync_to(1, &mut |_| {})
    });
    moved.map_err(|error| format!("the daemon died, was started again, and moved data below PM: {error}"))?;
    for index in of_second(&moments, &setup, effort) {
        judge_moment(known, &moments[index], states, effort.less(), index as u64, seen, explored).map_err(
            |error| {
                format!("the daemon died, then power failed before event {index} of its next mount: {error}")
            },
        )?;
    }
    Ok(())
}

/// The moments to look at of what follows on another moment: few, and those before a `persist`.
fn of_second(moments: &[Moment], setup: &Setup, effort: Effort) -> Vec<usize> {
    let most = effort.soon.clamp(4, 8);
    if setup.change.is_some() && moments.iter().any(|moment| moment.changed > 0) {
        return soon_after_change(moments, most);
    }
    let step = moments.len().div_ceil(most);
    (0..moments.len()).filter(|index| index % step == 0 || moments[*index].before_persist).collect()
}

/// Whether a step makes durable what it did, and all before it.
fn persists(action: &Action) -> bool {
    matches!(
        action,
        Action::Op(Op::Fsync { .. } | Op::Write { sync: true, .. })
            | Action::SyncDown
            | Action::Remount
            | Action::Unmount
    )
}

/// What is known now, on media of its own: judges start from it.
fn copy(world: &Shared, setup: &Setup) -> Shared {
    let now = world.borrow();
    let device = now.media.device.as_ref().map(|device| device.visible_image());
    now.fork(Media::from_images(now.media.pm.visible_image(), device, setup))
}

/// The pool of all cases, unmounted in order.
pub fn prepared(config: Config, setup: &Setup, wrong: Wrong) -> Shared {
    let world = World::new(config, 1, setup.clone());
    plant(wrong.mistake);
    for action in populate().into_iter().chain([Action::Remount]) {
        apply(&world, &Entry { action, seed: 0 });
    }
    world.borrow_mut().unmount_and_check();
    copy(&world, setup)
}

/// Does the last step; the states that a crash inside it may leave.
fn apply_last(world: &Shared, action: &Action, seed: u64) -> Vec<CrashState> {
    let states = {
        let world = world.borrow();
        let from = world.now();
        // Some microseconds later than the clock can get within one operation.
        let when = terrace_reference::Stamp { from, to: from + 1_000_000_000 };
        match action {
            Action::Op(op) => world.states_of(op, when),
            _ => world.state_now(),
        }
    };
    let mut states = states;
    let earlier = world.borrow().unpersisted();
    states.splice(0..0, earlier);
    apply(world, &Entry { action: action.clone(), seed });
    states
}

fn judge_moment(
    world: &Shared,
    moment: &Moment,
    states: &[CrashState],
    effort: Effort,
    seed: u64,
    seen: &mut HashSet<u64>,
    explored: &mut Explored,
) -> Result<(), String> {
    if effort.samples == 0 {
        return Ok(());
    }
    let newest = moment.pm.in_epoch(u64::MAX);
    let all = all_subsets(&newest, effort.lines);
    *(if all.is_some() { &mut explored.all } else { &mut explored.sampled }) += 1;
    let mut random = Random(seed);
    let choices: Vec<Choice> = match all {
        Some(mut all) => {
            // Beside old and newest also lines in between.
            all.extend((0..4).map(|_| any_states(&newest, &mut random)));
            all
        }
        None => some_subsets(&newest, effort.samples, seed),
    };
    let mut devices: Vec<Option<DeviceImage>> = vec![moment.device.as_ref().map(|d| d.image_none())];
    if let Some(device) = moment.device.as_ref().filter(|device| device.unflushed_count() > 0) {
        devices.push(Some(device.image_all()));
        devices.extend((0..2).map(|i| Some(device.image_random(seed + i))));
    }
    judge_images(world, &newest, &choices, &devices, states, seen, explored)?;
    // Where only `persist` makes durable the crash may fall into an earlier epoch.
    let epochs = moment.pm.epoch_count();
    for turn in 0..(epochs - 1).min(6) {
        let epoch = if turn == 0 { 0 } else { random.below(epochs as usize) as u64 };
        let narrow = moment.pm.in_epoch(epoch);
        let lines = narrow.pending.len();
        let choices = vec![vec![0; lines], vec![NEWEST; lines], any_states(&narrow, &mut random)];
        judge_images(world, &narrow, &choices, &devices, states, seen, explored)?;
    }
    Ok(())
}

/// Judges images of one epoch, each state once.
fn judge_images(
    world: &Shared,
    pm: &CrashSnapshot,
    choices: &[Choice],
    devices: &[Option<DeviceImage>],
    states: &[CrashState],
    seen: &mut HashSet<u64>,
    explored: &mut Explored,
) -> Result<(), String> {
    for (index, choice) in choices.iter().enumerate() {
        let of = |line: usize| choice[line];
        let hash = pm.hash_here(&of);
        for (turn, device) in devices.iter().enumerate() {
            // The first two meet every device image, the others two each.
            if index >= 2 && turn != 0 && turn != 1 + index % (devices.len() - 1) {
                continue;
            }
            let whole = hash ^ device.as_ref().map_or(0, DeviceImage::hash).rotate_left(17);
            if !seen.insert(whole) {
                continue;
            }
            explored.states += 1;
            let setup = world.borrow().media.setup().clone();
            let media = Media::from_images(pm.image_here(&of), device.clone(), &setup);
            let fork = world.borrow().fork(media);
            let judged = crate::caught(|| fork.borrow_mut().look_and_leave(states));
            judged.map_err(|error| {
                let lines = pm.pending.iter().zip(choice).take(12);
                let lines: Vec<String> =
                    lines.map(|(l, c)| format!("{:#x}: {c} of {}", l.offset().0, l.state_count())).collect();
                format!("image {index} (device {turn}; lines {}): {error}", lines.join(", "))
            })?;
        }
    }
    Ok(())
}
