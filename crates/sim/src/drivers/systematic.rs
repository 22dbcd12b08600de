//! Every operation, and every pair of operations that touch the same names or blocks, crashed before each
//! persistence event of the last one, on a small pool with a file in each state. The reference gives the
//! allowed states (`Reference::crash_states`), `subsets` the images of a moment.

use crate::action::{Action, Entry};
use crate::actions::apply::apply;
use crate::bounds;
use crate::config::Config;
use crate::drivers::acts::{Act, populate};
pub use crate::drivers::effort::{Effort, Explored};
use crate::drivers::journal_images::{judge_journal, settle_journal};
use crate::drivers::run::Wrong;
use crate::media::{Media, Moment, Setup, soon_after_change};
use crate::subsets::{Choice, NEWEST, Random, all_subsets, any_states, some_subsets};
use crate::world::{Shared, World};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use terrace_engine::MoveRequest;
use terrace_engine::Movements;
use terrace_media::block::{DeviceImage, DeviceSnapshot};
use terrace_media::ordering::OrderingPoint;
use terrace_media::pm::CrashSnapshot;
use terrace_reference::{CrashState, Op};
use terrace_runtime::planted::plant;
use terrace_runtime::{interleave, thread};

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
        let devices = now.pool.media.device_images();
        let setup = Setup { tier0: now.config.tier0, change: wrong.ordering, ..Setup::default() };
        let world = now.fork(Media::from_images(now.pool.media.tier0_content(), devices, &setup));
        plant(wrong.mistake);
        world.borrow_mut().begin_quiet();
        run_case(&world, case, Effort { quiet: false, ..effort }, seed, explored);
    })
}

/// Runs an exploration, and keeps its violation.
pub(crate) fn judged(run: impl FnOnce(&mut Explored)) -> Explored {
    thread::set_index(0);
    let mut explored = Explored::default();
    bounds::only_count();
    let result = crate::findings::caught(|| run(&mut explored));
    interleave::set_hook(None);
    plant(None);
    explored.violation = result.err();
    explored
}

fn run_case(world: &Shared, case: &[Act], effort: Effort, seed: u64, explored: &mut Explored) {
    let Some((last, before)) = case.split_last() else { return };
    let config = world.borrow().config;
    // A remount makes waiting writes durable, so on such a pool it comes before the writes.
    if effort.quiet && config.buffers() {
        apply(world, &Entry { action: Action::Remount, seed });
    }
    for act in before {
        apply(world, &Entry { action: act.action.clone(), seed });
    }
    if effort.quiet && !config.buffers() {
        apply(world, &Entry { action: Action::Remount, seed });
    }
    let setup = world.borrow().pool.media.setup().clone();
    let known = copy(world, &setup);
    if let Action::Hand { action: action @ (MoveRequest::Pin { .. } | MoveRequest::Unpin), .. } = &last.action
    {
        known.borrow_mut().tolerance.pins_unsure = Some(action.tier());
    }
    let camera = world.borrow().pool.media.camera();
    explored.passed = passed_points(world);
    world.borrow().pool.media.clock.ordering().forget();
    let (moments, states) = camera.film(|| {
        let states = apply_last(world, &last.action, seed);
        settle_journal(world);
        states
    });
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
    // Whether a turn is among `many` chosen moments, spread evenly, the last included.
    let is_of = |turn: usize, many: usize| {
        many > 0 && (chosen.len() - 1 - turn).is_multiple_of((chosen.len() / many).max(1))
    };
    let mut seen = HashSet::new();
    for (turn, index) in chosen.iter().copied().enumerate() {
        let moment = &moments[index];
        let mut states = &states[..];
        // After the call has returned a crash leaves its result only (C6).
        if index + 1 == count && (!config.persist_only() || persists(&last.action)) {
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
    world.borrow().pool.media.clock.ordering().points().into_iter().collect()
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
    let devices = moment.device_images(DeviceSnapshot::image_all);
    let setup = known.borrow().pool.media.setup().clone();
    let fork = known.borrow().fork(match &moment.journal {
        Some(journal) => Media::from_journal(journal.image_all(), devices, &setup),
        None => Media::from_images(moment.pm.image_newest(), devices, &setup),
    });
    let camera = fork.borrow().pool.media.camera();
    let (moments, ()) = camera.film(|| fork.borrow().pool.only_mount());
    for index in of_second(&moments, &setup, effort) {
        judge_moment(known, &moments[index], states, effort.less(), index as u64, seen, explored)
            .map_err(|error| format!("crashed at event {index} of the recovery: {error}"))?;
    }
    Ok(())
}

/// Ends the daemon at `moment`, starts it again on the visible content of PM, has it demote all files, and
/// loses power meanwhile.
fn die_and_lose_power(
    known: &Shared,
    moment: &Moment,
    states: &[CrashState],
    effort: Effort,
    seen: &mut HashSet<u64>,
    explored: &mut Explored,
) -> Result<(), String> {
    let setup = known.borrow().pool.media.setup().clone();
    let fork = known.borrow().fork(Media::resumed(moment, &setup));
    let camera = fork.borrow().pool.media.camera();
    let (moments, moved) = camera.film(|| {
        fork.borrow_mut().begin_quiet();
        let fs = Arc::clone(fork.borrow().pool.fs());
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

/// The moments to judge of a run that begins at another moment: few, and every moment before a `persist`.
fn of_second(moments: &[Moment], setup: &Setup, effort: Effort) -> Vec<usize> {
    let most = effort.soon.clamp(4, 8);
    if setup.change.is_some() && moments.iter().any(|moment| moment.changed > 0) {
        return soon_after_change(moments, most);
    }
    let step = moments.len().div_ceil(most);
    (0..moments.len()).filter(|index| index % step == 0 || moments[*index].before_persist).collect()
}

/// Whether a step makes its own change and all earlier changes durable.
fn persists(action: &Action) -> bool {
    matches!(
        action,
        Action::Op(Op::Fsync { .. } | Op::Write { sync: true, .. })
            | Action::Sync
            | Action::SyncDown
            | Action::Remount
            | Action::Unmount
    )
}

/// A copy of the world on media of its own, from which judgements start.
fn copy(world: &Shared, setup: &Setup) -> Shared {
    let now = world.borrow();
    now.fork(Media::from_images(now.pool.media.tier0_content(), now.pool.media.device_images(), setup))
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

/// Runs the last step; answers the states that a crash inside it may leave.
fn apply_last(world: &Shared, action: &Action, seed: u64) -> Vec<CrashState> {
    let states = {
        let world = world.borrow();
        let from = world.pool.now();
        // Later than the clock can get within one operation.
        let when = terrace_reference::Stamp { from, to: from + 1_000_000_000 };
        match action {
            Action::Op(op) => world.states_of(op, when),
            _ => vec![CrashState::now(&world.model)],
        }
    };
    let mut states = states;
    if matches!(
        action,
        Action::WriteBack | Action::Sync | Action::SyncDown | Action::Remount | Action::Unmount
    ) {
        states.extend(CrashState::written_back(&world.borrow().model));
    }
    let earlier = world.borrow().power.unpersisted.clone();
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
    if let Some(journal) = &moment.journal {
        return judge_journal(world, (journal, moment), states, effort, seed, seen, explored);
    }
    let newest = moment.pm.in_epoch(u64::MAX);
    let all = all_subsets(&newest, effort.lines);
    *(if all.is_some() { &mut explored.all } else { &mut explored.sampled }) += 1;
    let mut random = Random(seed);
    let choices: Vec<Choice> = match all {
        Some(mut all) => {
            // Besides old and newest lines also lines in states between.
            all.extend((0..4).map(|_| any_states(&newest, &mut random)));
            all
        }
        None => some_subsets(&newest, effort.samples, seed),
    };
    let mut devices = vec![moment.device_images(DeviceSnapshot::image_none)];
    if moment.devices.iter().any(|device| device.unflushed_count() > 0) {
        devices.push(moment.device_images(DeviceSnapshot::image_all));
        devices.extend((0..2).map(|i| moment.device_images(|device| device.image_random(seed + i))));
    }
    judge_images(world, &newest, &choices, &devices, states, seen, explored)?;
    // On PM where only `persist` makes durable the crash may fall into an earlier epoch.
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

/// Judges images of one epoch, each distinct image once.
fn judge_images(
    world: &Shared,
    pm: &CrashSnapshot,
    choices: &[Choice],
    devices: &[Vec<DeviceImage>],
    states: &[CrashState],
    seen: &mut HashSet<u64>,
    explored: &mut Explored,
) -> Result<(), String> {
    for (index, choice) in choices.iter().enumerate() {
        let of = |line: usize| choice[line];
        let hash = pm.hash_here(&of);
        for (turn, device) in devices.iter().enumerate() {
            // The first two choices meet every device image, later choices two of them.
            if index >= 2 && turn != 0 && turn != 1 + index % (devices.len() - 1) {
                continue;
            }
            let of_devices = device.iter().fold(0, |all: u64, image| all.rotate_left(17) ^ image.hash());
            let whole = hash ^ of_devices.rotate_left(17);
            if !seen.insert(whole) {
                continue;
            }
            explored.states += 1;
            let setup = world.borrow().pool.media.setup().clone();
            let media = Media::from_images(pm.image_here(&of), device.clone(), &setup);
            let fork = world.borrow().fork(media);
            let judged = crate::findings::caught(|| fork.borrow_mut().look_and_leave(states));
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
