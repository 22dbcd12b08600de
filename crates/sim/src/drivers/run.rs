//! Runs of histories: from a seed or from a recorded list, and the shortening of a history that shows a
//! violation.

use crate::action::{Action, Entry, History};
use crate::actions::amid::install_hook;
use crate::actions::apply::apply;
use crate::actions::remount::end;
use crate::config::Config;
use crate::counts::Counts;
use crate::drivers::generate::Generator;
use crate::media::Setup;
use crate::world::{Shared, World};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use terrace_media::ordering::{Change, OrderingPoint};
use terrace_runtime::planted::{Mistake, plant};
use terrace_runtime::{interleave, thread};

/// The planted fault of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wrong {
    /// A planted mistake.
    pub mistake: Option<Mistake>,
    /// An ordering point left out or weakened.
    pub ordering: Option<(OrderingPoint, Change)>,
}

/// A violation of a rule.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The text of the panic.
    pub text: String,
    /// The last lines of the log.
    pub log: Vec<String>,
    /// The history that led to the violation.
    pub history: History,
    /// Images judged until then.
    pub states: u64,
}

/// The result of a run.
pub struct Ended {
    /// The work that the run did.
    pub counts: Counts,
    /// The ordering points that the run passed, and the number of passes.
    pub points: BTreeMap<OrderingPoint, u64>,
    /// The violation that the run found.
    pub violation: Option<Violation>,
}

/// Hashes of judged images, to count distinct images over several runs.
pub type Seen = Rc<RefCell<HashSet<u64>>>;

/// Runs a history of this many operations from a seed.
pub fn run(config: Config, seed: u64, operations: u64, wrong: Wrong, seen: &Seen) -> Ended {
    let mut history = History::new();
    let mut generator = Generator::new(seed);
    let enough = |world: &Shared, _: usize| world.borrow().counts.work.operations >= operations;
    let mut next = |world: &Shared, _: usize| {
        let entry = generator.next(world);
        history.push(entry.clone());
        Some(entry)
    };
    let setup = setup(wrong);
    let (counts, failed) = drive(config, seed, (wrong, &setup), seen, &enough, &mut next);
    let violation = failed.map(|(text, log)| Violation { text, log, history, states: counts.states });
    let points = setup.points.take();
    Ended { counts, points, violation }
}

fn setup(wrong: Wrong) -> Setup {
    Setup { change: wrong.ordering, ..Setup::default() }
}

/// Repeats a history.
pub fn replay(config: Config, seed: u64, history: &[Entry], wrong: Wrong) -> Option<(String, Vec<String>)> {
    let seen = Seen::default();
    let mut next = |_: &Shared, index: usize| history.get(index).cloned();
    drive(config, seed, (wrong, &setup(wrong)), &seen, &|_, index| index >= history.len(), &mut next).1
}

type Failed = Option<(String, Vec<String>)>;

fn drive(
    config: Config,
    seed: u64,
    (wrong, setup): (Wrong, &Setup),
    seen: &Seen,
    enough: &dyn Fn(&Shared, usize) -> bool,
    next: &mut dyn FnMut(&Shared, usize) -> Option<Entry>,
) -> (Counts, Failed) {
    thread::set_index(0);
    let kept: RefCell<Option<Shared>> = RefCell::new(None);
    let result = crate::findings::caught(|| {
        let world = World::new(config, seed, setup.clone());
        *kept.borrow_mut() = Some(Rc::clone(&world));
        world.borrow_mut().seen = Rc::clone(seen);
        install_hook(&world);
        plant(wrong.mistake);
        let mut index = 0;
        while !enough(&world, index) {
            let Some(entry) = next(&world, index) else { break };
            apply(&world, &entry);
            index += 1;
        }
        end(&world);
    });
    interleave::set_hook(None);
    plant(None);
    let world = kept.into_inner();
    let counts =
        world.as_ref().and_then(|world| world.try_borrow().ok().map(|w| w.counts)).unwrap_or_default();
    let Err(text) = result else { return (counts, None) };
    let log = world.as_ref().and_then(|w| w.try_borrow().ok().map(|w| w.log.iter().cloned().collect()));
    // The broken mount may hang or fail again, so it is never dropped.
    std::mem::forget(world);
    (counts, Some((text, log.unwrap_or_default())))
}

/// Leaves out actions without which a violation still shows, in at most `tries` shorter histories. The
/// violation may change on the way: any violation counts.
pub fn shrink(config: Config, seed: u64, violation: &Violation, wrong: Wrong, tries: usize) -> Violation {
    let mut best = violation.clone();
    let mut tries = tries;
    let mut chunk = (best.history.len() / 2).max(1);
    while tries > 0 {
        let mut at = 0;
        let mut shorter = false;
        while at < best.history.len() && tries > 0 {
            let mut candidate = best.history.clone();
            candidate.drain(at..(at + chunk).min(best.history.len()));
            tries -= 1;
            match replay(config, seed, &candidate, wrong) {
                Some((text, log)) => {
                    best = Violation { text, log, history: candidate, states: best.states };
                    shorter = true;
                }
                None => at += chunk,
            }
        }
        if chunk == 1 && !shorter {
            break;
        }
        chunk = (chunk / 2).max(1);
    }
    best
}

/// A description of a history, a line for each action.
pub fn describe(history: &[Entry]) -> Vec<String> {
    let line = |entry: &Entry| match &entry.action {
        Action::Op(op) => format!("{op:?}"),
        other => format!("{other:?} (seed {:#x})", entry.seed),
    };
    history.iter().map(|entry| line(entry).chars().take(300).collect()).collect()
}
