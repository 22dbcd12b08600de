//! A case: an operation crashed at every persistence event, inside recovery, and after it returned.

use super::{Allowed, Counts, Dump, Effort, Explorer, Moment, SMALL, Shape, World, options};
use std::sync::Arc;
use terrace_engine::Engine;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_media::PmMedium;
use terrace_media::pm::{CrashSnapshot, PmImage};
use terrace_runtime::sync::Mutex;

type Act = Box<dyn Fn(&World, &Arc<Engine>) + Send + Sync>;

/// An operation, and the states that a crash inside it may leave.
pub struct Case {
    pub name: &'static str,
    pub shape: Shape,
    pub setup: Act,
    pub act: Act,
    /// Acts whose results are allowed besides the states before and after. Each is run after a setup of its
    /// own, and its result is compared without times.
    pub prefixes: Vec<Act>,
    /// A further test of a state, for example of torn bytes under data=ordered.
    pub other: Option<Arc<dyn Fn(&Dump) -> bool + Send + Sync>>,
    /// The setup leaves volatile state, which a mount would lose: the case does not run on a quiet pool.
    pub volatile: bool,
}

impl Case {
    pub fn new(
        name: &'static str,
        setup: impl Fn(&World, &Arc<Engine>) + Send + Sync + 'static,
        act: impl Fn(&World, &Arc<Engine>) + Send + Sync + 'static,
    ) -> Case {
        Case {
            name,
            shape: SMALL,
            setup: Box::new(setup),
            act: Box::new(act),
            prefixes: Vec::new(),
            other: None,
            volatile: false,
        }
    }
    #[must_use]
    pub fn shape(mut self, shape: Shape) -> Case {
        self.shape = shape;
        self
    }
    #[must_use]
    pub fn or(mut self, act: impl Fn(&World, &Arc<Engine>) + Send + Sync + 'static) -> Case {
        self.prefixes.push(Box::new(act));
        self
    }
    #[must_use]
    pub fn or_if(mut self, other: impl Fn(&Dump) -> bool + Send + Sync + 'static) -> Case {
        self.other = Some(Arc::new(other));
        self
    }
    #[must_use]
    pub fn volatile(mut self) -> Case {
        self.volatile = true;
        self
    }

    /// The pool before the operation. A quiet pool is mounted anew, so that no line of an older record is
    /// undecided and nearly all moments are small enough for all subsets. A busy pool is in use: the last
    /// record of each lane is above the checkpoint, and its in-place stores are not written back.
    fn prepared(&self, quiet: bool) -> (World, Arc<Engine>) {
        let world = World::new(self.shape);
        let mut fs = world.mount();
        (self.setup)(&world, &fs);
        if quiet {
            fs.unmount().unwrap();
            drop(fs);
            fs = world.mount();
        }
        world.pm.persist().unwrap();
        (world, fs)
    }

    /// The state that a crash now leaves, as a mount shows it.
    fn state_now(&self, world: &World, newest: bool) -> Dump {
        let left = world.crashed(newest);
        let fs = left.mount();
        Dump::of(&fs)
    }

    /// Runs the case on a busy pool and on a quiet one.
    pub fn run(&self, effort: Effort) -> Result<(String, Counts), String> {
        let (mut events, mut counts) = self.run_on(effort, false)?;
        if !self.volatile {
            let (more, others) = self.run_on(effort, true)?;
            events += more;
            counts += others;
        }
        let text = format!("{}: {events} events, {counts}", self.name);
        Ok((text, counts))
    }

    fn run_on(&self, effort: Effort, quiet: bool) -> Result<(u64, Counts), String> {
        let mut explorer = Explorer::new(self.shape, effort);
        let pool = if quiet { "quiet" } else { "busy" };
        let fail = |error: String, counts: Counts| {
            format!("case {:?} on a {pool} pool, after {} states: {error}", self.name, counts.states)
        };
        // First run: the states before and after, and the number of events.
        let (world, fs) = self.prepared(quiet);
        let before = self.state_now(&world, false);
        let first_event = world.clock.now();
        (self.act)(&world, &fs);
        let events = world.clock.now() - first_event;
        let after = self.state_now(&world, true);
        drop(fs);
        let states = vec![before.without_blocks(), after.without_blocks()];
        let mut allowed = Allowed { states, prefixes: Vec::new(), other: self.other.clone() };
        for prefix in &self.prefixes {
            let (world, fs) = self.prepared(quiet);
            prefix(&world, &fs);
            allowed.prefixes.push(self.state_now(&world, true).without_times());
        }
        // Second run: a snapshot at every event.
        let (world, fs) = self.prepared(quiet);
        let begin = world.clock.now();
        let moments = photographed(&world, || (self.act)(&world, &fs));
        let last = moment_of(&world);
        drop(fs);
        let stride = moments.len().div_ceil(effort.recoveries.max(1)).max(1);
        let mut torn = 0;
        for (index, moment) in moments.iter().enumerate() {
            let at = moment.pm.event - begin;
            if effort.takes(index) {
                explorer.moment(moment, index as u64, &allowed).map_err(|error| {
                    fail(format!("crash at event {at} of {events}, {error}"), explorer.counts)
                })?;
            }
            let mut images: Vec<fn(&CrashSnapshot) -> PmImage> = Vec::new();
            if index % stride == stride / 2 {
                images.extend([
                    CrashSnapshot::image_newest as fn(&CrashSnapshot) -> _,
                    CrashSnapshot::image_oldest,
                ]);
            }
            if writes_checkpoint(&moment.pm) && torn < effort.recoveries {
                torn += 1;
                images.push(half);
            }
            for image in images {
                crash_recovery(&mut explorer, moment, image(&moment.pm), &allowed)
                    .map_err(|error| fail(format!("crash at event {at}, {error}"), explorer.counts))?;
            }
        }
        // After the call has returned a crash leaves its result only, unless only `persist` makes durable.
        if !self.shape.persist_only {
            allowed = Allowed { states: vec![allowed.states.remove(1)], ..Allowed::default() };
            explorer.forget();
        }
        explorer
            .moment(&last, 99, &allowed)
            .map_err(|error| fail(format!("crash after the call, {error}"), explorer.counts))?;
        Ok((events, explorer.counts))
    }
}

fn moment_of(world: &World) -> Moment {
    Moment { pm: world.pm.snapshot(), device: world.device.snapshot() }
}

/// The moments before each event of `run`.
fn photographed<R>(world: &World, run: impl FnOnce() -> R) -> Vec<Moment> {
    let moments: Arc<Mutex<Vec<Moment>>> = Arc::default();
    let (pm, device) = (Arc::downgrade(&world.pm), Arc::downgrade(&world.device));
    let kept = Arc::clone(&moments);
    world.clock.on_event(Some(Box::new(move |_| {
        let (Some(pm), Some(device)) = (pm.upgrade(), device.upgrade()) else { return };
        kept.lock().push(Moment { pm: pm.snapshot(), device: device.snapshot() });
    })));
    run();
    world.clock.on_event(None);
    std::mem::take(&mut *moments.lock())
}

/// Whether a copy of the checkpoint is being written, so that a crash may tear it.
fn writes_checkpoint(pm: &CrashSnapshot) -> bool {
    let [first, second] = CHECKPOINT_COPIES;
    pm.pending.iter().any(|line| [first, second].contains(&line.offset().block()))
}

/// The image with half of each line's stores.
fn half(pm: &CrashSnapshot) -> PmImage {
    pm.image(&|line| pm.pending[line].state_count() / 2)
}

/// Crashes at every event of the mount after a crash at `moment` that left `image`, and mounts again.
fn crash_recovery(
    explorer: &mut Explorer,
    moment: &Moment,
    image: PmImage,
    allowed: &Allowed,
) -> Result<(), String> {
    let (whole, before) = (explorer.effort, explorer.counts);
    explorer.effort.samples = whole.recovery_samples;
    let world = World::from_images(explorer.shape, image, moment.device.image_all());
    let moments = photographed(&world, || world.mount_with(options()));
    let mut chosen = moments.iter().enumerate().filter(|(index, _)| whole.takes(*index));
    let done = chosen.try_for_each(|(index, inside)| {
        let crashed = explorer.moment(inside, index as u64, allowed);
        crashed.map_err(|error| format!("crashed at event {index} of the recovery: {error}"))
    });
    explorer.effort = whole;
    let counts = &mut explorer.counts;
    counts.in_recovery += counts.states - before.states;
    counts.recovery_all = counts.recovery_all + counts.all - before.all;
    counts.recovery_sampled = counts.recovery_sampled + counts.sampled - before.sampled;
    (counts.all, counts.sampled) = (before.all, before.sampled);
    done
}
