//! The search for a planted mistake: scenes and single operations first, then random histories.

use crate::config::{
    Tier0, {Config, Mix},
};
use crate::drivers::acts::{SMALL, TIERS, by_hand, cases};
use crate::drivers::faults;
use crate::drivers::faults::kinds::Kind;
use crate::drivers::run::{Seen, Wrong, run};
use crate::drivers::scenes::{SCENES, Scene};
use crate::drivers::systematic::{Effort, explore};
use crate::kinds::{BASE, CONFIGS};
use terrace_format::map_kind::MapKind;
use terrace_media::block::Operation;
use terrace_runtime::planted::plant;
use terrace_runtime::{interleave, thread};

/// The finding of a mistake.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Images judged until then, summed over all tries.
    pub states: u64,
    /// Operations done until then in random histories.
    pub operations: u64,
    /// The case, or the command that repeats the history.
    pub how: String,
    /// The first words of the violated rule.
    pub what: String,
}

/// The extent of the search.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Random histories of each kind.
    pub histories: u64,
    /// Operations of each history.
    pub operations: u64,
    /// Also try the cases that the test `systematic` explores more closely.
    pub singles: bool,
}

/// The stages of the search, in order: stages that find most mistakes soonest come first.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// The scenes, which search nothing.
    Scenes,
    /// Every operation, on a pool mounted anew or on one that has run.
    Operations(Config, bool),
    /// Relocations, requested movements and tier pins.
    Moves,
    /// A demotion on a device that stalls.
    Stall,
    /// Random histories of the kinds with few files, which end soon.
    FewFiles(u64),
    /// A random history of each kind.
    Histories(u64),
}

/// Histories with few files.
const FEW_FILES: u64 = 4;

fn stages(budget: Budget) -> Vec<Stage> {
    let ordered = Config { name: "systematic-ordered", data_ordered: true, ..SMALL };
    let persist_only = Config { name: "systematic-persist", tier0: Tier0::PersistOnly, ..SMALL };
    let mut stages = vec![Stage::Scenes];
    stages.extend((1..=FEW_FILES).map(Stage::FewFiles));
    // The stall comes late, because with a mistake that loops for ever it would not end.
    stages.extend([Stage::Operations(SMALL, true), Stage::Histories(1), Stage::Stall, Stage::Moves]);
    stages.extend([
        Stage::Operations(persist_only, true),
        Stage::Operations(SMALL, false),
        Stage::Operations(ordered, true),
    ]);
    stages.extend((2..=budget.histories).map(Stage::Histories));
    let closer = |stage: &Stage| match stage {
        Stage::Operations(config, _) => !config.persist_only(),
        Stage::Moves => true,
        _ => false,
    };
    stages.retain(|stage| budget.singles || !closer(stage));
    stages
}

/// The kinds of runs of a stage of random histories.
fn kinds(stage: &Stage) -> impl Iterator<Item = Config> {
    let few = |config: &Config| {
        matches!(config.mix, Mix::Rewrites | Mix::Descriptors) || config.hash_bits < BASE.hash_bits
    };
    let all = !matches!(stage, Stage::FewFiles(_));
    CONFIGS.iter().copied().filter(move |config| all || few(config))
}

/// Searches until a rule is violated. `None`: the budget ended without a violation.
pub fn find(wrong: Wrong, budget: Budget) -> Option<Found> {
    let mut found = Found::default();
    let (singles, _) = cases();
    let seen = Seen::default();
    for stage in stages(budget) {
        let violation = match stage {
            Stage::Scenes => SCENES.iter().find_map(|scene| play(scene, wrong, &mut found)),
            Stage::Operations(config, quiet) => singles.iter().find_map(|case| {
                let effort = Effort { lines: 5, samples: 12, stride: 2, quiet, ..Effort::NONE };
                let explored = explore(config, case, effort, 0, wrong);
                found.states += explored.states;
                found.how = format!("{} on a {} pool", case[0].name, if quiet { "quiet" } else { "busy" });
                explored.violation
            }),
            Stage::Moves => by_hand().iter().find_map(|case| {
                let effort = Effort { lines: 4, samples: 8, stride: 3, quiet: true, ..Effort::NONE };
                let explored = explore(TIERS, case, effort, 0, wrong);
                found.states += explored.states;
                found.how = format!(
                    "{}, two tiers",
                    case.iter().map(|act| act.name).collect::<Vec<_>>().join(", then ")
                );
                explored.violation
            }),
            Stage::Stall => singles.iter().find(|case| case[0].name == "demotion").and_then(|case| {
                found.how = "demotion on a device that stalls".to_string();
                let explored = faults::explore(&case[0], Kind::Stalls(Operation::Write), wrong);
                plant(None);
                explored.err()
            }),
            Stage::FewFiles(seed) | Stage::Histories(seed) => kinds(&stage)
                .find_map(|config| history((config, seed, budget.operations), (wrong, &seen), &mut found)),
        };
        if violation.is_some() {
            return told(found, violation);
        }
    }
    None
}

/// As [`find`], by the scenes and the random histories of the kinds that have a file map.
pub fn find_with_map(wrong: Wrong, map: MapKind, budget: Budget) -> Option<Found> {
    let mut found = Found::default();
    let mut scenes = SCENES.iter().filter(|scene| scene.map == Some(map));
    let mut violation = scenes.find_map(|scene| play(scene, wrong, &mut found));
    let (seen, kinds) = (Seen::default(), || CONFIGS.iter().filter(|config| config.map == map));
    for seed in 1..=budget.histories {
        violation = violation.or_else(|| {
            kinds().find_map(|config| history((*config, seed, budget.operations), (wrong, &seen), &mut found))
        });
    }
    told(found, violation)
}

fn told(found: Found, violation: Option<String>) -> Option<Found> {
    violation.map(|violation| Found { what: violation.chars().take(160).collect(), ..found })
}

/// Plays a scene; gives the violation.
fn play(scene: &Scene, wrong: Wrong, found: &mut Found) -> Option<String> {
    found.how = format!("scene: {}", scene.name);
    thread::set_index(0);
    plant(wrong.mistake);
    let played = crate::findings::caught(scene.play);
    plant(None);
    interleave::set_hook(None);
    played.err()
}

/// Runs a random history of a seed; gives the violation.
fn history(
    (config, seed, operations): (Config, u64, u64),
    (wrong, seen): (Wrong, &Seen),
    found: &mut Found,
) -> Option<String> {
    let ended = run(config, seed, operations, wrong, seen);
    found.states += ended.counts.states;
    found.operations += ended.counts.work.operations;
    found.how = format!("--once --config {} --seed {seed} --operations {operations}", config.name);
    ended.violation.map(|violation| violation.text)
}
